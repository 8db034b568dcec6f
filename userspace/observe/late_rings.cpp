// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/late_rings.h"

#include <infiniband/verbs.h>
#include <rdma/mlx5-abi.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <set>

#include "observe/late_cqs.h"
#include "observe/number_scan.h"
#include "observe/owner_memory.h"

namespace sigma {
namespace {

constexpr size_t kQpBytes = 0x600;  // struct mlx5_qp has 0x3f0 to 0x500 behind the ibv_qp
constexpr size_t kBeforeNumber = 0x80, kAroundNumber = 0x280;  // of a structure with a QP's number
constexpr size_t kEnoughVoters = 32;
constexpr size_t kMaxWatchedOfOne = 64;
constexpr int kMaxFailures = 3;

// A word that may be the second of a doorbell record.
struct Watched {
  uint64_t record = 0;
  uint16_t value = 0;
  uint64_t seen_ns = 0;  // it still was so
  int failures = 0;
};

struct QueuePairSought {
  FoundSend found;
  uint64_t send_cq_ptr = 0;
  std::vector<uint64_t> objects;  // where structures that describe it begin
  size_t object_bytes = 0;
  std::vector<Watched> watched;
  bool is_devx() const { return found.qp_ptr == 0; }
};

// A ring's begin and its end stand there.
bool has_ring_shape(std::span<const uint64_t> words) {
  constexpr uint64_t kUserSpaceEnd = uint64_t{1} << 47;
  std::array<uint64_t, kAroundNumber / 8> ends;
  size_t count = 0;
  for (const uint64_t word : words)
    if (word >= 0x10000 && word < kUserSpaceEnd && word % kWqeBlockBytes == 0 && count < ends.size())
      ends[count++] = word;
  for (size_t i = 0; i < count; ++i)
    for (size_t j = 0; j < count; ++j) {
      const uint64_t bytes = ends[j] - ends[i];
      if (ends[j] > ends[i] && bytes <= kMaxSendRingBytes && std::has_single_bit(bytes)) return true;
    }
  return false;
}

// Queues made by DevX do not say their service; their WQEs do: those of DC begin with an address
// vector of the extended form (infiniband/mlx5dv.h, MLX5_EXTENDED_UD_AV).
QpService service_by(const OwnerMemory& memory, const SendPlace& place, uint32_t qp_num) {
  uint32_t extended = 0, plain = 0;
  for (uint32_t slot = 0; slot < std::min(place.blocks, 64u); ++slot) {
    const auto head = memory.load<std::array<Be32, 8>>(place.ring_addr + slot * kWqeBlockBytes);
    if (!head || (*head)[1] >> 8 != qp_num || ((*head)[1] & 0x3f) < 4) continue;
    ((*head)[6] & 0x80000000u) != 0 && (*head)[7] != 0 ? ++extended : ++plain;
  }
  return extended > 0 && plain == 0 ? QpService::dci : QpService::rc;
}

}  // namespace

struct LateRings::Impl {
  Impl(pid_t process, KnownFields& fields, const LateLimits& bounds)
      : pid(process), known(fields), limits(bounds), cqs(process, fields) {}

  // ---- what is sought

  void take(const LiveObjects& live) {
    std::set<uint64_t> own;
    for (const LiveContext& context : live.contexts)
      if (!context.inherited) own.insert(context.address);
    for (const LiveQp& qp : live.qps) {
      if (!own.contains(qp.context) || qp.type == IBV_QPT_XRC_RECV) continue;
      QueuePairSought sought;
      SendSpec& spec = sought.found.spec;
      spec.owner = owner(qp.context, qp.qp_num);
      // Of driver's types only DC's initiators have a send ring.
      spec.service = service_of_qp(qp.type, qp.type == IBV_QPT_DRIVER ? MLX5_QP_FLAG_TYPE_DCI : 0);
      spec.qp_type = static_cast<uint8_t>(qp.type);
      spec.initiator = SIGMA_INITIATOR_CPU;
      spec.origin = SIGMA_RING_BY_SCAN;
      sought.found.handle = qp.handle;
      sought.found.qp_ptr = qp.address;
      sought.send_cq_ptr = qp.send_cq;
      sought.objects = {qp.address};
      sought.object_bytes = kQpBytes;
      cqs.add_user(qp.context, qp.qp_num, false);
      qps.push_back(std::move(sought));
    }
    for (const LiveDevxQp& qp : live.devx_qps) {
      if (!own.contains(qp.context)) continue;
      QueuePairSought sought;
      sought.found.spec.owner = owner(qp.context, qp.qp_num);
      sought.found.spec.origin = SIGMA_RING_BY_CONTENT;
      sought.found.handle = qp.handle;
      sought.object_bytes = kAroundNumber;
      cqs.add_user(qp.context, qp.qp_num, true);
      qps.push_back(std::move(sought));
    }
    for (const LiveCq& cq : live.cqs)
      if (own.contains(cq.context)) cqs.add(cq, false);
    for (const LiveCq& cq : live.loose_cqs)
      if (own.contains(cq.context)) cqs.add(cq, true);
  }

