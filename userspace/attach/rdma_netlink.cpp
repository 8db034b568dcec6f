// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The conversation: one list of devices, then for each device a list of its QPs (and MRs).
#include "attach/rdma_netlink.h"

#include <fmt/format.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "attach/rdma_sysfs.h"
#include "base/fd.h"
#include "base/human.h"
#include "decode/prm.h"

namespace sigma {
namespace {

// The kernel's dump buffers are at most 32 KiB (netlink_dump).
constexpr size_t kBufferBytes = 64 << 10;
constexpr size_t kMaxBuffersPerList = 1 << 16;
constexpr int kAttempts = 4;
constexpr timeval kPatience{2, 0};
constexpr size_t kMaxPaths = 4096;  // each asked for by a firmware command of some 50 us

Error socket_error(int cause) {
  switch (cause) {
    case EPROTONOSUPPORT:
    case EAFNOSUPPORT:
      return {"the kernel has no RDMA netlink: ib_core is not loaded",
              "load it with `modprobe ib_uverbs` if the machine has an RDMA device"};
    case EPERM:
    case EACCES:
      return {"RDMA netlink: permission denied", "run as root, or with CAP_NET_ADMIN"};
    default:
      return {fmt::format("cannot open RDMA netlink: {}", errno_text(cause))};
  }
}

class NldevSocket {
 public:
  static Result<NldevSocket> open() {
    Fd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA));
    if (!fd) return socket_error(errno);
    // The kernel answers at once; a limit keeps the tracer from waiting for a lost answer.
    if (::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience) != 0)
      return socket_error(errno);
    return NldevSocket(std::move(fd));
  }

  // A request for one QP of a device, answered by one message.
  template <typename Parse>
  Status ask_qp(unsigned command, uint32_t device, uint32_t qp_num, RdmaResources& totals,
                const Parse& parse) {
    return converse(command, {{RDMA_NLDEV_ATTR_DEV_INDEX, device}, {RDMA_NLDEV_ATTR_RES_LQPN, qp_num}},
                    NLM_F_REQUEST, totals, parse);
  }

  // One dump. `parse(buffer, sequence)` returns the NetlinkBatch of one received buffer.
  template <typename Parse>
  Status dump(unsigned command, std::optional<uint32_t> device, RdmaResources& totals,
              const Parse& parse) {
    std::vector<std::pair<uint16_t, uint32_t>> of_device;
    if (device) of_device.emplace_back(RDMA_NLDEV_ATTR_DEV_INDEX, *device);
    return converse(command, of_device, NLM_F_REQUEST | NLM_F_DUMP, totals, parse);
  }

  // Of the last request: the kernel's errno, 0 when it was carried out.
  int refusal() const { return refusal_; }

 private:
  using Attributes = std::vector<std::pair<uint16_t, uint32_t>>;

  explicit NldevSocket(Fd fd) : fd_(std::move(fd)), buffer_(kBufferBytes) {}

  template <typename Parse>
  Status converse(unsigned command, const Attributes& attributes, uint16_t flags,
                  RdmaResources& totals, const Parse& parse) {
    refusal_ = 0;
    SIGMA_CHECK(send(command, attributes, flags));
    for (size_t i = 0; i < kMaxBuffersPerList; ++i) {
      ssize_t got = ::recv(fd_.get(), buffer_.data(), buffer_.size(), MSG_TRUNC);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error{fmt::format("RDMA netlink: {}", errno_text(errno))};
      if (static_cast<size_t>(got) > buffer_.size()) {
        ++totals.malformed;
        got = static_cast<ssize_t>(buffer_.size());
      }
      NetlinkBatch batch = parse(std::span(buffer_).first(static_cast<size_t>(got)), sequence_);
      totals.malformed += batch.malformed;
      if (batch.interrupted) totals.consistent = false;
      if (batch.error != 0) {
        refusal_ = batch.error;
        bool denied = batch.error == EPERM || batch.error == EACCES;
        return Error{fmt::format("RDMA netlink: {}", errno_text(batch.error)),
                     denied ? "run as root, or with CAP_NET_ADMIN" : ""};
      }
      if (batch.done) return {};
    }
    return Error{"RDMA netlink: the answer does not end"};
  }

  Status send(unsigned command, const Attributes& attributes, uint16_t flags) {
    struct Attribute {
      nlattr header;
      uint32_t value;
    };
    static_assert(sizeof(Attribute) == 8);
    std::vector<std::byte> request(sizeof(nlmsghdr));
    for (const auto& [type, value] : attributes) {
      const Attribute attribute{{sizeof attribute, type}, value};
      const auto bytes = std::as_bytes(std::span(&attribute, 1));
      request.insert(request.end(), bytes.begin(), bytes.end());
    }
    nlmsghdr header{};
    header.nlmsg_len = static_cast<uint32_t>(request.size());
    header.nlmsg_type = static_cast<uint16_t>(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command));
    header.nlmsg_flags = flags;
    header.nlmsg_seq = ++sequence_;
    std::memcpy(request.data(), &header, sizeof header);
    if (::send(fd_.get(), request.data(), request.size(), 0) < 0) return socket_error(errno);
    return {};
  }

  Fd fd_;
  std::vector<std::byte> buffer_;
  uint32_t sequence_ = 0;
  int refusal_ = 0;
};

