// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/laps.h"

#include <algorithm>

namespace sigma {
namespace {

// Of queues that have shown none yet.
constexpr uint32_t kUnseenBlocks = 2;

uint32_t largest_request(const SendReader& send) {
  return send.largest_request() != 0 ? send.largest_request() : kUnseenBlocks;
}

// Its owner has been told of so many completions, and of a ring more at most (libmlx5 stores the
// index after it has handled a batch).
PostedBounds by_consumer(const SendReader& send, uint64_t consumed, uint64_t copy_ns,
                         const CompletionLook& look) {
  const uint64_t blocks = send.spec().blocks;
  const uint64_t each = send.blocks_per_completion() != 0 ? send.blocks_per_completion() : blocks;
  const uint64_t news =
      consumed - std::min(consumed, look.consumed_before) + look.reader->spec().ring.entries;
  if (news >= 1u << 16) return {send.posted(), ~uint64_t{0}};
  return {send.posted(), send.posted() + (news + 1) * each + blocks +
                             most_blocks_in(copy_ns, largest_request(send))};
}

// A ring of completions that is this queue's alone counts for it, in 24 bits: if they stood for as
// many blocks each as before, which the index that the newest one names has to bear out.
PostedBounds by_own_completions(const SendReader& send, uint64_t consumed, uint64_t copy_ns,
                                const CompletionLook& look) {
  const PostedBounds unknown{send.posted(), ~uint64_t{0}};
  if (look.shared || look.reader->serves_receives()) return unknown;
  const auto newest = look.reader->newest(consumed, look.wanted, look.entries);
  if (!newest || newest->qp_num != send.spec().owner.number) return unknown;
  const uint64_t at = send.completed_at(newest->position);
  if (at == 0 || static_cast<uint16_t>(at) != newest->counter) return unknown;
  const uint64_t last = at + (consumed - 1 - newest->position) * send.blocks_per_completion();
  return {std::max(send.posted(), at), last + kMaxWqeBlocks + send.spec().blocks +
                                           most_blocks_in(copy_ns, largest_request(send))};
}

}  // namespace

std::optional<uint64_t> CompletionLook::reached(const SendReader& send) {
  const SendRing user{send.spec().owner.number, send.spec().blocks};
  if (!asked && wanted.count != 0)
    found = reader->reached(wanted, entries, consumer, shared ? nullptr : &user);
  asked = true;
  if (!found) return std::nullopt;
  return found->of(user.qp_num, send.posted(), user.blocks);
}

PostedBounds posted_bounds(const SendReader& send, uint16_t doorbell, uint64_t elapsed_ns,
                           uint64_t copy_ns, CompletionLook* completions) {
  const SendSpec& spec = send.spec();
  PostedBounds known = bounds_by_time(send.posted(), elapsed_ns, kMaxWqeBlocks);
  if (known.only(doorbell)) return known;
  const PostedBounds by_time = bounds_by_time(send.posted(), elapsed_ns, largest_request(send));
  // Of a ring of many queue pairs all entries have to be looked at: then the time is asked first.
  if (completions != nullptr && !(completions->shared && by_time.only(doorbell))) {
    const bool early = spec.initiator == SIGMA_INITIATOR_GPU;
    if (const auto at = completions->reached(send))
      known = known.both(bounds_by_completion(
          *at, spec.blocks, most_blocks_in(copy_ns, largest_request(send)), early));
    // Also where they contradict the doorbell: then something is not as it is assumed.
    if (known.only(doorbell) || known.fits_none(doorbell)) return known;
  }
  // They do not tell, or we were held up behind them.
  PostedBounds bounds = known.both(by_time);
  if (completions == nullptr || !completions->reader->counts() || bounds.only(doorbell))
    return bounds;
  const uint64_t consumed = completions->reader->consumed(completions->consumer);
  bounds = bounds.both(by_consumer(send, consumed, copy_ns, *completions));
  if (bounds.only(doorbell)) return bounds;
  return known.both(by_own_completions(send, consumed, copy_ns, *completions));
}

PostedBounds bounds_after_copy(const SendReader& send, uint64_t posted, uint64_t elapsed_ns) {
  return bounds_by_time(posted, elapsed_ns, largest_request(send));
}

}  // namespace sigma
