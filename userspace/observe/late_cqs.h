// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// LateCqs: the completion queues among the rings that were there before the tracer (late_rings.h). One
// that queue pairs name is placed as soon as it can be; a candidate that none names (UCX's, whose queue
// pairs are made by DevX) only where it holds completions of one that completes nowhere else. What cannot
// be placed is looked at again, ever more seldom: it may come into use. One thread at a time.
#pragma once

#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "observe/known_fields.h"
#include "observe/ring_specs.h"
#include "observe/send_place.h"
#include "resolve/live_objects.h"

namespace sigma {

struct FoundCq {
  CqSpec spec;
  uint32_t handle = 0;
  uint64_t cq_ptr = 0;
};

class LateCqs {
 public:
  // `known` outlives this.
  LateCqs(pid_t pid, const KnownFields& known) : pid_(pid), known_(known) {}

  // All before begin(): the queue pairs of the process, and its CQs. `loose`: that none of them names.
  void add_user(uint64_t context, uint32_t qp_num, bool by_devx);
  void add(const LiveCq& cq, bool loose);

  // Adds to `out` those that can be placed now. `budget`: bytes that may be read.
  void begin(const OwnerMemory& memory, const std::string& build_id, uint64_t budget, uint64_t now_ns,
             std::vector<FoundCq>& out);
  bool due(uint64_t now_ns) const;
  void look(const OwnerMemory& memory, uint64_t budget, uint64_t now_ns, std::vector<FoundCq>& out);
  // A command has destroyed it.
  void gone(uint64_t context, uint32_t handle);
  // Of a queue pair made by DevX others tell: nobody needs to find its completions.
  void told_elsewhere(uint64_t context, uint32_t qp_num) { devx_numbers_.erase({context, qp_num}); }

  // Where this queue pair's sends complete; 0: not known. `send_cq_ptr`: its struct ibv_cq *, or 0.
  uint32_t number_for(uint64_t context, uint32_t qp_num, uint64_t send_cq_ptr) const;
  std::vector<CqFields> voted() const { return votes_.winners(); }
  bool empty() const { return sought_.empty(); }
  size_t unplaced() const;  // that queue pairs name
  size_t devx_without_completions() const;

 private:
  struct Sought {
    LiveCq cq;
    bool loose = false;
    uint64_t retry_ns = 0, next_ns = 0;
    uint32_t entries() const { return static_cast<uint32_t>(cq.entries) + 1; }
  };
  using OfContext = std::pair<uint64_t, uint32_t>;  // a queue pair, by its context and number

  void place(const OwnerMemory& memory, uint64_t budget, uint64_t now_ns, std::vector<FoundCq>& out);
  std::optional<CqPlace> certify(const OwnerMemory& memory, const ObjectWindow& object, const Sought& sought,
                                 uint64_t& budget);
  bool is_used(const OwnerMemory& memory, const CqPlace& at, const Sought& sought);
  bool take(const OwnerMemory& memory, const Sought& sought, const CqPlace& at, uint64_t now_ns,
            std::vector<FoundCq>& out);

  pid_t pid_;
  const KnownFields& known_;
  std::string build_id_;
  uint64_t begun_ns_ = 0;
  std::vector<Sought> sought_;
  std::map<uint64_t, std::set<uint32_t>> numbers_;  // of queue pairs, by context
  std::set<OfContext> devx_numbers_;                // of these, made by DevX
  std::map<uint64_t, uint32_t> cq_numbers_;         // by struct ibv_cq *
  std::map<OfContext, uint32_t> sender_cqs_;        // whose sends complete in which
  std::set<OfContext> received_;                    // whose receives complete in one that was found
  FieldVote<CqFields> votes_;
};

}  // namespace sigma
