// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Two views of the same queue pairs meet here, by device and number: what the kernel lists (its
// state and peer are right, also of those that no heap shows) and what stands in processes' memory
// (which tells how they are driven, and is all there is where RDMA netlink is not).
#include "attach/inventory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>

#include "attach/rdma_netlink.h"
#include "base/human.h"
#include "resolve/live_objects.h"
#include "resolve/proc_maps.h"

namespace sigma {
namespace fs = std::filesystem;
namespace {

// Libraries that post past libibverbs. That one is mapped does not say that it drives every queue
// pair of the process.
struct Bypass {
  std::string_view library;  // in a mapped file's name
  Driver driver;
};
constexpr auto kBypasses = std::to_array<Bypass>({
    {"nvshmem_transport_ibgda", Driver::gpu},
    {"libdoca_gpunetio", Driver::gpu},
    {"libuct_ib", Driver::direct},  // UCX: rc_mlx5, dc_mlx5, ud_mlx5
});

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string user_of(pid_t pid) {
  struct stat info {};
  if (stat(fmt::format("/proc/{}", pid).c_str(), &info) != 0) return {};
  std::array<char, 4096> buffer;
  passwd entry{}, *found = nullptr;
  if (getpwuid_r(info.st_uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found)
    return found->pw_name;
  return fmt::format("{}", info.st_uid);
}

std::vector<pid_t> all_pids() {
  std::vector<pid_t> pids;
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    pid_t pid = 0;
    const auto [last, failed] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (failed == std::errc{} && last == name.data() + name.size()) pids.push_back(pid);
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

// The device's name of an open uverbs node: /dev/infiniband/uverbs3.
std::vector<std::string> open_devices(pid_t pid, const std::vector<SysfsDevice>& devices) {
  constexpr std::string_view kNode = "/dev/infiniband/uverbs";
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(fmt::format("/proc/{}/fd", pid), error), end; !error && it != end;
       it.increment(error)) {
    std::error_code unreadable;
    const std::string target = fs::read_symlink(it->path(), unreadable);
    if (!target.starts_with(kNode)) continue;
    const std::string node = fs::path(target).filename();
    for (const SysfsDevice& device : devices)
      if (device.uverbs == node) names.push_back(device.name);
  }
  return names;
}

struct Libraries {
  bool readable = false;
  bool ibverbs = false;
  Driver bypass = Driver::unknown;
  std::string bypass_library;
};

Libraries libraries_of(pid_t pid) {
  Libraries libraries;
  const auto maps = read_maps(pid);
  if (!maps.ok()) return libraries;
  libraries.readable = true;
  for (const Mapping& mapping : *maps) {
    const std::string_view name =
        std::string_view(mapping.path).substr(mapping.path.rfind('/') + 1);
    libraries.ibverbs |= name.starts_with("libibverbs.so");
    for (const Bypass& bypass : kBypasses)
      if (libraries.bypass != Driver::gpu && name.find(bypass.library) != std::string_view::npos) {
        libraries.bypass = bypass.driver;
        libraries.bypass_library = name;
      }
  }
  return libraries;
}

void add_unique(std::vector<std::string>& names, const std::string& name) {
  if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end())
    names.push_back(name);
}

void judge(InventoryQp& qp, const Libraries& libraries, bool extended) {
  if (libraries.bypass != Driver::unknown && qp.device.starts_with("mlx5")) {
    qp.driver = libraries.bypass;
    qp.why = libraries.bypass_library;
  } else if (qp.in_memory) {
    qp.driver = extended ? Driver::extended : Driver::verbs;
  }
}

// What the process's memory shows. Returns false where it could not be read.
bool add_live_objects(InventoryProcess& process, const Libraries& libraries) {
  LiveScanLimits limits;
  limits.scan.max_time = std::chrono::milliseconds(10'000);
  const auto live = find_live_objects(process.pid, limits);
  if (!live.ok()) return false;
  std::map<uint64_t, std::string> devices;  // by context; those of its own
  for (const LiveContext& context : live->contexts)
    if (!context.inherited) {
      devices[context.address] = context.device;
      add_unique(process.devices, context.device);
    }
  for (const LiveQp& object : live->qps) {
    const auto device = devices.find(object.context);
    if (device == devices.end()) continue;
    InventoryQp qp;
    qp.device = device->second;
    qp.number = object.qp_num;
    qp.type = static_cast<uint8_t>(object.type);
    qp.state = static_cast<uint8_t>(object.state);
    qp.in_memory = true;
    judge(qp, libraries, object.extended);
    process.qps.push_back(std::move(qp));
  }
  for (const LiveMr& mr : live->mrs)
    if (devices.contains(mr.context)) {
      ++process.memory_regions;
      process.memory_region_bytes += mr.length;
    }
  return true;
}

// What the kernel lists of it.
void add_kernel_objects(InventoryProcess& process, const RdmaResources& kernel,
                        const Libraries& libraries) {
  for (const RdmaQp& listed : kernel.qps) {
    if (static_cast<pid_t>(listed.pid) != process.pid || listed.is_management()) continue;
    auto known = std::find_if(process.qps.begin(), process.qps.end(), [&](const InventoryQp& qp) {
      return qp.device == listed.device && qp.number == listed.number;
    });
    if (known == process.qps.end()) {
      process.qps.push_back({.device = listed.device, .number = listed.number});
      known = process.qps.end() - 1;
      judge(*known, libraries, false);
    }
    known->in_kernel_list = true;
    known->type = listed.type;
    known->state = listed.state;
    if (listed.port) known->port = listed.port;
    known->peer_number = listed.peer_number;
    add_unique(process.devices, listed.device);
  }
  uint64_t regions = 0, bytes = 0;
  for (const RdmaMr& mr : kernel.mrs)
    if (static_cast<pid_t>(mr.pid) == process.pid) {
      ++regions;
      bytes += mr.length;
    }
  if (regions) {
    process.memory_regions = regions;
    process.memory_region_bytes = bytes;
  }
}

}  // namespace

std::string_view to_string(Driver driver) {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"unknown", "verbs", "extended", "direct", "gpu", "kernel"});
  return kNames[static_cast<size_t>(driver)];
}

