// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Operation: one work request, from its post to its completion. What users see; what sinks are
// given. An absent value is unknown, never zero.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace sigma {

enum class Opcode : uint8_t {
  send,
  send_with_imm,
  send_with_inv,
  tso,
  rdma_write,
  rdma_write_with_imm,
  rdma_read,
  atomic_cmp_and_swp,
  atomic_fetch_and_add,
  local_inv,
  bind_mw,
  driver,
  recv,
  recv_rdma_with_imm,
  unknown,
};
std::string_view to_string(Opcode opcode);  // the enumerator's name; "" for unknown

// IB: LID; RoCE and GRH: GID. Both may be known.
struct Address {
  std::optional<std::array<uint8_t, 16>> gid;
  std::optional<uint16_t> lid;
};

enum class CompleteSource : uint8_t { none, nic, poll, inferred, ring };
enum class Source : uint8_t { probe, ring, gpu };
enum class Initiator : uint8_t { unknown, cpu, gpu };

// How one life of a queue pair was read from memory, and what of it: WQEBBs.
struct Observed {
  uint8_t origin = 0;  // enum sigma_ring_origin
  uint8_t mode = 0;    // enum sigma_ring_mode
  Initiator initiator = Initiator::unknown;
  std::optional<uint8_t> tier;
  std::string reason;          // why not a better mode or tier
  bool hung = false;           // as last looked at: posted, not completed, and unmoved for long
  bool end_unseen = false;     // `posted` may be short
  uint64_t posted = 0;         // by the doorbell record
  uint64_t seen = 0, missed = 0, gaps = 0;
  uint64_t by_margin = 0, by_posterior = 0;  // requests, by the certificate that held
  bool modulo = false;         // counts are known modulo 65,536 only
};

// Attributes of one life of a queue pair. Shared by its operations; read-only to sinks. The pointer
// stands for the life: the session updates the attributes in place as commands arrive (a MODIFY
// after the first operations, a peer that netlink names later), so a sink that wants them as they
// were, or hands them to another thread, copies. Sources: CREATE_QP and MODIFY_QP commands, struct
// ibv_qp, RDMA netlink.
struct QueuePair {
  std::string device;  // "mlx5_0"; empty when unknown
  uint32_t qp_num = 0;
  uint32_t life = 0;    // counts the lives of this number on this device, from 0
  uint32_t pid = 0;     // the process that made it
  uint64_t qp_ptr = 0;  // struct ibv_qp * in that process; 0 when unknown
  std::optional<uint32_t> handle;
  std::optional<uint8_t> type;   // enum ibv_qp_type, or kQpTypeDci, kQpTypeDct (decode/wqe.h)
  std::optional<uint8_t> state;  // enum ibv_qp_state
  std::optional<bool> sq_sig_all;
  std::optional<uint32_t> max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
  std::optional<uint8_t> port;
  std::optional<uint32_t> peer_qp_num;
  Address peer;
  std::optional<uint8_t> sgid_index, sl, traffic_class, hop_limit, static_rate, timeout, retry_cnt,
      rnr_retry, min_rnr_timer, max_rd_atomic, max_dest_rd_atomic;
  std::optional<uint32_t> flow_label, path_mtu /* bytes */, sq_psn, rq_psn, qkey;
  std::optional<uint16_t> pkey_index;
  bool older_than_attach = false;
  bool has_srq = false;
  bool posts_probed = false;  // a probe told of a request of its send queue
  std::optional<uint32_t> send_cq, recv_cq;  // uverbs handles
  std::optional<uint64_t> created_ns, destroyed_ns;
  std::optional<Observed> observed;
};

enum OperationFlag : uint8_t {
  kUnverified = 1 << 0,  // not known whether the provider accepted it
  kAmbiguous = 1 << 1,   // post and completion may belong to different work requests
  kConcurrent = 1 << 2,  // several threads posted to the queue at once
  kTruncated = 1 << 3,   // more scatter/gather entries than were read: bytes is a lower bound
  kModulo = 1 << 4,      // index known modulo 65,536 only
};

enum class Queue : uint8_t { send, recv };

struct Operation {
  std::shared_ptr<const QueuePair> qp;  // null: an SRQ post whose queue pair is not known

  // CLOCK_MONOTONIC; outputs convert to UTC.
  std::optional<uint64_t> time_ns, time_error_ns, complete_ns, complete_error_ns;
  // Only where post and completion are points in time: not for inferred completions, whose
  // complete_ns is an upper bound.
  std::optional<uint64_t> latency_ns;
  CompleteSource complete_source = CompleteSource::none;

  uint32_t pid = 0;
  uint32_t tid = 0;       // of the poster; 0 when the post was not seen
  std::string_view comm;  // owned by the session, valid during the sink's call

  Queue queue = Queue::send;
  Opcode opcode = Opcode::unknown;
  std::optional<uint64_t> bytes;
  std::optional<uint32_t> sge_count;
  std::optional<bool> signaled, is_inline;
  std::optional<uint64_t> wr_id, local_addr, remote_addr;
  std::optional<uint32_t> lkey, rkey, imm;  // imm in host order
  std::optional<uint32_t> peer_qp_num;      // per operation for UD and DC; else the queue pair's
  Address peer;                             // likewise
  std::optional<uint32_t> status;           // enum ibv_wc_status; absent: unfinished
  std::optional<uint32_t> vendor_err;
  Initiator initiator = Initiator::cpu;
  Source source = Source::probe;
  std::optional<uint64_t> index;
  std::optional<uint8_t> tier;
  uint8_t flags = 0;
  uint64_t record = 0;  // number of the record that finished it, in order of Session::on_record
};

// What is kept of the first error of a queue pair: neither a success nor the flush that follows one.
struct FirstError {
  uint32_t status = 0;
  std::optional<uint32_t> vendor_err;
  Opcode opcode = Opcode::unknown;
  Queue queue = Queue::send;
  std::optional<uint64_t> wr_id, complete_ns;
};

// How long a completion lay in its queue before a poll returned it: known where its ring is read and polls are
// probed as well. Told when both are known, which may be before or after its operation.
struct PickUp {
  std::shared_ptr<const QueuePair> qp;
  uint32_t pid = 0;
  Queue queue = Queue::send;
  uint64_t delay_ns = 0, error_ns = 0;
};

// Receives finished operations, in order of completion. Called by one thread.
class OperationSink {
 public:
  virtual ~OperationSink() = default;
  virtual void on_operation(const Operation& operation) = 0;
  virtual void on_pick_up(const PickUp&) {}
  // Of a session with several sinks: see SessionOptions::on_round. By the thread of on_operation.
  virtual void end_round() {}
};

}  // namespace sigma
