// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The responder: checks requests in order, moves their data, consumes receives, writes receive
// completions, and acknowledges only after all that (an early completion would let the sender
// exit).
#include <infiniband/mlx5dv.h>

#include <cstring>

#include "clock.h"
#include "receive.h"

namespace connectx {
namespace {

constexpr unsigned kGrhBytes = 40;

enum class Verdict { done, not_ready, invalid_request, remote_access, remote_operation };
bool receiving(const Qp& qp) {
  return qp.state == QpState::rtr || qp.state == QpState::rts || qp.state == QpState::sqd ||
         qp.state == QpState::sqe;
}

// Brings the request's payload into `list`.
bool pull(const Request& request, const SgeList& list) {
  const RequestHeader& header = request.header;
  if (header.length == 0) return true;
  if (!config().faults.copy && header.length > kInlineBytes) return true;
  if (header.carries_payload) {
    const uint8_t* from = request.payload;
    uint64_t left = header.length;
    for (unsigned i = 0; i < list.count && left > 0; ++i) {
      const uint64_t piece = std::min<uint64_t>(left, list.sges[i].length);
      memcpy(reinterpret_cast<void*>(list.sges[i].address), from, piece);
      from += piece;
      left -= piece;
    }
    return true;
  }
  const int32_t peer = nic().fabric->processes[header.source_process].pid.load();
  return move_bytes(peer, list, request.sges, header.sge_count, Direction::from_peer);
}

bool push(const Request& request, const SgeList& list) {
  if (!config().faults.copy && request.header.length > kInlineBytes) return true;
  const int32_t peer = nic().fabric->processes[request.header.source_process].pid.load();
  return move_bytes(peer, list, request.sges, request.header.sge_count, Direction::to_peer);
}

bool remote_range(Qp& qp, const RequestHeader& header, uint64_t bytes, uint32_t access,
                  SgeList& list) {
  return (qp.access & access) &&
         translate(*qp.device, header.rkey, header.remote_address, bytes, access, list);
}

Verdict serve_write(Qp& qp, const Request& request) {
  const RequestHeader& header = request.header;
  SgeList list;
  if (header.length > 0 && !remote_range(qp, header, header.length, IBV_ACCESS_REMOTE_WRITE, list))
    return Verdict::remote_access;
  const bool consumes = header.opcode == MLX5_OPCODE_RDMA_WRITE_IMM;
  if (consumes && !receive_posted(qp)) return Verdict::not_ready;
  if (!pull(request, list)) return Verdict::remote_operation;
  ++qp.device->counters[rx_write_requests];
  if (consumes) {
    Receive receive;
    take_receive(qp, receive);
    complete_receive(qp, header, MLX5_CQE_RESP_WR_IMM, receive, header.length, 0);
  }
  return Verdict::done;
}

Verdict serve_send(Qp& qp, const Request& request) {
  const RequestHeader& header = request.header;
  Receive receive;
  if (!take_receive(qp, receive)) return Verdict::not_ready;
  if (receive.bad_address || header.length > receive.list.bytes()) {
    const bool too_long = !receive.bad_address;
    if (too_long) ++qp.device->counters[resp_local_length_error];
    complete_receive(
        qp, header, 0, receive, 0,
        too_long ? MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR : MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
    return too_long ? Verdict::invalid_request : Verdict::remote_operation;
  }
  trim(receive.list, 0, header.length);
  uint8_t small[kResponseBytes];
  receive.scatter = header.length > 0 && header.length <= qp.receive_scatter_bytes;
  if (receive.scatter) {
    receive.list.count = 1;
    receive.list.sges[0] = {reinterpret_cast<uint64_t>(small), static_cast<uint32_t>(header.length),
                            0};
  }
  if (!pull(request, receive.list)) return Verdict::remote_operation;
  uint8_t opcode = MLX5_CQE_RESP_SEND;
  if (header.opcode == MLX5_OPCODE_SEND_IMM) opcode = MLX5_CQE_RESP_SEND_IMM;
  if (header.opcode == MLX5_OPCODE_SEND_INVAL) opcode = MLX5_CQE_RESP_SEND_INV;
  complete_receive(qp, header, opcode, receive, header.length, 0);
  return Verdict::done;
}

Verdict serve_read(Qp& qp, const Request& request) {
  const RequestHeader& header = request.header;
  SgeList list;
  if (header.length == 0) return Verdict::done;
  if (!remote_range(qp, header, header.length, IBV_ACCESS_REMOTE_READ, list))
    return Verdict::remote_access;
  ++qp.device->counters[rx_read_requests];
  return push(request, list) ? Verdict::done : Verdict::remote_operation;
}

// Adds with the carry broken after each set bit of `boundary` (field-boundary masked
// fetch-and-add).
uint64_t add_fields(uint64_t value, uint64_t operand, uint64_t boundary) {
  uint64_t result = 0, carry = 0;
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t sum = (value >> bit & 1) + (operand >> bit & 1) + carry;
    result |= (sum & 1) << bit;
    carry = boundary >> bit & 1 ? 0 : sum >> 1;
  }
  return result;
}

uint64_t atomic_result(const RequestHeader& header, uint64_t old) {
  switch (header.opcode) {
    case MLX5_OPCODE_ATOMIC_FA:
      return old + header.operand;
    case MLX5_OPCODE_ATOMIC_MASKED_FA:
      return add_fields(old, header.operand, header.operand_mask);
    default:
      if ((old ^ header.compare) & header.compare_mask) return old;
      return (old & ~header.operand_mask) | (header.operand & header.operand_mask);
  }
}

template <typename Word>
uint64_t run_atomic(const RequestHeader& header, uint64_t address) {
  auto* word = reinterpret_cast<Word*>(address);
  Word old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(word, &old, static_cast<Word>(atomic_result(header, old)),
                                      false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return old;
}

Verdict serve_atomic(Qp& qp, Stream& stream, const Request& request) {
  const RequestHeader& header = request.header;
  if (header.remote_address % header.atomic_bytes != 0) return Verdict::invalid_request;
  SgeList list;
  if (!remote_range(qp, header, header.atomic_bytes, IBV_ACCESS_REMOTE_ATOMIC, list))
    return Verdict::remote_access;
  ++qp.device->counters[rx_atomic_requests];
  uint64_t old = header.atomic_bytes == 4 ? run_atomic<uint32_t>(header, list.sges[0].address)
                                          : run_atomic<uint64_t>(header, list.sges[0].address);
  // Results of 4 bytes are big-endian whatever the endianness mode, which is about 8 bytes (UCX's
  // handlers of the extended atomics).
  if (header.atomic_bytes == 4) old = htobe32(static_cast<uint32_t>(old));
  SgeList answer;
  answer.sges[answer.count++] = {reinterpret_cast<uint64_t>(&old), header.atomic_bytes, 0};
  stream.replay[header.psn % 16] = {header.psn, old, true};
  return push(request, answer) ? Verdict::done : Verdict::remote_operation;
}

Verdict serve(Qp& qp, Stream& stream, const Request& request) {
  switch (request.header.opcode) {
    case MLX5_OPCODE_RDMA_WRITE:
    case MLX5_OPCODE_RDMA_WRITE_IMM:
      return serve_write(qp, request);
    case MLX5_OPCODE_SEND:
    case MLX5_OPCODE_SEND_IMM:
    case MLX5_OPCODE_SEND_INVAL:
      return serve_send(qp, request);
    case MLX5_OPCODE_RDMA_READ:
      return serve_read(qp, request);
    default:
      return serve_atomic(qp, stream, request);
  }
}

// What was done already (the acknowledgement was lost or not yet seen): reads are done again,
// atomics answer from memory, the rest is only acknowledged.
void serve_duplicate(Qp& qp, Stream& stream, const Request& request) {
  ++qp.device->counters[duplicate_request];
  const RequestHeader& header = request.header;
  if (header.opcode == MLX5_OPCODE_RDMA_READ) {
    serve_read(qp, request);
  } else if (header.opcode >= MLX5_OPCODE_ATOMIC_CS &&
             header.opcode <= MLX5_OPCODE_ATOMIC_MASKED_FA) {
    auto& replay = stream.replay[header.psn % 16];
    if (!replay.valid || replay.psn != header.psn) return;
    SgeList answer;
    answer.sges[answer.count++] = {reinterpret_cast<uint64_t>(&replay.value), header.atomic_bytes,
                                   0};
    push(request, answer);
  }
}

void acknowledge(Qp& qp, Stream& stream, const RequestHeader& header, Nak nak) {
  QpEntry& requester = qp_entry(*nic().fabric, header.source_device, header.source_qpn);
  if (requester.life.load() != header.source_life) return;  // nobody waits for it any more
  if (nak != Nak::none) {
    if (++stream.nak_generation == 0) stream.nak_generation = 1;
    log_wire(qp, WireEvent::nak_sent, stream.expected_psn, static_cast<uint32_t>(nak));
  }
  requester.ack.store(Ack{stream.expected_psn, static_cast<uint16_t>(header.source_life), nak,
                          stream.nak_generation, qp.min_rnr_timer}
                          .pack(),
                      std::memory_order_release);
  if (header.source_process != nic().process) wake_process(*nic().fabric, header.source_process);
}

void count_received(Qp& qp, const RequestHeader& header) {
  const uint64_t mtu = 128u << qp.path_mtu;
  const bool has_data = header.opcode < MLX5_OPCODE_RDMA_READ;
  const uint64_t bytes = has_data ? header.length : 0;
  const uint64_t packets = bytes <= mtu ? 1 : (bytes + mtu - 1) / mtu;
  qp.device->counters[port_rcv_data] += (bytes + 3) / 4;
  qp.device->counters[port_rcv_packets] += packets;
  qp.device->counters[unicast_rcv_packets] += packets;
}

Qp* receiver_of(const RequestHeader& header) {
  for (const auto& device : nic().devices) {
    if (device->index == header.destination_device) return device->qp(header.destination_qpn);
  }
  return nullptr;
}

// The state that a request's sender left; null when this queue pair does not serve it.
Stream* stream_of(Qp& qp, const RequestHeader& header) {
  if (qp.service != Service::dct) {
    const bool connected =
        qp.peer_qpn == header.source_qpn && qp.peer_device == header.source_device;
    return connected ? &qp.stream : nullptr;
  }
  if (qp.dc_key != header.dc_key) return nullptr;
  const uint64_t initiator = static_cast<uint64_t>(header.source_device) << 56 |
                             static_cast<uint64_t>(header.source_qpn) << 32 | header.source_life;
  const auto [found, fresh] = qp.initiators.try_emplace(initiator);
  Stream& stream = found->second;
  // The initiator has numbered requests to other targets since.
  const bool ahead = ((header.psn - stream.expected_psn) & kPsnMask) < 0x800000;
  if (fresh || (header.connects && ahead)) stream.expected_psn = header.psn;
  return &stream;
}

}  // namespace

void serve_request(const Request& request) {
  const RequestHeader& header = request.header;
  Qp* qp = receiver_of(header);
  Stream* stream = qp && receiving(*qp) ? stream_of(*qp, header) : nullptr;
  if (!stream) return;  // nobody answers: the requester's time-out tells
  const uint32_t ahead = (header.psn - stream->expected_psn) & kPsnMask;
  if (ahead >= 0x800000) {
    serve_duplicate(*qp, *stream, request);
    acknowledge(*qp, *stream, header, Nak::none);
    return;
  }
  if (ahead != 0) {
    if (stream->sequence_nak_sent) return;
    ++qp->device->counters[out_of_sequence];
    stream->sequence_nak_sent = true;
    acknowledge(*qp, *stream, header, Nak::sequence);
    return;
  }
  const Verdict verdict = serve(*qp, *stream, request);
  if (verdict == Verdict::not_ready) {
    ++qp->device->counters[out_of_buffer];
    stream->sequence_nak_sent = true;  // what follows is dropped in silence until it comes again
    acknowledge(*qp, *stream, header, Nak::rnr);
    return;
  }
  stream->sequence_nak_sent = false;
  if (verdict == Verdict::done) {
    count_received(*qp, header);
    stream->expected_psn = (stream->expected_psn + 1) & kPsnMask;
    acknowledge(*qp, *stream, header, Nak::none);
    return;
  }
  Nak nak = Nak::remote_operation;
  if (verdict == Verdict::remote_access) {
    ++qp->device->counters[resp_remote_access_errors];
    post_qp_event(*qp, IBV_EVENT_QP_ACCESS_ERR);
    nak = Nak::remote_access;
  } else if (verdict == Verdict::invalid_request) {
    post_qp_event(*qp, IBV_EVENT_QP_REQ_ERR);
    nak = Nak::invalid_request;
  }
  acknowledge(*qp, *stream, header, nak);
  if (qp->service != Service::dct) fail_qp(*qp);  // a DCT goes on for its other initiators
}

void serve_datagram(const Datagram& datagram) {
  const RequestHeader& header = datagram.header;
  Qp* qp = receiver_of(header);
  if (!qp || !receiving(*qp) || !qp->datagram() || qp->qkey != header.qkey) return;
  Receive receive;
  if (!receive_posted(*qp)) {
    ++qp->device->counters[out_of_buffer];
    log_wire(*qp, WireEvent::discarded, 0, header.source_qpn);
    return;
  }
  take_receive(*qp, receive);
  if (receive.bad_address || header.length + kGrhBytes > receive.list.bytes()) {
    complete_receive(*qp, header, 0, receive, 0,
                     receive.bad_address ? MLX5_CQE_SYNDROME_LOCAL_PROT_ERR
                                         : MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
    return;
  }
  // The first 40 bytes are the GRH's place; only its addresses are of interest to receivers.
  uint8_t grh[kGrhBytes] = {};
  if (header.global_route) {
    grh[0] = 6 << 4 | header.traffic_class >> 4;
    grh[1] = static_cast<uint8_t>(header.traffic_class << 4);
    grh[6] = 0x1b;
    memcpy(grh + 8, header.source_gid, 16);
    memcpy(grh + 24, header.destination_gid, 16);
  }
  Sge parts[2] = {
      {reinterpret_cast<uint64_t>(grh), kGrhBytes, 0},
      {reinterpret_cast<uint64_t>(datagram.payload), static_cast<uint32_t>(header.length), 0}};
  trim(receive.list, 0, kGrhBytes + header.length);
  move_bytes(nic().pid, receive.list, parts, 2, Direction::from_peer);
  complete_receive(
      *qp, header,
      header.opcode == MLX5_OPCODE_SEND_IMM ? MLX5_CQE_RESP_SEND_IMM : MLX5_CQE_RESP_SEND, receive,
      header.length + kGrhBytes, 0);
  count_received(*qp, header);
}

}  // namespace connectx
