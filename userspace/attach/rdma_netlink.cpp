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

#include "base/fd.h"

namespace sigma {
namespace {

// The kernel's dump buffers are at most 32 KiB (netlink_dump).
constexpr size_t kBufferBytes = 64 << 10;
constexpr size_t kMaxBuffersPerList = 1 << 16;
constexpr int kAttempts = 4;
constexpr timeval kPatience{2, 0};

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

  // One dump. `parse(buffer, sequence)` returns the NetlinkBatch of one received buffer.
  template <typename Parse>
  Status dump(unsigned command, std::optional<uint32_t> device, RdmaResources& totals,
              const Parse& parse) {
    SIGMA_CHECK(send(command, device));
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
        bool denied = batch.error == EPERM || batch.error == EACCES;
        return Error{fmt::format("RDMA netlink: {}", errno_text(batch.error)),
                     denied ? "run as root, or with CAP_NET_ADMIN" : ""};
      }
      if (batch.done) return {};
    }
    return Error{"RDMA netlink: the answer does not end"};
  }

 private:
  explicit NldevSocket(Fd fd) : fd_(std::move(fd)), buffer_(kBufferBytes) {}

  Status send(unsigned command, std::optional<uint32_t> device) {
    struct {
      nlmsghdr header;
      nlattr attribute;
      uint32_t index;
    } request{};
    static_assert(sizeof request == 24);
    request.header.nlmsg_len =
        static_cast<uint32_t>(device ? sizeof request : sizeof request.header);
    request.header.nlmsg_type = static_cast<uint16_t>(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command));
    request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.header.nlmsg_seq = ++sequence_;
    request.attribute.nla_len = sizeof request.attribute + sizeof request.index;
    request.attribute.nla_type = RDMA_NLDEV_ATTR_DEV_INDEX;
    request.index = device.value_or(0);
    if (::send(fd_.get(), &request, request.header.nlmsg_len, 0) < 0) return socket_error(errno);
    return {};
  }

  Fd fd_;
  std::vector<std::byte> buffer_;
  uint32_t sequence_ = 0;
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

constexpr uint32_t kUnknownPsn = ~0u;  // of a sigma_qp_peer: PSNs have 24 bits

sigma_qp_peer to_record(const RdmaQp& qp, uint64_t now_ns) {
  sigma_qp_peer record{};
  record.h.time_ns = now_ns;
  record.h.type = SIGMA_QP_PEER;
  record.h.size = sizeof record;
  record.h.pid = record.h.tid = qp.pid;
  qp.device.copy(record.device, sizeof record.device - 1);
  record.qp_num = qp.number;
  record.peer_qp_num = *qp.peer_number;
  record.sq_psn = qp.sq_psn.value_or(kUnknownPsn);
  record.rq_psn = qp.rq_psn.value_or(kUnknownPsn);
  record.state = qp.state;
  record.qp_type = qp.type;
  return record;
}

}  // namespace

size_t RdmaResources::kernel_qps() const {
  return static_cast<size_t>(std::count_if(qps.begin(), qps.end(), [](const RdmaQp& qp) {
    return !qp.kernel_name.empty() && !qp.is_management();
  }));
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

}  // namespace sigma
