// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A received buffer is a row of netlink messages, each padded to 4 bytes:
//
//   nlmsghdr { length, type, flags, sequence, port }  attribute...
//   attribute: { u16 length with header, u16 type }  payload, padded to 4
//
// A list of QPs (RDMA_NLDEV_CMD_RES_QP_GET) is
//   DEV_INDEX  DEV_NAME  RES_QP { RES_QP_ENTRY { RES_LQPN, RES_RQPN, ... } RES_QP_ENTRY {...} ... }
// and of MRs likewise. Integers are host-endian. Some kernels set NLA_F_NESTED, some do not.
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>

#include <algorithm>
#include <cstring>

#include "attach/rdma_netlink.h"

namespace sigma {
namespace {

using Bytes = std::span<const std::byte>;

constexpr size_t align4(size_t size) {
  return (size + 3) & ~size_t{3};
}

struct Attribute {
  uint16_t type = 0;
  Bytes payload;
};

// Walks attributes. next() returns false at the end; `malformed` tells whether that was the proper
// one.
class AttributeWalk {
 public:
  explicit AttributeWalk(Bytes bytes) : rest_(bytes) {}

  bool next(Attribute& attribute) {
    nlattr header;
    if (rest_.empty()) return false;
    if (rest_.size() < sizeof header) return fail();
    std::memcpy(&header, rest_.data(), sizeof header);
    if (header.nla_len < sizeof header || header.nla_len > rest_.size()) return fail();
    attribute.type = header.nla_type & NLA_TYPE_MASK;
    attribute.payload = rest_.first(header.nla_len).subspan(sizeof header);
    rest_ = rest_.subspan(std::min(align4(header.nla_len), rest_.size()));
    return true;
  }

  bool malformed() const { return malformed_; }

 private:
  bool fail() {
    malformed_ = true;
    rest_ = {};
    return false;
  }

  Bytes rest_;
  bool malformed_ = false;
};

// Reads an attribute as a fixed-size value, or as text; a wrong size counts as malformed.
class AttributeReader {
 public:
  explicit AttributeReader(uint32_t& malformed) : malformed_(malformed) {}

  template <typename T>
  std::optional<T> value(const Attribute& attribute) {
    T value;
    if (attribute.payload.size() != sizeof value) {
      ++malformed_;
      return std::nullopt;
    }
    std::memcpy(&value, attribute.payload.data(), sizeof value);
    return value;
  }

  template <typename T, typename Field>
  void into(const Attribute& attribute, Field& field) {
    if (auto read = value<T>(attribute)) field = *read;
  }

  // Strings are NUL-terminated within their payload. Control characters have no place in a name
  // that ends on a terminal.
  void into_text(const Attribute& attribute, std::string& field) {
    auto end = std::find(attribute.payload.begin(), attribute.payload.end(), std::byte{0});
    bool printable = std::all_of(attribute.payload.begin(), end, [](std::byte b) {
      return b >= std::byte{0x20} && b != std::byte{0x7f};
    });
    if (end == attribute.payload.end() || !printable) {
      ++malformed_;
      return;
    }
    field.assign(reinterpret_cast<const char*>(attribute.payload.data()),
                 static_cast<size_t>(end - attribute.payload.begin()));
  }

