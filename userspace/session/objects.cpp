// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The lives of objects: begun by commands, or by being seen in use; ended by commands, by the end
// of their context, of their process, or by the reuse of their number. How names find them:
// routes.cpp.
#include "session/objects.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstring>

namespace sigma {
namespace {

// A bound on what netlink may say about queue pairs that are never seen.
constexpr size_t kMaxPeersAhead = 1 << 16;
// On what a damaged trace may say of clocks.
constexpr size_t kMaxDevices = 1 << 12;

std::string text(const char* chars, size_t capacity) {
  return {chars, strnlen(chars, capacity)};
}

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

}  // namespace

// ---- queue pairs --------------------------------------------------------------------------------

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

namespace {

bool has_last_word_to_come(const Qp& qp) {
  return qp.ring.active && qp.ring.reader == RingReader::library && !qp.ring.ended;
}

}  // namespace

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
  Device& device = device_named(text(record.device, sizeof(record.device)));
  if (const auto it = device.qps.find(record.qp_num); it != device.qps.end()) {
    if (it->second->info->older_than_attach) apply_peer(*it->second, record);
  } else if (device.peers.size() < kMaxPeersAhead) {
    device.peers[record.qp_num] = record;
  }
}

void Objects::on_clock_sample(const sigma_clock_sample& sample) {
  if (devices_.size() >= kMaxDevices) return;
  device_named(text(sample.device, sizeof(sample.device)))
      .clock.add({.ticks = sample.ticks,
                  .host_ns = sample.h.time_ns,
                  .error_ns = sample.error_ns,
                  .nominal_khz = sample.nominal_khz});
}

// ---- other objects ------------------------------------------------------------------------------

void Objects::end_cq(HandleSpace& space, uint32_t handle, uint64_t now_ns) {
  const auto it = space.cqs.find(handle);
  if (it == space.cqs.end()) return;
  it->second->info.destroyed_ns = now_ns;
  remember(closed_cqs_, std::move(it->second->info));
  space.cqs.erase(it);
  ++generation_;
}

void Objects::end_mr(HandleSpace& space, uint32_t handle, uint64_t now_ns) {
  const auto it = space.mrs.find(handle);
  if (it == space.mrs.end()) return;
  it->second.destroyed_ns = now_ns;
  if (it->second.register_ns) registrations_.deregistered(it->second.length);
  remember(closed_mrs_, std::move(it->second));
  space.mrs.erase(it);
}

void Objects::add_srq(HandleSpace& space, uint32_t handle, uint64_t ptr, uint64_t now_ns) {
  if (const auto it = space.srqs.find(handle); it != space.srqs.end()) end_srq(*it->second, now_ns);
  if (ptr != 0)
    if (const auto it = srqs_by_ptr_.find({space.pid, ptr}); it != srqs_by_ptr_.end())
      end_srq(*it->second, now_ns);

  auto srq = std::make_unique<Srq>();
  srq->pid = space.pid;
  srq->ptr = ptr;
  srq->handle = handle;
  srq->space = &space;
  space.srqs[handle] = srq.get();
  if (ptr != 0) srqs_by_ptr_[{space.pid, ptr}] = srq.get();
  srqs_.push_back(std::move(srq));
  ++generation_;
}

Srq& Objects::older_srq(UserContext& user, uint64_t ptr) {
  auto srq = std::make_unique<Srq>();
  srq->pid = user.pid;
  srq->ptr = ptr;
  srq->space = user.space;
  srq->queue.set_out_of_step();
  srqs_by_ptr_[{user.pid, ptr}] = srq.get();
  srqs_.push_back(std::move(srq));
  ++generation_;
  return *srqs_.back();
}

void Objects::end_srq(Srq& srq, uint64_t now_ns) {
  on_end_.srq(srq, now_ns);
  if (srq.space != nullptr && srq.handle) srq.space->srqs.erase(*srq.handle);
  srqs_by_ptr_.erase({srq.pid, srq.ptr});
  ++generation_;
  std::erase_if(srqs_, [&](const auto& owned) { return owned.get() == &srq; });
}

