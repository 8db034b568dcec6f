// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "decode/completion_ring.h"

#include <cstring>

#include "base/be.h"

namespace sigma {
namespace {

constexpr uint32_t kMaxEntries = 1u << 22;  // log_cq_size of the largest devices
constexpr uint8_t kCompressed = 3;          // format
constexpr size_t kOwnedByReaders = 62;      // signature and op_own: UCX rewrites them
constexpr uint16_t kMinisPerEntry = kCqeBytes / kMiniCqeBytes;
constexpr uint16_t kEnhancedMinis = 7;  // the last 8 bytes have the block's own fields

using Entry = std::array<std::byte, kCqeBytes>;

std::span<const std::byte, kCqeBytes> view(const Entry& entry) {
  return entry;
}

using Words = std::array<uint64_t, kCqeBytes / sizeof(uint64_t)>;

// Bits that two entries do not share.
uint64_t difference(const Words& one, const Words& two) {
  uint64_t bits = 0;
  for (size_t i = 0; i < one.size(); ++i) bits |= one[i] ^ two[i];
  return bits;
}

Words words_of(const std::byte* entry) {
  Words words;
  std::memcpy(words.data(), entry, sizeof(words));
  return words;
}

bool all_zero(const Entry& entry) {
  return difference(words_of(entry.data()), Words{}) == 0;
}

enum class Copy : uint8_t { whole, missing, unstable };

struct Copies {
  const CompletionRing& ring;
  uint64_t from;
  const RingBytes &first, &again;

