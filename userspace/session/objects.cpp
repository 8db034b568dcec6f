// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completion queues, memory regions, shared receive queues and devices' clocks; and all objects, as the
// side file is told of them. Queue pairs: queue_pair_lives.cpp; contexts and processes: owners.cpp; how
// names find them: routes.cpp.
#include "session/objects.h"

#include <algorithm>

#include "base/text_field.h"

namespace sigma {
namespace {

// On what a damaged trace may say of clocks.
constexpr size_t kMaxDevices = 1 << 12;

}  // namespace

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

void Objects::on_clock_sample(const sigma_clock_sample& sample) {
  if (devices_.size() >= kMaxDevices) return;
  device_named(std::string(text_of(sample.device)))
      .clock.add({.ticks = sample.ticks,
                  .host_ns = sample.h.time_ns,
                  .error_ns = sample.error_ns,
                  .nominal_khz = sample.nominal_khz});
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
