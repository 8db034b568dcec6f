// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/nic_clock_source.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "attach/rdma_sysfs.h"
#include "base/clock.h"

namespace sigma {
namespace fs = std::filesystem;
namespace {

// A rig's clock: ticks = offset_ticks + (CLOCK_MONOTONIC in ns * mult_2_64) / 2^64.
class FileClock final : public NicClockSource {
 public:
  static std::unique_ptr<NicClockSource> open(const fs::path& path) {
    uint64_t offset = 0, mult = 0, khz = 0;
    std::ifstream in(path);
    std::string key;
    for (uint64_t value; in >> key >> value;) {
      if (key == "offset_ticks") offset = value;
      if (key == "mult_2_64") mult = value;
      if (key == "nominal_khz") khz = value;
    }
    if (mult == 0) return nullptr;
    return std::unique_ptr<NicClockSource>(
        new FileClock(path.filename(), static_cast<uint32_t>(khz), offset, mult));
  }

 private:
  FileClock(std::string device, uint32_t khz, uint64_t offset, uint64_t mult)
      : NicClockSource(std::move(device), khz), offset_(offset), mult_(mult) {}

  std::optional<uint64_t> read_ticks() override {
    __extension__ using Wide = unsigned __int128;
    return offset_ + static_cast<uint64_t>((static_cast<Wide>(monotonic_now_ns()) * mult_) >> 64);
  }

  uint64_t offset_, mult_;
};

// libibverbs' functions that are not inline.
struct Verbs {
  decltype(&ibv_get_device_list) get_device_list = nullptr;
  decltype(&ibv_free_device_list) free_device_list = nullptr;
  decltype(&ibv_get_device_name) get_device_name = nullptr;
  decltype(&ibv_open_device) open_device = nullptr;
  decltype(&ibv_close_device) close_device = nullptr;

  // Stays loaded: devices that we hold need it.
  static std::optional<Verbs> load() {
    void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return std::nullopt;
    Verbs verbs;
    const auto find = [library](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    if (!find(verbs.get_device_list, "ibv_get_device_list") ||
        !find(verbs.free_device_list, "ibv_free_device_list") ||
        !find(verbs.get_device_name, "ibv_get_device_name") ||
        !find(verbs.open_device, "ibv_open_device") ||
        !find(verbs.close_device, "ibv_close_device"))
      return std::nullopt;
    return verbs;
  }
};

// mlx5: the core clock's page, mapped into our own context; a reading is two loads over PCIe.
class DeviceClock final : public NicClockSource {
 public:
  static std::unique_ptr<NicClockSource> open(const Verbs& verbs, ibv_device* device) {
    ibv_context* context = verbs.open_device(device);
    if (context == nullptr) return nullptr;
    ibv_device_attr_ex attributes{};
    // Not ibv_query_device_ex(): where the driver has none, it calls a function of the library,
    // which is not linked.
    verbs_context* extended = verbs_get_ctx_op(context, query_device_ex);
    const bool told = extended && extended->query_device_ex(context, nullptr, &attributes,
                                                            sizeof attributes) == 0;
    std::unique_ptr<DeviceClock> clock(
        new DeviceClock(verbs, verbs.get_device_name(device), context,
                        told ? static_cast<uint32_t>(attributes.hca_core_clock) : 0));
    if (!clock->read_ticks()) return nullptr;
    return clock;
  }
  ~DeviceClock() override { verbs_.close_device(context_); }

 private:
  DeviceClock(const Verbs& verbs, std::string device, ibv_context* context, uint32_t khz)
      : NicClockSource(std::move(device), khz), verbs_(verbs), context_(context) {}

  std::optional<uint64_t> read_ticks() override {
    ibv_values_ex values{};
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    if (ibv_query_rt_values_ex(context_, &values) != 0 ||
        !(values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK))
      return std::nullopt;
    // Raw cycles, all of them in tv_nsec (libmlx5, mlx5_query_rt_values).
    return static_cast<uint64_t>(values.raw_clock.tv_nsec);
  }

  Verbs verbs_;
  ibv_context* context_;
};

std::vector<std::unique_ptr<NicClockSource>> open_files(const fs::path& directory,
                                                        std::vector<std::string>& remarks) {
  std::vector<std::unique_ptr<NicClockSource>> clocks;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (auto clock = FileClock::open(it->path()))
      clocks.push_back(std::move(clock));
    else
      remarks.push_back(fmt::format("{}: not a clock", it->path().string()));
  }
  if (error) remarks.push_back(fmt::format("{}: {}", directory.string(), error.message()));
  return clocks;
}

}  // namespace

std::vector<std::unique_ptr<NicClockSource>> NicClockSource::open_all(
    std::vector<std::string>& remarks) {
  const char* files = getauxval(AT_SECURE) == 0 ? std::getenv("SIGMATRACE_CLOCK") : nullptr;
  if (files != nullptr && *files != '\0') return open_files(files, remarks);

  std::vector<std::unique_ptr<NicClockSource>> clocks;
  const std::vector<SysfsDevice> devices = rdma_devices();
  const auto is_mlx5 = [&](std::string_view name) {
    return std::any_of(devices.begin(), devices.end(), [&](const SysfsDevice& device) {
      return device.driver == "mlx5_core" && (name.empty() || device.name == name);
    });
  };
  if (!is_mlx5({})) return clocks;
  const auto verbs = Verbs::load();
  int count = 0;
  ibv_device** list = verbs ? verbs->get_device_list(&count) : nullptr;
  if (list == nullptr) {
    remarks.emplace_back(
        "completions have no time stamps of their device: libibverbs.so.1 cannot be used");
    return clocks;
  }
  for (int i = 0; i < count; ++i) {
    const std::string name = verbs->get_device_name(list[i]);
    if (!is_mlx5(name)) continue;
    if (auto clock = DeviceClock::open(*verbs, list[i]))
      clocks.push_back(std::move(clock));
    else
      remarks.push_back(fmt::format("the clock of {} cannot be read", name));
  }
  verbs->free_device_list(list);
  return clocks;
}

std::optional<sigma_clock_sample> NicClockSource::sample() {
  // As sample_clocks(): a preemption widens a bracket; of several some are undisturbed.
  constexpr int kTries = 8;
  sigma_clock_sample best{};
  uint64_t best_width = UINT64_MAX;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = monotonic_now_ns();
    const auto ticks = read_ticks();
    const uint64_t width = monotonic_now_ns() - before;
    if (!ticks) return std::nullopt;
    if (width >= best_width) continue;
    best_width = width;
    best.ticks = *ticks;
    best.h.time_ns = before + width / 2;
  }
  best.h.type = SIGMA_CLOCK_SAMPLE;
  best.h.size = sizeof best;
  best.h.pid = best.h.tid = static_cast<uint32_t>(getpid());
  best.error_ns = static_cast<uint32_t>(std::min<uint64_t>(best_width / 2 + 1, UINT32_MAX));
  best.nominal_khz = nominal_khz_;
  std::memcpy(best.device, device_.data(), std::min(device_.size(), sizeof best.device - 1));
  return best;
}

}  // namespace sigma
