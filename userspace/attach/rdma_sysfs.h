// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// RDMA devices as sysfs shows them. The one place that reads it: SIGMATRACE_SYSFS names another root
// than /sys for rigs (ignored when the program got its privileges from the file, AT_SECURE).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace sigma {

std::string sysfs_root();
// The same where it tells of CPUs, which rigs mostly leave to the machine's own.
std::string sysfs_root_of_cpus();

struct SysfsPort {
  uint32_t number = 0;
  std::string state;       // "ACTIVE", as sysfs words it without the number
  std::string link_layer;  // "InfiniBand", "Ethernet"
};

struct SysfsDevice {
  std::string name;    // "mlx5_0"
  std::string uverbs;  // "uverbs0"; empty when there is no node
  std::optional<uint32_t> rdev;  // of the node, major << 20 | minor
  std::string driver;       // of the device below it ("mlx5_core"); empty when there is none
  bool is_virtual = false;  // no device below it: soft-RoCE and the like
  std::string node_guid;
  std::string firmware;
  std::vector<SysfsPort> ports;
};

// In order of name. Empty without RDMA devices.
std::vector<SysfsDevice> rdma_devices();

// Which device is behind a uverbs node (sigma_uverbs.rdev). Remembers them, as it is asked when records are read:
// by then the device may be going or gone, while its node's number serves another one.
// Thread-safe. Knows those that are there when it is made, and looks again for a node that is new.
class DeviceNames {
 public:
  DeviceNames();
  std::string of_node(uint32_t rdev);  // "" when unknown

 private:
  struct Known {
    std::string name, node;
    uint64_t life = 0;  // of the node: sysfs gives each its own inode
  };
  void look();
  static bool is_another(const Known& known);
  std::mutex mutex_;
  std::map<uint32_t, Known> known_;
};

}  // namespace sigma
