// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// RDMA netlink: what the kernel itself says of queue pairs and memory regions, by process.
//
//   auto resources = read_rdma_resources({});
//   if (resources.ok())
//     for (auto& record : peer_records(*resources, pids, now_ns)) session.on_record(...);
//
// The one source for the peer of a QP that was connected before the attach (no provider keeps it in
// user space), and the only one for kernel users' QPs (NVMe-oF, Lustre, IPoIB), which no probe
// sees: their number belongs into the coverage statement. Same source as `rdma resource show`.
//
// Needs ib_core in the kernel (4.16 for QPs). Reading needs no privilege; memory keys need
// CAP_NET_ADMIN. Message layout: <rdma/rdma_netlink.h> and drivers/infiniband/core/nldev.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "bpf/records.h"

namespace sigma {

struct RdmaDevice {
  uint32_t index = 0;
  std::string name;
  uint32_t ports = 0;  // 0: not said
};

struct RdmaQp {
  std::string device;
  uint32_t number = 0;
  std::optional<uint32_t> peer_number, sq_psn, rq_psn;  // connected types only
  uint32_t port = 0;                                    // 0: not said
  uint8_t type = 0;                                     // kernel's enum ib_qp_type
  uint8_t state = 0;                                    // as enum ibv_qp_state
  uint32_t pid = 0;  // in the caller's pid namespace; 0: the kernel's, or its process is gone
  std::string kernel_name;  // the kernel module that made it; empty for a process's

  // QP 0 and 1 of each port: management datagrams, no user's data.
  bool is_management() const { return type <= 1; }
};

// The device's own account of a QP, as the driver hands it through (mlx5: decode_qp_dump()).
struct RdmaQpDump {
  std::string device;
  std::vector<std::byte> bytes;
};

struct RdmaMr {
  std::string device;
  uint32_t number = 0;  // the kernel's identifier of the MR
  std::optional<uint32_t> lkey, rkey;
  std::optional<uint64_t> iova;
  uint64_t length = 0;
  uint32_t pid = 0;
  std::string kernel_name;
};

struct RdmaResources {
  std::vector<RdmaDevice> devices;
  std::vector<RdmaQp> qps;
  std::vector<RdmaMr> mrs;
  uint32_t malformed = 0;     // messages or attributes that made no sense
  bool consistent = true;     // false: objects came and went while the kernel listed them
  std::vector<Error> failed;  // devices or lists that could not be read

  // How many QPs each kernel user ("nvme_rdma on mlx5_0") has, without the management ones: traffic that
  // nothing here sees.
  std::map<std::string, size_t> kernel_users() const;
};

struct RdmaQuery {
  bool memory_regions = false;
};

// Fails when there is no RDMA netlink or it may not be used.
Result<RdmaResources> read_rdma_resources(const RdmaQuery& query);

// What the kernel says of connected QPs of `pids` (of all processes when empty). h.time_ns is
// `now_ns`.
std::vector<sigma_qp_peer> peer_records(const RdmaResources& resources,
                                        std::span<const uint32_t> pids, uint64_t now_ns);

// The same, with the path to the peer (its GID or LID, MTU, service level, ...) where the driver
// tells it: mlx5 does, by a firmware command for each QP. Needs CAP_NET_ADMIN for that. What it
// could not do is appended to resources.failed, once a device.
std::vector<sigma_qp_peer> peer_records_with_paths(RdmaResources& resources,
                                                   std::span<const uint32_t> pids, uint64_t now_ns);

// ---- parsing of one received buffer; hostile input, no I/O (rdma_netlink_messages.cpp)
// ------------

struct NetlinkBatch {
  bool done = false;         // NLMSG_DONE or NLMSG_ERROR: nothing follows
  bool interrupted = false;  // NLM_F_DUMP_INTR: the list changed meanwhile
  int error = 0;             // positive errno that the kernel answered with
  uint32_t malformed = 0;
};

// Messages of another sequence number are passed over. What is whole is appended, also when what
// follows is malformed.
NetlinkBatch parse_devices(std::span<const std::byte> buffer, uint32_t sequence,
                           std::vector<RdmaDevice>& out);
NetlinkBatch parse_qps(std::span<const std::byte> buffer, uint32_t sequence,
                       std::vector<RdmaQp>& out);
NetlinkBatch parse_qp_dumps(std::span<const std::byte> buffer, uint32_t sequence,
                            std::vector<RdmaQpDump>& out);
NetlinkBatch parse_mrs(std::span<const std::byte> buffer, uint32_t sequence,
                       std::vector<RdmaMr>& out);

}  // namespace sigma
