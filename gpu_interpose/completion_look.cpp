// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/completion_look.h"

namespace sigma::gpu {

bool CompletionLook::begin(const sigma_gpu_queue& queue, uint32_t life, uint8_t tier,
                           RecordBatch& out) {
  *this = CompletionLook{};
  ring_.entries = queue.cq_entries;
  ring_.entry_bytes = queue.cqe_bytes;
  ring_.collapsed = queue.flags & SIGMA_GPU_COLLAPSED;
  if (queue.cq_addr == 0 || !valid(ring_)) return false;
  context_ = queue.context;
  addr_ = queue.cq_addr;
  cqn_ = queue.cqn;
  life_ = life;
  tier_ = tier;
  begun_ = true;
  state(SIGMA_RING_BEGIN, out);
  return true;
}

RingName CompletionLook::name() const {
  return {.context = context_,
          .number = cqn_,
          .life = life_,
          .initiator = SIGMA_INITIATOR_GPU,
          .tier = tier_};
}

void CompletionLook::state(uint8_t event, RecordBatch& out) const {
  sigma_ring record = ring_record(name(), SIGMA_RING_CQ, event);
  record.ring_addr = addr_;
  record.first = first_;
  record.posted = cursor_.next - first_;
  record.seen = seen_;
  record.missed = missed_;
  record.cqn = cqn_;
  record.entries = ring_.entries;
  record.flags |= SIGMA_RING_OVERRUN;
  if (ring_.collapsed) record.flags |= SIGMA_RING_COLLAPSED;
  record.origin = SIGMA_RING_BY_LIBRARY;
  record.mode = SIGMA_RING_READ;
  out.add(record, SIGMA_RING);
}

void CompletionLook::end(RecordBatch& out) {
  if (!begun_) return;
  state(SIGMA_RING_END, out);
  begun_ = false;
}

bool CompletionLook::load(const RingBytes& bytes, uint64_t entry,
                          std::byte (&out)[kCqeBytes]) const {
  return bytes.load((entry + 1) * ring_.entry_bytes - kCqeBytes, out);
}

// The last entry read stands behind its successors in the copy, so it is copied with them.
CompletionLook::Wanted CompletionLook::wanted(bool all) const {
  if (ring_.collapsed) return {0, 1};
  if (whole_ring_) return {cursor_.next & ~uint64_t{ring_.entries - 1}, ring_.entries};
  const uint64_t first = copy_from_anchor(ring_, cursor_);
  const uint64_t count = cursor_.next - first + (all ? ring_.entries : expected_);
  return {first, static_cast<uint32_t>(count < ring_.entries ? count : ring_.entries)};
}

// By it the next lap is noticed. One that was being written is found not to stand, which reads as a
// lap: the whole ring is then looked at again.
void CompletionLook::anchor_newest(const RingBytes& whole) {
  std::byte entry[kCqeBytes];
  cursor_.has_anchor = cursor_.next > 0 && load(whole, (cursor_.next - 1) % ring_.entries, entry);
  if (!cursor_.has_anchor) return;
  cursor_.anchor_at = cursor_.next - 1;
  memcpy(cursor_.anchor.data(), entry, sizeof entry);
}

void CompletionLook::gap(uint64_t first, uint64_t count, const LookTimes& times, RecordBatch& out) {
  if (count == 0) return;
  sigma_ring_gap record = gap_record(name(), SIGMA_RING_CQ, first, count, SIGMA_GAP_LAPPED, times);
  missed_ += count;
  out.add(record, SIGMA_RING_GAP);
}

void CompletionLook::report(const Cqe& cqe, uint64_t position, SendLook* send,
                            const LookTimes& times, RecordBatch& out) {
  if (!is_requester(cqe) && !is_responder(cqe)) return;
  if (is_requester(cqe) && send && !send->on_completion(cqe.wqe_counter, !ring_.collapsed) &&
      cqe.kind != CqeKind::requester_error)
    return;
  ++seen_;
  const RingName of = send ? send->name() : RingName{};
  sigma_ring_completion record =
      completion_record(name(), send ? &of : nullptr, cqe, position, times);
  out.add(record, SIGMA_RING_COMPLETION);
}

}  // namespace sigma::gpu
