// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Jobs that hang, and drivers that are slow, stuck or gone: what is said of it, and that the job goes on.
#include <unistd.h>

#include <string>
#include <vector>

#include "reader/observed.h"
#include "reader/rig.h"

using namespace rig;
using sigma::gpu::SamplerOptions;

TEST_CASE("of memory that is gone the reader says whether its queue went with it") {
  const Driver driver;
  const bool with_queue = GENERATE(true, false), mapped = GENERATE(true, false);
  INFO("with its queue " << with_queue << ", mapped " << mapped);
  Records& records = Records::get();
  records.posts.clear(), records.gaps.clear(), records.completions.clear(), records.rings.clear();
  auto queue = std::make_unique<DeviceQueue>(Shape{.blocks = 128});
  const uint32_t number = queue->shape().qp_num;
  Observed observed(patient(), mapped);
  observed.add(*queue);
  observed.refresh();
  for (int i = 0; i < 20; ++i) queue->post();
  queue->ring_doorbell();
  queue->complete_all();
  observed.look();
  queue = nullptr;
  if (with_queue) observed.destroyed(0);
  for (int i = 0; i < 3; ++i) observed.look();
  observed.end_all();
  std::vector<sigma_ring> told;
  for (const sigma_ring& ring : records.rings)
    if (ring.kind == SIGMA_RING_SEND && ring.number == number) told.push_back(ring);
  REQUIRE_FALSE(told.empty());
  CHECK(told.back().event == SIGMA_RING_END);
  CHECK(told.back().tier == (with_queue ? (mapped ? 2 : 3) : 0));
  CHECK(told.back().mode == (with_queue ? SIGMA_RING_READ : SIGMA_RING_SETUP));
  CHECK(std::string(told.back().reason) == SIGMA_RING_END_UNSEEN);
  CHECK(records.has_state("its memory is gone") != with_queue);
  CHECK(records.posts.size() + records.gaps.size() > 0);
}

