// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How names find objects, and how the data path's names and the control plane's are brought
// together.
#include "session/objects.h"

#include <algorithm>

namespace sigma {

// ---- devices ------------------------------------------------------------------------------------

Device& Objects::nameless_device() {
  devices_.push_back(std::make_unique<Device>());
  return *devices_.back();
}

Device& Objects::device_named(const std::string& name) {
  const auto it = std::ranges::find_if(devices_, [&](const auto& d) { return d->name == name; });
  if (it != devices_.end() && !name.empty()) return **it;
  Device& device = nameless_device();
  device.name = name;
  return device;
}

void Objects::bind(Device& nameless, Device& to) {
  if (&nameless == &to) return;
  for (auto& [qp_num, qp] : nameless.qps) {
    const auto live = to.qps.find(qp_num);
    if (live != to.qps.end()) {
      // Known from both sides: what was posted under the nameless one is the real one's.
      Qp& real = *live->second;
      for (size_t i = 0; i < qp->send.size(); ++i) real.send.push(std::move(qp->send[i]));
      for (size_t i = 0; i < qp->recv.size(); ++i) real.recv.push(std::move(qp->recv[i]));
      real.has_operations |= qp->has_operations;
      if (real.info->qp_ptr == 0) real.info->qp_ptr = qp->info->qp_ptr;
      if (real.send_cq_ptr == 0) real.send_cq_ptr = qp->send_cq_ptr;
      if (real.recv_cq_ptr == 0) real.recv_cq_ptr = qp->recv_cq_ptr;
      if (real.srq_ptr == 0) real.srq_ptr = qp->srq_ptr;
      --counters_.qps_seen;
      if (qp->info->older_than_attach) --counters_.qps_older_than_attach;
      HandleSpace* space = qp->space;
      const auto handle = qp->info->handle;
      leave_space(*qp);
      if (real.space == nullptr && space != nullptr && handle) enter_space(real, *space, *handle);
      continue;
    }
    qp->device = &to;
    qp->info->device = to.name;
    qp->info->life = to.lives[qp_num]++;
    if (const auto peer = to.peers.find(qp_num);
        peer != to.peers.end() && qp->info->older_than_attach) {
      apply_peer(*qp, peer->second);
      to.peers.erase(peer);
    }
    to.qps[qp_num] = std::move(qp);
  }
  for (auto& [key, user] : users_)
    if (user.device == &nameless) user.device = &to;
  for (auto& space : spaces_) {
    if (space->device != &nameless) continue;
    space->device = &to;
    for (auto& [handle, mr] : space->mrs) mr.device = to.name;
    for (auto& [handle, cq] : space->cqs) cq->info.device = to.name;
  }
  ++generation_;
  std::erase_if(devices_, [&](const auto& device) { return device.get() == &nameless; });
}

// ---- the data path ------------------------------------------------------------------------------

uint32_t Objects::parent_of(uint32_t pid) const {
  const auto it = processes_.find(pid);
  return it == processes_.end() ? 0 : it->second.parent;
}

UserContext& Objects::user_context(uint32_t pid, uint64_t context) {
  const auto it = users_.find({pid, context});
  if (it != users_.end()) return it->second;
  UserContext user{.pid = pid, .context = context, .device = &nameless_device()};
  return users_.emplace(PidPtr{pid, context}, user).first->second;
}

Qp* Objects::known_qp(uint32_t pid, uint64_t context, uint32_t qp_num) const {
  const auto user = users_.find({pid, context});
  if (user == users_.end() || user->second.space == nullptr) return nullptr;
  const auto it = user->second.device->qps.find(qp_num);
  if (it == user->second.device->qps.end()) return nullptr;
  Qp& qp = *it->second;
  return qp.space != nullptr && qp.info->qp_ptr != 0 ? &qp : nullptr;
}

Qp* Objects::find_qp(UserContext& user, uint32_t qp_num, uint64_t qp_ptr) {
  if (const auto it = user.device->qps.find(qp_num); it != user.device->qps.end()) {
    place(*it->second, user);
    return it->second.get();
  }
  if (!user.device->name.empty() || qp_ptr == 0) return nullptr;
  // The context's device is not known yet; the CREATE command named the struct ibv_qp.
  for (const auto& device : devices_) {
    const auto it = device->qps.find(qp_num);
    if (it == device->qps.end() || it->second->info->qp_ptr != qp_ptr) continue;
    const uint32_t owner = it->second->info->pid;
    if (owner != user.pid && owner != parent_of(user.pid)) continue;
    Qp* qp = it->second.get();
    bind(*user.device, *device);
    place(*qp, user);
    return qp;
  }
  return nullptr;
}

Qp* Objects::find_qp_of_completion(UserContext& user, uint32_t qp_num, uint64_t cq_ptr) {
  if (Qp* qp = find_qp(user, qp_num, 0)) return qp;
  if (!user.device->name.empty() || cq_ptr == 0) return nullptr;
  for (const auto& space : spaces_) {
    if (space->pid != user.pid || space->device == user.device) continue;
    const bool owns = std::ranges::any_of(
        space->cqs, [&](const auto& entry) { return entry.second->ptr == cq_ptr; });
    if (!owns) continue;
    bind(*user.device, *space->device);
    return find_qp(user, qp_num, 0);
  }
  return nullptr;
}

void Objects::set_observed(const sigma_ring& ring) {
  const bool by_file = ring.flags & SIGMA_RING_BY_FILE;
  for (const auto& space : spaces_) {
    if ((by_file ? space->file : space->context) != ring.context || space->pid != ring.h.pid)
      continue;
    for (auto& [handle, cq] : space->cqs)
      if (cq->info.cqn == ring.number) cq->observed = ring.event != SIGMA_RING_END;
  }
  any_observed_ = true;
  if (ring.flags & SIGMA_RING_POLLED) tells_pick_ups_ = true;
  ++generation_;
}

bool Objects::is_observed_cq(uint32_t pid, uint64_t ptr) {
  if (!any_observed_) return false;
  auto& last = last_polled_;
  if (last.generation == generation_ && last.ptr == ptr && last.pid == pid) return last.observed;
  last = {generation_, ptr, pid, false};
  for (const auto& space : spaces_) {
    if (space->pid != pid) continue;
    for (const auto& [handle, cq] : space->cqs)
      if (cq->ptr == ptr && cq->observed) last.observed = true;
  }
  return last.observed;
}

bool Objects::has_ended(uint32_t pid, uint64_t context, bool by_file, uint32_t qp_num) {
  const Device* device = nullptr;
  if (by_file)
    for (const auto& space : spaces_)
      if (space->file == context) device = space->device;
  if (device == nullptr) device = user_context(pid, context).device;
  return !device->qps.contains(qp_num) && device->lives.contains(qp_num);
}

Qp& Objects::qp_of_ring(uint32_t pid, uint64_t context, bool by_file, uint32_t qp_num) {
  if (by_file)
    for (const auto& space : spaces_) {
      if (space->file != context) continue;
      const auto it = space->device->qps.find(qp_num);
      if (it != space->device->qps.end()) return *it->second;
      return older_life(*space->device, qp_num, pid, space->context);
    }
  // A file that no command of the trace has named: the context stands for it, by itself.
  UserContext& user = user_context(pid, context);
  if (Qp* qp = find_qp(user, qp_num, 0)) return *qp;
  return older_qp(user, qp_num, 0);
}

bool Objects::had_life(const UserContext& user, uint32_t qp_num) const {
  return user.device->lives.contains(qp_num);
}

Srq* Objects::find_srq(uint32_t pid, uint64_t ptr) {
  if (ptr == 0) return nullptr;
  constexpr int kGenerations = 8;
  for (int i = 0; i < kGenerations && pid != 0; ++i, pid = parent_of(pid))
    if (const auto it = srqs_by_ptr_.find({pid, ptr}); it != srqs_by_ptr_.end()) return it->second;
  return nullptr;
}

Srq* Objects::srq_of(Qp& qp) {
  if (Srq* srq = find_srq(qp.info->pid, qp.srq_ptr)) return srq;
  if (qp.space == nullptr || !qp.srq_handle) return nullptr;
  const auto it = qp.space->srqs.find(*qp.srq_handle);
  return it == qp.space->srqs.end() ? nullptr : it->second;
}

uint64_t Objects::cq_ptr(const HandleSpace* space, std::optional<uint32_t> handle) const {
  if (space == nullptr || !handle) return 0;
  const auto it = space->cqs.find(*handle);
  return it == space->cqs.end() ? 0 : it->second->ptr;
}

const Cq* Objects::find_cq(uint32_t pid, uint64_t ptr) const {
  for (const auto& space : spaces_) {
    if (space->pid != pid) continue;
    for (const auto& [handle, cq] : space->cqs)
      if (cq->ptr == ptr) return cq.get();
  }
  return nullptr;
}

std::vector<Objects::QueueRef> Objects::queues_of_cq(uint32_t pid, uint64_t cq_ptr) {
  std::vector<QueueRef> queues;
  for_each_qp([&](Qp& qp) {
    if (qp.info->pid != pid && qp.info->pid != parent_of(pid)) return;
    if (qp.send_cq_ptr == cq_ptr) queues.push_back({&qp, Queue::send});
    if (qp.recv_cq_ptr == cq_ptr) queues.push_back({&qp, Queue::recv});
  });
  return queues;
}

const Ah* Objects::find_ah(const Qp& qp, uint32_t pid, uint32_t handle) const {
  if (qp.space != nullptr) {
    const auto it = qp.space->ahs.find(handle);
    return it == qp.space->ahs.end() ? nullptr : &it->second;
  }
  // A queue pair that is not placed: the handle must be unique among the process's files.
  const Ah* unique = nullptr;
  for (const auto& space : spaces_) {
    if (space->device != qp.device || (space->pid != pid && space->pid != qp.info->pid)) continue;
    const auto it = space->ahs.find(handle);
    if (it == space->ahs.end()) continue;
    if (unique != nullptr) return nullptr;
    unique = &it->second;
  }
  return unique;
}

// ---- placing: which uverbs file a context is ----------------------------------------------------

// By elimination: the only file of this process and device that no context stands for.
void Objects::place(UserContext& user) {
  if (user.space != nullptr || user.device->name.empty()) return;
  HandleSpace* only = nullptr;
  for (const auto& space : spaces_) {
    if (space->pid != user.pid || space->device != user.device || space->context != 0) continue;
    if (only != nullptr) return;
    only = space.get();
  }
  if (only == nullptr) return;
  only->context = user.context;
  user.space = only;
}

// By a queue pair that both name.
void Objects::place(Qp& qp, UserContext& user) {
  if (user.space == nullptr && qp.space != nullptr &&
      (qp.space->context == 0 || qp.space->context == user.context)) {
    user.space = qp.space;
    user.space->context = user.context;
  } else if (qp.space == nullptr && user.space != nullptr && qp.info->pid == user.pid) {
    if (!qp.info->handle)
      qp.space = user.space;
    else if (!user.space->qps.contains(*qp.info->handle))
      enter_space(qp, *user.space, *qp.info->handle);
  }
}

void Objects::enter_space(Qp& qp, HandleSpace& space, uint32_t handle) {
  qp.space = &space;
  qp.info->handle = handle;
  space.qps[handle] = &qp;
}

void Objects::leave_space(Qp& qp) {
  if (qp.space != nullptr && qp.info->handle) {
    const auto it = qp.space->qps.find(*qp.info->handle);
    if (it != qp.space->qps.end() && it->second == &qp) qp.space->qps.erase(it);
  }
  qp.space = nullptr;
}

// ---- the control plane --------------------------------------------------------------------------

HandleSpace& Objects::new_space(Device& device, uint32_t pid) {
  spaces_.push_back(std::make_unique<HandleSpace>());
  spaces_.back()->device = &device;
  spaces_.back()->pid = pid;
  return *spaces_.back();
}

HandleSpace& Objects::space_of(const sigma_uverbs& command, bool opens) {
  const uint32_t pid = command.h.pid;
  if (!(command.flags & SIGMA_UVERBS_KERNEL)) {
    UserContext& user = user_context(pid, command.ucontext);
    if (user.space != nullptr && opens) end_space(*user.space, command.h.time_ns);
    if (user.space == nullptr) {
      user.space = &new_space(*user.device, pid);
      user.space->context = user.context;
    }
    return *user.space;
  }

  for (const auto& space : spaces_) {
    if (space->file != command.ucontext) continue;
    if (!opens) return *space;
    // The file is a new one at an old one's address.
    drop_space(*space, command.h.time_ns);
    break;
  }
  const std::string name =
      options_.device_of_node ? options_.device_of_node(command.rdev) : std::string();
  Device& device = device_named(name);
  if (!opens) {
    // A file older than the attach: of a context that is already known by its pointer, if only one
    // can be meant.
    HandleSpace* only = nullptr;
    size_t candidates = 0;
    for (const auto& space : spaces_)
      if (space->pid == pid && space->device == &device && space->file == 0) {
        only = space.get();
        ++candidates;
      }
    if (candidates == 1) {
      only->file = command.ucontext;
      return *only;
    }
  }
  HandleSpace& space = new_space(device, pid);
  space.file = command.ucontext;
  for (auto& [key, user] : users_)
    if (key.first == pid) place(user);
  return space;
}

Qp* Objects::find_qp_by_handle(HandleSpace& space, uint32_t handle) {
  if (const auto it = space.qps.find(handle); it != space.qps.end()) return it->second;
  // Older than the attach, known from its posts or the heap only.
  Qp* only = nullptr;
  for (auto& [qp_num, qp] : space.device->qps) {
    if (qp->space != nullptr || qp->info->pid != space.pid || qp->info->handle != handle) continue;
    if (only != nullptr) return nullptr;
    only = qp.get();
  }
  if (only != nullptr) enter_space(*only, space, handle);
  return only;
}

}  // namespace sigma
