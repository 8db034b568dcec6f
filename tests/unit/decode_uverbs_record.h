// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Builds SIGMA_UVERBS records the way rdma-core fills its attributes (libibverbs/cmd_ioctl.h) and
// BPF copies them: inputs of at most 8 bytes inline, longer ones and outputs as payload, handles in
// `data`.
#pragma once

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "bpf/records.h"

class UverbsRecord {
 public:
  UverbsRecord(uint16_t object, uint16_t method) {
    head_.object_id = object;
    head_.method_id = method;
    head_.driver_id = RDMA_DRIVER_RXE;
    head_.h.type = SIGMA_UVERBS;
  }
  // The write(2) command `cmd`, through the ioctl. The structs are without their command headers.
  template <typename In, typename Out>
  static UverbsRecord write(uint32_t cmd, const In& in, const Out& out) {
    UverbsRecord record(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
    return record.in(UVERBS_ATTR_WRITE_CMD, uint64_t{cmd})
        .in(UVERBS_ATTR_CORE_IN, in)
        .out(UVERBS_ATTR_CORE_OUT, out);
  }
  template <typename In>
  static UverbsRecord write(uint32_t cmd, const In& in) {
    UverbsRecord record(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
    return record.in(UVERBS_ATTR_WRITE_CMD, uint64_t{cmd}).in(UVERBS_ATTR_CORE_IN, in);
  }

  template <typename T>
  UverbsRecord& in(uint16_t id, const T& value) {
    sigma_uverbs_attr attr{id, sizeof(T), UVERBS_ATTR_F_MANDATORY, SIGMA_UVERBS_NO_PAYLOAD, 0};
    if constexpr (sizeof(T) <= sizeof(attr.data))
      std::memcpy(&attr.data, &value, sizeof(T));
    else
      place(attr, &value, sizeof(T));
    attrs_.push_back(attr);
    return *this;
  }
  template <typename T>
  UverbsRecord& out(uint16_t id, const T& value) {
    sigma_uverbs_attr attr{id, sizeof(T), UVERBS_ATTR_F_MANDATORY | UVERBS_ATTR_F_VALID_OUTPUT, 0,
                           0};
    place(attr, &value, sizeof(T));
    attrs_.push_back(attr);
    return *this;
  }
  // An output whose memory could not be read: only the pointer is there.
  UverbsRecord& unread_out(uint16_t id, uint16_t length) {
    attrs_.push_back({id, length, UVERBS_ATTR_F_VALID_OUTPUT, SIGMA_UVERBS_NO_PAYLOAD, kPointer});
    return *this;
  }
  UverbsRecord& handle(uint16_t id, uint32_t value) {
    attrs_.push_back({id, 0, UVERBS_ATTR_F_MANDATORY, SIGMA_UVERBS_NO_PAYLOAD, value});
    return *this;
  }
  UverbsRecord& driver(uint32_t id) {
    head_.driver_id = id;
    return *this;
  }
  UverbsRecord& from(uint64_t time_ns, uint32_t pid, uint64_t ucontext, uint32_t rdev = 0) {
    head_.h.time_ns = time_ns;
    head_.h.pid = head_.h.tid = pid;
    head_.ucontext = ucontext;
    head_.rdev = rdev;
    if (rdev != 0) head_.flags |= SIGMA_UVERBS_KERNEL;
    return *this;
  }
  // When the command began; without it: unknown.
  UverbsRecord& entered(uint64_t time_ns) {
    head_.enter_ns = time_ns;
    return *this;
  }
  UverbsRecord& result(int32_t value) {
    head_.result = value;
    return *this;
  }
  UverbsRecord& flags(uint16_t value) {
    head_.flags |= value;
    return *this;
  }

  // 8-byte aligned; valid until the next change.
  std::span<const std::byte> bytes() {
    head_.num_attrs = static_cast<uint16_t>(attrs_.size());
    head_.payload_bytes = static_cast<uint16_t>(payload_.size());
    const size_t attr_bytes = attrs_.size() * sizeof(sigma_uverbs_attr);
    const size_t size = sizeof(head_) + attr_bytes + payload_.size();
    head_.h.size = static_cast<uint16_t>(size);
    buffer_.assign((size + 7) / 8, 0);
    auto* to = reinterpret_cast<std::byte*>(buffer_.data());
    std::memcpy(to, &head_, sizeof(head_));
    if (!attrs_.empty()) std::memcpy(to + sizeof(head_), attrs_.data(), attr_bytes);
    std::copy(payload_.begin(), payload_.end(), to + sizeof(head_) + attr_bytes);
    return {to, size};
  }

 private:
  static constexpr uint64_t kPointer = 0x7ffcdeadbeef;

  void place(sigma_uverbs_attr& attr, const void* data, size_t size) {
    attr.offset = static_cast<uint16_t>(payload_.size());
    attr.data = kPointer;
    const size_t copied = std::min<size_t>(size, SIGMA_UVERBS_ATTR_BYTES);
    const auto* from = static_cast<const std::byte*>(data);
    payload_.insert(payload_.end(), from, from + copied);
    payload_.resize((payload_.size() + 7) / 8 * 8);
  }

  sigma_uverbs head_{};
  std::vector<sigma_uverbs_attr> attrs_;
  std::vector<std::byte> payload_;
  std::vector<uint64_t> buffer_;
};