  // `later`: the second copy, where the copies differ.
  Copy entry(uint64_t position, Entry& to, Entry* later = nullptr) const {
    const uint64_t index = position - from;
    if (position < from || index >= first.size() / ring.entry_bytes) return Copy::missing;
    const size_t offset =
        static_cast<size_t>(index) * ring.entry_bytes + ring.entry_bytes - kCqeBytes;
    Entry second;
    if (!first.load(offset, to) || !again.load(offset, second)) return Copy::missing;
    if (to == second) return Copy::whole;
    if (later != nullptr) *later = second;
    return Copy::unstable;
  }
};

// What the entry at `position` is, by its lap.
enum class Presence : uint8_t { there, not_yet, overwritten };

Presence presence(const CompletionRing& ring, const CompletionCursor& cursor, const Entry& entry,
                  const Cqe& cqe, uint64_t position) {
  const uint64_t lap = position / ring.entries;
  if (ring.layout == CqLayout::compressed_enhanced) {
    const auto ahead = static_cast<uint8_t>(cqe.iteration - static_cast<uint8_t>(lap));
    if (ahead != 0) return ahead < 128 ? Presence::overwritten : Presence::not_yet;
    if (cqe.format == kCompressed) return Presence::there;
    return cqe.kind == CqeKind::invalid || all_zero(entry) ? Presence::not_yet : Presence::there;
  }
  if (cqe.kind != CqeKind::invalid && cqe.owner == (lap & 1) && !all_zero(entry))
    return Presence::there;
  if (cursor.counts && position < cursor.consumed) return Presence::overwritten;
  return Presence::not_yet;
}

// The enhanced layout says by how many laps: what is a lap older than the entry may still be there.
uint64_t laps_to_skip(const CompletionRing& ring, const CompletionCursor& cursor, const Cqe& cqe) {
  if (ring.layout != CqLayout::compressed_enhanced) return 0;
  const auto ahead = static_cast<uint8_t>(cqe.iteration - cursor.next / ring.entries);
  return uint64_t{ahead - 1u} * ring.entries;
}

void set_anchor(CompletionCursor& cursor, uint64_t position, const Entry& entry) {
  cursor.has_anchor = true;
  cursor.anchor_at = position;
  cursor.anchor = entry;
}

void drop_session(CompletionCursor& cursor) {
  cursor.left = cursor.block = 0;
  cursor.has_title = false;
}

// Passes entries that nobody will read any more. Within a compressed ring the next title is not
// known by its place then.
CqNext pass(const CompletionRing& ring, CompletionCursor& cursor, uint64_t entries,
            uint64_t& lost) {
  drop_session(cursor);
  if (ring.layout != CqLayout::plain) cursor.synchronised = false;
  cursor.next += entries;
  lost = entries;
  return CqNext::lost;
}

void give_mini(const CompletionRing& ring, CompletionCursor& cursor, Cqe& out) {
  const uint16_t number = cursor.block - cursor.left;
  const size_t offset = size_t{number} * kMiniCqeBytes;
  const auto mini = std::span(cursor.minis).subspan(offset).first<kMiniCqeBytes>();
  if (ring.layout == CqLayout::compressed_enhanced) ++cursor.since_title;
  const uint16_t step = ring.layout == CqLayout::compressed_enhanced ? cursor.since_title : number;
  out = expand_mini(cursor.title, mini, step);
  if (ring.layout == CqLayout::compressed_basic && mini.back() == cursor.mark &&
      number % kMinisPerEntry == kMinisPerEntry - 1)
    out.has_bytes = false;
  --cursor.left;
  ++cursor.next;
}

// How many entries before one show whether the device has come to it again: of any so many it
// writes one at least.
uint64_t look_behind(const CompletionRing& ring) {
  return ring.layout == CqLayout::compressed_enhanced ? kEnhancedMinis : 1;
}

// Whether the next lap may have begun to write the entry at `position` before its first copy was
// made.
enum class Standing : uint8_t { sure, doubtful, unstable, unknown };

// The first entry has none before it, but, where the copy goes as far, the end of its own lap: or
// an entry that nobody has written yet, at or past the consumer. (The index was read behind the
// first copy, so that in this the device was less than a ring ahead of it.)
Standing first_standing(const CompletionRing& ring, const CompletionCursor& cursor,
                        const Copies& copies, uint64_t behind) {
  Entry entry;
  if (cursor.counts) {
    if (cursor.consumed <= ring.entries / 4) return Standing::sure;
    for (uint64_t at = cursor.consumed; at < ring.entries; ++at) {
      const Copy copy = copies.entry(at, entry);
      if (copy == Copy::missing) break;
      if (copy == Copy::whole &&
          presence(ring, cursor, entry, decode_cqe(view(entry)), at) == Presence::not_yet)
        return Standing::sure;
    }
    return Standing::doubtful;
  }
  for (uint64_t at = ring.entries > behind ? ring.entries - behind : 1; at < ring.entries; ++at) {
    const Copy copy = copies.entry(at, entry);
    if (copy == Copy::unstable) return Standing::unstable;
    if (copy == Copy::whole &&
        presence(ring, cursor, entry, decode_cqe(view(entry)), at) != Presence::not_yet)
      return Standing::doubtful;
  }
  return Standing::sure;
}

Standing standing(const CompletionRing& ring, const CompletionCursor& cursor, const Copies& copies,
                  uint64_t position) {
  // Arrays have no lap of their own: there the owner must be near, if it says where it is.
  if (ring.layout == CqLayout::compressed_basic)
    return !cursor.counts || cursor.consumed <= position + ring.entries / 4 ? Standing::sure
                                                                            : Standing::doubtful;
  const uint64_t behind = look_behind(ring);
  if (position == 0) return first_standing(ring, cursor, copies, behind);

  for (uint64_t at = position > behind ? position - behind : 0; at < position; ++at) {
    Entry entry;
    switch (copies.entry(at, entry)) {
      case Copy::missing:
        return Standing::unknown;
      case Copy::unstable:
        return Standing::unstable;
      case Copy::whole:
        break;
    }
    const Cqe cqe = decode_cqe(view(entry));
    if (ring.layout == CqLayout::plain) {
      // Where the device has never written, no lap has passed.
      if (position < cursor.fresh_until && cqe.kind == CqeKind::invalid) continue;
      if (presence(ring, cursor, entry, cqe, at) != Presence::there) return Standing::doubtful;
    } else if (presence(ring, cursor, entry, cqe, at) == Presence::overwritten) {
      return Standing::doubtful;
    }
  }
  return Standing::sure;
}

// A title that stands for several completions, and the arrays behind it.
CqNext open_basic(const CompletionRing& ring, CompletionCursor& cursor, const Copies& copies,
                  const Entry& entry, const Cqe& title, Cqe& out, uint64_t& lost) {
  Be32 byte_cnt;
  std::memcpy(static_cast<void*>(&byte_cnt), entry.data() + kCqeByteCount, sizeof(byte_cnt));
  const uint32_t count = byte_cnt;
  if (count < 2 || count > kMaxSession || count > ring.entries) return pass(ring, cursor, 1, lost);
  // No program's: what its owner has written over (measured with UCX: 1 run of 15 told of such receives).
  if (title.qp_num == 0) return pass(ring, cursor, 1, lost);

  for (uint32_t number = 0; number < count; number += kMinisPerEntry) {
    const uint64_t at = cursor.next + (number == 0 ? 1 : number);
    Entry minis;
    switch (copies.entry(at, minis)) {
      case Copy::missing:
        return CqNext::cut;
      case Copy::unstable:
        return CqNext::unstable;
      case Copy::whole:
        break;
    }
    std::memcpy(cursor.minis.data() + size_t{number} * kMiniCqeBytes, minis.data(), minis.size());
  }
  cursor.title = title;
  cursor.mark = entry.back();
  cursor.block = cursor.left = static_cast<uint16_t>(count);
  set_anchor(cursor, cursor.next, entry);
  give_mini(ring, cursor, out);
  return CqNext::completion;
}

CqNext open_enhanced(const CompletionRing& ring, CompletionCursor& cursor, const Entry& entry,
                     const Cqe& block, Cqe& out, uint64_t& lost) {
  const uint16_t count = block.raw_opcode + 1;
  if (count > kEnhancedMinis || count > ring.entries) return pass(ring, cursor, 1, lost);
  if (!cursor.has_title) return pass(ring, cursor, count, lost);
  std::memcpy(cursor.minis.data(), entry.data(), size_t{kEnhancedMinis} * kMiniCqeBytes);
  cursor.block = cursor.left = count;
  set_anchor(cursor, cursor.next, entry);
  give_mini(ring, cursor, out);
  return CqNext::completion;
}

// Without a title's place: entries that a block covers still show an earlier lap, or UCX's mark.
// The next ordinary entry of this lap in the copy ends the search.
uint64_t entries_to_title(const CompletionRing& ring, const CompletionCursor& cursor,
                          const Copies& copies) {
  Entry entry;
  for (uint64_t at = cursor.next; copies.entry(at, entry) != Copy::missing; ++at) {
    const Cqe cqe = decode_cqe(view(entry));
    if (cqe.format != kCompressed && presence(ring, cursor, entry, cqe, at) == Presence::there)
      return at - cursor.next;
  }
  return 0;
}

}  // namespace

bool valid(const CompletionRing& ring) {
  return power_of_two(ring.entries) && ring.entries <= kMaxEntries &&
         (ring.entry_bytes == kCqeBytes || ring.entry_bytes == 2 * kCqeBytes);
}

uint64_t copy_from(const CompletionRing& ring, const CompletionCursor& cursor) {
  const uint64_t behind = look_behind(ring);
  return cursor.next > behind ? cursor.next - behind : 0;
}

uint64_t consumed_to(const CompletionRing& ring, CompletionCursor& cursor,
                     uint32_t consumer_index) {
  const uint64_t last = cursor.consumed;
  cursor.counts = true;
  cursor.consumed = last + ((consumer_index - static_cast<uint32_t>(last)) & 0xffffff);
  if (cursor.consumed <= cursor.next + ring.entries) return 0;
  uint64_t lost = 0;
  pass(ring, cursor, cursor.consumed - ring.entries - cursor.next, lost);
  return lost;
}

CqNext next_completion(const CompletionRing& ring, CompletionCursor& cursor, uint64_t from,
                       const RingBytes& first, const RingBytes& again, Cqe& out, uint64_t& lost) {
  lost = 0;
  if (cursor.left > 0) {
    give_mini(ring, cursor, out);
    return CqNext::completion;
  }
  const Copies copies{ring, from, first, again};
  if (!cursor.synchronised) {
    if (ring.layout == CqLayout::compressed_basic) {
      // Arrays look like anything: only where the owner went on reading is a title, or an entry.
      if (!cursor.counts || cursor.consumed < cursor.next) return CqNext::end;
      cursor.synchronised = true;
      if (cursor.consumed > cursor.next) {
        lost = cursor.consumed - cursor.next;
        cursor.next = cursor.consumed;
        return CqNext::lost;
      }
    } else if (const uint64_t covered = entries_to_title(ring, cursor, copies); covered > 0) {
      cursor.synchronised = true;
      cursor.next += covered;
      lost = covered;
      return CqNext::lost;
    }
  }

  Entry entry, later;
  switch (copies.entry(cursor.next, entry, &later)) {
    case Copy::missing:
      return CqNext::end;
    case Copy::unstable: {
      const Cqe now = decode_cqe(view(later));
      if (presence(ring, cursor, later, now, cursor.next) == Presence::overwritten)
        return pass(ring, cursor, 1 + laps_to_skip(ring, cursor, now), lost);
      return CqNext::unstable;
    }
    case Copy::whole:
      break;
  }
  const Cqe cqe = decode_cqe(view(entry));
  switch (presence(ring, cursor, entry, cqe, cursor.next)) {
    case Presence::not_yet:
      return CqNext::end;
    case Presence::overwritten:
      return pass(ring, cursor, 1 + laps_to_skip(ring, cursor, cqe), lost);
    case Presence::there:
      break;
  }
  switch (standing(ring, cursor, copies, cursor.next)) {
    case Standing::unknown:
      return CqNext::end;
    case Standing::unstable:
      return CqNext::unstable;
    case Standing::doubtful:
      return pass(ring, cursor, 1, lost);
    case Standing::sure:
      break;
  }
  if (cqe.format == kCompressed && ring.layout == CqLayout::compressed_enhanced)
    return open_enhanced(ring, cursor, entry, cqe, out, lost);
  if (cqe.format == kCompressed && ring.layout == CqLayout::compressed_basic)
    return open_basic(ring, cursor, copies, entry, cqe, out, lost);

  if (cqe.format == kCompressed) return pass(ring, cursor, 1, lost);  // nobody said so

  cursor.synchronised = true;
  set_anchor(cursor, cursor.next, entry);
  ++cursor.next;
  if (cqe.kind == CqeKind::resize) return CqNext::resized;
  if (ring.layout == CqLayout::compressed_enhanced) {
    cursor.has_title = true;
    cursor.since_title = 0;
    cursor.title = cqe;
  }
  out = cqe;
  return CqNext::completion;
}

size_t next_run(const CompletionRing& ring, CompletionCursor& cursor, uint64_t from,
                const RingBytes& first, const RingBytes& again, std::span<Cqe> out) {
  if (ring.layout != CqLayout::plain || ring.collapsed || cursor.next <= from) return 0;
  size_t taken = 0;
  const std::byte* last = nullptr;
  for (; taken < out.size(); ++taken, ++cursor.next) {
    const size_t offset = static_cast<size_t>(cursor.next - from) * ring.entry_bytes +
                          ring.entry_bytes - kCqeBytes;
    const std::byte* entry = first.piece(offset, kCqeBytes);
    const std::byte* second = again.piece(offset, kCqeBytes);
    if (entry == nullptr || second == nullptr) break;
    const Words words = words_of(entry);
    if (difference(words, words_of(second)) != 0 || difference(words, Words{}) == 0) break;
    const Cqe cqe = decode_cqe(std::span<const std::byte, kCqeBytes>(entry, kCqeBytes));
    if (cqe.kind == CqeKind::invalid || cqe.kind == CqeKind::resize || cqe.format == kCompressed ||
        cqe.owner != (cursor.next / ring.entries & 1))
      break;
    out[taken] = cqe;
    last = entry;
  }
  if (last != nullptr) {
    cursor.has_anchor = true;
    cursor.anchor_at = cursor.next - 1;
    std::memcpy(cursor.anchor.data(), last, kCqeBytes);
  }
  return taken;
}

bool next_collapsed(CompletionCursor& cursor, std::span<const std::byte, kCqeBytes> first,
                    std::span<const std::byte, kCqeBytes> again, Cqe& out) {
  Entry entry;
  std::memcpy(entry.data(), first.data(), entry.size());
  if (std::memcmp(entry.data(), again.data(), entry.size()) != 0 || all_zero(entry)) return false;
  const Cqe cqe = decode_cqe(first);
  if (cqe.kind == CqeKind::invalid || cqe.kind == CqeKind::other) return false;
  if (cursor.has_anchor && anchor_stands(cursor, first)) return false;
  set_anchor(cursor, cursor.next++, entry);
  out = cqe;
  return true;
}

bool anchor_stands(const CompletionCursor& cursor, std::span<const std::byte, kCqeBytes> entry) {
  return std::memcmp(cursor.anchor.data(), entry.data(), kOwnedByReaders) == 0;
}

uint64_t copy_from_anchor(const CompletionRing& ring, const CompletionCursor& cursor) {
  const uint64_t from = copy_from(ring, cursor);
  const bool near = cursor.has_anchor && cursor.next - cursor.anchor_at < ring.entries;
  return near && cursor.anchor_at < from ? cursor.anchor_at : from;
}

bool is_lapped(const CompletionRing& ring, const CompletionCursor& cursor, uint64_t from,
               const RingBytes& copy) {
  if (!cursor.has_anchor || cursor.anchor_at < from) return false;
  Entry entry;
  const size_t end = static_cast<size_t>(cursor.anchor_at - from + 1) * ring.entry_bytes;
  return copy.load(end - kCqeBytes, entry) && !anchor_stands(cursor, view(entry));
}

// Of produced = lap * n + s entries, slots before s have the lap's parity, those from s on the
// other. So slot 0's owner and the first change after it tell produced modulo 2n.
uint64_t skip_to_newest(const CompletionRing& ring, CompletionCursor& cursor,
                        const RingBytes& whole) {
  const uint64_t span = uint64_t{ring.entries} * 2;
  uint64_t produced = 0;
  uint8_t parity = 0;
  for (uint32_t slot = 0; slot < ring.entries; ++slot) {
    uint8_t op_own = 0;
    if (!whole.load(size_t{slot} * ring.entry_bytes + ring.entry_bytes - 1, op_own)) return 0;
    if (slot == 0) {
      parity = op_own & 1;
      produced = uint64_t{parity} * ring.entries;
    } else if ((op_own & 1) != parity) {
      break;
    }
    ++produced;
  }
  uint64_t ahead = (produced - cursor.next) % span;
  if (ahead < ring.entries) ahead += span;  // a lap has passed: the caller saw it
  uint64_t lost = 0;
  pass(ring, cursor, ahead, lost);
  return lost;
}

// What is the same in both copies stood at one time between them. The device came to `newest` in
// that time, or a little further: what is a ring behind is gone, or being overwritten. The oldest
// that stands only shows that the next one does.
Remains skip_overwritten(const CompletionRing& ring, CompletionCursor& cursor,
                         const RingBytes& first, const RingBytes& again) {
  const uint64_t before = cursor.next;
  CompletionCursor earlier = cursor;
  skip_to_newest(ring, earlier, first);
  skip_to_newest(ring, cursor, again);
  cursor.has_anchor = false;
  if (ring.layout != CqLayout::plain || ring.entries < 2)
    return {cursor.next - before, cursor.next, {}, {}};

  const uint64_t moved = (cursor.next - earlier.next) % (uint64_t{ring.entries} * 2);
  const uint64_t newest = earlier.next + moved, oldest = newest - ring.entries;
  const size_t start = static_cast<size_t>(oldest & (ring.entries - 1)) * ring.entry_bytes;
  const RingBytes one = first.round_from(start), two = again.round_from(start);
  const Copies copies{ring, oldest, one, two};
  Entry entry, later;
  uint64_t next = moved < ring.entries ? oldest + 1 : newest;
  while (next < newest && copies.entry(next - 1, entry) != Copy::whole) ++next;
  cursor.next = next;
  // By it the next lap is noticed. One that was being written will not stand: as after a lap the
  // whole ring is looked at then.
  switch (copies.entry(next - 1, entry, &later)) {
    case Copy::whole:
      set_anchor(cursor, next - 1, entry);
      break;
    case Copy::unstable:
      set_anchor(cursor, next - 1, later);
      break;
    case Copy::missing:
      break;
  }
  return {next - before, oldest, one, two};
}

}  // namespace sigma
