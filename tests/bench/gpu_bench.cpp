// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the preloaded GPU library costs a job: its hooks, in ns a call; and the rate of a thread that
// posts in the place of a GPU kernel, with the library absent, present without a tracer, and with
// one, by tier. On the fake CUDA driver: the copies cost what memcpy costs, not what a GPU's do.
//
// Each measurement is a process of its own (`bench_gpu --child WHAT`), by turns with and without.
#include <dlfcn.h>
#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "cuda_driver.h"
#include "measure.h"
#include "reader/device_queue.h"
#include "reader/reading.h"

namespace {

constexpr int kCalls = 20'000;

double ns_a_call(int calls, auto&& call) {
  for (int i = 0; i < calls / 10; ++i) call();
  const uint64_t begin = bench::cpu_ns();
  for (int i = 0; i < calls; ++i) call();
  return static_cast<double>(bench::cpu_ns() - begin) / calls;
}

bool start_driver() {
  CUcontext context;
  return cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
         cuCtxSetCurrent(context) == CUDA_SUCCESS;
}

double hook(const std::string& what) {
  if (what == "dlsym") return ns_a_call(kCalls, [] { dlsym(RTLD_DEFAULT, "getpid"); });
  if (what == "dlsym_cuda") return ns_a_call(kCalls, [] { dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"); });
  if (what == "ioctl") {
    int ends[2], bytes = 0;
    if (pipe(ends) != 0) exit(1);
    return ns_a_call(kCalls, [&] { ioctl(ends[0], FIONREAD, &bytes); });
  }
  if (what == "alloc_free")
    return ns_a_call(kCalls / 4, [] {
      CUdeviceptr memory;
      if (cuMemAlloc_v2(&memory, 4096) != CUDA_SUCCESS || cuMemFree_v2(memory) != CUDA_SUCCESS) exit(1);
    });
  exit(2);
}

// Posts a second in CPU time of the poster.
double posts_a_second(const std::string& how) {
  rig::DeviceQueue queue({.blocks = 1024, .keep_truth = false});
  rig::Reading reading(queue, how);
  const double ns = ns_a_call(400'000, [&] {
    queue.post();
    queue.ring_doorbell();
    queue.complete_next();
  });
  return 1e9 / ns;
}

int child(const std::string& what) {
  if (!start_driver()) return 1;
  const bool is_job = what == "absent" || what == "tier3" || what == "tier5";
  std::printf("%.6g\n", is_job ? posts_a_second(what) : hook(what));
  return 0;
}

double run_child(const char* what, bool with_library) {
  std::string command = std::string(with_library ? "LD_PRELOAD=" GPU_LIBRARY " " : "") + "'" + program_invocation_name +
                        "' --child " + what;
  FILE* out = popen(command.c_str(), "r");
  double value = 0;
  if (!out || std::fscanf(out, "%lf", &value) != 1 || pclose(out) != 0) {
    std::fprintf(stderr, "bench_gpu: a child failed: %s\n", command.c_str());
    exit(1);
  }
  return value;
}

void row(const char* name, double value, const char* unit, const char* target, bool ok, const std::string& reason) {
  std::printf("{\"name\": \"gpu.%s\", \"value\": %.6g, \"unit\": \"%s\", \"target\": %s, \"ok\": %s, \"reason\": \"%s\"}\n",
              name, value, unit, target, ok ? "true" : "false", reason.c_str());
  std::fflush(stdout);
}

void hooks() {
  for (const char* what : {"dlsym", "dlsym_cuda", "ioctl", "alloc_free"}) {
    std::vector<double> added;
    for (int i = 0; i < 11; ++i) {
      const double with = run_child(what, true);
      added.push_back(with - run_child(what, false));
    }
    const bench::Estimate of = bench::estimate(added);
    char text[96];
    std::snprintf(text, sizeof text, "added by the hook; 95%% between %.0f and %.0f", of.low, of.high);
    row((std::string("hook_") + what).c_str(), of.median, "ns", "null", true, text);
  }
}

// `first`, with or without the library, against absent.
void job(const char* name, const char* how, bool with_library, bool has_target, double seconds) {
  std::vector<double> ratios;
  const uint64_t end = bench::now_ns() + static_cast<uint64_t>(seconds * 1e9);
  bench::Estimate of;
  for (size_t n = 0; n < 21 || bench::now_ns() < end; ++n) {
    const double a = n % 2 ? run_child(how, with_library) : 0;
    const double absent = run_child("absent", false);
    ratios.push_back((n % 2 ? a : run_child(how, with_library)) / absent);
    of = bench::estimate(ratios);
    if (n >= 21 && of.uncertainty() < 0.005) break;
  }
  char text[96];
  std::snprintf(text, sizeof text, "95%% between %.4f and %.4f, %zu pairs", of.low, of.high, of.n);
  const bool narrow = of.high - of.low < 0.01;
  row(name, of.median, "of the rate without", has_target ? "1" : "null",
      !has_target || (narrow && of.low <= 1 && of.high >= 1), text);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--child") == 0) return child(argv[2]);
  hooks();
  job("job_a_a", "absent", false, false, 30);
  job("job_present", "absent", true, true, 90);
  job("job_traced_tier3", "tier3", true, false, 30);
  job("job_traced_tier5", "tier5", true, false, 30);
}
