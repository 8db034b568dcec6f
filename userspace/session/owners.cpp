// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who objects belong to: contexts and processes, whose end is theirs as well.
#include "base/text_field.h"
#include "session/objects.h"

namespace sigma {

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
    const std::string name(text_of(record.device));
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
  if (state.info.comm.empty() && pid == ending_pid_) state.info.comm = ending_comm_;
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
  const std::string comm(text_of(record.comm));
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
      // What it leaves unfinished is told with its name, which nobody else may know by now.
      ending_pid_ = pid;
      ending_comm_ = comm;
      ++generation_;
      end_process(pid, record.h.time_ns);
      ending_pid_ = 0;
      const auto it = processes_.find(pid);
      if (it == processes_.end()) break;
      it->second.info.exit_ns = record.h.time_ns;
      if (record.exit_code != SIGMA_EXIT_UNKNOWN) it->second.info.exit_code = record.exit_code;
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

}  // namespace sigma