 private:
  uint32_t& malformed_;
};

template <typename Visit>
void for_each_attribute(Bytes bytes, uint32_t& malformed, const Visit& visit) {
  AttributeWalk walk(bytes);
  for (Attribute attribute; walk.next(attribute);) visit(attribute);
  if (walk.malformed()) ++malformed;
}

int error_of(Bytes payload) {
  int32_t code = 0;
  if (payload.size() >= sizeof code) std::memcpy(&code, payload.data(), sizeof code);
  return code < 0 && code > -4096 ? -code : 0;
}

// Calls visit(command, attributes) with each answer in the buffer.
template <typename Visit>
NetlinkBatch for_each_message(Bytes buffer, uint32_t sequence, const Visit& visit) {
  NetlinkBatch batch;
  while (!buffer.empty() && !batch.done) {
    nlmsghdr header;
    if (buffer.size() < sizeof header) {
      ++batch.malformed;
      break;
    }
    std::memcpy(&header, buffer.data(), sizeof header);
    if (header.nlmsg_len < sizeof header || header.nlmsg_len > buffer.size()) {
      ++batch.malformed;
      break;
    }
    Bytes payload = buffer.first(header.nlmsg_len).subspan(sizeof header);
    buffer = buffer.subspan(std::min(align4(header.nlmsg_len), buffer.size()));
    if (header.nlmsg_seq != sequence) continue;
    batch.interrupted |= (header.nlmsg_flags & NLM_F_DUMP_INTR) != 0;
    switch (header.nlmsg_type) {
      case NLMSG_NOOP:
        break;
      case NLMSG_ERROR:
      case NLMSG_DONE:
        batch.error = error_of(payload);
        batch.done = true;
        break;
      default:
        if (RDMA_NL_GET_CLIENT(header.nlmsg_type) == RDMA_NL_NLDEV)
          visit(RDMA_NL_GET_OP(header.nlmsg_type), payload, batch.malformed);
        else
          ++batch.malformed;
        // An answer to a plain request has no NLMSG_DONE behind it.
        if (!(header.nlmsg_flags & NLM_F_MULTI)) batch.done = true;
    }
  }
  return batch;
}

void parse_qp(Bytes entry, RdmaQp qp, uint32_t& malformed, std::vector<RdmaQp>& out) {
  bool has_number = false;
  AttributeReader read(malformed);
  for_each_attribute(entry, malformed, [&](const Attribute& a) {
    switch (a.type) {
      case RDMA_NLDEV_ATTR_RES_LQPN:
        if (auto number = read.value<uint32_t>(a)) {
          qp.number = *number;
          has_number = true;
        }
        break;
      case RDMA_NLDEV_ATTR_RES_RQPN:
        return read.into<uint32_t>(a, qp.peer_number);
      case RDMA_NLDEV_ATTR_RES_SQ_PSN:
        return read.into<uint32_t>(a, qp.sq_psn);
      case RDMA_NLDEV_ATTR_RES_RQ_PSN:
        return read.into<uint32_t>(a, qp.rq_psn);
      case RDMA_NLDEV_ATTR_PORT_INDEX:
        return read.into<uint32_t>(a, qp.port);
      case RDMA_NLDEV_ATTR_RES_TYPE:
        return read.into<uint8_t>(a, qp.type);
      case RDMA_NLDEV_ATTR_RES_STATE:
        return read.into<uint8_t>(a, qp.state);
      case RDMA_NLDEV_ATTR_RES_PID:
        return read.into<uint32_t>(a, qp.pid);
      case RDMA_NLDEV_ATTR_RES_KERN_NAME:
        return read.into_text(a, qp.kernel_name);
      default:
        break;
    }
  });
  if (has_number)
    out.push_back(std::move(qp));
  else
    ++malformed;
}

void parse_mr(Bytes entry, RdmaMr mr, uint32_t& malformed, std::vector<RdmaMr>& out) {
  AttributeReader read(malformed);
  for_each_attribute(entry, malformed, [&](const Attribute& a) {
    switch (a.type) {
      case RDMA_NLDEV_ATTR_RES_MRN:
        return read.into<uint32_t>(a, mr.number);
      case RDMA_NLDEV_ATTR_RES_LKEY:
        return read.into<uint32_t>(a, mr.lkey);
      case RDMA_NLDEV_ATTR_RES_RKEY:
        return read.into<uint32_t>(a, mr.rkey);
      case RDMA_NLDEV_ATTR_RES_IOVA:
        return read.into<uint64_t>(a, mr.iova);
      case RDMA_NLDEV_ATTR_RES_MRLEN:
        return read.into<uint64_t>(a, mr.length);
      case RDMA_NLDEV_ATTR_RES_PID:
        return read.into<uint32_t>(a, mr.pid);
      case RDMA_NLDEV_ATTR_RES_KERN_NAME:
        return read.into_text(a, mr.kernel_name);
      default:
        break;
    }
  });
  out.push_back(std::move(mr));
}

// A resource list: the device's name stands in front of the table that holds the entries.
template <typename Object, typename ParseEntry>
NetlinkBatch parse_resources(Bytes buffer, uint32_t sequence, unsigned command, uint16_t table,
                             uint16_t entry, std::vector<Object>& out,
                             const ParseEntry& parse_entry) {
  return for_each_message(buffer, sequence,
                          [&](unsigned op, Bytes attributes, uint32_t& malformed) {
                            if (op != command) {
                              ++malformed;
                              return;
                            }
                            Object object;
                            AttributeReader read(malformed);
                            for_each_attribute(attributes, malformed, [&](const Attribute& a) {
                              if (a.type == RDMA_NLDEV_ATTR_DEV_NAME) {
                                read.into_text(a, object.device);
                              } else if (a.type == table) {
                                for_each_attribute(a.payload, malformed, [&](const Attribute& e) {
                                  if (e.type == entry)
                                    parse_entry(e.payload, object, malformed, out);
                                });
                              }
                            });
                          });
}

}  // namespace

NetlinkBatch parse_devices(Bytes buffer, uint32_t sequence, std::vector<RdmaDevice>& out) {
  return for_each_message(buffer, sequence,
                          [&](unsigned op, Bytes attributes, uint32_t& malformed) {
                            RdmaDevice device;
                            bool has_index = false;
                            AttributeReader read(malformed);
                            for_each_attribute(attributes, malformed, [&](const Attribute& a) {
                              if (a.type == RDMA_NLDEV_ATTR_DEV_INDEX) {
                                if (auto index = read.value<uint32_t>(a)) {
                                  device.index = *index;
                                  has_index = true;
                                }
                              } else if (a.type == RDMA_NLDEV_ATTR_DEV_NAME) {
                                read.into_text(a, device.name);
                              } else if (a.type == RDMA_NLDEV_ATTR_PORT_INDEX) {
                                read.into<uint32_t>(a, device.ports);
                              }
                            });
                            if (op == RDMA_NLDEV_CMD_GET && has_index && !device.name.empty())
                              out.push_back(std::move(device));
                            else
                              ++malformed;
                          });
}

NetlinkBatch parse_qps(Bytes buffer, uint32_t sequence, std::vector<RdmaQp>& out) {
  return parse_resources(buffer, sequence, RDMA_NLDEV_CMD_RES_QP_GET, RDMA_NLDEV_ATTR_RES_QP,
                         RDMA_NLDEV_ATTR_RES_QP_ENTRY, out, parse_qp);
}

// The answer to a request for one QP: its attributes stand in the message itself. Kernels answer
// with the number of the request or with that of the list.
NetlinkBatch parse_qp_dumps(Bytes buffer, uint32_t sequence, std::vector<RdmaQpDump>& out) {
  return for_each_message(
      buffer, sequence, [&](unsigned op, Bytes attributes, uint32_t& malformed) {
        RdmaQpDump dump;
        AttributeReader read(malformed);
        for_each_attribute(attributes, malformed, [&](const Attribute& a) {
          if (a.type == RDMA_NLDEV_ATTR_DEV_NAME) read.into_text(a, dump.device);
          if (a.type == RDMA_NLDEV_ATTR_RES_RAW)
            dump.bytes.assign(a.payload.begin(), a.payload.end());
        });
        const bool known = op == RDMA_NLDEV_CMD_RES_QP_GET_RAW || op == RDMA_NLDEV_CMD_RES_QP_GET;
        if (known && !dump.bytes.empty())
          out.push_back(std::move(dump));
        else
          ++malformed;
      });
}

NetlinkBatch parse_mrs(Bytes buffer, uint32_t sequence, std::vector<RdmaMr>& out) {
  return parse_resources(buffer, sequence, RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_ATTR_RES_MR,
                         RDMA_NLDEV_ATTR_RES_MR_ENTRY, out, parse_mr);
}

}  // namespace sigma