void Objects::on_mr_seen(const sigma_mr_seen& seen) {
  UserContext& user = user_context(seen.h.pid, seen.context);
  if (user.space == nullptr) {
    user.space = &new_space(*user.device, user.pid);
    user.space->context = user.context;
  }
  user.space->mrs.try_emplace(seen.handle, MemoryRegion{.device = user.device->name,
                                                        .pid = seen.h.pid,
                                                        .addr = seen.addr,
                                                        .length = seen.length,
                                                        .handle = seen.handle,
                                                        .lkey = seen.lkey,
                                                        .rkey = seen.rkey});
}

// ---- contexts and processes ---------------------------------------------------------------------

void Objects::end_space(HandleSpace& space, uint64_t now_ns) {
  std::vector<Qp*> qps;
  for_each_qp([&](Qp& qp) {
    if (qp.space == &space) qps.push_back(&qp);
  });
  for (Qp* qp : qps) end_qp(*qp, now_ns);
  std::vector<Srq*> srqs;
  for_each_srq([&](Srq& srq) {
    if (srq.space == &space) srqs.push_back(&srq);
  });
  for (Srq* srq : srqs) end_srq(*srq, now_ns);
  while (!space.cqs.empty()) end_cq(space, space.cqs.begin()->first, now_ns);
  while (!space.mrs.empty()) end_mr(space, space.mrs.begin()->first, now_ns);
  space.ahs.clear();
}

void Objects::drop_space(HandleSpace& space, uint64_t now_ns) {
  end_space(space, now_ns);
  for (auto& [key, user] : users_)
    if (user.space == &space) user.space = nullptr;
  ++generation_;
  std::erase_if(spaces_, [&](const auto& owned) { return owned.get() == &space; });
}

void Objects::on_context(const sigma_context& record) {
  const uint32_t pid = record.h.pid;
  if (record.kind == SIGMA_CONTEXT_SEEN) {
    UserContext& user = user_context(pid, record.context);
    const std::string name = text(record.device, sizeof(record.device));
    if (name.empty()) return;
    Device& device = device_named(name);
    if (user.device->name.empty()) {
      bind(*user.device, device);
    } else if (user.device != &device) {
      // The pointer stands for another device now: the old context's end was not seen.
      user.device = &device;
      user.space = nullptr;
      ++generation_;
    }
    place(user);
    return;
  }
  if (record.kind != SIGMA_CONTEXT_CLOSED) return;

  const auto it = users_.find({pid, record.context});
  if (it == users_.end()) return;
  // A child that closes its copy ends nothing: the parent's file keeps the objects.
  HandleSpace* space = it->second.space;
  if (space != nullptr && space->pid == pid) drop_space(*space, record.h.time_ns);
  std::vector<Qp*> ended;
  for_each_qp([&](Qp& qp) {
    if (qp.space == nullptr && qp.info->pid == pid && qp.context == record.context &&
        !qp.info->destroyed_ns)
      ended.push_back(&qp);
  });
  for (Qp* qp : ended) end_qp(*qp, record.h.time_ns);
  users_.erase(it);
  ++generation_;
}

ProcessState& Objects::process(uint32_t pid) {
  const auto [it, added] = processes_.try_emplace(pid);
  if (added) it->second.info.pid = pid;
  return it->second;
}

std::string_view Objects::comm(uint32_t pid) {
  const std::lock_guard lock(comm_mutex_);
  ProcessState& state = process(pid);
  if (!state.comm_known) {
    state.comm_known = true;
    if (options_.comm_of) state.info.comm = options_.comm_of(pid);
  }
  return state.info.comm;
}