// One resource list of one device. A list that changed while the kernel wrote it is asked for
// again; the last answer stands.
template <typename Object>
void read_list(NldevSocket& socket, unsigned command, const RdmaDevice& device,
               NetlinkBatch (*parse)(std::span<const std::byte>, uint32_t, std::vector<Object>&),
               RdmaResources& totals, std::vector<Object>& out) {
  const size_t before = out.size();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    RdmaResources once;
    out.resize(before);
    Status status = socket.dump(command, device.index, once, [&](auto buffer, uint32_t sequence) {
      return parse(buffer, sequence, out);
    });
    if (!status.ok()) {
      totals.failed.push_back(
          {fmt::format("{} of {}", status.error().what, device.name), status.error().hint});
      return;
    }
    if (once.consistent || attempt + 1 == kAttempts) {
      totals.malformed += once.malformed;
      totals.consistent &= once.consistent;
      return;
    }
  }
}

// Those of the driver that answers; others refuse.
std::vector<RdmaDevice> devices_that_tell_paths(const RdmaResources& resources) {
  std::vector<RdmaDevice> found;
  for (const SysfsDevice& known : rdma_devices())
    for (const RdmaDevice& device : resources.devices)
      if (known.driver == "mlx5_core" && known.name == device.name) found.push_back(device);
  return found;
}

// Only if it is about the same connection: the kernel's account of the peer must agree.
void add_path(sigma_qp_peer& record, std::span<const std::byte> dump) {
  const auto facts = decode_qp_dump(dump);
  if (!facts || facts->number != record.qp_num || facts->peer_qp_num != record.peer_qp_num) return;
  record.has_path = 1;
  if (facts->peer_gid)
    for (size_t i = 0; i < 8; ++i) {
      record.peer_gid_high = record.peer_gid_high << 8 | facts->peer_gid->at(i);
      record.peer_gid_low = record.peer_gid_low << 8 | facts->peer_gid->at(8 + i);
    }
  record.peer_lid = facts->peer_lid.value_or(0);
  record.path_mtu = facts->mtu_bytes.value_or(0);
  record.port = facts->port.value_or(0);
  record.sgid_index = facts->source_gid_index.value_or(0);
  record.sl = facts->service_level.value_or(0);
  record.traffic_class = facts->traffic_class.value_or(0);
  record.hop_limit = facts->hop_limit.value_or(0);
  record.timeout = facts->ack_timeout.value_or(0);
  record.retry_cnt = facts->retry_count.value_or(0);
  record.rnr_retry = facts->rnr_retry.value_or(0);
  record.min_rnr_timer = facts->min_rnr_timer.value_or(0);
}

