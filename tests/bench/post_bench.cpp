// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// bench post: what a traced call costs against an empty uprobe at the same site.
//
// Each variant has a function of its own, all alike, probed all the time: pairs alternate between
// functions and nothing is attached or detached in between. The ring is drained on a 1 ms timer by
// another thread, as in life.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attach/capture.h"
#include "attach/links.h"
#include "attach/trial.h"
#include "bpf/verbs.h"
#include "measure.h"

#if !defined(__x86_64__)
#error \
    "bench post needs functions that begin with an emulated instruction: write them for this machine"
#endif

// Alike to the byte, each on a cache line of its own: push, mov, xor, pop, ret.
constexpr int kFunctions = 40;
extern "C" int bench_functions(void*, void*, void*, uint64_t);
asm(R"(
  .pushsection .text
  .balign 64
  .globl bench_functions
  .hidden bench_functions
bench_functions:
  .rept 40
  .balign 64
  push %rbp
  mov %rsp, %rbp
  mov %ecx, %eax
  pop %rbp
  ret
  .endr
  .popsection
)");

using namespace sigma;

namespace {

using Function = int (*)(void*, void*, void*, uint64_t);

Function function_of(int n) {
  if (n >= kFunctions) abort();
  return reinterpret_cast<Function>(reinterpret_cast<uintptr_t>(&bench_functions) +
                                    64u * static_cast<unsigned>(n));
}

int next_function = 0;
Function take_function() {
  return function_of(next_function++);
}

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "bench post: %s\n", what.c_str());
  exit(1);
}

OwnSite site_of(Function function) {
  auto site = own_site(reinterpret_cast<const void*>(function));
  if (!site) fail(site.error().what);
  return *site;
}

ResolvedFunction resolved(sigma_function what, Function function) {
  ResolvedFunction result = {};
  result.function = what;
  result.site.file_offset = result.return_site.file_offset = site_of(function).offset;
  result.return_site.return_valid = true;
  return result;
}

// A function under an empty program: the yardstick.
struct Empty {
  Fd program;
  UprobeLink link;
  Function function = take_function();

  explicit Empty(bool multi) : program(load_empty_program(multi ? kAttachUprobeMulti : 0)) {
    const OwnSite site = site_of(function);
    int error;
    if (multi) {
      const uint64_t offsets[] = {site.offset};
      UprobeMultiRequest request;
      request.program_fd = program.get();
      request.path = site.path;
      request.offsets = offsets;
      request.pid = getpid();
      error = link_uprobe_multi(request, link);
    } else {
      error = link_uprobe_perf(program.get(), site.path, site.offset, 0, getpid(), false, link);
    }
    if (error) fail("an empty probe cannot be attached: " + errno_text(-error));
  }
};

// A loaded Capture with its ring being drained.
class Traced {
 public:
  explicit Traced(const Features& features) {
    auto loaded = Capture::load({.ring_bytes = 8u << 20}, features);
    if (!loaded) fail(loaded.error().what);
    capture_ = *std::move(loaded);
    if (!capture_->add_target(getpid()).ok()) fail("cannot trace itself");
    ring_.reset(ring_buffer__new(
        capture_->ring_map_fd(), [](void*, void*, size_t) { return 0; }, nullptr, nullptr));
    drainer_ = std::thread([this] {
      while (!stop_) {
        ring_buffer__consume(ring_.get());
        usleep(1000);
      }
    });
  }
  ~Traced() {
    stop_ = true;
    drainer_.join();
  }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

  Function probe(sigma_function what, bool check) {
    const Function function = take_function();
    LibraryPlan plan;
    plan.path = site_of(function).path;
    plan.functions.push_back(resolved(what, function));
    const AttachReport report = capture_->attach(plan, getpid(), {.check_posts = check});
    if (!report.failed.empty()) fail(report.failed.front().reason);
    return function;
  }
  Capture& capture() { return *capture_; }
  // As in life the context's commands are seen, so that BPF may rely on what it knows of queue
  // pairs.
  void see_commands_of(void* context) {
    const Function execute = probe(SIGMA_FN_EXECUTE_IOCTL, true);
    char command[128] = {};
    execute(context, command, nullptr, 0);
  }