  RingOwner owner(uint64_t context, uint32_t number) const {
    return {.pid = static_cast<uint32_t>(pid), .context = context, .by_file = false, .number = number};
  }

  // Where the numbers of DevX queue pairs stand: each place may be in the structure sought.
  void find_structures(const RemoteMemory& memory) {
    std::set<uint32_t> wanted;
    for (const QueuePairSought& qp : qps)
      if (qp.is_devx()) wanted.insert(qp.found.spec.owner.number);
    if (wanted.empty()) return;
    const Surroundings around{kBeforeNumber, kAroundNumber - kBeforeNumber, has_ring_shape};
    const auto places = find_numbers(memory, wanted, around, limits.scan);
    for (QueuePairSought& qp : qps) {
      const auto found = places.find(qp.found.spec.owner.number);
      if (!qp.is_devx() || found == places.end()) continue;
      for (const uint64_t at : found->second)
        if (at > kBeforeNumber) qp.objects.push_back((at & ~uint64_t{7}) - kBeforeNumber);
    }
  }

  // ---- placing

  FieldVote<SendFields>& vote_of(const QueuePairSought& qp) {
    return qp.is_devx() ? devx_votes : send_votes;
  }
  std::vector<SendFields> fields_of(const QueuePairSought& qp) {
    std::vector<SendFields> winners = vote_of(qp).winners();
    if (winners.empty() && !qp.is_devx()) winners = known.of(build_id).sends;
    return winners;
  }

  std::optional<SendPlace> certify(const OwnerMemory& memory, const QueuePairSought& qp,
                                   uint64_t& budget) {
    std::vector<SendCandidate> candidates;
    for (const uint64_t at : qp.objects) {
      const ObjectWindow object(memory, at, qp.object_bytes);
      const auto of_object =
          certify_send(memory, object, qp.found.spec.owner.number, budget);
      candidates.insert(candidates.end(), of_object.begin(), of_object.end());
    }
    const auto place = only_place(candidates);
    if (!place) return std::nullopt;
    std::set<SendFields> fields;
    for (const SendCandidate& each : candidates)
      if (each.place == *place) fields.insert(each.layout);
    vote_of(qp).add({fields.begin(), fields.end()});
    return place;
  }

  std::optional<SendPlace> place_by_fields(const OwnerMemory& memory, const QueuePairSought& qp) {
    const std::vector<SendFields> fields = fields_of(qp);
    if (fields.empty()) return std::nullopt;
    std::set<SendPlace> places;
    for (const uint64_t at : qp.objects) {
      const ObjectWindow object(memory, at, qp.object_bytes);
      const auto place = place_by(memory, object, qp.found.spec.owner.number, fields);
      if (place && (place->blocks != 0 || !qp.is_devx())) places.insert(*place);
    }
    if (places.size() != 1) return std::nullopt;
    return *places.begin();
  }

  // One memory, one queue.
  bool is_taken(const SendPlace& place) const {
    return place.blocks != 0 && std::ranges::any_of(taken, [&](const SendPlace& other) {
             return other.doorbell_addr == place.doorbell_addr || other.ring_addr == place.ring_addr;
           });
  }

