// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// QueueRoutes: where the records of one (pid, context, qp_num) go, as long as no object changes; and which
// shard matches them. By the caller's thread of Session.
//
// All that must meet is matched by one shard: the records of a queue pair go by its number, whatever else
// names it, and so do those of a nameless one that turns out to be it (Objects::bind). Queue pairs that
// share a receive queue go, with it, by the process that made it.
#pragma once

#include <array>
#include <cstdint>

#include "session/flat_map.h"
#include "session/objects.h"

namespace sigma {

class QueueRoutes {
 public:
  QueueRoutes(Objects& objects, uint32_t shards) : objects_(objects), shards_(shards) {}

  // Null: not known, or no longer.
  Qp* find(uint32_t pid, uint64_t context, uint32_t qp_num) {
    if (!is(last_, pid, context, qp_num)) {
      const Route* route = routes_.find(key(pid, context, qp_num));
      if (route == nullptr || !is(*route, pid, context, qp_num)) return nullptr;
      last_ = *route;
    }
    return last_.qp;
  }
  Qp& add(uint32_t pid, uint64_t context, uint32_t qp_num, Qp& qp) {
    if (routes_.size() >= kMaxRoutes) routes_.clear();
    last_ = {objects_.generation(), context, pid, qp_num, &qp};
    routes_[key(pid, context, qp_num)] = last_;
    return qp;
  }

  uint32_t shard_of_process(uint32_t pid) const {
    return shards_ == 1 ? 0 : static_cast<uint32_t>(mix64(pid) % shards_);
  }
  uint32_t shard_for(Qp& qp) {
    if (shards_ == 1) return 0;
    if (qp.info->has_srq) {
      const Srq* srq = objects_.srq_of(qp);
      return shard_of_process(srq != nullptr ? srq->pid : qp.info->pid);
    }
    // In turn: numbers that are in use at once are seldom the same in these bits.
    uint16_t& shard = of_number_[qp.info->qp_num % of_number_.size()];
    if (shard == 0) shard = static_cast<uint16_t>(1 + next_++ % shards_);
    return shard - 1u;
  }
  void place(Srq& srq) const { srq.shard.set(shard_of_process(srq.pid)); }

 private:
  static constexpr size_t kMaxRoutes = 1 << 16;
  struct Route {
    uint64_t generation = 0;
    uint64_t context = 0;
    uint32_t pid = 0, qp_num = 0;
    Qp* qp = nullptr;
  };
  bool is(const Route& route, uint32_t pid, uint64_t context, uint32_t qp_num) const {
    return route.qp_num == qp_num && route.context == context && route.pid == pid &&
           route.generation == objects_.generation();
  }
  static uint64_t key(uint32_t pid, uint64_t context, uint32_t qp_num) {
    return context ^ (uint64_t{pid} << 32 | qp_num);
  }

  Objects& objects_;
  uint32_t shards_;
  uint32_t next_ = 0;
  Route last_;
  FlatMap<Route> routes_;
  std::array<uint16_t, 1 << 12> of_number_{};  // the shard plus 1; 0: none yet
};

}  // namespace sigma
