// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// bench attach: 50 probes of 10 programs in 3 files, attached and detached. The files are copies of
// the test provider, mapped by this process, which is the target. Then the same probes, for all
// processes, while 200 run that map the files: how long that takes, and what it costs them.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "attach/capture.h"
#include "attach/links.h"
#include "attach/probe_table.h"
#include "measure.h"
#include "tests/temporary_folder.h"

using namespace sigma;

namespace {

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "bench attach: %s\n", what.c_str());
  exit(1);
}

LibraryPlan plan_of(const std::filesystem::path& file, size_t wanted) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(dlerror());
  LibraryPlan plan;
  plan.path = file.string();
  for (const ProbeRow& row : probe_table()) {
    // Few of the many builders, so that the probes spread over ten programs.
    const bool builder =
        std::string_view(row.entry) == "wr_builder" && row.function != SIGMA_FN_WR_SEND &&
        row.function != SIGMA_FN_WR_RDMA_WRITE && row.function != SIGMA_FN_WR_RDMA_READ;
    if (builder || row.function == SIGMA_FN_CLOSE_DEVICE || plan.functions.size() == wanted)
      continue;
    const void* address = dlsym(library, ("provider_" + std::string(row.name)).c_str());
    if (!address) fail(dlerror());
    auto site = own_site(address);
    if (!site) fail(site.error().what);
    ResolvedFunction function = {};
    function.function = row.function;
    function.site.file_offset = function.return_site.file_offset = site->offset;
    function.return_site.return_valid = true;
    plan.functions.push_back(function);
  }
  return plan;
}

void measure(const char* form, const Features& features, const std::vector<LibraryPlan>& plans,
             bool judged, size_t rounds) {
  auto loaded = Capture::load({.ring_bytes = 1u << 20}, features);
  if (!loaded) fail(loaded.error().what);
  Capture& capture = **loaded;
  std::vector<double> attach_ms, detach_ms;
  for (size_t round = 0; round < rounds; round++) {
    const uint64_t start = bench::now_ns();
    for (const LibraryPlan& plan : plans)
      if (!capture.attach(plan, getpid(), {}).failed.empty())
        fail("not all probes could be attached");
    const uint64_t middle = bench::now_ns();
    capture.detach();
    const uint64_t end = bench::now_ns();
    attach_ms.push_back(static_cast<double>(middle - start) / 1e6);
    detach_ms.push_back(static_cast<double>(end - middle) / 1e6);
  }
  const std::string name = std::string("attach.") + form;
  const double target = judged ? 100 : -1;
  const double attached = bench::estimate(attach_ms).median,
               detached = bench::estimate(detach_ms).median;
  bench::row((name + "_attach").c_str(), attached, "ms for 50 probes", target,
             !judged || attached < target);
  bench::row((name + "_detach").c_str(), detached, "ms for 50 probes", target,
             !judged || detached < target);
}

// What a start costs before anything is attached: nearly all of it is the kernel's verifier.
void measure_load(const Features& features) {
  std::vector<double> cpu_ms;
  for (int round = 0; round < 7; round++) {
    timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    if (!Capture::load({.ring_bytes = 1u << 20}, features)) fail("the programs could not be loaded");
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    cpu_ms.push_back(static_cast<double>(end.tv_sec - begin.tv_sec) * 1e3 + static_cast<double>(end.tv_nsec - begin.tv_nsec) / 1e6);
  }
  bench::row("attach.load", bench::estimate(cpu_ms).median, "ms of CPU to load the programs", -1, true);
}

// Processes that change their memory map all the time, as an allocator does: a probe that is placed in
// one of their files keeps them from it for a moment.
class Crowd {
 public:
  explicit Crowd(size_t count) : count_(count) {
    void* shared = mmap(nullptr, count * sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail("mmap failed");
    longest_ = static_cast<std::atomic<uint64_t>*>(shared);
    for (size_t i = 0; i < count; i++) {
      pids_.push_back(fork());
      if (pids_.back() < 0) fail("fork failed");
      if (pids_.back() == 0) live(longest_[i]);
    }
  }
  ~Crowd() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  // Of each, the longest time since the last call that one change took, in ms.
  std::vector<double> longest_ms() {
    std::vector<double> all;
    for (size_t i = 0; i < count_; i++) all.push_back(static_cast<double>(longest_[i].exchange(0)) / 1e6);
    return all;
  }

 private:
  [[noreturn]] static void live(std::atomic<uint64_t>& longest) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
      const uint64_t begin = bench::now_ns();
      void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      munmap(page, 4096);
      const uint64_t took = bench::now_ns() - begin;
      if (took > longest) longest = took;
      usleep(5000);
    }
  }
  size_t count_;
  std::atomic<uint64_t>* longest_ = nullptr;
  std::vector<pid_t> pids_;
};

// Placed file by file; within one the kernel takes the processes one after another.
void measure_crowd(const Features& features, const std::vector<LibraryPlan>& plans) {
  constexpr size_t kProcesses = 200, kRounds = 5;
  auto loaded = Capture::load({.ring_bytes = 1u << 20}, features);
  if (!loaded) fail(loaded.error().what);
  Crowd crowd(kProcesses);
  std::vector<double> attach_ms, quiet_ms, held_ms;
  for (size_t round = 0; round < kRounds; round++) {
    usleep(300'000);
    (void)crowd.longest_ms();
    usleep(300'000);
    for (const double ms : crowd.longest_ms()) quiet_ms.push_back(ms);
    const uint64_t start = bench::now_ns();
    for (const LibraryPlan& plan : plans)
      if (!(*loaded)->attach(plan, 0, {}).failed.empty()) fail("not all probes could be attached");
    attach_ms.push_back(static_cast<double>(bench::now_ns() - start) / 1e6);
    usleep(100'000);
    for (const double ms : crowd.longest_ms()) held_ms.push_back(ms);
    (*loaded)->detach();
  }
  bench::row("attach.running_200", bench::estimate(attach_ms).median, "ms for 50 probes in 200 processes", -1, true);
  bench::row("attach.running_200_held", bench::estimate(held_ms).median, "ms, longest mmap of a process", -1, true);
  bench::row("attach.running_200_quiet", bench::estimate(quiet_ms).median, "ms, likewise without attach", -1, true);
}

}  // namespace

int main() {
  const test::TemporaryFolder folder;
  std::vector<LibraryPlan> plans;
  std::set<std::string> programs;
  size_t probes = 0;
  for (const size_t wanted : {17, 17, 16}) {
    const auto file = folder.path() / ("libcopy" + std::to_string(plans.size()) + ".so");
    std::filesystem::copy_file(PROVIDER_PATH, file);
    plans.push_back(plan_of(file, wanted));
    probes += plans.back().functions.size();
    for (const ResolvedFunction& function : plans.back().functions)
      programs.insert(probe_row(function.function).entry);
  }
  bench::row("attach.probes", static_cast<double>(probes), "probes", 50, probes == 50);
  bench::row("attach.programs", static_cast<double>(programs.size()), "programs", -1, true);

  const Features features = Features::probe();
  measure_load(features);
  const bool multi = features.uprobe_multi && features.multi_pid_filter;
  if (features.uprobe_session) measure("session", features, plans, multi, 21);
  Features reduced = features;
  disable_features(reduced, "session");
  if (multi) measure("multi", reduced, plans, !features.uprobe_session, 21);
  disable_features(reduced, "multi");
  measure("perf", reduced, plans, false, 3);
  measure_crowd(features, plans);
  return 0;
}
