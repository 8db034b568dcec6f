// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the preloaded GPU library's hooks cost a job, in ns a call, on the fake CUDA driver. The first
// part of `bench gpu`: one JSON object a row on standard output.
//
// Each measurement is a process of its own (`bench_gpu_hooks --child WHAT`), by turns with and
// without.
#include <dlfcn.h>
#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "cuda_driver.h"
#include "measure.h"

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

int child(const std::string& what) {
  if (!start_driver()) return 1;
  std::printf("%.6g\n", hook(what));
  return 0;
}

double run_child(const char* what, bool with_library) {
  std::string command = std::string(with_library ? "LD_PRELOAD=" GPU_LIBRARY " " : "") + "'" + program_invocation_name +
                        "' --child " + what;
  FILE* out = popen(command.c_str(), "r");
  double value = 0;
  if (!out || std::fscanf(out, "%lf", &value) != 1 || pclose(out) != 0) {
    std::fprintf(stderr, "bench_gpu_hooks: a child failed: %s\n", command.c_str());
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

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--child") == 0) return child(argv[2]);
  hooks();
}
