// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which of the bytes copied from a live send ring are WQEs, for certain.
//
// The writer goes on while we copy, and libmlx5 writes a WQE's index last: an old and fitting index
// may stand over new addresses. So two things are asked of each WQE:
//   1. The chain (chain_start): index, queue number and size fit, and the sizes lead from WQE to WQE
//      to exactly the doorbell's value, which always is the end of a WQE.
//   2. A certificate that the writer cannot have begun to overwrite it when it was copied:
//      posterior   The doorbell has moved on since (to `later`), and by not more than lets the slot
//                  stand. Comes with a later sample. Assumes that a doorbell publishes all that was
//                  written before it, as those of CPU posters do; of GPU threads that fill reserved
//                  slots side by side a later slot may be half written yet.
//      margin      The doorbell read right after the copy is still a quarter of the ring short of
//                  it. At once; assumes that nobody writes that far ahead of the doorbell.
//      unfinished  The WQE had not completed when the copy had ended. At once; assumes that slots are
//                  not used again before their completion (all stacks but DeepEP's own kernels).
// Measured: 67 torn WQEs passed (1) alone; posterior and margin each refused all of them.
//
// Positions count WQEBBs since the ring's life began, in 64 bits; the ring and its doorbell record
// know the low 16. Pure functions over copies and one small struct; one thread a ring.
#pragma once

#include <cstdint>

#include "decode/ring_bytes.h"
#include "decode/wqe.h"

namespace sigma {

struct SendRing {
  uint32_t qp_num = 0;
  uint32_t blocks = 0;  // WQEBBs: a power of two, at most 32,768
};

// Geometry that the hardware can have: what the job's memory or a command claims is checked first.
bool valid(const SendRing& ring);

// Where a reader is in one ring. next <= posted, always.
struct SendCursor {
  uint64_t posted = 0;  // published by the doorbell
  uint64_t next = 0;    // all before has been seen or counted as a gap
  bool modulo = false;  // `posted` may be short by multiples of 65,536
};

// Of a queue pair's doorbell record (be32: receives, sends) the sends' value.
inline constexpr size_t kDoorbellBytes = 8;
inline uint16_t send_doorbell(const std::byte* record) {
  return static_cast<uint16_t>(std::to_integer<unsigned>(record[6]) << 8 |
                               std::to_integer<unsigned>(record[7]));
}

// What a new doorbell value asks to be read, and what is already lost.
struct SendStep {
  uint64_t gap = 0;             // blocks from the cursor's `next` on that have been overwritten
  uint64_t first = 0, end = 0;  // still in the ring: to be copied
};

// Takes a doorbell value (be32 at the record + 4, low 16 bits). `wrap_possible`: more than 65,535
// blocks may have been posted since the last one; the cursor is then `modulo`, and everything that
// had no certificate yet must be given up by the caller. The step's gap is in the ring's count when
// it is not modulo. The cursor's `next` stays where it was until finish().
SendStep advance(const SendRing& ring, SendCursor& cursor, uint16_t doorbell, bool wrap_possible);
// The same, of a position that is known wholly. Not before the cursor's.
SendStep advance_to(const SendRing& ring, SendCursor& cursor, uint64_t posted);

// `slots` are the blocks from position `first` to `end`. The position of the first WQE of the
// longest accepted chain that ends exactly at `end`; `end` where there is none.
uint64_t chain_start(const SendRing& ring, const RingBytes& slots, uint64_t first, uint64_t end);

// Requests are rung for in order, and when they are written: from the result on nothing had been
// rung for when these blocks were copied; ~0 where they do not tell. `slots` are the blocks from
// position `first` on, behind what is known to be posted; where `first_begins` a WQE begins. A slot
// that does not carry its own position's index may have been used again already, a lap later. Not so
//   where it holds what was there a lap ago; or is zero, in the first lap (`posted_after`: the
//   doorbell record, read later. Assumes, as `margin` does, that nobody is three quarters of the
//   ring ahead); from `reusable` on: no earlier position than this had completed when the copy had
//   ended, and the writers wait for completions. ~0: that is unknown.
uint64_t unwritten_from(const SendRing& ring, const RingBytes& slots, uint64_t first,
                        bool first_begins, uint64_t posted_after, uint64_t reusable);
// The end of the WQE at `position` as these blocks have it; where they do not, of the largest.
uint64_t end_of_wqe(const SendRing& ring, const RingBytes& slots, uint64_t first,
                    uint64_t position);

// Whether these blocks, kMaxWqeBlocks or more in a row, have not been written by this queue: among
// so many a WQE begins, and none of them has the queue's number where a WQE has it.
bool holds_no_wqe(const SendRing& ring, const RingBytes& slots);

// Calls f(position, wqe) for each WQE of a chain, as chain_start() found it, from `start` to `end`;
// `slots` are the blocks from position `first` on. Returns where it ends: before `end` at one that
// cannot be decoded.
template <typename F>
uint64_t for_each_wqe(const RingBytes& slots, uint64_t first, uint64_t start, uint64_t end,
                      QpService service, F&& f) {
  Wqe wqe;
  uint64_t at = start;
  for (; at < end; at += wqe.blocks) {
    if (!decode_wqe(slots, (at - first) * kWqeBlockBytes, service, wqe) || wqe.blocks == 0) break;
    f(at, wqe);
  }
  return at;
}

// The step has been read: WQEs from `start` on are reported, all before is lost. Returns the blocks
// lost: seen + lost = posted, always.
uint64_t finish(SendCursor& cursor, const SendStep& step, uint64_t start);

// Repairs a `modulo` cursor: that many times 65,536 blocks had passed unseen, as a wider counter
// tells (the CQ's consumer index, the producer index of a GPU queue). Between a step's finish() and
// the next advance(). Returns these blocks, which are lost.
uint64_t add_laps(SendCursor& cursor, uint64_t laps);

// 64 bits from the low 16 or 24 of a counter that only grows, by less than that between two looks.
constexpr uint64_t extend16(uint64_t last, uint16_t low) {
  return last + static_cast<uint16_t>(low - static_cast<uint16_t>(last));
}
constexpr uint64_t extend24(uint64_t last, uint32_t low) {
  return last + ((low - static_cast<uint32_t>(last)) & 0xffffff);
}

// ---- certificates -----------------------------------------------------------------------------

// `posted_after`: the doorbell, read after the copy had ended.
constexpr bool margin_certain(const SendRing& ring, uint64_t position, uint64_t posted_after) {
  return posted_after + ring.blocks / 4 <= position + ring.blocks;
}

enum class Posterior : uint8_t {
  wait,     // the doorbell has not moved since it was read behind the copy: no answer yet
  certain,  // the copy is the WQE that was posted
  refused,  // it may have been overwritten while it was copied
};
// `later`: a doorbell read any time after `posted_after`, with less than 65,536 blocks between
// them.
constexpr Posterior posterior(const SendRing& ring, uint64_t position, uint64_t posted_after,
                              uint64_t later) {
  if (later <= posted_after) return Posterior::wait;
  return later <= position + ring.blocks ? Posterior::certain : Posterior::refused;
}

// `completed`: the end of the last WQE that a completion covers, read after the copy had ended.
constexpr bool unfinished_certain(uint64_t position, uint64_t completed) {
  return position >= completed;
}

}  // namespace sigma