 private:
  struct FreeRing {
    void operator()(ring_buffer* ring) const { ring_buffer__free(ring); }
  };
  std::unique_ptr<Capture> capture_;
  std::unique_ptr<ring_buffer, FreeRing> ring_;
  std::atomic<bool> stop_ = false;
  std::thread drainer_;
};

// What is posted: one RDMA write of one SGE; and a list of four with two SGEs each.
struct Requests {
  char context[512] = {};
  alignas(64) sigma_ibv_qp qp = {};
  sigma_ibv_sge sges[2] = {};
  sigma_ibv_send_wr one = {};
  sigma_ibv_send_wr list[4] = {};
  alignas(64) uint32_t doorbell[2] = {};

  Requests() {
    qp.context = reinterpret_cast<uintptr_t>(context);
    qp.qp_num = 17;
    qp.qp_type = 2;
    one.sg_list = reinterpret_cast<uintptr_t>(sges);
    one.num_sge = 1;
    for (int i = 0; i < 4; i++) {
      list[i].sg_list = reinterpret_cast<uintptr_t>(sges);
      list[i].num_sge = 2;
      list[i].next = i < 3 ? reinterpret_cast<uintptr_t>(&list[i + 1]) : 0;
    }
  }
};

// What the kernel has counted for all loaded programs of this name (truncated as it does).
struct RunTime {
  uint64_t ns = 0, runs = 0;
};
RunTime run_time_of(const std::string& name) {
  RunTime sum;
  for (uint32_t id = 0; bpf_prog_get_next_id(id, &id) == 0;) {
    const Fd program(bpf_prog_get_fd_by_id(id));
    bpf_prog_info info = {};
    uint32_t size = sizeof(info);
    if (!program || bpf_obj_get_info_by_fd(program.get(), &info, &size) ||
        name.substr(0, 15) != info.name)
      continue;
    sum.ns += info.run_time_ns;
    sum.runs += info.run_cnt;
  }
  return sum;
}

// The program's own time, without the trap that leads to it: comparable between machines whose
// traps differ (650 ns on one, 5,400 ns on another, where the guest's faults leave it). Holds the
// two clock readings that the counting itself takes.
void program_row(const char* name, const char* program, const std::function<void(int)>& run) {
  const Fd counting(bpf_enable_stats(BPF_STATS_RUN_TIME));
  if (!counting) fail("the kernel does not count programs' run time: " + errno_text(errno));
  std::vector<double> rounds;
  for (int i = 0; i < 101; i++) {
    const RunTime before = run_time_of(program);
    run(500);
    const RunTime after = run_time_of(program);
    if (after.runs != before.runs)
      rounds.push_back(static_cast<double>(after.ns - before.ns) /
                       static_cast<double>(after.runs - before.runs));
  }
  bench::row(name, bench::estimate(rounds).median, "ns, BPF only", -1, true);
}

std::function<void(int)> calls(Function function, void* first, void* second, void* third,
                               uint64_t result = 0) {
  return [=](int n) {
    for (int i = 0; i < n; i++) function(first, second, third, result);
  };
}

}  // namespace

