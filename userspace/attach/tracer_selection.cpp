// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// System-wide traces. Probes are shared by all processes and stand, before any process needs them,
// in the libraries that are installed; BPF takes a process in at its first hit, so that nothing is
// lost in between. What only user space can do follows: libraries that lie elsewhere (containers,
// wheels) are probed when a selected process maps them, and what such a process made before is
// looked for.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "attach/process_facts.h"
#include "attach/tracer.h"
#include "base/clock.h"

namespace sigma {
namespace {

constexpr size_t kMaxKinds = 65'536;

}  // namespace

Status Tracer::open_selection() {
  attach_installed(0, "/", policy_for(nullptr));
  find_selected();
  return {};
}

// Of the processes that run, those that are selected and have mapped a library of ours.
void Tracer::find_selected() {
  selector_->for_each([this](pid_t pid) {
    if (targets_.contains(pid)) return;
    const auto maps = read_maps(pid);
    if (!maps.ok()) return;
    const bool uses_verbs = std::any_of(maps->begin(), maps->end(), [&](const Mapping& mapping) {
      if (!mapping.executable || mapping.inode == 0) return false;
      if (kinds_.size() >= kMaxKinds) kinds_.clear();
      const auto [known, fresh] =
          kinds_.try_emplace({mapping.device, mapping.inode, mapping.path}, LibraryKind::other);
      if (fresh)
        if (const auto path = reachable_path(pid, mapping); path.ok())
          known->second = resolver_.classify(*path);
      return known->second != LibraryKind::other;
    });
    if (uses_verbs) (void)add_process(pid);  // it may have ended meanwhile
  });
}

// Every exec and dlopen on the machine comes here: a file is looked at once.
void Tracer::on_library_of_stranger(const LibraryEvent& event) {
  if (kinds_.size() >= kMaxKinds) kinds_.clear();
  const auto [known, fresh] =
      kinds_.try_emplace({event.device, event.inode, event.path}, LibraryKind::other);
  if (fresh) {
    std::string path = fmt::format("/proc/{}/root{}", event.pid, event.path);
    if (access(path.c_str(), F_OK) != 0)  // deleted as soon as it was mapped
      path = fmt::format("/proc/{}/map_files/{:x}-{:x}", event.pid, event.address,
                         event.address + event.length);
    known->second = resolver_.classify(path);
  }
  if (known->second != LibraryKind::other && selector_->matches(event.pid))
    rescan_.insert(event.pid);
}

void Tracer::search_due(Target& target) {
  if (!std::exchange(target.scan_due, true)) scans_.push_back(target.pid);
}

// One process at a time, so that the ring is read in between and the machine has the most of its time for its jobs:
// a search takes 0.25 s for each GiB.
void Tracer::search_next(uint64_t now_ns) {
  if (scans_.empty() || !pace_.may_go_on(now_ns)) return;
  const auto it = targets_.find(scans_.front());
  scans_.pop_front();
  if (it == targets_.end() || !std::exchange(it->second.scan_due, false)) return;
  Target& target = it->second;
  const uint64_t begin_ns = monotonic_now_ns();
  if (target.linked_in) {
    find_linked_in(target);
    return pace_.on_piece(begin_ns, monotonic_now_ns());
  }
  std::string libibverbs;
  if (const auto maps = read_maps(target.pid); maps.ok())
    for (const Mapping& mapping : *maps)
      if (mapping.executable && libibverbs.empty())
        if (const auto path = reachable_path(target.pid, mapping);
            path.ok() && resolver_.classify(*path) == LibraryKind::libibverbs)
          libibverbs = *path;
  target.since_ns = begin_ns;
  find_older_objects(target, libibverbs);
  pace_.on_piece(begin_ns, monotonic_now_ns());
}

// Since when the process's memory is what it is: its exec where that was seen, else its start. 0:
// unknown.
uint64_t Tracer::born_ns(pid_t pid) const {
  const auto seen = born_ns_.find(pid);
  return seen != born_ns_.end() ? seen->second : selector_ ? process_start_ns(pid) : 0;
}

}  // namespace sigma
