// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/send_look.h"

#include <rdma/mlx5-abi.h>

#include "base/be.h"
#include "decode/wqe.h"
#include "gpu_interpose/text.h"

namespace sigma::gpu {
namespace {

constexpr uint64_t kQuietNs = 200'000;
// Copied behind a completion that is ahead of the doorbell, for the rest of its WQE.
constexpr uint32_t kOpenEndBlocks = 16;
constexpr uint32_t kMostBehind = 1024;

template <typename T>
T smaller(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
T larger(T a, T b) {
  return a < b ? b : a;
}

QpService service_of(uint8_t qp_type) {
  return service_of_qp(qp_type, MLX5_QP_FLAG_TYPE_DCI);  // of drivers' types only these are made by DevX
}

// Not a hash against malice: whether a writer has been here.
uint64_t sum_of(const RingBytes& bytes) {
  uint64_t sum = 1469598103934665603ull, word = 0;
  for (size_t at = 0; at + sizeof word <= bytes.size(); at += sizeof word) {
    bytes.copy(at, &word, sizeof word);
    sum = (sum ^ word) * 1099511628211ull;
    sum ^= sum >> 29;
  }
  return sum;
}

bool same_blocks(const RingBytes& a, const RingBytes& b, uint64_t block, uint32_t count) {
  std::byte one[kWqeBlockBytes], two[kWqeBlockBytes];
  for (uint64_t at = block; at < block + count; ++at)
    if (!a.load(at * kWqeBlockBytes, one) || !b.load(at * kWqeBlockBytes, two) ||
        memcmp(one, two, sizeof one) != 0)
      return false;
  return true;
}

}  // namespace

// Slots are used again after their completion only. Not of stacks that are unknown, nor of
// NVSHMEM's, to whose queues DeepEP's kernels may write, which keep count in another way.
bool SendLook::guarded() const {
  return queue_.stack == SIGMA_GPU_STACK_DOCA || queue_.stack == SIGMA_GPU_STACK_UCX;
}

// NVSHMEM's posts, and those of DeepEP's kernels to its queues, hold a lock around record and
// doorbell; rocSHMEM's around the whole post.
bool SendLook::record_first() const {
  return queue_.doorbell_addr != 0 &&
         (queue_.stack == SIGMA_GPU_STACK_NVSHMEM || queue_.stack == SIGMA_GPU_STACK_DEEPEP ||
          queue_.stack == SIGMA_GPU_STACK_ROCSHMEM);
}

LookTimes SendLook::times_of(uint64_t position, uint64_t after_ns) const {
  return {bounds_.earliest(position), after_ns};
}

void SendLook::begin(const sigma_gpu_queue& queue, uint8_t tier, uint8_t mode, bool from_birth,
                     const char* reason, uint64_t now_ns, RecordBatch& out) {
  *this = SendLook{};
  queue_ = queue;
  ring_ = {queue.qp_num, queue.ring_entries};
  tier_ = tier;
  mode_ = valid(ring_) ? mode : uint8_t{SIGMA_RING_SETUP};
  begun_ = true;
  looked_ns = from_birth ? queue.created_ns : now_ns;
  moved_ns_ = now_ns;
  bounds_.begin(from_birth ? queue.created_ns : 0);
  state(SIGMA_RING_BEGIN, reason, out);
}

void SendLook::start(uint16_t doorbell, bool has_completion, uint16_t counter, uint64_t read_ns,
                     RecordBatch& out) {
  // Of a queue's age nothing is known: positions begin in the first round of 65,536, or where the
  // doorbell and the completion lie on two sides of its end, in the second.
  const auto end = static_cast<uint16_t>(counter + 1);
  const auto outstanding = static_cast<uint16_t>(doorbell - end);
  const auto ahead = static_cast<uint16_t>(end - doorbell);
  uint64_t from = doorbell;
  if (has_completion && outstanding <= ring_.blocks) {
    from = end;
    doorbell_ = from + outstanding;
  } else if (has_completion && ahead <= ring_.blocks) {  // the NIC is ahead of the record
    from = end >= ahead ? end : end + 65'536u;
    doorbell_ = from - ahead;
  } else {
    if (!has_completion && doorbell <= ring_.blocks) from = 0;
    doorbell_ = doorbell;
  }
  first_ = cursor_.next = from;
  cursor_.posted = larger(doorbell_, from);
  if (has_completion) {
    completed_ = from;
    any_completed_ = true;
  }
  end_known_ = cursor_.posted == doorbell_;
  if (record_first()) bounds_.saw(cursor_.posted, read_ns);
  moved_ns_ = read_ns;
  // Said again, now that it is known from where on.
  if (first_ != 0) state(SIGMA_RING_STATE, "", out);
}

SendLook::Wanted SendLook::on_doorbell(uint16_t doorbell, bool has_completion, uint16_t counter,
                                       const Laps& laps, uint64_t read_ns) {
  bool counted = laps.completed != kUnknown;
  if (counted && queue_.doorbell_addr != 0) {
    // At most a ring ahead of what has completed; or as much behind it, where the NIC is ahead of
    // the record.
    const auto ahead = static_cast<uint16_t>(doorbell - static_cast<uint16_t>(laps.completed));
    const uint64_t lag = 65'536u - ahead;
    counted = ahead <= ring_.blocks || (lag <= ring_.blocks && lag <= laps.completed);
    if (counted)
      doorbell_ =
          larger(doorbell_, ahead <= ring_.blocks ? laps.completed + ahead : laps.completed - lag);
  }
  const bool indexed = laps.record != kUnknown && (!counted || cursor_.modulo);
  if (indexed) {
    counted = false;
    go_to_record(laps.record, doorbell);
  }
  const bool laps_possible = laps.possible && !counted && !indexed;
  // Warps may store their records out of order: one that is a little behind tells nothing new.
  const auto behind = static_cast<uint16_t>(static_cast<uint16_t>(doorbell_) - doorbell);
  if (!counted && !indexed && (laps_possible || behind > smaller(ring_.blocks, kMostBehind)))
    doorbell_ = extend16(doorbell_, doorbell);
  uint64_t target = larger(doorbell_, cursor_.posted), position = 0;
  open_end_ = has_completion &&
              (counted ? (position = laps.completed - 1, laps.completed > 0)
                       : position_of(counter, target, position)) &&
              position >= target;
  if (open_end_) target = position + 1;
  news_ = target - cursor_.posted;
  if (news_ > 0) {
    moved_ns_ = read_ns;
    end_known_ = !open_end_;
  }
  cursor_.modulo |= laps_possible;
  // Where it grew, it stands where the newest completion does. What this look saw ahead may be a
  // round old in any case.
  lap_hidden_ = news_ == 0 && (laps_possible || lap_hidden_);
  if (laps_possible) nothing_known_ahead();
  step_ = advance_to(ring_, cursor_, target);
  if (record_first()) bounds_.saw(cursor_.posted, read_ns);
  if (cursor_.next == cursor_.posted) return {};
  if (mode_ == SIGMA_RING_SETUP || (mode_ == SIGMA_RING_SNAPSHOT && !snapshot_)) return {};
  Wanted wanted{step_.first, step_.end};
  if (open_end_)
    wanted.end += smaller<uint64_t>(kOpenEndBlocks - 1, ring_.blocks - wanted.blocks());
  return wanted;
}

// By the stack's index. Rounds that went unseen before, of which it was only said that there may
// have been some, are now missed for certain; when, nobody knows.
void SendLook::go_to_record(uint64_t record, uint16_t doorbell) {
  const uint64_t thought = extend16(doorbell_, doorbell);
  if (cursor_.modulo && record > thought) {
    completed_ += (record - thought) & ~uint64_t{0xffff};
    bounds_.begin(queue_.created_ns);
  }
  cursor_.modulo = false;
  doorbell_ = larger(doorbell_, record);
}

uint32_t SendLook::blocks_ahead() const {
  if (record_first()) return 0;
  if (news_ == 0 && end_known_ && unwritten_ == cursor_.posted) return 1;
  const uint64_t most = larger<uint64_t>(ring_.blocks / 4, kAheadBlocks);
  const uint64_t likely = larger<uint64_t>(2 * news_, kAheadBlocks);
  return static_cast<uint32_t>(smaller<uint64_t>(smaller<uint64_t>(most, kMostAhead),
                                                 smaller<uint64_t>(likely, ring_.blocks)));
}

void SendLook::on_ahead(const RingBytes& slots, uint64_t first, uint64_t ns, uint16_t doorbell,
                        bool completions_known, bool has_completion, uint16_t counter) {
  const uint64_t posted_after =
      larger(cursor_.posted, queue_.doorbell_addr ? extend16(doorbell_, doorbell) : 0);
  uint64_t reusable = ~uint64_t{0}, position = 0;
  const bool behind_first =
      has_completion && position_of(counter, posted_after, position) && position >= first;
  if (guarded() && completions_known && (has_completion || !completions_lost_))
    reusable = behind_first ? end_of_wqe(ring_, slots, first, position)
               : end_known_ ? first
                            : first + kOpenEndBlocks;
  const auto from = [&](uint64_t free) {
    return unwritten_from(ring_, slots, first, end_known_, posted_after, free);
  };
  untold_ = guarded() && from(~uint64_t{0}) != first;
  unwritten_ = from(reusable);
  if (unwritten_ != ~uint64_t{0}) bounds_.saw(unwritten_, ns);
}

void SendLook::limit(Wanted& wanted, uint32_t blocks) {
  if (wanted.blocks() <= blocks || step_.end - wanted.first < blocks / 2) return;
  const uint64_t first = step_.end - blocks / 2;
  step_.gap += first - step_.first;
  step_.first = wanted.first = first;
}

// Of the WQE whose first block the completion named, the last one posted; 0: it is not there.
uint32_t SendLook::last_wqe_blocks(const Wanted& wanted, const RingBytes& bytes) const {
  Wqe wqe;
  if (step_.end == 0 || step_.end - 1 < wanted.first) return 0;
  const bool whole = decode_wqe(bytes, (step_.end - 1 - wanted.first) * kWqeBlockBytes,
                                service_of(queue_.qp_type), wqe);
  if (!whole || wqe.qp_num != queue_.qp_num || wqe.index != static_cast<uint16_t>(step_.end - 1) ||
      wqe.blocks == 0 || step_.end - 1 + wqe.blocks > wanted.end)
    return 0;
  return wqe.blocks;
}

// All WQEs from the result on, up to `end`, are certain.
uint64_t SendLook::certain_from(const Wanted& wanted, uint64_t start, uint64_t end,
                                const Copies& copies, uint64_t posted_after,
                                uint64_t completed) const {
  uint64_t certain = start;
  const uint64_t until = for_each_wqe(
      copies.one, wanted.first, start, end, service_of(queue_.qp_type),
      [&](uint64_t at, const Wqe& wqe) {
        const bool stands =
            copies.last || margin_certain(ring_, at, posted_after) ||
            (guarded() && copies.has_completion && unfinished_certain(at, completed));
        if (!stands || !same_blocks(copies.one, copies.two, at - wanted.first, wqe.blocks))
          certain = at + wqe.blocks;
      });
  return until == end ? certain : end;
}

void SendLook::on_slots(const Wanted& wanted, const Copies& copies, uint64_t after_ns,
                        RecordBatch& out) {
  if (open_end_)
    if (const uint32_t blocks = last_wqe_blocks(wanted, copies.one); blocks > 0) {
      cursor_.posted += blocks - 1;
      step_.end += blocks - 1;
      end_known_ = true;
    }
  const uint64_t newest = larger(cursor_.posted, completed_);
  uint64_t completed = completed_, position = 0;
  if (copies.has_completion && position_of(copies.counter, newest, position))
    completed = larger(completed, position + 1);
  const uint64_t posted_after = larger(extend16(doorbell_, copies.doorbell), completed);
  const uint64_t start = chain_start(ring_, copies.one, wanted.first, step_.end);
  uint64_t from = certain_from(wanted, start, step_.end, copies, posted_after, completed);
  bool quiet = false;
  if (from > wanted.first && !copies.last && posted_after <= step_.end) {
    // Nobody has posted since: it may be the end of a burst, and a second look can tell.
    const uint64_t sum = sum_of(copies.one);
    const bool unchanged = quiet_since_ns_ != 0 && quiet_posted_ == step_.end && quiet_sum_ == sum;
    if (!unchanged) {
      quiet_since_ns_ = after_ns;
      quiet_posted_ = step_.end;
      quiet_sum_ = sum;
    }
    if (!unchanged || after_ns - quiet_since_ns_ < kQuietNs) return;
    quiet = same_blocks(copies.one, copies.two, 0, static_cast<uint32_t>(step_.end - wanted.first));
    if (!quiet) return;
    from = start;
  }
  quiet_since_ns_ = 0;
  const uint64_t lapped = step_.gap;
  gap(cursor_.next, lapped, mode_ == SIGMA_RING_SNAPSHOT ? SIGMA_GAP_COUNTED : SIGMA_GAP_LAPPED,
      after_ns, out);
  gap(wanted.first, from - wanted.first, SIGMA_GAP_UNCERTAIN, after_ns, out);
  const uint64_t until = for_each_wqe(copies.one, wanted.first, from, step_.end,
                                      service_of(queue_.qp_type), [&](uint64_t at, const Wqe& wqe) {
                                        report(at, wqe, times_of(at, after_ns),
                                               quiet || copies.last, posted_after, out);
                                      });
  gap(until, step_.end - until, SIGMA_GAP_UNREADABLE, after_ns, out);
  finish(cursor_, step_, from);
  bounds_.forget_before(cursor_.next);
  snapshot_ = false;
}

// The place of a completion's index beside `near`, up to which requests are known to be posted. A
// doorbell record moves with the completions; without one, these alone tell how far it went, and a
// newer one is at most the ring behind what an older one told.
bool SendLook::position_of(uint16_t counter, uint64_t near, uint64_t& position) const {
  const uint32_t most_behind = queue_.doorbell_addr ? 32'768 : ring_.blocks;
  const auto behind = static_cast<uint16_t>(static_cast<uint16_t>(near) - counter);
  if (behind <= most_behind) {
    if (behind > near) return false;
    position = near - behind;
  } else {
    position = extend16(near, counter);
  }
  return true;
}

bool SendLook::on_completion(uint16_t counter, bool in_order) {
  uint64_t position = extend16(completed_, counter);
  const bool next =
      in_order && completed_exactly() != kUnknown && position - completed_ <= ring_.blocks;
  if (!next && (!position_of(counter, larger(cursor_.posted, completed_), position) ||
                (any_completed_ && position < completed_)))
    return false;
  completed_ = position + 1;
  any_completed_ = true;
  completions_lost_ = false;
  moved_ns_ = larger(moved_ns_, looked_ns);
  return true;
}

RingName SendLook::name() const {
  return {.context = queue_.context,
          .number = queue_.qp_num,
          .life = queue_.life,
          .initiator = SIGMA_INITIATOR_GPU,
          .tier = tier_};
}

void SendLook::report(uint64_t position, const Wqe& wqe, const LookTimes& times, bool quiet,
                      uint64_t after, RecordBatch& out) {
  sigma_ring_post post = post_record(name(), wqe, position, times);
  post.qp_type = queue_.qp_type;
  post.flags |=
      !quiet && margin_certain(ring_, position, after) ? SIGMA_RING_MARGIN : SIGMA_RING_POSTERIOR;
  if (cursor_.modulo) post.flags |= SIGMA_RING_MODULO;
  seen_ += wqe.blocks;
  out.add(post, SIGMA_RING_POST);
}

void SendLook::gap(uint64_t first, uint64_t count, uint8_t reason, uint64_t after_ns,
                   RecordBatch& out) {
  if (count == 0) return;
  // Nothing was posted before the queue was there.
  const LookTimes times{larger<uint64_t>(bounds_.earliest(first), queue_.created_ns), after_ns};
  sigma_ring_gap record = gap_record(name(), SIGMA_RING_SEND, first, count, reason, times);
  if (cursor_.modulo) record.flags |= SIGMA_RING_MODULO;
  missed_ += count;
  out.add(record, SIGMA_RING_GAP);
}

void SendLook::state(uint8_t event, const char* reason, RecordBatch& out) {
  sigma_ring record = ring_record(name(), SIGMA_RING_SEND, event);
  record.ring_addr = queue_.ring_addr;
  record.doorbell_addr = queue_.doorbell_addr;
  record.first = first_;
  record.posted = cursor_.posted - first_;
  record.seen = seen_;
  record.missed = missed_;
  record.entries = queue_.ring_entries;
  record.cqn = queue_.cqn;
  if (cursor_.modulo) record.flags |= SIGMA_RING_MODULO;
  if (queue_.flags & SIGMA_GPU_COLLAPSED) record.flags |= SIGMA_RING_COLLAPSED;
  record.origin = SIGMA_RING_BY_LIBRARY;
  record.mode = mode_;
  // A hang is told by every record until the queue moves again.
  copy_text(record.reason, sizeof record.reason, *reason ? reason : hung ? SIGMA_RING_HUNG : why);
  out.add(record, SIGMA_RING);
}

void SendLook::change(uint8_t tier, uint8_t mode, const char* reason, RecordBatch& out) {
  tier_ = tier;
  mode_ = mode;
  state(SIGMA_RING_STATE, reason, out);
}

void SendLook::end(bool whole, uint64_t now_ns, RecordBatch& out) {
  if (!begun_) return;
  gap(cursor_.next, cursor_.posted - cursor_.next, SIGMA_GAP_ENDED, now_ns, out);
  cursor_.next = cursor_.posted;
  // Without a doorbell record the last completion need not be the last post's, unless nothing is
  // written behind it: a slot that a later lap has written over does not say so.
  const bool behind = unwritten_ <= cursor_.posted && !lap_hidden_;
  const bool known = whole && (queue_.doorbell_addr != 0 || behind);
  state(SIGMA_RING_END, known ? "" : SIGMA_RING_END_UNSEEN, out);
  begun_ = false;
}

}  // namespace sigma::gpu
