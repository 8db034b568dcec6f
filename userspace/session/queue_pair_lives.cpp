// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The lives of queue pairs: begun by commands, or by being seen in use; ended by commands, by the end
// of their context or process (owners.cpp), or by the reuse of their number.
#include <infiniband/verbs.h>

#include "base/text_field.h"
#include "session/objects.h"

namespace sigma {
namespace {

// A bound on what netlink may say about queue pairs that are never seen.
constexpr size_t kMaxPeersAhead = 1 << 16;

// What a modify command said since, stays.
template <typename T>
void fill(std::optional<T>& field, T value) {
  if (!field) field = value;
}

void apply_path(QueuePair& info, const sigma_qp_peer& peer) {
  if (!info.peer.gid && (peer.peer_gid_high != 0 || peer.peer_gid_low != 0)) {
    auto& gid = info.peer.gid.emplace();
    for (size_t i = 0; i < 8; ++i) {
      gid[i] = static_cast<uint8_t>(peer.peer_gid_high >> (56 - 8 * i));
      gid[8 + i] = static_cast<uint8_t>(peer.peer_gid_low >> (56 - 8 * i));
    }
  }
  if (peer.peer_lid != 0) fill(info.peer.lid, uint16_t{peer.peer_lid});
  if (peer.path_mtu != 0) fill(info.path_mtu, uint32_t{peer.path_mtu});
  if (peer.port != 0) fill(info.port, uint8_t{peer.port});
  fill(info.sgid_index, uint8_t{peer.sgid_index});
  fill(info.sl, uint8_t{peer.sl});
  fill(info.traffic_class, uint8_t{peer.traffic_class});
  fill(info.hop_limit, uint8_t{peer.hop_limit});
  fill(info.timeout, uint8_t{peer.timeout});
  fill(info.retry_cnt, uint8_t{peer.retry_cnt});
  fill(info.rnr_retry, uint8_t{peer.rnr_retry});
  fill(info.min_rnr_timer, uint8_t{peer.min_rnr_timer});
}

bool has_last_word_to_come(const Qp& qp) {
  return qp.ring.active && qp.ring.reader == RingReader::library && !qp.ring.ended;
}

}  // namespace

Qp& Objects::new_life(Device& device, uint32_t qp_num, uint32_t pid) {
  auto& slot = device.qps[qp_num];
  slot = std::make_unique<Qp>();
  slot->device = &device;
  slot->info = std::make_shared<QueuePair>();
  slot->info->device = device.name;
  slot->info->qp_num = qp_num;
  slot->info->life = device.lives[qp_num]++;
  slot->info->pid = pid;
  ++counters_.qps_seen;
  ++generation_;
  return *slot;
}

Qp& Objects::create_qp(HandleSpace& space, uint32_t handle, uint32_t qp_num, uint64_t now_ns) {
  // The handle, or the number, is in use: its DESTROY was not seen.
  if (const auto it = space.qps.find(handle); it != space.qps.end()) end_qp(*it->second, now_ns);
  if (const auto it = space.device->qps.find(qp_num); it != space.device->qps.end())
    end_qp(*it->second, now_ns);
  space.device->peers.erase(qp_num);
  Qp& qp = new_life(*space.device, qp_num, space.pid);
  enter_space(qp, space, handle);
  qp.context = space.context;
  qp.info->created_ns = now_ns;
  qp.info->state = IBV_QPS_RESET;
  return qp;
}

Qp& Objects::older_qp(UserContext& user, uint32_t qp_num, uint64_t) {
  return older_life(*user.device, qp_num, user.pid, user.context);
}

Qp& Objects::older_life(Device& device, uint32_t qp_num, uint32_t pid, uint64_t context) {
  Qp& qp = new_life(device, qp_num, pid);
  qp.context = context;
  qp.info->older_than_attach = true;
  qp.send.set_out_of_step();
  qp.recv.set_out_of_step();
  ++counters_.qps_older_than_attach;
  if (const auto it = device.peers.find(qp_num); it != device.peers.end()) {
    apply_peer(qp, it->second);
    device.peers.erase(it);
  }
  return qp;
}

void Objects::reset_qp(Qp& qp, uint64_t now_ns) {
  QueuePair& old = qp.newest();
  auto next = std::make_shared<QueuePair>();
  next->device = old.device;
  next->qp_num = old.qp_num;
  next->life = qp.device->lives[old.qp_num]++;
  next->pid = old.pid;
  next->qp_ptr = old.qp_ptr;
  next->handle = old.handle;
  next->type = old.type;
  next->state = IBV_QPS_RESET;
  next->sq_sig_all = old.sq_sig_all;
  next->max_send_wr = old.max_send_wr;
  next->max_recv_wr = old.max_recv_wr;
  next->max_send_sge = old.max_send_sge;
  next->max_recv_sge = old.max_recv_sge;
  next->max_inline_data = old.max_inline_data;
  next->has_srq = old.has_srq;
  next->send_cq = old.send_cq;
  next->recv_cq = old.recv_cq;
  next->created_ns = now_ns;

  old.destroyed_ns = now_ns;
  if (qp.next) remember(closed_qps_, std::shared_ptr<const QueuePair>(std::move(qp.next)));
  qp.next = std::move(next);
  if (!has_last_word_to_come(qp)) begin_next(qp, now_ns);
}

void Objects::begin_next(Qp& qp, uint64_t now_ns) {
  on_end_.qp(qp, now_ns);
  remember(closed_qps_, std::shared_ptr<const QueuePair>(std::move(qp.info)));
  qp.info = std::move(qp.next);
  qp.next = nullptr;
  const bool any_order = qp.send.any_order();
  qp.send = WorkQueue(Queue::send, any_order);
  qp.recv = WorkQueue(Queue::recv, any_order);
  if (qp.info->sq_sig_all) qp.send.set_sq_sig_all(*qp.info->sq_sig_all);
  qp.last_call = {};
  const ObservedRing before = std::move(qp.ring);
  qp.ring = {};
  if (before.reader == RingReader::library) qp.ring.before = before.life;
  qp.has_operations = false;
}

void Objects::destroy_qp(Qp& qp, uint64_t now_ns) {
  if (!has_last_word_to_come(qp)) return end_qp(qp, now_ns);
  qp.newest().destroyed_ns = now_ns;
  leave_space(qp);
}

void Objects::end_qp(Qp& qp, uint64_t now_ns) {
  if (qp.next) begin_next(qp, now_ns);
  if (!qp.info->destroyed_ns) qp.info->destroyed_ns = now_ns;
  on_end_.qp(qp, now_ns);
  leave_space(qp);
  remember(closed_qps_, std::shared_ptr<const QueuePair>(qp.info));
  ++generation_;
  qp.device->qps.erase(qp.info->qp_num);
}

void Objects::on_qp_seen(const sigma_qp_seen& seen) {
  UserContext& user = user_context(seen.h.pid, seen.context);
  Qp* qp = find_qp(user, seen.qp_num, seen.qp_ptr);
  if (qp != nullptr && qp->info->pid != seen.h.pid) {
    // A child's copy of its parent's queue pair.
    if (qp->inherited_by != seen.h.pid) ++counters_.qps_inherited;
    qp->inherited_by = seen.h.pid;
    return;
  }
  if (qp != nullptr && qp->info->qp_ptr != 0 && qp->info->qp_ptr != seen.qp_ptr) {
    // Another object under this number: destroyed and made again unseen.
    end_qp(*qp, seen.h.time_ns);
    qp = nullptr;
  }
  if (qp == nullptr) qp = &older_qp(user, seen.qp_num, seen.h.time_ns);

  QueuePair& info = *qp->info;
  info.qp_ptr = seen.qp_ptr;
  if (!info.handle) {
    info.handle = seen.handle;
    if (qp->space != nullptr && !qp->space->qps.contains(seen.handle))
      enter_space(*qp, *qp->space, seen.handle);
  }
  if (!info.type) info.type = static_cast<uint8_t>(seen.qp_type);
  if (!info.state || info.older_than_attach) info.state = static_cast<uint8_t>(seen.state);
  if (qp->context == 0) qp->context = seen.context;
  if (seen.send_cq_ptr != 0) qp->send_cq_ptr = seen.send_cq_ptr;
  if (seen.recv_cq_ptr != 0) qp->recv_cq_ptr = seen.recv_cq_ptr;
  if (seen.srq_ptr != 0) {
    if (!info.has_srq) ++generation_;
    qp->srq_ptr = seen.srq_ptr;
    info.has_srq = true;
  }
  // Before RTS nothing can have been sent; in RESET nothing received either.
  if (info.older_than_attach && seen.state <= IBV_QPS_RTR && qp->send.empty())
    qp->send.set_in_step();
  if (info.older_than_attach && seen.state == IBV_QPS_RESET && qp->recv.empty())
    qp->recv.set_in_step();
  place(*qp, user);
}

void Objects::apply_peer(Qp& qp, const sigma_qp_peer& peer) {
  QueuePair& info = *qp.info;
  if (!info.peer_qp_num && peer.peer_qp_num != 0) info.peer_qp_num = peer.peer_qp_num;
  if (!info.sq_psn && peer.sq_psn != SIGMA_UNKNOWN_PSN) info.sq_psn = peer.sq_psn;
  if (!info.rq_psn && peer.rq_psn != SIGMA_UNKNOWN_PSN) info.rq_psn = peer.rq_psn;
  if (!info.state) info.state = static_cast<uint8_t>(peer.state);
  // The kernel numbers these as libibverbs does; its others are its own.
  if (!info.type && peer.qp_type >= IBV_QPT_RC && peer.qp_type <= IBV_QPT_UD)
    info.type = static_cast<uint8_t>(peer.qp_type);
  if (peer.has_path) apply_path(info, peer);
}

void Objects::on_qp_peer(const sigma_qp_peer& record) {
  Device& device = device_named(std::string(text_of(record.device)));
  if (const auto it = device.qps.find(record.qp_num); it != device.qps.end()) {
    if (it->second->info->older_than_attach) apply_peer(*it->second, record);
  } else if (device.peers.size() < kMaxPeersAhead) {
    device.peers[record.qp_num] = record;
  }
}

}  // namespace sigma
