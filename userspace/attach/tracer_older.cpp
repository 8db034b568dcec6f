// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a process made before the attach: its queue pairs, their rings, functions and peers.

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "attach/gpu_registry.h"
#include "attach/rdma_netlink.h"
#include "attach/tracer.h"
#include "base/clock.h"

namespace sigma {

// Objects made before the attach: what the heap holds, and the peers that the kernel knows. Their records
// are stamped with the time of the attach, so that they come before the first post: nothing has been
// passed on yet while a trace starts.
void Tracer::find_older_objects(Target& target, const std::string& libibverbs) {
  auto objects = find_live_objects(target.pid, {});
  // The search took time: make room in the ring, without passing anything on.
  (void)ring_->drain();
  if (is_ending(target)) return;
  if (!objects.ok()) {
    state(fmt::format("process {}: objects made before the attach are unknown: {}", target.pid,
                                      objects.error().what));
    return probe_older(target);
  }
  if (!objects->totals.complete)
    state(fmt::format("process {}: only a part of its memory was searched for older objects", target.pid));
  for (const LiveContext& context : objects->contexts)
    if (context.inherited)
      counters_.qps_inherited += static_cast<uint64_t>(
          std::count_if(objects->qps.begin(), objects->qps.end(),
                        [&](const LiveQp& qp) { return qp.context == context.address; }));
  if (objects->ambiguous > 0)
    state(fmt::format("process {}: {} older objects could not be told from freed ones and are left out",
                                      target.pid, objects->ambiguous));
  attach_live_functions(target, *objects, libibverbs);
  for (const auto& record : to_records(*objects, target.since_ns)) push(record);
  // Where no command of the library is hooked nothing would tell a ring's end, and posts at probes have no
  // index by which both are known to be one: probes alone tell then.
  if (observer_ && !libibverbs.empty()) find_older_rings(target, *objects);
  if (!objects->qps.empty()) find_peers(target);
}

// Their rings, as far as they can be told now. Where some cannot, probes tell of all.
void Tracer::find_older_rings(Target& target, const LiveObjects& objects) {
  const OlderQueues older = observer_->add_older(objects, monotonic_now_ns());
  (void)ring_->drain();
  if (older.unplaced > 0 || older.cqs_unplaced > 0) probe_older(target);
}

void Tracer::probe_older(Target& target) {
  target.older = true;
  for (const TracedLibrary& library : libraries_)
    if (library.pid == scope_of(target)) add_probes_for_older(target, {library.pid, library.device, library.inode});
}

// The live route: functions that the process's own contexts and queue pairs point to, and that the file
// alone did not tell.
void Tracer::attach_live_functions(Target& target, const LiveObjects& objects, const std::string& libibverbs) {
  std::map<std::string, std::pair<std::string, std::vector<LivePointer>>> files;
  for (const LiveFunction& function : objects.functions) {
    auto path = reachable_path(target.pid, function.mapping);
    if (!path.ok() || resolver_.classify(*path) == LibraryKind::libibverbs) continue;
    auto& [mapped_as, pointers] = files[*path];
    mapped_as = function.mapping.path;
    pointers.push_back({function.function, function.file_offset});
  }
  const pid_t scope = scope_of(target);
  for (const auto& [path, file] : files) {
    auto plan = resolver_.plan_from_live(path, libibverbs, file.second, file.first);
    if (!plan.ok()) continue;
    struct stat status;
    if (stat(path.c_str(), &status) != 0) continue;
    target.functions_found |= !(*plan)->functions.empty();
    const FileKey key{scope, status.st_dev, status.st_ino};
    auto missing = std::make_shared<LibraryPlan>(**plan);
    std::erase_if(missing->functions, [&](const ResolvedFunction& function) { return is_probed(key, function); });
    missing->unresolved.clear();
    if (!missing->functions.empty()) attach_plan(policy_for(&target), missing, scope, file.first, &target);
  }
}

void Tracer::find_peers(const Target& target) {
  auto resources = read_rdma_resources({});
  if (!resources.ok()) {
    state("peers of queue pairs made before the attach are unknown: " + resources.error().what);
    return;
  }
  const auto wanted = static_cast<uint32_t>(target.pid);
  for (const sigma_qp_peer& peer : peer_records_with_paths(*resources, std::span(&wanted, 1), target.since_ns))
    push(std::as_bytes(std::span(&peer, 1)));
  for (const Error& failure : resources->failed) state("of queue pairs made before the attach: " + failure.what);
}

// As many as there were at the begin or at the end of the trace. Without RDMA netlink there are none.
void Tracer::look_at_kernel_users() {
  const auto resources = read_rdma_resources({});
  if (!resources.ok()) return;
  for (const auto& [user, count] : resources->kernel_users())
    kernel_users_[user] = std::max(kernel_users_[user], count);
}

// Queues that GPUs post to and that were set up before: to whom they lead. What they carry, the library
// itself begins to tell.
void Tracer::find_older_gpu_queues(const Target& target, const std::vector<Mapping>& maps, const std::string& path,
                                   const std::string& mapped_as) {
  const auto plan = resolver_.plan(path, "", mapped_as);
  if (!plan.ok() || (*plan)->registry_offset == 0) return;
  const uint64_t address = address_in_process(maps, mapped_as, (*plan)->registry_offset);
  const auto memory = RemoteMemory::open(target.pid);
  if (address == 0 || !memory.ok()) return;
  {
    const std::lock_guard lock(registries_mutex_);
    registries_[target.pid] = address;
  }
  const auto queues = read_gpu_registry(*memory, address);
  if (!queues.ok()) {
    if (!is_ending(target)) state(fmt::format("process {}: {}", target.pid, queues.error().what));
    return;
  }
  for (sigma_qp_peer& peer : to_peer_records(*queues, target.since_ns)) {
    peer.h.pid = peer.h.tid = static_cast<uint32_t>(target.pid);
    push(std::as_bytes(std::span(&peer, 1)));
  }
}

std::map<std::pair<std::string, uint32_t>, uint8_t> Tracer::told_by_library(pid_t pid) {
  uint64_t address = 0;
  {
    const std::lock_guard lock(registries_mutex_);
    const auto registry = registries_.find(pid);
    if (registry == registries_.end()) return {};
    address = registry->second;
  }
  const auto memory = RemoteMemory::open(pid);
  if (!memory.ok()) return {};
  // Its memory may be found when the queue has just ended.
  const auto queues = read_gpu_registry(*memory, address, true);
  if (!queues.ok()) return {};
  return gpu_tiers(*queues);
}

}  // namespace sigma