int main() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(0, &cpus);
  Features features = Features::probe();
  if (!features.uprobe_multi) fail("this kernel has no multi links: nothing to compare by");
  Traced session(features);
  Features without_session = features;
  disable_features(without_session, "session");
  Traced multi(without_session);
  sched_setaffinity(0, sizeof(cpus), &cpus);  // this thread; the drainers keep theirs

  Requests requests, doorbell_requests;
  void* bad_wr = nullptr;
  constexpr int kCalls = 500;
  const Function plain = take_function();
  const Empty empty(true), again(true), by_perf(false);
  const auto yardstick = calls(empty.function, &requests.qp, &requests.one, &bad_wr);

  const auto unprobed = bench::compare(calls(plain, nullptr, nullptr, nullptr),
                                       calls(plain, nullptr, nullptr, nullptr), kCalls * 100, 5);
  bench::row("post.unprobed_call", unprobed.first_ns.median, "ns", -1, true);
  const auto same = bench::compare(
      yardstick, calls(again.function, &requests.qp, &requests.one, &bad_wr), kCalls);
  bench::row("post.empty_uprobe", same.first_ns.median, "ns", -1, true);
  bench::ratio_row("post.a_a", same.ratio);
  bench::ratio_row(
      "post.empty_perf_link",
      bench::compare(yardstick, calls(by_perf.function, nullptr, nullptr, nullptr), kCalls).ratio);

  auto post = [&](const char* name, Function function, Requests& what, sigma_ibv_send_wr* wr,
                  double target) {
    const auto result = bench::compare(yardstick, calls(function, &what.qp, wr, &bad_wr), kCalls);
    const std::string ns = std::string(name) + "_ns";
    bench::row(ns.c_str(), result.second_ns.median, "ns", -1, true);
    bench::ratio_row(name, result.ratio, target);
  };

  for (Traced* traced : {&session, &multi})
    for (Requests* which : {&requests, &doorbell_requests}) traced->see_commands_of(which->context);

  // mlx5: the doorbell record's address is known once the QP is.
  const Function indexed = session.probe(SIGMA_FN_POST_SEND, false);
  if (!session.capture()
           .set_doorbell(getpid(), reinterpret_cast<uintptr_t>(&doorbell_requests.qp), 17,
                         reinterpret_cast<uintptr_t>(doorbell_requests.doorbell))
           .ok())
    fail("no doorbell");
  post("post.mlx5_index", indexed, doorbell_requests, &doorbell_requests.one, 1.6);
  post("post.no_check", session.probe(SIGMA_FN_POST_SEND, false), requests, &requests.one, 1.45);
  post("post.checked_session", session.probe(SIGMA_FN_POST_SEND, true), requests, &requests.one,
       features.uprobe_session ? 2.0 : -1);
  post("post.checked_multi", multi.probe(SIGMA_FN_POST_SEND, true), requests, &requests.one,
       features.uprobe_session ? -1 : 2.0);
  program_row("post.mlx5_index_program", "post_send",
              calls(indexed, &doorbell_requests.qp, &doorbell_requests.one, &bad_wr));
  program_row("post.no_check_program", "post_send",
              calls(indexed, &requests.qp, &requests.one, &bad_wr));
  program_row("post.empty_program", "sigma_trial", yardstick);
  post("post.list_of_4", session.probe(SIGMA_FN_POST_SEND, false), requests, requests.list, -1);

  // One RDMA write by the builders: start, write, SGE, complete.
  const Function start = session.probe(SIGMA_FN_WR_START, true),
                 write = session.probe(SIGMA_FN_WR_RDMA_WRITE, true),
                 sge = session.probe(SIGMA_FN_WR_SET_SGE, true),
                 complete = session.probe(SIGMA_FN_WR_COMPLETE, true);
  char ex[512] = {};
  memcpy(ex, &requests.qp, sizeof(requests.qp));
  const auto builders = bench::compare(
      yardstick,
      [&](int n) {
        for (int i = 0; i < n; i++) {
          start(ex, nullptr, nullptr, 0);
          write(ex, nullptr, nullptr, 0);
          sge(ex, nullptr, nullptr, 0);
          complete(ex, nullptr, nullptr, 0);
        }
      },
      kCalls / 4);
  bench::row("post.builders_ns", builders.second_ns.median, "ns a request", -1, true);
  bench::row("post.builders", builders.ratio.median / 4, "x a call", -1, true);

  uint64_t cq = 0;
  sigma_ibv_wc wc = {};
  const Function poll_session = session.probe(SIGMA_FN_POLL_CQ, true);
  const Function poll_multi = multi.probe(SIGMA_FN_POLL_CQ, true);
  auto poll = [&](const char* name, Function function, uint64_t n) {
    const auto result = bench::compare(yardstick, calls(function, &cq, nullptr, &wc, n), kCalls);
    const std::string ns = std::string(name) + "_ns";
    bench::row(ns.c_str(), result.second_ns.median, "ns", -1, true);
    bench::ratio_row(name, result.ratio);
  };
  poll("post.poll_empty_session", poll_session, 0);
  poll("post.poll_one_session", poll_session, 1);
  poll("post.poll_empty_multi", poll_multi, 0);
  poll("post.poll_one_multi", poll_multi, 1);

  const auto counters = session.capture().counters();
  bench::row("post.records_dropped", static_cast<double>(counters[SIGMA_COUNT_DROPPED]), "records",
             0, counters[SIGMA_COUNT_DROPPED] == 0);
  return 0;
}
