// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/rdma_sysfs.h"

#include <sys/auxv.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace sigma {
namespace fs = std::filesystem;
namespace {

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::vector<std::string> entries(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// "231:192" as the kernel's own dev_t: major << 20 | minor (MINORBITS, include/linux/kdev_t.h).
std::optional<uint32_t> parse_rdev(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  uint32_t major = 0, minor = 0;
  std::from_chars(text.data(), text.data() + colon, major);
  std::from_chars(text.data() + colon + 1, text.data() + text.size(), minor);
  return major << 20 | minor;
}

std::vector<SysfsPort> ports_of(const fs::path& device) {
  std::vector<SysfsPort> ports;
  for (const std::string& name : entries(device / "ports")) {
    SysfsPort port;
    std::from_chars(name.data(), name.data() + name.size(), port.number);
    const std::string state = first_line(device / "ports" / name / "state");  // "4: ACTIVE"
    const size_t space = state.find(' ');
    port.state = space == std::string::npos ? state : state.substr(space + 1);
    port.link_layer = first_line(device / "ports" / name / "link_layer");
    ports.push_back(std::move(port));
  }
  return ports;
}

// 0: there is none.
uint64_t life_of(const std::string& node) {
  struct stat status;
  return stat((fs::path(sysfs_root()) / "class/infiniband_verbs" / node).c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::string sysfs_root() {
  const char* other = getauxval(AT_SECURE) == 0 ? std::getenv("SIGMATRACE_SYSFS") : nullptr;
  return other != nullptr && *other != '\0' ? other : "/sys";
}

std::string sysfs_root_of_cpus() {
  std::error_code error;
  const std::string root = sysfs_root();
  return fs::is_directory(fs::path(root) / "devices/system/cpu", error) ? root : "/sys";
}

std::vector<SysfsDevice> rdma_devices() {
  const fs::path root = sysfs_root();
  std::vector<SysfsDevice> devices;
  for (const std::string& name : entries(root / "class/infiniband")) {
    const fs::path path = root / "class/infiniband" / name;
    SysfsDevice device;
    device.name = name;
    std::error_code error;
    device.is_virtual = !fs::exists(path / "device", error);
    device.driver = fs::read_symlink(path / "device/driver", error).filename();
    device.node_guid = first_line(path / "node_guid");
    device.firmware = first_line(path / "fw_ver");
    device.ports = ports_of(path);
    devices.push_back(std::move(device));
  }
  for (const std::string& node : entries(root / "class/infiniband_verbs")) {
    const fs::path path = root / "class/infiniband_verbs" / node;
    const std::string name = first_line(path / "ibdev");
    for (SysfsDevice& device : devices) {
      if (device.name != name) continue;
      device.uverbs = node;
      device.rdev = parse_rdev(first_line(path / "dev"));
    }
  }
  return devices;
}

DeviceNames::DeviceNames() {
  look();
}

void DeviceNames::look() {
  for (SysfsDevice& device : rdma_devices())
    if (device.rdev) {
      const uint64_t life = life_of(device.uverbs);
      known_.insert_or_assign(*device.rdev, Known{std::move(device.name), std::move(device.uverbs), life});
    }
}

// A node that is gone, or whose device is going (then it names none), is the one that was there. A device can also
// get another name.
bool DeviceNames::is_another(const Known& known) {
  const std::string name = first_line(fs::path(sysfs_root()) / "class/infiniband_verbs" / known.node / "ibdev");
  return !name.empty() && (name != known.name || life_of(known.node) != known.life);
}

std::string DeviceNames::of_node(uint32_t rdev) {
  const std::lock_guard lock(mutex_);
  auto known = known_.find(rdev);
  if (known == known_.end() || is_another(known->second)) look();
  known = known_.find(rdev);
  return known == known_.end() ? std::string() : known->second.name;
}

}  // namespace sigma