  // From what its doorbell said at the attach, where that was watched; else from what it says now.
  bool place(const OwnerMemory& memory, QueuePairSought& qp, const SendPlace& at, uint64_t now_ns,
             FoundRings& out) {
    if (is_taken(at)) return false;
    std::optional<uint16_t> first;
    uint64_t since_ns = 0;
    for (const Watched& word : qp.watched)
      if (word.record == at.doorbell_addr) first = word.value, since_ns = word.seen_ns;
    if (!first) first = doorbell_value(memory, at.doorbell_addr);
    if (!first) return false;
    taken.push_back(at);
    SendSpec& spec = qp.found.spec;
    spec.ring_addr = at.ring_addr;
    spec.doorbell_addr = at.doorbell_addr;
    spec.blocks = at.blocks;
    spec.first = *first;
    spec.since_ns = now_ns;
    spec.unread_since_ns = since_ns;
    if (qp.is_devx() && at.blocks != 0) {
      spec.service = service_by(memory, at, spec.owner.number);
      spec.qp_type = spec.service == QpService::dci ? IBV_QPT_DRIVER : IBV_QPT_RC;
    }
    spec.send_cqn = cqs.number_for(spec.owner.context, spec.owner.number, qp.send_cq_ptr);
    out.sends.push_back(qp.found);
    return true;
  }

  void place_qps(const OwnerMemory& memory, uint64_t now_ns, FoundRings& out) {
    place_rest(memory, now_ns, out);  // by what is known of this build
    uint64_t budget = limits.read_bytes;
    size_t voters = 0;
    std::erase_if(qps, [&](QueuePairSought& qp) {
      if (voters >= kEnoughVoters && !qp.is_devx()) return false;
      const auto at = certify(memory, qp, budget);
      voters += at.has_value();
      return at && place(memory, qp, *at, now_ns, out);
    });
    place_rest(memory, now_ns, out);
  }

  // By the fields that are known now.
  void place_rest(const OwnerMemory& memory, uint64_t now_ns, FoundRings& out) {
    std::erase_if(qps, [&](QueuePairSought& qp) {
      for (int attempt = 0; attempt < 3; ++attempt) {
        const auto at = place_by_fields(memory, qp);
        if (at) return place(memory, qp, *at, now_ns, out);
      }
      return false;
    });
  }

  void watch(const OwnerMemory& memory, uint64_t now_ns) {
    for (QueuePairSought& qp : qps) {
      for (const uint64_t start : qp.objects) {
        const ObjectWindow object(memory, start, qp.object_bytes);
        for (const uint64_t record : doorbells_of(memory, object)) {
          const auto value = doorbell_value(memory, record);
          if (value && qp.watched.size() < kMaxWatchedOfOne) qp.watched.push_back({record, *value, now_ns});
        }
      }
    }
  }

  // Those whose word has moved; reads at most limits.watched words.
  std::vector<size_t> moved(uint64_t now_ns) {
    struct Place {
      size_t qp, word;
    };
    std::vector<Place> places;
    for (size_t i = 0; i < qps.size(); ++i)
      for (size_t j = 0; j < qps[i].watched.size(); ++j) places.push_back({i, j});
    std::vector<size_t> moved;
    if (places.empty()) return moved;
    const size_t count = std::min(limits.watched, places.size());
    constexpr size_t kPerCall = 512;
    for (size_t done = 0; done < count;) {
      std::array<iovec, kPerCall> local, remote;
      std::array<Be32, kPerCall> values;
      const size_t part = std::min(kPerCall, count - done);
      const auto place = [&](size_t i) -> const Place& {
        return places[(cursor + done + i) % places.size()];
      };
      for (size_t i = 0; i < part; ++i) {
        local[i] = {&values[i], 4};
        remote[i] = {reinterpret_cast<void*>(qps[place(i).qp].watched[place(i).word].record + 4), 4};
      }
      const ssize_t got = process_vm_readv(pid, local.data(), part, remote.data(), part, 0);
      const size_t whole = got > 0 ? static_cast<size_t>(got) / 4 : 0;
      for (size_t i = 0; i < whole; ++i) {
        Watched& word = qps[place(i).qp].watched[place(i).word];
        if (values[i] == word.value)
          word.seen_ns = now_ns;
        else
          moved.push_back(place(i).qp);
      }
      done += std::max<size_t>(whole, 1) == part ? part : whole + 1;  // past what is gone
    }
    cursor = (cursor + count) % places.size();
    std::sort(moved.begin(), moved.end());
    moved.erase(std::unique(moved.begin(), moved.end()), moved.end());
    return moved;
  }

  void learn() { known.learn(build_id, {send_votes.winners(), cqs.voted()}); }

