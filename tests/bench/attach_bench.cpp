// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// bench attach: 50 probes of 10 programs in 3 files, attached and detached. The files are copies of
// the test provider, mapped by this process, which is the target.
#include <dlfcn.h>
#include <unistd.h>

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

using namespace sigma;

namespace {

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "bench attach: %s\n", what.c_str());
  exit(1);
}

// Removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "sigma-bench-XXXXXX").string();
    if (!mkdtemp(name.data())) fail("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

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

}  // namespace

int main() {
  const TemporaryFolder folder;
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
  const bool multi = features.uprobe_multi && features.multi_pid_filter;
  if (features.uprobe_session) measure("session", features, plans, multi, 21);
  Features reduced = features;
  disable_features(reduced, "session");
  if (multi) measure("multi", reduced, plans, !features.uprobe_session, 21);
  disable_features(reduced, "multi");
  measure("perf", reduced, plans, false, 3);
  return 0;
}