Inventory take_inventory() {
  Inventory inventory;
  inventory.devices = rdma_devices();
  RdmaResources kernel;
  auto resources = read_rdma_resources({.memory_regions = true});
  if (resources.ok()) {
    kernel = *std::move(resources);
    for (const Error& error : kernel.failed) inventory.notes.push_back(error.what);
  } else {
    inventory.notes.push_back(fmt::format(
        "the kernel's own list is not there ({}): peers, and queue pairs of kernel modules, are "
        "unknown",
        resources.error().what));
  }
  for (const RdmaQp& qp : kernel.qps)
    if (qp.pid == 0 && !qp.kernel_name.empty() && !qp.is_management())
      inventory.kernel_qps.push_back({.device = qp.device,
                                      .number = qp.number,
                                      .type = qp.type,
                                      .state = qp.state,
                                      .port = qp.port ? std::optional(qp.port) : std::nullopt,
                                      .peer_number = qp.peer_number,
                                      .driver = Driver::kernel,
                                      .why = qp.kernel_name,
                                      .in_kernel_list = true});

  size_t unreadable = 0, idle = 0;
  for (const pid_t pid : all_pids()) {
    if (pid == getpid()) continue;
    const bool listed = std::any_of(kernel.qps.begin(), kernel.qps.end(), [&](const RdmaQp& qp) {
      return static_cast<pid_t>(qp.pid) == pid;
    });
    const Libraries libraries = libraries_of(pid);
    InventoryProcess process;
    process.pid = pid;
    process.devices = open_devices(pid, inventory.devices);
    if (!libraries.readable && !listed) {
      // Kernel threads have no maps; others' processes may not be read.
      unreadable += access(fmt::format("/proc/{}/exe", pid).c_str(), F_OK) != 0 && errno == EACCES;
      continue;
    }
    if (!listed && !libraries.ibverbs && process.devices.empty()) continue;
    process.command = printable(first_line(fmt::format("/proc/{}/comm", pid)));
    process.user = user_of(pid);
    process.facts = process_facts(pid);
    if (!add_live_objects(process, libraries)) ++unreadable;
    add_kernel_objects(process, kernel, libraries);
    std::sort(process.qps.begin(), process.qps.end(), [](const auto& a, const auto& b) {
      return std::tie(a.device, a.number) < std::tie(b.device, b.number);
    });
    std::sort(process.devices.begin(), process.devices.end());
    process.devices.erase(std::unique(process.devices.begin(), process.devices.end()),
                          process.devices.end());
    if (process.devices.empty() && process.qps.empty())
      ++idle;
    else
      inventory.processes.push_back(std::move(process));
  }
  if (idle)
    inventory.notes.push_back(
        fmt::format("{} more have libibverbs loaded and no device open", idle));
  if (unreadable)
    inventory.notes.push_back(
        fmt::format("{} process{} could not be read{}", unreadable, unreadable == 1 ? "" : "es",
                    geteuid() == 0 ? "" : ": run as root to see them"));
  return inventory;
}

}  // namespace sigma
