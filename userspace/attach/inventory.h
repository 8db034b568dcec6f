// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Inventory: who uses RDMA on this machine now, without attaching anything: from /proc, sysfs, RDMA
// netlink and the processes' heaps (resolve/live_objects.h), each as far as it is there and may be
// read. What could not be read is said in `notes`.
//
// Nothing is stopped or signalled; a process's resident memory is read once or twice.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attach/process_facts.h"
#include "attach/rdma_sysfs.h"

namespace sigma {

// Who writes a queue pair's work queue entries.
enum class Driver : uint8_t {
  unknown,
  verbs,     // ibv_post_send: the provider
  extended,  // ibv_wr_*: the provider
  direct,    // a library writes them itself
  gpu,       // GPU kernels
  kernel,    // a kernel module
};
std::string_view to_string(Driver driver);

struct InventoryQp {
  std::string device;
  uint32_t number = 0;
  std::optional<uint8_t> type, state;  // enum ibv_qp_type, ibv_qp_state
  std::optional<uint32_t> port, peer_number;
  Driver driver = Driver::unknown;
  std::string why;              // for direct and gpu: the library that tells it; kernel: the module
  bool in_kernel_list = false;  // RDMA netlink names it
  bool in_memory = false;       // its verbs object was found in the process
};

struct InventoryProcess {
  pid_t pid = 0;
  std::string command, user;
  ProcessFacts facts;
  std::vector<std::string> devices;
  std::vector<InventoryQp> qps;
  uint64_t memory_regions = 0, memory_region_bytes = 0;
};

struct Inventory {
  std::vector<SysfsDevice> devices;
  std::vector<InventoryProcess> processes;  // by pid
  std::vector<InventoryQp> kernel_qps;      // without management ones
  std::vector<std::string> notes;
};

Inventory take_inventory();

}  // namespace sigma
