// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// NetlinkBuilder: netlink messages byte by byte, as nldev.c writes them, for the parser's tests.
// Written from the layout, not with the parser's code.
#pragma once

#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace sigma {

class NetlinkBuilder {
 public:
  explicit NetlinkBuilder(uint32_t sequence = 7) : sequence_(sequence) {}

  NetlinkBuilder& message(uint16_t type, uint16_t flags = NLM_F_MULTI) {
    end();
    message_ = bytes_.size();
    put32(0);
    put16(type);
    put16(flags);
    put32(sequence_);
    put32(4242);
    return *this;
  }
  NetlinkBuilder& nldev(unsigned command, uint16_t flags = NLM_F_MULTI) {
    return message(static_cast<uint16_t>((RDMA_NL_NLDEV << 10) + command), flags);
  }

  NetlinkBuilder& u8(uint16_t type, uint8_t value) { return attribute(type, &value, 1); }
  NetlinkBuilder& u32(uint16_t type, uint32_t value) { return attribute(type, &value, 4); }
  NetlinkBuilder& u64(uint16_t type, uint64_t value) { return attribute(type, &value, 8); }
  NetlinkBuilder& text(uint16_t type, const std::string& value) {
    return attribute(type, value.c_str(), value.size() + 1);
  }
  NetlinkBuilder& attribute(uint16_t type, const void* payload, size_t size) {
    put16(static_cast<uint16_t>(4 + size));
    put16(type);
    auto bytes = static_cast<const std::byte*>(payload);
    bytes_.insert(bytes_.end(), bytes, bytes + size);
    pad();
    return *this;
  }

  NetlinkBuilder& begin(uint16_t type) {
    open_.push_back(bytes_.size());
    put16(0);
    put16(type);
    return *this;
  }
  NetlinkBuilder& close() {
    store16(open_.back(), static_cast<uint16_t>(bytes_.size() - open_.back()));
    open_.pop_back();
    return *this;
  }

  NetlinkBuilder& raw32(uint32_t value) {
    put32(value);
    return *this;
  }

  // NLMSG_DONE or NLMSG_ERROR with a code: 0 or a negative errno.
  NetlinkBuilder& ending(uint16_t type, int32_t code) {
    return message(type).raw32(static_cast<uint32_t>(code));
  }

  std::vector<std::byte> bytes() {
    end();
    return bytes_;
  }

 private:
  void end() {
    if (message_ == SIZE_MAX) return;
    auto length = static_cast<uint32_t>(bytes_.size() - message_);
    std::memcpy(bytes_.data() + message_, &length, sizeof length);
    message_ = SIZE_MAX;
  }
  void pad() {
    while (bytes_.size() % 4) bytes_.push_back(std::byte{0});
  }
  void put16(uint16_t value) {
    bytes_.resize(bytes_.size() + 2);
    store16(bytes_.size() - 2, value);
  }
  void put32(uint32_t value) {
    bytes_.resize(bytes_.size() + 4);
    std::memcpy(bytes_.data() + bytes_.size() - 4, &value, 4);
  }
  void store16(size_t at, uint16_t value) { std::memcpy(bytes_.data() + at, &value, 2); }

  uint32_t sequence_;
  std::vector<std::byte> bytes_;
  size_t message_ = SIZE_MAX;
  std::vector<size_t> open_;
};

// A list of three QPs of one device: a connected one of process 1234, a kernel user's, and a
// management QP; then the end. Nested attributes with the flag, as newer kernels set it, or
// without.
inline std::vector<std::byte> qp_list(uint16_t nested_flag = 0) {
  auto nested = [&](int type) { return static_cast<uint16_t>(type | nested_flag); };
  NetlinkBuilder b;
  b.nldev(RDMA_NLDEV_CMD_RES_QP_GET)
      .u32(RDMA_NLDEV_ATTR_DEV_INDEX, 3)
      .text(RDMA_NLDEV_ATTR_DEV_NAME, "rxe0")
      .begin(nested(RDMA_NLDEV_ATTR_RES_QP));
  b.begin(nested(RDMA_NLDEV_ATTR_RES_QP_ENTRY))
      .u32(RDMA_NLDEV_ATTR_PORT_INDEX, 1)
      .u32(RDMA_NLDEV_ATTR_RES_LQPN, 17)
      .u32(RDMA_NLDEV_ATTR_RES_RQPN, 18)
      .u32(RDMA_NLDEV_ATTR_RES_RQ_PSN, 0x111)
      .u32(RDMA_NLDEV_ATTR_RES_SQ_PSN, 0x222)
      .u8(RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE, 0)
      .u8(RDMA_NLDEV_ATTR_RES_TYPE, 2)
      .u8(RDMA_NLDEV_ATTR_RES_STATE, 3)
      .u32(RDMA_NLDEV_ATTR_RES_PID, 1234)
      .close();
  b.begin(nested(RDMA_NLDEV_ATTR_RES_QP_ENTRY))
      .u32(RDMA_NLDEV_ATTR_RES_LQPN, 19)
      .u32(RDMA_NLDEV_ATTR_RES_RQPN, 99)
      .u8(RDMA_NLDEV_ATTR_RES_TYPE, 2)
      .u8(RDMA_NLDEV_ATTR_RES_STATE, 3)
      .text(RDMA_NLDEV_ATTR_RES_KERN_NAME, "nvme_rdma")
      .close();
  b.begin(nested(RDMA_NLDEV_ATTR_RES_QP_ENTRY))
      .u32(RDMA_NLDEV_ATTR_RES_LQPN, 1)
      .u8(RDMA_NLDEV_ATTR_RES_TYPE, 1)
      .u8(RDMA_NLDEV_ATTR_RES_STATE, 3)
      .text(RDMA_NLDEV_ATTR_RES_KERN_NAME, "ib_core")
      .close();
  b.close().ending(NLMSG_DONE, 0);
  return b.bytes();
}

}  // namespace sigma
