// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The requester: fetches WQEs up to the doorbell record, sends them as requests, and completes them
// in order as the responder acknowledges. What a NAK or a time-out leaves undone is read from the
// ring again and sent again (go-back-N), so that nothing is buffered.
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <cstring>

#include "clock.h"
#include "send.h"

namespace connectx {
namespace {

constexpr unsigned kBatch = 64;  // WQEs of one queue before the next one has its turn
constexpr uint64_t kUnreachableNs = 100'000'000;  // floor of the ACK time-out

// RNR NAK timer codes, in units of 10 us (InfiniBand specification, table 45).
constexpr uint32_t kRnrTimer10us[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                        16,    24,   32,   48,    64,    96,    128,   192,
                                        256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                        4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};

// Up to where WQEs are posted: by the doorbell record, or by a GPU's doorbell that came before it
// (or is all there is).
uint16_t doorbell_index(const Qp& qp) {
  const auto fetched = static_cast<uint16_t>(qp.fetched);
  const uint16_t recorded =
      qp.doorbell
          ? static_cast<uint16_t>(be32toh(__atomic_load_n(&qp.doorbell[1], __ATOMIC_ACQUIRE)))
          : fetched;
  if (!qp.was_rung) return recorded;
  // What is behind has been fetched already.
  const auto ahead = [&](uint16_t index) {
    const auto blocks = static_cast<uint16_t>(index - fetched);
    return blocks <= qp.send_blocks ? blocks : uint16_t{0};
  };
  return static_cast<uint16_t>(fetched + std::max(ahead(recorded), ahead(qp.rung)));
}

bool is_place(const Qp& qp, const Faults::Place& place) {
  return qp.ordinal != ~0u && qp.ordinal == place.ordinal;
}

bool withheld(const Qp& qp, uint64_t position) {
  const Faults::Place& place = config().faults.withhold;
  return is_place(qp, place) && position >= place.position;
}

void complete_head(Qp& qp) {
  const Inflight item = qp.inflight.front();
  qp.inflight.pop_front();
  if (qp.sent > 0) --qp.sent;
  if (!item.signaled && item.syndrome == 0) return;
  Completion completion;
  completion.opcode = item.syndrome ? uint8_t{MLX5_CQE_REQ_ERR} : uint8_t{MLX5_CQE_REQ};
  completion.wqe_opcode = item.opcode;
  completion.syndrome = item.syndrome;
  completion.wqe_counter = item.index;
  completion.bytes = item.bytes;
  completion.wqe_position = item.position;
  if (item.scattered && item.syndrome == 0)
    completion.scatter_payload = response_place(qp, item.index);
  write_cqe(qp.send_cq, qp, completion);
}

// Completes from the head whatever is done. The first failure takes the queue pair to ERR, where
// everything behind it is flushed.
void retire(Qp& qp) {
  while (!qp.inflight.empty() && qp.inflight.front().done &&
         !withheld(qp, qp.inflight.front().position)) {
    const bool failed = qp.inflight.front().syndrome != 0;
    complete_head(qp);
    if (!failed) continue;
    fail_qp(qp);
    break;
  }
}

uint8_t syndrome_of(Nak nak) {
  switch (nak) {
    case Nak::invalid_request:
      return MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR;
    case Nak::remote_access:
      return MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
    default:
      return MLX5_CQE_SYNDROME_REMOTE_OP_ERR;
  }
}

void fail_head(Qp& qp, uint8_t syndrome) {
  for (Inflight& item : qp.inflight) {
    if (item.done) continue;
    item.done = true;
    item.syndrome = syndrome;
    break;
  }
  retire(qp);
}

void send_again(Qp& qp) {
  if (qp.sent > 0)
    log_wire(qp, WireEvent::retransmit, qp.inflight.front().psn, static_cast<uint32_t>(qp.sent));
  qp.sent = 0;
}

// Reads the responder's word. Returns true if it said something new.
bool take_acknowledgement(Qp& qp, uint64_t now_ns) {
  const Ack ack = Ack::unpack(qp.entry->ack.load(std::memory_order_acquire));
  if (ack.life != static_cast<uint16_t>(qp.entry->life.load(std::memory_order_relaxed)))
    return false;
  bool news = false;
  for (Inflight& item : qp.inflight) {
    if (item.local) continue;
    if (((ack.psn - item.psn - 1) & kPsnMask) >= 0x800000) break;  // not before ack.psn
    if (!item.done) news = true;
    item.done = true;
  }
  if (news) {
    qp.progress_ns = now_ns;
    qp.retries = qp.rnr_retries = 0;
    retire(qp);
  }
  if (ack.nak == Nak::none || ack.generation == qp.last_nak || qp.inflight.empty()) return news;
  qp.last_nak = ack.generation;
  qp.progress_ns = now_ns;
  if (ack.nak == Nak::rnr) {
    ++qp.device->counters[rnr_nak_retry_err];
    if (qp.rnr_retry != 7 && qp.rnr_retries++ >= qp.rnr_retry) {
      fail_head(qp, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR);
      return true;
    }
    qp.hold_until_ns = now_ns + uint64_t{kRnrTimer10us[ack.rnr_timer]} * 10'000;
    send_again(qp);
  } else if (ack.nak == Nak::sequence) {
    ++qp.device->counters[packet_seq_err];
    if (qp.retries++ < qp.retry_count)
      send_again(qp);
    else
      fail_head(qp, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
  } else {
    ++qp.device->counters[ack.nak == Nak::remote_access ? req_remote_access_errors
                                                        : req_remote_invalid_request];
    fail_head(qp, syndrome_of(ack.nak));
  }
  return true;
}

// The retransmission timer. A peer that lives and receives is merely slow (machines under test are
// loaded), and gets all the time it needs; one that is gone, or losses on request, are not.
void check_timeout(Qp& qp, uint64_t now_ns) {
  if (qp.timeout == 0 || qp.sent == 0 || now_ns < qp.hold_until_ns) return;
  const uint64_t limit = std::max<uint64_t>(uint64_t{4096} << qp.timeout, kUnreachableNs);
  if (now_ns - qp.progress_ns < limit) return;
  const auto& links = nic().fabric->devices;
  bool reachable = false;
  if (qp.peer_device >= 0 && !links[qp.device->index].link_down &&
      !links[qp.peer_device].link_down) {
    const QpEntry& peer = qp_entry(*nic().fabric, qp.peer_device, qp.peer_qpn);
    const uint32_t owner = peer.owner.load();
    const uint32_t serves = peer.peer.load();
    reachable = owner != 0 && peer.receiving.load() != 0 &&
                process_alive(*nic().fabric, owner - 1) &&
                (serves == kAnyPeer || serves == (qp.device->index << 24 | qp.qpn));
  }
  qp.progress_ns = now_ns;
  if (reachable && config().faults.drop == 0) return;
  ++qp.device->counters[local_ack_timeout_err];
  log_wire(qp, WireEvent::timeout, qp.inflight.front().psn, qp.retries);
  if (qp.retries++ >= qp.retry_count) {
    fail_head(qp, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
    return;
  }
  send_again(qp);
}

// The wire of a queue that had more to send was busy all the time, also while this thread had to wait
// for its core.
void pace(Qp& qp, const Wqe& wqe, uint64_t now_ns) {
  const double rate = config().faults.gbit_per_s;
  if (rate <= 0) return;
  const auto ns = static_cast<uint64_t>(static_cast<double>(wqe.bytes) * 8 / rate);
  qp.hold_until_ns = (qp.had_more ? qp.hold_until_ns : std::max(qp.hold_until_ns, now_ns)) + ns;
  qp.had_more = static_cast<uint16_t>(qp.fetched) != doorbell_index(qp);
}

// Transmits inflight items that were not, or must be again. False: no room; try later.
bool transmit_pending(Qp& qp, uint64_t now_ns) {
  static Wqe wqe;
  while (qp.sent < qp.inflight.size()) {
    const Inflight& item = qp.inflight[qp.sent];
    if (!item.local && !item.done) {
      decode_wqe(qp.send_ring, qp.send_blocks, item.index, qp.addressed(), wqe);
      if (send_reliable(qp, wqe, item) == Sent::later) return false;
    }
    ++qp.sent;
    qp.progress_ns = now_ns;
  }
  return true;
}

// A DCI talks to one target at a time: to the next only when the last has acknowledged everything.
bool take_target(Qp& qp, const Wqe& wqe, bool& connects) {
  const int device = destination_of(qp, wqe).device;
  if (device == qp.peer_device && wqe.address.qpn == qp.peer_qpn) return true;
  for (const Inflight& item : qp.inflight) {
    if (!item.done) return false;
  }
  qp.peer_device = device;
  qp.peer_qpn = wqe.address.qpn;
  connects = true;
  return true;
}

// Fetches one WQE and sends it. False: nothing was consumed. `now_ns` was read after the doorbell
// record: never before the post.
bool fetch_one(Qp& qp, uint64_t now_ns) {
  static Wqe wqe;
  const auto index = static_cast<uint16_t>(qp.fetched);
  decode_wqe(qp.send_ring, qp.send_blocks, index, qp.addressed(), wqe);
  Inflight item{.position = qp.fetched,
                .index = index,
                .opcode = wqe.opcode,
                .syndrome = wqe.syndrome,
                .signaled = wqe.signaled(),
                .local = is_local_opcode(wqe.opcode),
                .bytes = wqe.bytes};
  if (wqe.index != index || wqe.qpn != qp.qpn) {
    complain("%s: QP %#x: the WQE at index %u is for QP %#x, index %u",
             qp.device->config->name.c_str(), qp.qpn, index, wqe.qpn, wqe.index);
    item.syndrome = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
  }
  const Faults::Place& fail = config().faults.fail;
  if (is_place(qp, fail) && qp.fetched <= fail.position &&
      fail.position < qp.fetched + wqe.basic_blocks)
    item.syndrome = config().faults.fail_syndrome;
  if (item.syndrome == 0 && !item.local) {
    if (qp.datagram() && wqe.bytes > kDatagramBytes)
      item.syndrome = MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
    item.psn = qp.next_psn;
    item.scattered = scatters_response(qp, wqe);
    if (qp.service == Service::dci && !take_target(qp, wqe, item.connects)) return false;
    Sent sent = Sent::yes;
    if (item.syndrome == 0)
      sent = qp.datagram() ? send_datagram(qp, wqe) : send_reliable(qp, wqe, item);
    if (sent == Sent::later) return false;
    if (sent == Sent::bad_local_address)
      item.syndrome = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
    else if (item.syndrome == 0) {
      qp.next_psn = (qp.next_psn + 1) & kPsnMask;
      count_sent(qp, wqe);
    }
  }
  item.local |= item.syndrome != 0;
  item.done = item.local || qp.datagram();
  log_wqe(qp, wqe, item, now_ns);
  qp.fetched += wqe.basic_blocks;
  if (qp.sent == 0 || qp.inflight.empty()) qp.progress_ns = now_ns;
  qp.inflight.push_back(item);
  ++qp.sent;
  pace(qp, wqe, now_ns);
  return true;
}

}  // namespace

unsigned run_send_queue(Qp& qp, uint64_t now_ns) {
  if (qp.send_blocks == 0) return 0;
  unsigned work = 0;
  if (!qp.datagram() && !qp.inflight.empty() && qp.state != QpState::err) {
    work += take_acknowledgement(qp, now_ns);
    if (!qp.inflight.empty()) check_timeout(qp, now_ns);
  }
  if ((qp.state != QpState::rts && qp.state != QpState::sqd) || now_ns < qp.hold_until_ns)
    return work;
  if (!transmit_pending(qp, now_ns)) return work;
  if (qp.state == QpState::sqd) return work;
  const uint16_t posted = doorbell_index(qp);
  if (static_cast<uint16_t>(qp.fetched) == posted) return work;
  const uint64_t fetched_ns = monotonic_ns();
  unsigned fetched = 0;
  while (static_cast<uint16_t>(qp.fetched) != posted && fetched < kBatch &&
         qp.state == QpState::rts && now_ns >= qp.hold_until_ns) {
    if (!fetch_one(qp, fetched_ns)) break;
    ++fetched;
    // Requests to this very process were served on the spot.
    if (qp.inflight.front().done)
      retire(qp);
    else if (!qp.datagram())
      take_acknowledgement(qp, now_ns);
  }
  return work + fetched;
}

void flush_send_queue(Qp& qp) {
  for (Inflight& item : qp.inflight) item.syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
  while (!qp.inflight.empty()) complete_head(qp);
  if (qp.send_blocks == 0) return;
  static Wqe wqe;
  const uint64_t now_ns = monotonic_ns();
  for (const uint16_t posted = doorbell_index(qp); static_cast<uint16_t>(qp.fetched) != posted;) {
    const auto index = static_cast<uint16_t>(qp.fetched);
    decode_wqe(qp.send_ring, qp.send_blocks, index, qp.addressed(), wqe);
    const Inflight item{.position = qp.fetched,
                        .index = index,
                        .opcode = wqe.opcode,
                        .syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR,
                        .signaled = true,
                        .local = true,
                        .done = true,
                        .bytes = wqe.bytes};
    log_wqe(qp, wqe, item, now_ns);
    qp.fetched += wqe.basic_blocks;
    qp.inflight.push_back(item);
    complete_head(qp);
  }
}

void rewind_send_queue(Qp& qp) {
  qp.fetched = 0;
  qp.inflight.clear();
  qp.sent = 0;
  qp.next_psn = 0;
  qp.last_nak = 0;
  qp.retries = qp.rnr_retries = 0;
  qp.hold_until_ns = qp.progress_ns = 0;
  qp.was_rung = false;
  qp.had_more = false;
}

}  // namespace connectx
