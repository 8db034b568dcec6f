// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The text in which the workload says what it did and the test says what it saw, field by field;
// equal texts are equal facts. Only the formats are shared: each side supplies its own values.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

struct PostText {
  unsigned queue = 0;
  uint64_t queue_ptr = 0, context = 0;
  uint32_t qp_num = 0, qp_type = 0xff;
  unsigned position = 0, opcode = 0, flags = 0, send_flags = 0;
  uint64_t wr_id = 0, local = 0, remote = 0, bytes = 0;
  uint32_t lkey = 0, rkey = 0, imm = 0, ah = 0, remote_qpn = 0, index = 0;
  unsigned sges = 0, omitted = 0;

  std::string text() const {
    return fmt::format(
        "post queue={} ptr={:x} context={:x} qp={} type={} position={} opcode={} flags={:x} "
        "send_flags={:x} wr_id={:x} "
        "local={:x} lkey={:x} remote={:x} rkey={:x} imm={:x} bytes={} sges={} ah={} remote_qpn={} "
        "index={} omitted={}",
        queue, queue_ptr, context, qp_num, qp_type, position, opcode, flags, send_flags, wr_id,
        local, lkey, remote, rkey, imm, bytes, sges, ah, remote_qpn, index, omitted);
  }
};

inline std::string result_text(unsigned queue, uint64_t ptr, uint64_t context, uint32_t qp_num,
                               unsigned outcome, int error, unsigned accepted) {
  return fmt::format("result queue={} ptr={:x} context={:x} qp={} outcome={} error={} accepted={}",
                     queue, ptr, context, qp_num, outcome, error, accepted);
}

inline std::string qp_text(uint64_t ptr, uint64_t context, uint32_t qp_num, uint32_t handle,
                           uint32_t type, uint32_t state, uint64_t send_cq, uint64_t recv_cq,
                           uint64_t srq) {
  return fmt::format(
      "qp ptr={:x} context={:x} qp={} handle={} type={} state={} send_cq={:x} recv_cq={:x} "
      "srq={:x}",
      ptr, context, qp_num, handle, type, state, send_cq, recv_cq, srq);
}

inline std::string context_text(uint64_t context, unsigned kind, const char* device, int fd) {
  return fmt::format("context {:x} kind={} device={} fd={}", context, kind, device, fd);
}

struct CompletionText {
  uint64_t cq = 0, context = 0, wr_id = 0;
  uint32_t status = 0, opcode = 0, vendor = 0, bytes = 0, imm = 0, qp_num = 0, src_qp = 0,
           wc_flags = 0;
  unsigned pkey = 0, slid = 0, sl = 0, path_bits = 0, batch = 0;

  std::string text() const {
    return fmt::format(
        "completion cq={:x} context={:x} wr_id={:x} status={} opcode={} vendor={} bytes={} "
        "imm={:x} qp={} src={} "
        "flags={:x} pkey={} slid={} sl={} bits={} batch={}",
        cq, context, wr_id, status, opcode, vendor, bytes, imm, qp_num, src_qp, wc_flags, pkey,
        slid, sl, path_bits, batch);
  }
};

// `attributes`: one attribute_text() after the other.
inline std::string uverbs_text(uint64_t context, unsigned object, unsigned method, uint32_t driver,
                               int result, unsigned flags, const std::string& attributes) {
  return fmt::format("uverbs context={:x} object={} method={} driver={} result={} flags={:x}{}",
                     context, object, method, driver, result, flags, attributes);
}

// `payload` in hex, or the inline value.
inline std::string attribute_text(unsigned id, unsigned length, unsigned flags,
                                  const std::string& payload) {
  return fmt::format(" [{} len={} flags={:x} {}]", id, length, flags, payload);
}

inline std::string process_text(unsigned kind, uint32_t pid, uint32_t child, int exit_code,
                                const char* comm) {
  return fmt::format("process kind={} pid={} child={} exit={:x} comm={}", kind, pid, child,
                     exit_code, comm);
}
