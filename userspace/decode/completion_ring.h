// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Walking a live mlx5 completion ring from outside.
//
// An entry is there when its opcode is valid and its owner bit is the parity of its lap. That alone
// does not tell a lap from two more, nor an entry that was being written while it was copied:
//   - Each entry is copied twice, and counts when both copies agree: the device writes it once,
//     so what has stopped changing is whole, and what agrees in both is not half of two.
//   - Entries are written in order: while the one before it stands in the second copy, the next lap
//     had not begun to overwrite an entry in the first. So copies begin before `next`: copy_from.
//     The very first entry is certain while the owner is in the ring's first quarter, or the copy
//     shows an entry of the first lap that is not there yet; where the owner keeps no index, while
//     the first lap has not ended, as far as the copy shows it.
//   - Laps are counted by the consumer index of the CQ's doorbell record where the owner keeps it
//     (libmlx5 does; UCX built without assertions, and collapsed rings, do not). Elsewhere the last
//     entry read is looked at again (`anchor`): while it stands, no lap has passed.
//
// Compressed rings, basic layout. A title of format 3 says (byte_cnt) for how many completions it
// stands; arrays of 8 mini entries stand at its position + 1, + 8, + 16, ...; the session covers as
// many entries as completions (Linux, drivers/net/ethernet/mellanox/mlx5/core/en_rx.c,
// mlx5e_read_mini_arr_slot and its callers). Arrays have no lap. What is read is certain while the
// owner is no more than a quarter of the ring past it, if the device never has three quarters of
// the ring unconsumed; or, where the owner keeps no index, if a session is written at one go.
// UCX 1.13 marks the entries of a session as it goes through it (openucx/ucx,
// src/uct/ib/mlx5/ib_mlx5.c, uct_ib_mlx5_iface_cqe_unzip at v1.13.0): over the low byte of every
// eighth byte count, which is then unknown.
//
// Enhanced layout. Each block is one entry of format 3 with up to 7 mini entries, their number less
// one in the opcode's place, and covers as many entries; its title is the last ordinary entry
// before it; a lap count of 8 bits stands in the signature's place (en_rx.c,
// mlx5e_decompress_enhanced_cqe). UCX marks the entries that a block covers like blocks (the same
// function at v1.18), so only a walk that comes from the block tells them from blocks.
//
// Positions count entries since the ring's life began. One thread a ring.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "decode/cqe.h"
#include "decode/ring_bytes.h"

