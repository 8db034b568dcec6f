// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Session::Impl: what stands behind the one door (session.cpp), and how the records of one queue find
// their way to it (delivery.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bpf/records.h"
#include "session/control.h"
#include "session/correlate.h"
#include "session/objects.h"
#include "session/queue_routes.h"
#include "session/session.h"
#include "session/shards.h"

namespace sigma {

struct Session::Impl {
  Impl(std::span<OperationSink* const> sinks, SessionOptions session_options);

  void dispatch(std::span<const std::byte> record);
  void on_post(const sigma_post& post);
  void on_post_result(const sigma_post_result& result);
  void on_completion(const sigma_completion& wc);
  void on_pick_up(const sigma_completion& wc);
  void complete_by_cq(const sigma_completion& wc);
  void on_ring(const sigma_ring& ring);
  void begin_next(Qp& qp, const sigma_ring& ring);
  void on_ring_post(const sigma_ring_post& post);
  void on_ring_completion(const sigma_ring_completion& cqe);
  void on_ring_gap(const sigma_ring_gap& gap);
  void miss_completions(uint32_t pid);
  void on_process(const sigma_process& record);
  void on_window(const sigma_window& window);

  // Nothing is under way in other threads from here on, until the next hand_over().
  void sync() {
    if (shards) shards->sync();
  }
  template <typename T>
  void hand_over(uint32_t shard, Qp* qp, Srq* srq, const T& record, bool is_pick_up = false);
  void work(uint32_t shard, std::span<const Shards::Item> items);
  static void match(Correlator& correlator, const Shards::Item& item);

  bool ignored(uint32_t pid) {
    return paused_all || (any_paused && objects.process(pid).paused);
  }
  Correlator& correlator_of(const Qp& qp) { return *correlators[qp.shard.value_or(0)]; }
  Correlator& correlator_of_process(uint32_t pid) { return *correlators[routes.shard_of_process(pid)]; }
  Qp* known(uint32_t pid, uint64_t context, uint32_t qp_num);
  Qp& place(Qp& qp);  // nothing is under way
  Qp& qp_of_post(const sigma_header& h, uint64_t context, uint32_t qp_num, uint64_t queue_ptr);
  template <typename T>
  Qp& qp_of_ring(const T& record);
  template <typename T>
  void hand_over_ring(const T& record);

  SessionOptions options;
  SessionLimits shard_limits;
  Counters counters;
  std::vector<std::unique_ptr<Counters>> shard_counters;
  Objects objects;
  Control control;
  QueueRoutes routes;
  std::vector<std::unique_ptr<Correlator>> correlators;
  std::unique_ptr<Shards> shards;  // null: one correlator, at once
  uint64_t record_number = 0;
  bool paused_all = false;
  bool any_paused = false;  // a process has been paused
  std::vector<uint64_t> aligned;  // a copy of a record that was not
  bool finished = false;
};

}  // namespace sigma
