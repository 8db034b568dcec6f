// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// uverbs commands to facts. One table for both hooks (kernel and libibverbs) and both encodings:
// ioctl attributes, and the write-style core structs that INVOKE_WRITE carries.
//
// No I/O, no allocation, no exceptions: spans in, a value out. The bytes come from another process
// and may be anything: every read is bounds-checked, and what does not fit is left unset.
// Layouts: kernel uapi rdma/ib_user_ioctl_cmds.h, ib_user_verbs.h, mlx5-abi.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "bpf/records.h"

namespace sigma {

// A record's attributes, addressed by id. Borrowed from the record.
class UverbsCommand {
 public:
  // Fails (nullopt) when the record is shorter than it claims, or not 8-byte aligned.
  static std::optional<UverbsCommand> parse(std::span<const std::byte> record);

  const sigma_uverbs& header() const { return *header_; }
  bool has(uint16_t attr_id) const;
  // The payload bytes captured (at most SIGMA_UVERBS_ATTR_BYTES), inline data included; empty if
  // absent.
  std::span<const std::byte> bytes(uint16_t attr_id) const;
  // An integer of up to 8 bytes, or a handle (objects pass it in `data`).
  std::optional<uint64_t> value(uint16_t attr_id) const;

 private:
  const sigma_uverbs_attr* find(uint16_t attr_id) const;

  const sigma_uverbs* header_ = nullptr;
  std::span<const sigma_uverbs_attr> attrs_;
  std::span<const std::byte> payload_;
};

enum class UverbsObject : uint8_t { none, context, pd, cq, qp, srq, mr, ah, other };
enum class UverbsAction : uint8_t { none, create, modify, destroy };

struct AddressVector {
  std::optional<std::array<uint8_t, 16>> dgid;
  std::optional<uint16_t> dlid;  // unset on RoCE, where it is 0
  std::optional<uint8_t> sgid_index, sl, traffic_class, hop_limit, static_rate, port;
  std::optional<uint32_t> flow_label;
};

// What one command said. Only fields of the command's object are set.
struct UverbsFacts {
  UverbsObject object = UverbsObject::none;
  UverbsAction action = UverbsAction::none;
  bool failed = false;  // nothing else is then worth reading
  std::optional<uint32_t> handle;
  std::optional<uint64_t> user_handle;  // create: struct ibv_qp *, ibv_cq *, ibv_srq *

  // QP create and modify
  std::optional<uint32_t> qp_num;
  std::optional<uint8_t> qp_type, qp_state;
  std::optional<bool> sq_sig_all;
  bool any_order = false;  // create: requests complete in any order, each by itself (EFA)
  std::optional<uint32_t> send_cq, recv_cq, srq, pd;  // handles
  std::optional<uint32_t> max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
  std::optional<uint32_t> peer_qp_num, path_mtu_bytes, sq_psn, rq_psn, qkey;
  std::optional<uint8_t> port, timeout, retry_cnt, rnr_retry, min_rnr_timer, max_rd_atomic,
      max_dest_rd_atomic;
  std::optional<uint16_t> pkey_index;
  std::optional<AddressVector> address;  // QP modify and AH create

  // SRQ create: asked for
  std::optional<uint32_t> max_wr;

  // CQ create and resize
  std::optional<uint32_t> cqe;

  // MR create (and rereg)
  std::optional<uint64_t> mr_addr, mr_length;
  std::optional<uint32_t> lkey, rkey, access;

  // Rings of mlx5 (UHW of CREATE): for the index check and the queue observer. The send queue of a
  // QP begins at ring_addr + (rq_wqe_count << rq_wqe_shift), unless sq_ring_addr says otherwise
  // (raw packet QPs). driver_flags: MLX5_QP_FLAG_*, MLX5_IB_CREATE_CQ_FLAGS_*.
  std::optional<uint64_t> ring_addr, sq_ring_addr, doorbell_addr;
  std::optional<uint32_t> sq_wqe_count, rq_wqe_count, rq_wqe_shift, cqn, cqe_size, driver_flags;
  bool cqes_compressed = false;  // in the basic layout: verbs know no other
};

// nullopt: not a command that says anything about queues, regions or addresses.
// `undecoded` is set when it should have, but did not parse: then what could be read is returned.
std::optional<UverbsFacts> decode_uverbs(const UverbsCommand& command, bool* undecoded = nullptr);

}  // namespace sigma