namespace sigma {

enum class CqLayout : uint8_t { plain, compressed_basic, compressed_enhanced };

struct CompletionRing {
  uint32_t entries = 0;      // a power of two
  uint32_t entry_bytes = 0;  // 64 or 128
  CqLayout layout = CqLayout::plain;
  bool collapsed = false;  // every completion is written to entry 0
};
bool valid(const CompletionRing& ring);

// Completions of one compressed session at most: cqe_compression_max_num of today's devices.
inline constexpr uint32_t kMaxSession = 64;

struct CompletionCursor {
  uint64_t next = 0;      // position of the next entry
  uint64_t consumed = 0;  // by the owner, where it says so
  bool counts = false;    // `consumed` is kept
  // A ring that a resize put in place begins in mid-count: before this position its slots are in
  // their first lap, and those that nobody has written yet are marked invalid.
  uint64_t fresh_until = 0;
  // The last entry read, to see whether a lap has passed; not the two bytes that readers may
  // change.
  bool has_anchor = false;
  uint64_t anchor_at = 0;
  std::array<std::byte, kCqeBytes> anchor{};
  // A compressed session
  bool synchronised = true;  // `next` is known to be the place of a title, block or ordinary entry
  bool has_title = false;
  uint16_t since_title = 0;  // completions since the title, in it
  uint16_t block = 0;        // completions of the block that is being given out
  uint16_t left = 0;         // of these, not yet given out
  Cqe title;
  std::byte mark{};  // basic layout: the title's last byte, with which UCX marks the others
  std::array<std::byte, kMaxSession * kMiniCqeBytes> minis{};
};

// From where on entries are to be copied, so that those from `next` on can be judged.
uint64_t copy_from(const CompletionRing& ring, const CompletionCursor& cursor);

// Takes the consumer index (be32 at the doorbell record, low 24 bits). Call it with what was read
// after the entries were copied: an entry that two laps have passed looks like one of its own lap,
// and the device does not write the second before the first is consumed. Returns the entries that
// are lost: consumed, and overwritten since. At most 2^24 - 1 entries may have passed between two
// calls.
uint64_t consumed_to(const CompletionRing& ring, CompletionCursor& cursor, uint32_t consumer_index);

enum class CqNext : uint8_t {
  completion,  // one more
  end,         // nothing further in the copy, or nothing there yet
  cut,         // a session goes beyond the copy: copy more
  unstable,    // the copies differ: look again with the next sample
  lost,        // entries were overwritten or cannot be understood: `lost` says how many
  resized,     // the ring ends here
};

// The next completion. `first` and `again` are two copies of the entries from position `from` on,
// one after the other in time; without a second one (a snapshot of a ring that nobody writes) pass
// the first twice. Moves the cursor, also past entries that are no completions. A session of the
// basic layout is read as a whole: copy at least kMaxSession entries where the ring has as many.
CqNext next_completion(const CompletionRing& ring, CompletionCursor& cursor, uint64_t from,
                       const RingBytes& first, const RingBytes& again, Cqe& out, uint64_t& lost);

// What follows in the same copies, a run at a time: to be called when next_completion() has just given
// one of them. Each entry then shows that the one behind it stands, and is looked at once. Takes entries of
// plain rings that next_completion() would give as well, as many as `out` has room for; returns how many.
// 0: that has to be asked.
size_t next_run(const CompletionRing& ring, CompletionCursor& cursor, uint64_t from,
                const RingBytes& first, const RingBytes& again, std::span<Cqe> out);

// Entry 0 of a collapsed ring: true when it has a completion other than the last one given out.
bool next_collapsed(CompletionCursor& cursor, std::span<const std::byte, kCqeBytes> first,
                    std::span<const std::byte, kCqeBytes> again, Cqe& out);

// Whether the anchor entry is still what was read: then less than a lap has passed. `entry`: the 64
// bytes at the anchor's place, copied after the entries that are to be certain by it.
bool anchor_stands(const CompletionCursor& cursor, std::span<const std::byte, kCqeBytes> entry);

// From where on entries are to be copied, so that such a lap shows: copy_from(), or the last entry
// read where it is not a ring behind.
uint64_t copy_from_anchor(const CompletionRing& ring, const CompletionCursor& cursor);

// Whether the anchor entry does not stand in a copy of the entries from position `from` on. False
// also where it is not in there.
bool is_lapped(const CompletionRing& ring, const CompletionCursor& cursor, uint64_t from,
               const RingBytes& copy);

// After a lap on a ring that counts nobody's laps: where the ring's newest entry is, from a copy of
// the whole ring (from entry 0 on). Moves the cursor there and returns the entries passed unseen,
// known modulo twice the ring's size.
uint64_t skip_to_newest(const CompletionRing& ring, CompletionCursor& cursor,
                        const RingBytes& whole);

// The same, but moves the cursor only past what is overwritten. `first` and `again`: two copies of
// the whole ring, each from entry 0 on and in one piece. What stands is then read by
// next_completion() from the copies as they are returned. Compressed rings have no entry that could
// be told from its arrays: there nothing is left.
struct Remains {
  uint64_t lost = 0;  // passed unseen, known modulo twice the ring's size
  uint64_t from = 0;  // position of the copies' first entry
  RingBytes first, again;
};
Remains skip_overwritten(const CompletionRing& ring, CompletionCursor& cursor,
                         const RingBytes& first, const RingBytes& again);

}  // namespace sigma
