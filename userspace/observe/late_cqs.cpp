// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/late_cqs.h"

#include <algorithm>

#include "observe/owner_memory.h"

namespace sigma {
namespace {

constexpr size_t kCqBytes = 0x300;
constexpr size_t kEnoughVoters = 32;
constexpr uint64_t kFirstRetryNs = 20'000'000, kLastRetryNs = 1'000'000'000;

}  // namespace

void LateCqs::add_user(uint64_t context, uint32_t qp_num, bool by_devx) {
  numbers_[context].insert(qp_num);
  if (by_devx) devx_numbers_.insert({context, qp_num});
}

void LateCqs::add(const LiveCq& cq, bool loose) { sought_.push_back({cq, loose, kFirstRetryNs, 0}); }

void LateCqs::begin(const OwnerMemory& memory, const std::string& build_id, uint64_t budget, uint64_t now_ns,
                    std::vector<FoundCq>& out) {
  build_id_ = build_id;
  begun_ns_ = now_ns;
  place(memory, budget, now_ns, out);
  for (Sought& sought : sought_) sought.next_ns = now_ns + sought.retry_ns;
}

bool LateCqs::due(uint64_t now_ns) const {
  return std::ranges::any_of(sought_, [&](const Sought& sought) { return sought.next_ns <= now_ns; });
}

void LateCqs::look(const OwnerMemory& memory, uint64_t budget, uint64_t now_ns, std::vector<FoundCq>& out) {
  place(memory, budget, now_ns, out);
  for (Sought& sought : sought_) {
    sought.retry_ns = std::min(sought.retry_ns * 2, kLastRetryNs);
    sought.next_ns = now_ns + sought.retry_ns;
  }
}

void LateCqs::place(const OwnerMemory& memory, uint64_t budget, uint64_t now_ns, std::vector<FoundCq>& out) {
  size_t voters = 0;
  const auto pass = [&](bool by_fields, bool loose) {
    std::erase_if(sought_, [&](Sought& sought) {
      if (sought.loose != loose) return false;
      const auto& known_numbers = numbers_[sought.cq.context];
      const ObjectWindow object(memory, sought.cq.address, kCqBytes);
      std::optional<CqPlace> at;
      if (by_fields) {
        std::vector<CqFields> fields = votes_.winners();
        if (fields.empty()) fields = known_.of(build_id_).cqs;
        at = place_by(memory, object, sought.entries(), known_numbers, fields);
        if (at && loose && !is_used(memory, *at, sought)) at.reset();
      } else if (voters < kEnoughVoters) {
        at = certify(memory, object, sought, budget);
        voters += at.has_value();
      }
      return at && take(memory, sought, *at, now_ns, out);
    });
  };
  for (const bool loose : {false, true}) {
    pass(true, loose);  // by what is known of this build
    pass(false, loose);
    pass(true, loose);
  }
}

std::optional<CqPlace> LateCqs::certify(const OwnerMemory& memory, const ObjectWindow& object,
                                        const Sought& sought, uint64_t& budget) {
  const auto candidates =
      certify_cq(memory, object, sought.entries(), numbers_[sought.cq.context], budget);
  const auto at = only_place(candidates);
  if (!at) return std::nullopt;
  if (sought.loose && !is_used(memory, *at, sought)) return std::nullopt;
  std::set<CqFields> fields;
  for (const CqCandidate& each : candidates)
    if (each.place == *at) fields.insert(each.layout);
  votes_.add({fields.begin(), fields.end()});
  return at;
}

// A CQ that no queue pair names has completions of one whose sends complete nowhere else, or, made by
// DevX, whose receives do not.
bool LateCqs::is_used(const OwnerMemory& memory, const CqPlace& at, const Sought& sought) {
  std::vector<std::byte> ring(uint64_t{sought.entries()} * at.entry_bytes);
  if (!memory.read(at.ring_addr, ring)) return false;
  const auto progress = progress_of(ring, sought.entries(), at.entry_bytes, numbers_[sought.cq.context]);
  if (!progress) return false;
  const auto sends = [&](uint32_t number) { return !sender_cqs_.contains({sought.cq.context, number}); };
  const auto receives = [&](uint32_t number) {
    const std::pair of{sought.cq.context, number};
    return devx_numbers_.contains(of) && !received_.contains(of);
  };
  return std::ranges::any_of(progress->senders, sends) || std::ranges::any_of(progress->receivers, receives);
}

bool LateCqs::take(const OwnerMemory& memory, const Sought& sought, const CqPlace& at, uint64_t now_ns,
                   std::vector<FoundCq>& out) {
  const auto start = start_of(memory, at, sought.entries());
  if (!start) return false;
  FoundCq found;
  found.handle = sought.cq.handle;
  found.cq_ptr = sought.cq.address;
  found.spec.owner = {.pid = static_cast<uint32_t>(pid_),
                      .context = sought.cq.context,
                      .by_file = false,
                      .number = at.number};
  found.spec.ring_addr = at.ring_addr;
  found.spec.doorbell_addr = at.doorbell_addr;
  found.spec.ring.entries = sought.entries();
  found.spec.ring.entry_bytes = at.entry_bytes;
  found.spec.origin = SIGMA_RING_BY_SCAN;
  found.spec.since_ns = now_ns;
  found.spec.first = start->next;
  found.spec.consumed = start->consumed;
  std::vector<std::byte> ring(uint64_t{sought.entries()} * at.entry_bytes);
  if (memory.read(at.ring_addr, ring)) {
    const auto& known_numbers = numbers_[sought.cq.context];
    if (const auto progress = progress_of(ring, sought.entries(), at.entry_bytes, known_numbers)) {
      // What was not there at the attach came since; it was of nobody else.
      const bool first_lap = progress->produced <= sought.entries();
      if (sought.next_ns != 0 && first_lap && progress->completions == progress->of_known) {
        found.spec.first = 0;
        found.spec.unread_since_ns = begun_ns_;
      }
      for (const uint32_t number : progress->senders)
        sender_cqs_.try_emplace({sought.cq.context, number}, at.number);
      for (const uint32_t number : progress->receivers) received_.insert({sought.cq.context, number});
    }
  }
  cq_numbers_[sought.cq.address] = at.number;
  out.push_back(found);
  return true;
}

void LateCqs::gone(uint64_t context, uint32_t handle) {
  std::erase_if(sought_, [&](const Sought& sought) {
    return sought.cq.context == context && sought.cq.handle == handle;
  });
}

uint32_t LateCqs::number_for(uint64_t context, uint32_t qp_num, uint64_t send_cq_ptr) const {
  if (const auto cq = cq_numbers_.find(send_cq_ptr); cq != cq_numbers_.end()) return cq->second;
  const auto by = sender_cqs_.find({context, qp_num});
  return by != sender_cqs_.end() ? by->second : 0;
}

size_t LateCqs::unplaced() const {
  return static_cast<size_t>(std::ranges::count_if(sought_, [](const Sought& sought) { return !sought.loose; }));
}

size_t LateCqs::devx_without_completions() const {
  return static_cast<size_t>(std::ranges::count_if(devx_numbers_, [&](const OfContext& number) {
    return !sender_cqs_.contains(number) && !received_.contains(number);
  }));
}

}  // namespace sigma
