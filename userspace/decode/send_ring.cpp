// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "decode/send_ring.h"

#include <algorithm>

#include "base/be.h"

namespace sigma {
namespace {

constexpr uint32_t kMaxBlocks = 32'768;  // half of what an index can tell apart

// Blocks of the WQE of index `index` at `position`, or 0 where none fits.
uint32_t blocks_at(const SendRing& ring, const RingBytes& slots, uint64_t first, uint64_t position,
                   uint64_t wanted) {
  struct {
    Be32 opmod_index_opcode, qpn_ds;
  } control;
  if (!slots.load((position - first) * kWqeBlockBytes, control)) return 0;
  const uint32_t index = control.opmod_index_opcode >> 8 & 0xffff;
  const uint32_t qpn_ds = control.qpn_ds;
  if (index != (wanted & 0xffff) || qpn_ds >> 8 != ring.qp_num) return 0;
  return ((qpn_ds & 0x3f) + 3) / 4;
}

// What is there has not been written to since the lap before.
bool is_old(const SendRing& ring, const RingBytes& slots, uint64_t first, uint64_t position,
            uint64_t posted_after) {
  if (position >= ring.blocks)
    return blocks_at(ring, slots, first, position, position - ring.blocks) != 0;
  uint64_t words[kWqeBlockBytes / 8], any = 0;
  if (!slots.load((position - first) * kWqeBlockBytes, words)) return false;
  for (const uint64_t word : words) any |= word;
  return any == 0 && margin_certain(ring, position, posted_after);
}

}  // namespace

bool valid(const SendRing& ring) {
  return power_of_two(ring.blocks) && ring.blocks <= kMaxBlocks && ring.qp_num <= 0xffffff;
}

SendStep advance(const SendRing& ring, SendCursor& cursor, uint16_t doorbell, bool wrap_possible) {
  cursor.modulo |= wrap_possible;
  return advance_to(ring, cursor, extend16(cursor.posted, doorbell));
}

SendStep advance_to(const SendRing& ring, SendCursor& cursor, uint64_t posted) {
  cursor.posted = posted;
  const uint64_t oldest = cursor.posted > ring.blocks ? cursor.posted - ring.blocks : 0;
  SendStep step;
  step.first = oldest > cursor.next ? oldest : cursor.next;
  step.end = cursor.posted;
  step.gap = step.first - cursor.next;
  return step;
}

// A chain that breaks was none: the search goes on behind the break. So each block is looked at
// once, and what is accepted is what leads to the end without a break.
uint64_t chain_start(const SendRing& ring, const RingBytes& slots, uint64_t first, uint64_t end) {
  uint64_t start = first;
  for (uint64_t at = first; at < end;) {
    const uint32_t blocks = blocks_at(ring, slots, first, at, at);
    if (blocks == 0 || blocks > end - at)
      start = ++at;
    else
      at += blocks;
  }
  return start;
}

uint64_t end_of_wqe(const SendRing& ring, const RingBytes& slots, uint64_t first,
                    uint64_t position) {
  const uint32_t blocks = position >= first ? blocks_at(ring, slots, first, position, position) : 0;
  return position + (blocks ? blocks : kMaxWqeBlocks);
}

uint64_t unwritten_from(const SendRing& ring, const RingBytes& slots, uint64_t first,
                        bool first_begins, uint64_t posted_after, uint64_t reusable) {
  const uint64_t end = first + slots.size() / kWqeBlockBytes;
  uint64_t old = ~uint64_t{0}, behind_written = first;
  for (uint64_t at = first; at < end; ++at) {
    if (blocks_at(ring, slots, first, at, at) != 0)
      behind_written = at + 1;
    else if (old == ~uint64_t{0} && is_old(ring, slots, first, at, posted_after))
      old = at;
  }
  // Behind the last written WQE's first block the next one begins among as many blocks as the
  // largest has.
  const bool tells = behind_written == first && first_begins
                         ? behind_written < end
                         : end - behind_written >= kMaxWqeBlocks;
  return tells && behind_written >= reusable ? std::min(old, behind_written) : old;
}

bool holds_no_wqe(const SendRing& ring, const RingBytes& slots) {
  const uint64_t blocks = slots.size() / kWqeBlockBytes;
  for (uint64_t at = 0; at < blocks; ++at) {
    Be32 qpn_ds;
    if (!slots.load(at * kWqeBlockBytes + 4, qpn_ds) || qpn_ds >> 8 == ring.qp_num) return false;
  }
  return blocks >= kMaxWqeBlocks;
}

uint64_t finish(SendCursor& cursor, const SendStep& step, uint64_t start) {
  const uint64_t lost = start - cursor.next;
  cursor.next = step.end;
  return lost;
}

uint64_t add_laps(SendCursor& cursor, uint64_t laps) {
  const uint64_t blocks = laps << 16;
  cursor.posted += blocks;
  cursor.next += blocks;
  cursor.modulo = false;
  return blocks;
}

}  // namespace sigma