void Objects::end_process(uint32_t pid, uint64_t now_ns) {
  std::vector<HandleSpace*> spaces;
  for (const auto& space : spaces_)
    if (space->pid == pid) spaces.push_back(space.get());
  for (HandleSpace* space : spaces) drop_space(*space, now_ns);

  std::vector<Qp*> qps;
  for_each_qp([&](Qp& qp) {
    if (qp.info->pid == pid) qps.push_back(&qp);
  });
  for (Qp* qp : qps) end_qp(*qp, now_ns);
  std::vector<Srq*> srqs;
  for (const auto& srq : srqs_)
    if (srq->pid == pid) srqs.push_back(srq.get());
  for (Srq* srq : srqs) end_srq(*srq, now_ns);

  std::erase_if(users_, [&](const auto& entry) { return entry.first.first == pid; });
  ++generation_;
}

void Objects::on_process(const sigma_process& record) {
  const uint32_t pid = record.h.pid;
  const std::string comm = text(record.comm, sizeof(record.comm));
  switch (record.kind) {
    case SIGMA_PROCESS_EXEC: {
      // rdma-core opens its files close-on-exec.
      end_process(pid, record.h.time_ns);
      ProcessState& state = process(pid);
      state.info.comm = comm;
      state.comm_known = true;
      break;
    }
    case SIGMA_PROCESS_EXIT: {
      end_process(pid, record.h.time_ns);
      const auto it = processes_.find(pid);
      if (it == processes_.end()) break;
      it->second.info.exit_ns = record.h.time_ns;
      it->second.info.exit_code = record.exit_code;
      if (it->second.info.comm.empty()) it->second.info.comm = comm;
      remember(closed_processes_, std::move(it->second.info));
      processes_.erase(it);
      ++generation_;
      break;
    }
    case SIGMA_PROCESS_LEFT: {
      end_process(pid, record.h.time_ns);
      const auto it = processes_.find(pid);
      if (it == processes_.end()) break;
      remember(closed_processes_, std::move(it->second.info));  // still running: without an exit
      processes_.erase(it);
      ++generation_;
      break;
    }
    case SIGMA_PROCESS_FOUND: {
      // Threads may have names of their own; the first one's is the process's.
      ProcessState& state = process(pid);
      if (record.h.tid != pid || state.comm_known) break;
      state.info.comm = comm;
      state.comm_known = true;
      ++generation_;
      break;
    }
    case SIGMA_PROCESS_FORK: {
      ProcessState& parent = process(pid);
      ProcessState& child = process(record.child_pid);
      child.parent = pid;
      child.paused = parent.paused;
      child.info.comm = comm.empty() ? std::string(this->comm(pid)) : comm;
      child.comm_known = true;
      // The heap's copy holds the parent's contexts at the same addresses.
      std::vector<UserContext> copies;
      for (const auto& [key, user] : users_)
        if (key.first == pid) copies.push_back(user);
      for (UserContext& copy : copies) {
        copy.pid = record.child_pid;
        users_.insert_or_assign({record.child_pid, copy.context}, copy);
      }
      ++generation_;
      break;
    }
    default:
      break;
  }
}

// ---- what the side file is told -----------------------------------------------------------------

std::vector<std::shared_ptr<const QueuePair>> Objects::queue_pairs() const {
  std::vector<std::shared_ptr<const QueuePair>> all(closed_qps_.begin(), closed_qps_.end());
  for (const auto& device : devices_)
    for (const auto& [number, qp] : device->qps) {
      all.push_back(qp->info);
      if (qp->next) all.push_back(qp->next);
    }
  return all;
}

std::vector<MemoryRegion> Objects::memory_regions() const {
  std::vector<MemoryRegion> all(closed_mrs_.begin(), closed_mrs_.end());
  for (const auto& space : spaces_)
    for (const auto& [handle, mr] : space->mrs) all.push_back(mr);
  return all;
}

std::vector<CompletionQueue> Objects::completion_queues() const {
  std::vector<CompletionQueue> all(closed_cqs_.begin(), closed_cqs_.end());
  for (const auto& space : spaces_)
    for (const auto& [handle, cq] : space->cqs) all.push_back(cq->info);
  return all;
}

std::vector<Process> Objects::processes() const {
  std::vector<Process> all(closed_processes_.begin(), closed_processes_.end());
  for (const auto& [pid, state] : processes_) all.push_back(state.info);
  return all;
}

}  // namespace sigma
