// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/calibrate.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "attach/capture.h"
#include "attach/links.h"
#include "bpf/verbs.h"

// Functions of a provider's shape that do nothing. Their first instruction is one that the kernel
// emulates, as at the sites which the resolver chooses.
extern "C" {
int sigma_calibrate_post(void* qp, void* wr, void** bad_wr);
int sigma_calibrate_poll(void* cq, int n, void* wc);
}
#if defined(__x86_64__)
asm(R"(
  .pushsection .text
  .globl sigma_calibrate_post
  .hidden sigma_calibrate_post
  .type sigma_calibrate_post, @function
sigma_calibrate_post:
  push %rbp
  xor %eax, %eax
  pop %rbp
  ret
  .size sigma_calibrate_post, . - sigma_calibrate_post
  .globl sigma_calibrate_poll
  .hidden sigma_calibrate_poll
  .type sigma_calibrate_poll, @function
sigma_calibrate_poll:
  push %rbp
  xor %eax, %eax
  pop %rbp
  ret
  .size sigma_calibrate_poll, . - sigma_calibrate_poll
  .popsection
)");
#else
extern "C" __attribute__((noinline)) int sigma_calibrate_post(void*, void*, void**) {
  asm volatile("");
  return 0;
}
extern "C" __attribute__((noinline)) int sigma_calibrate_poll(void*, int, void*) {
  asm volatile(" ");
  return 0;
}
#endif

namespace sigma {
namespace {

uint64_t now_ns() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// Nanoseconds a call: the median of batches short enough to fall between two timer ticks.
template <typename Call>
double cost_of(Call call) {
  constexpr int kBatches = 41, kCalls = 200;
  std::array<double, kBatches> costs;
  for (double& cost : costs) {
    const uint64_t start = now_ns();
    for (int i = 0; i < kCalls; i++) call();
    cost = static_cast<double>(now_ns() - start) / kCalls;
  }
  std::nth_element(costs.begin(), costs.begin() + kBatches / 2, costs.end());
  return costs[kBatches / 2];
}

Result<LibraryPlan> own_plan(sigma_function function, const void* address) {
  SIGMA_ASSIGN(const OwnSite own, own_site(address));
  LibraryPlan plan;
  plan.path = own.path;
  ResolvedFunction resolved = {};
  resolved.function = function;
  resolved.site.file_offset = own.offset;
  resolved.return_site.file_offset = own.offset;
  resolved.return_site.return_valid = true;
  plan.functions.push_back(resolved);
  return plan;
}

Status attach_own(Capture& capture, sigma_function function, const void* address, bool checked) {
  SIGMA_ASSIGN(const LibraryPlan plan, own_plan(function, address));
  const AttachReport report = capture.attach(plan, getpid(), {.check_posts = checked});
  if (!report.failed.empty()) return Error{"calibration: " + report.failed.front().reason};
  return {};
}

}  // namespace

Result<HitCost> calibrate(const Features& features) {
  // Small: a full ring costs as much as a ring with room, less the copy of 120 bytes; it is drained
  // by nobody, so give it room for what the first measurements emit.
  SIGMA_ASSIGN(const auto capture, Capture::load({.ring_bytes = 4u << 20}, features));
  sigma_ibv_qp qp = {};
  sigma_ibv_sge sge = {};
  sigma_ibv_send_wr wr = {};
  wr.sg_list = reinterpret_cast<uintptr_t>(&sge);
  wr.num_sge = 1;
  uint64_t cq = 0;
  void* bad_wr = nullptr;
  auto post = [&] { sigma_calibrate_post(&qp, &wr, &bad_wr); };
  auto poll = [&] { sigma_calibrate_poll(&cq, 1, nullptr); };
  const auto* post_address = reinterpret_cast<const void*>(&sigma_calibrate_post);
  const auto* poll_address = reinterpret_cast<const void*>(&sigma_calibrate_poll);

  HitCost cost;
  SIGMA_CHECK(attach_own(*capture, SIGMA_FN_POST_SEND, post_address, false));
  cost.filtered_ns = cost_of(post);
  SIGMA_CHECK(capture->add_target(getpid()));
  cost.post_ns = cost_of(post);
  capture->detach();
  SIGMA_CHECK(attach_own(*capture, SIGMA_FN_POST_SEND, post_address, true));
  cost.checked_ns = cost_of(post);
  capture->detach();
  SIGMA_CHECK(attach_own(*capture, SIGMA_FN_POLL_CQ, poll_address, true));
  cost.empty_poll_ns = cost_of(poll);
  return cost;
}

}  // namespace sigma