TEST_CASE("a hang is told with what is pending, and the first error with its syndrome") {
  const Driver driver;
  DeviceQueue queue({.blocks = 128});
  SamplerOptions options = patient();
  options.snapshots_only = GENERATE(false, true);
  options.hang_ns = 50'000'000;
  Records::get().posts.clear(), Records::get().rings.clear(), Records::get().completions.clear();
  Records::get().gaps.clear();
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  for (int i = 0; i < 200; ++i) {
    queue.post();
    queue.complete_next();
    queue.ring_doorbell();
    if (i % 30 == 29) observed.look();
  }
  for (int i = 0; i < 5; ++i) queue.post();
  queue.ring_doorbell();
  while (!Records::get().has_state("hung")) {
    observed.look();
    usleep(1000);
  }
  // A snapshot asks for slots that are quiet: a look or two later.
  while (Records::get().posts.empty() || Records::get().posts.back().index < 204) {
    usleep(1000);
    observed.look();
  }
  queue.fail_next(0x15, 0x81);
  observed.look();
  usleep(60'000);
  observed.look();
  queue.fail_next(0x05, 0);
  usleep(60'000);
  observed.look();
  observed.end_all();
  const Verdict verdict = compare(queue);
  CHECK(verdict.seen + verdict.missed == 205);
  CHECK(verdict.seen >= 100);
  bool last_seen = false;
  for (const auto& post : Records::get().posts) last_seen |= post.index == 204;
  CHECK(last_seen);
  REQUIRE(Records::get().completions.size() >= 2);
  const auto& completions = Records::get().completions;
  const auto& first = completions[completions.size() - 2];
  CHECK(first.vendor_err == 0x81);
  CHECK(first.status == 12);  // IBV_WC_RETRY_EXC_ERR
  CHECK(first.wqe_counter == 200);
  CHECK(completions.back().status == 5);  // IBV_WC_WR_FLUSH_ERR
}

namespace {

// Looks at a hundred requests for three times as long as a hang takes.
void look_at_pending(DeviceQueue& queue, SamplerOptions options, bool they_complete) {
  options.hang_ns = 100'000'000;
  Records::get().rings.clear();
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  for (int i = 0; i < 100; ++i) queue.post();
  queue.ring_doorbell();
  observed.look();
  for (const uint64_t begin = now_ns(); now_ns() - begin < 3 * options.hang_ns; usleep(5000)) {
    if (they_complete) queue.complete_next();
    observed.look();
  }
  CHECK_FALSE(Records::get().has_state(SIGMA_RING_HUNG));
}

}  // namespace

TEST_CASE("a queue whose requests complete does not hang, however long it was not posted to") {
  const Driver driver;
  DeviceQueue queue({.blocks = 128});
  look_at_pending(queue, patient(), true);
}

TEST_CASE("a queue that cannot be looked at is not said to hang") {
  const Driver driver({{"SIGMA_CUDA_HANG_AFTER", "12"}});
  DeviceQueue queue({.blocks = 128});
  SamplerOptions options;
  options.copy_limit_ns = 1'000'000;
  look_at_pending(queue, options, false);
}

TEST_CASE("a reader that gives up says so of the queues that are still there") {
  const Driver driver({{"SIGMA_CUDA_HANG_AFTER", "30"}});
  Records& records = Records::get();
  records.rings.clear();
  DeviceQueue gone({.blocks = 128}), there({.blocks = 128, .qp_num = 0x4712});
  SamplerOptions options;
  options.copy_limit_ns = 1'000'000;
  options.give_up_ns = 50'000'000;
  Observed observed(options);
  observed.add(gone);
  observed.add(there);
  observed.refresh();
  observed.look();
  observed.destroyed(0);
  while (!records.has_state("a copy does not end")) {
    there.post();
    there.ring_doorbell();
    there.complete_all();
    observed.look();
  }
  observed.end_all();
  std::map<uint32_t, sigma_ring> last;
  for (const sigma_ring& ring : records.rings)
    if (ring.kind == SIGMA_RING_SEND) last[ring.number] = ring;
  CHECK(last[0x4711].tier == 3);
  CHECK(last[0x4711].mode == SIGMA_RING_READ);
  CHECK(last[0x4712].tier == 0);
  for (const auto& [number, ring] : last) {
    CHECK(ring.event == SIGMA_RING_END);
    CHECK(std::string(ring.reason) == SIGMA_RING_END_UNSEEN);
  }
}

TEST_CASE("a copy that never ends costs the reader, and no call of the job") {
  const Driver driver({{"SIGMA_CUDA_HANG_AFTER", "40"}});
  DeviceQueue queue({.blocks = 128});
  SamplerOptions options;
  options.give_up_ns = 100'000'000;
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  observed.start();
  auto random = random_numbers(7);
  while (!Records::get().has_state("a copy does not end")) {
    post_freely(queue, 200, random, 8);
    CUdeviceptr memory;
    CUmodule module;
    REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoD_v2(memory, &memory, 8) == CUDA_SUCCESS);
    REQUIRE(cuMemFree_v2(memory) == CUDA_SUCCESS);
    REQUIRE(cuModuleLoadData(&module, "") == CUDA_SUCCESS);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  }
  observed.stop();
  observed.end_all();
  // What it did say before is true.
  Records& records = Records::get();
  for (const auto& post : records.posts)
    CHECK(post.remote_addr == 0x5000'0000'0000 + post.index * 4096);
  uint8_t mode = 0;
  for (const sigma_ring& ring : records.rings)
    if (ring.kind == SIGMA_RING_SEND) mode = ring.mode;
  CHECK(mode == SIGMA_RING_SETUP);
}

TEST_CASE("a capture of the job goes on while the reader copies") {
  const Driver driver;
  DeviceQueue queue({.blocks = 128});
  Observed observed;
  observed.add(queue);
  observed.refresh();
  observed.start();
  auto random = random_numbers(9);
  CUstream stream;
  REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    REQUIRE(cuStreamBeginCapture_v2(stream, mode) == CUDA_SUCCESS);
    const uint64_t seen = observed.told_of(0);
    do post_freely(queue, 500, random, 4);
    while (observed.told_of(0) <= seen);
    CUgraph graph;
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  }
  observed.stop();
}

TEST_CASE("the reader leaves a context before its end, and comes back to a new one") {
  const Driver driver;
  auto queue = std::make_unique<DeviceQueue>(Shape{.blocks = 128});
  Observed observed(patient());
  observed.add(*queue);
  observed.refresh();
  queue->post();
  queue->ring_doorbell();
  observed.look();
  observed.leave_device(0);
  REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  unsigned flags;
  int active = 1;
  REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);  // no reference of ours kept it
  observed.look();
  REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);  // nor did we make one
}
