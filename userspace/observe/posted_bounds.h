// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How often the 16 bits of a send doorbell may have gone round since they were read last.
//
// What was posted lies between two bounds, and the bits choose among the values between them: one
// is the count, of several or none it is known modulo 65,536 only. What bounds it, and what that
// assumes:
//   time          One queue is given at most kMostRequestsPerUs. Of kMaxWqeBlocks each: for 157 us
//                 this alone suffices. Of as many as the largest of its requests so far: 2.5 ms,
//                 where that is one.
//   completions   Blocks are written again only when a completion has told that they may be. So
//                 what is posted is at most a ring past the request that completed last, however
//                 fast the job is and however long nobody looked. But for as long as the doorbell
//                 was read after the completion ring, time counts: that is one copy, unless we are
//                 held up within it.
//   consumer      The owner has been told of so many completions, of a ring's blocks each at most;
//                 or, where each has stood for as many blocks so far, of as many. An index that is
//                 kept is believed in 24 bits.
// Positions count blocks of 64 bytes since the ring's life began. Pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>

#include "decode/send_ring.h"
#include "decode/wqe.h"

namespace sigma {

// Of one queue pair, whose requests the device executes one after the other. (Data sheets promise
// 215 M messages/s of a whole ConnectX-6 and up to 370 M of a ConnectX-7, by very many queue
// pairs.)
inline constexpr uint64_t kMostRequestsPerUs = 26;

// Blocks in requests of at most so many each that may be posted in this time.
constexpr uint64_t most_blocks_in(uint64_t ns, uint32_t blocks_each) {
  constexpr uint64_t kForEver = 1'000'000'000'000;
  return ((ns < kForEver ? ns : kForEver) * kMostRequestsPerUs / 1000 + 1) * blocks_each;
}

// What had been posted when a doorbell was read: at least and at most, both included.
struct PostedBounds {
  uint64_t least = 0, most = 0;

  // Nothing but the doorbell's bits is needed: it was less than a round of 65,536.
  static constexpr PostedBounds within_a_round(uint64_t posted) {
    return {posted, posted + 0xffff};
  }
  constexpr PostedBounds both(const PostedBounds& other) const {
    return {least > other.least ? least : other.least, most < other.most ? most : other.most};
  }
  // The count whose low 16 bits these are. nullopt: several lie between the bounds, or none.
  constexpr std::optional<uint64_t> only(uint16_t doorbell) const {
    const uint64_t first = extend16(least, doorbell);
    if (first > most || most - first >= 1u << 16) return std::nullopt;
    return first;
  }
  constexpr bool fits_none(uint16_t doorbell) const { return extend16(least, doorbell) > most; }
};

// Since `posted` was read.
constexpr PostedBounds bounds_by_time(uint64_t posted, uint64_t ns, uint32_t blocks_each) {
  return {posted, posted + most_blocks_in(ns, blocks_each)};
}
// `reached`: the last request that had completed when the completion ring was copied; `since`: what
// may have been posted from then on until the doorbell was read. `early`: the device may be told of
// requests before the doorbell's record is written (GPUs).
constexpr PostedBounds bounds_by_completion(uint64_t reached, uint32_t ring_blocks, uint64_t since,
                                            bool early) {
  const uint64_t late = early ? (reached < ring_blocks ? reached : ring_blocks) : 0;
  return {reached - late, reached + kMaxWqeBlocks + ring_blocks + since};
}

}  // namespace sigma