sigma_qp_peer to_record(const RdmaQp& qp, uint64_t now_ns) {
  sigma_qp_peer record{};
  record.h.time_ns = now_ns;
  record.h.type = SIGMA_QP_PEER;
  record.h.size = sizeof record;
  record.h.pid = record.h.tid = qp.pid;
  qp.device.copy(record.device, sizeof record.device - 1);
  record.qp_num = qp.number;
  record.peer_qp_num = *qp.peer_number;
  record.sq_psn = qp.sq_psn.value_or(SIGMA_UNKNOWN_PSN);
  record.rq_psn = qp.rq_psn.value_or(SIGMA_UNKNOWN_PSN);
  record.state = qp.state;
  record.qp_type = qp.type;
  return record;
}

}  // namespace

std::map<std::string, size_t> RdmaResources::kernel_users() const {
  std::map<std::string, size_t> users;
  for (const RdmaQp& qp : qps)
    if (!qp.kernel_name.empty() && !qp.is_management())
      ++users[fmt::format("{} on {}", printable(qp.kernel_name), printable(qp.device))];
  return users;
}

Result<RdmaResources> read_rdma_resources(const RdmaQuery& query) {
  SIGMA_ASSIGN(NldevSocket socket, NldevSocket::open());
  RdmaResources all;
  SIGMA_CHECK(
      socket.dump(RDMA_NLDEV_CMD_GET, std::nullopt, all, [&](auto buffer, uint32_t sequence) {
        return parse_devices(buffer, sequence, all.devices);
      }));
  for (const RdmaDevice& device : all.devices) {
    read_list(socket, RDMA_NLDEV_CMD_RES_QP_GET, device, parse_qps, all, all.qps);
    if (query.memory_regions)
      read_list(socket, RDMA_NLDEV_CMD_RES_MR_GET, device, parse_mrs, all, all.mrs);
  }
  return all;
}

std::vector<sigma_qp_peer> peer_records(const RdmaResources& resources,
                                        std::span<const uint32_t> pids, uint64_t now_ns) {
  std::vector<sigma_qp_peer> records;
  for (const RdmaQp& qp : resources.qps) {
    // A peer number of 0 is that of a QP that is not connected yet.
    if (qp.pid == 0 || qp.peer_number.value_or(0) == 0) continue;
    if (pids.empty() || std::find(pids.begin(), pids.end(), qp.pid) != pids.end())
      records.push_back(to_record(qp, now_ns));
  }
  return records;
}

std::vector<sigma_qp_peer> peer_records_with_paths(RdmaResources& resources,
                                                   std::span<const uint32_t> pids,
                                                   uint64_t now_ns) {
  std::vector<sigma_qp_peer> records = peer_records(resources, pids, now_ns);
  const std::vector<RdmaDevice> devices = devices_that_tell_paths(resources);
  if (devices.empty() || records.empty()) return records;
  auto socket = NldevSocket::open();
  if (!socket.ok()) return records;
  size_t asked = 0;
  for (const RdmaDevice& device : devices) {
    for (sigma_qp_peer& record : records) {
      if (device.name != record.device) continue;
      if (asked++ == kMaxPaths) {
        resources.failed.push_back({"paths are known of the first queue pairs only", ""});
        return records;
      }
      std::vector<RdmaQpDump> dumps;
      const Status status = socket->ask_qp(
          RDMA_NLDEV_CMD_RES_QP_GET_RAW, device.index, record.qp_num, resources,
          [&](auto buffer, uint32_t sequence) { return parse_qp_dumps(buffer, sequence, dumps); });
      if (!status.ok()) {
        if (socket->refusal() == ENOENT) continue;  // it is gone; the others may not be
        resources.failed.push_back({fmt::format("paths of {}: {}", device.name, status.error().what),
                                    status.error().hint});
        break;
      }
      for (const RdmaQpDump& dump : dumps) add_path(record, dump.bytes);
    }
  }
  return records;
}

}  // namespace sigma