  pid_t pid;
  KnownFields& known;
  LateLimits limits;
  std::string build_id;
  uint64_t begun_ns = 0;  // what is sought was there before
  std::optional<RemoteMemory> memory;
  std::vector<QueuePairSought> qps;  // not placed
  LateCqs cqs;
  std::vector<SendPlace> taken;
  FieldVote<SendFields> send_votes, devx_votes;
  size_t cursor = 0;
  size_t gone_verbs = 0, gone_devx = 0;  // queue pairs that were not placed by their end
};

LateRings::LateRings(pid_t pid, KnownFields& known, const LateLimits& limits)
    : impl_(std::make_unique<Impl>(pid, known, limits)) {}
LateRings::~LateRings() = default;

FoundRings LateRings::begin(const LiveObjects& live, const std::string& build_id, uint64_t now_ns) {
  FoundRings found;
  impl_->build_id = build_id;
  impl_->begun_ns = now_ns;
  impl_->take(live);
  if (done()) return found;
  auto memory = RemoteMemory::open(impl_->pid);
  if (!memory.ok()) return found;
  impl_->memory = *std::move(memory);
  impl_->find_structures(*impl_->memory);
  const RemoteOwner owner(*impl_->memory);
  impl_->cqs.begin(owner, build_id, impl_->limits.read_bytes, now_ns, found.cqs);
  impl_->place_qps(owner, now_ns, found);
  impl_->watch(owner, now_ns);
  impl_->learn();
  return found;
}

FoundRings LateRings::look(uint64_t now_ns) {
  FoundRings found;
  Impl& impl = *impl_;
  if (!impl.memory) return found;
  const bool due = impl.cqs.due(now_ns);
  const std::vector<size_t> moved = impl.moved(now_ns);
  if ((moved.empty() && !due) || !impl.memory->refresh().ok()) return found;
  const RemoteOwner owner(*impl.memory);
  if (due) impl.cqs.look(owner, impl.limits.read_bytes, now_ns, found.cqs);
  bool learnt = false;
  std::vector<size_t> placed;
  uint64_t budget = impl.limits.read_bytes;
  for (const size_t i : moved) {
    QueuePairSought& qp = impl.qps[i];
    const auto at = impl.certify(owner, qp, budget);
    if (at && impl.place(owner, qp, *at, now_ns, found)) {
      placed.push_back(i);
      learnt = true;
      continue;
    }
    // A word that moves by itself is no doorbell.
    std::erase_if(qp.watched, [&](Watched& word) {
      return doorbell_value(owner, word.record) != word.value && ++word.failures >= kMaxFailures;
    });
  }
  for (auto i = placed.rbegin(); i != placed.rend(); ++i)
    impl.qps.erase(impl.qps.begin() + static_cast<ptrdiff_t>(*i));
  if (learnt || !found.cqs.empty()) {
    impl.place_rest(owner, now_ns, found);
    impl.learn();
  }
  return found;
}

void LateRings::gone(uint64_t context, ObjectKind kind, uint32_t handle) {
  if (kind == ObjectKind::cq) return impl_->cqs.gone(context, handle);
  std::erase_if(impl_->qps, [&](const QueuePairSought& qp) {
    if (qp.found.spec.owner.context != context || qp.found.handle != handle) return false;
    if (qp.is_devx() != (kind == ObjectKind::devx)) return false;
    ++(qp.is_devx() ? impl_->gone_devx : impl_->gone_verbs);
    return true;
  });
}

void LateRings::told_inside(uint64_t context, uint32_t number) {
  std::erase_if(impl_->qps, [&](const QueuePairSought& qp) {
    return qp.found.spec.owner.context == context && qp.found.spec.owner.number == number;
  });
  impl_->cqs.told_elsewhere(context, number);
}

void LateRings::told_by_command(uint64_t context, uint32_t number, uint64_t made_ns) {
  if (made_ns <= impl_->begun_ns) told_inside(context, number);
}

bool LateRings::done() const { return impl_->qps.empty() && impl_->cqs.empty(); }
size_t LateRings::unplaced_qps() const { return impl_->qps.size() + impl_->gone_verbs + impl_->gone_devx; }
size_t LateRings::unplaced_verbs_qps() const {
  return impl_->gone_verbs + static_cast<size_t>(std::ranges::count_if(
                                 impl_->qps, [](const QueuePairSought& qp) { return !qp.is_devx(); }));
}
size_t LateRings::unplaced_cqs() const { return impl_->cqs.unplaced(); }
size_t LateRings::devx_without_completions() const { return impl_->cqs.devx_without_completions(); }

}  // namespace sigma
