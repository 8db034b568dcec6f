// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A chunk is { u64 previous_size; u64 size; user data... }. The low bits of size are flags: 1 the
// chunk before this one is in use, 2 the chunk is a mapping of its own, 4 it is not in the main
// arena. The next chunk begins `size` bytes on. The last chunk of an arena, "top", is free by
// definition.
#include "resolve/glibc_heap.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace sigma {
namespace {

constexpr uint64_t kPreviousInUse = 1, kIsMapped = 2, kNonMain = 4, kFlags = 7;
constexpr uint64_t kHeader = 16;     // from a chunk's start to what malloc returned
constexpr uint64_t kFencepost = 16;  // a header alone, which closes an abandoned arena part
constexpr uint64_t kSmallestChunk = 32;
constexpr uint64_t kHeapAlignment = uint64_t{64} << 20;  // HEAP_MAX_SIZE of non-main arenas
constexpr int kAttempts = 4;

struct Arena {
  uint64_t start = 0, end = 0;
  bool is_main = false;
};

// Reads words going forward through one window, and pages in the middle of a big chunk not at all.
class ForwardReader {
 public:
  ForwardReader(const RemoteMemory& memory, const ScanLimits& limits, ScanTotals& totals)
      : memory_(memory),
        limits_(limits),
        totals_(totals),
        deadline_(std::chrono::steady_clock::now() + limits.max_time),
        window_(kWindow / sizeof(uint64_t)) {}

  std::optional<uint64_t> word(uint64_t address) {
    if (address < base_ || address + sizeof(uint64_t) > base_ + filled_) {
      if (!fill(address)) return std::nullopt;
    }
    return window_[(address - base_) / sizeof(uint64_t)];
  }

  void forget() { filled_ = 0; }

 private:
  static constexpr uint64_t kWindow = 64 << 10, kPage = 4096;

  bool fill(uint64_t address) {
    if (totals_.read_bytes > limits_.max_bytes || std::chrono::steady_clock::now() > deadline_) {
      totals_.complete = false;
      return false;
    }
    uint64_t base = address & ~(kPage - 1);
    for (uint64_t bytes : {kWindow, kPage}) {
      auto out = std::as_writable_bytes(std::span(window_)).first(bytes);
      if (!memory_.read(base, out)) continue;
      base_ = base;
      filled_ = bytes;
      totals_.read_bytes += bytes;
      return true;
    }
    filled_ = 0;
    return false;
  }

  const RemoteMemory& memory_;
  const ScanLimits& limits_;
  ScanTotals& totals_;
  std::chrono::steady_clock::time_point deadline_;
  std::vector<uint64_t> window_;
  uint64_t base_ = 0, filled_ = 0;
};

// One walk over an arena, placing the addresses on its way.
//
// The last chunks visited are remembered: when the chain breaks, because the owner merged or split
// chunks since their page was read, the walk goes back a little, reads again and goes on from
// there.
class Walk {
 public:
  Walk(ForwardReader& reader, const Arena& arena, std::span<const uint64_t> addresses,
       std::span<HeapPlace> places)
      : reader_(reader), arena_(arena), addresses_(addresses), places_(places) {}

  // False when the chain does not hold from `first_chunk` to the arena's end.
  bool run(uint64_t first_chunk) {
    std::fill(places_.begin(), places_.end(), HeapPlace{});
    visited_ = 0;
    go_to(first_chunk);
    for (;;) {
      switch (step()) {
        case Step::next:
          break;
        case Step::end:
          return true;
        case Step::broken:
          if (!go_back()) return false;
      }
    }
  }

 private:
  enum class Step : uint8_t { next, end, broken };
  static constexpr size_t kRemembered = 256;
  static constexpr size_t kMostReturns = 20'000;

  Step step() {
    auto header = reader_.word(chunk_ + sizeof(uint64_t));
    if (!header) return Step::broken;
    uint64_t size = *header & ~kFlags;
    bool is_last = size == 0 && chunk_ == arena_.end - kHeader;
    bool is_fencepost = size == kFencepost;
    if (!is_last && !is_fencepost) {
      if ((*header & kIsMapped) || (arena_.is_main && (*header & kNonMain)) || size % 16 != 0 ||
          size < kSmallestChunk || size > arena_.end - chunk_) {
        return Step::broken;
      }
    }
    // This header tells of the chunk before it.
    settle(*header & kPreviousInUse ? HeapPlace::in_use : HeapPlace::free);
    if (is_last || (is_fencepost && chunk_ + size >= arena_.end - kHeader)) return Step::end;

    visited_chunks_[visited_++ % kRemembered] = chunk_;
    uint64_t end = chunk_ + size;
    for (; next_ < addresses_.size() && addresses_[next_] < end; ++next_) {
      places_[next_].offset = addresses_[next_] - std::min(addresses_[next_], chunk_ + kHeader);
    }
    chunk_ = end;
    if (end == arena_.end) {
      settle(HeapPlace::free);
      return Step::end;
    }
    return Step::next;
  }

  // Gives the addresses of the chunk that ends at chunk_ their kind.
  void settle(HeapPlace::Kind kind) {
    for (; settled_ < next_; ++settled_) places_[settled_].kind = kind;
  }

  void go_to(uint64_t chunk) {
    chunk_ = chunk;
    next_ = settled_ = static_cast<size_t>(
        std::lower_bound(addresses_.begin(), addresses_.end(), chunk) - addresses_.begin());
  }

  // Farther each time the chain breaks near the same place, as the chunk gone back to may be the
  // stale one.
  bool go_back() {
    if (chunk_ > farthest_) {
      farthest_ = chunk_;
      distance_ = 1;
    } else {
      distance_ *= 2;
    }
    if (++returns_ > kMostReturns || distance_ > kRemembered || distance_ > visited_) return false;
    visited_ -= distance_;
    reader_.forget();
    go_to(visited_chunks_[visited_ % kRemembered]);
    return true;
  }

  ForwardReader& reader_;
  const Arena& arena_;
  std::span<const uint64_t> addresses_;
  std::span<HeapPlace> places_;
  uint64_t chunk_ = 0;
  size_t next_ = 0;     // first address at or after chunk_
  size_t settled_ = 0;  // first address whose kind is not known yet
  std::array<uint64_t, kRemembered> visited_chunks_{};
  size_t visited_ = 0;
  uint64_t farthest_ = 0;
  size_t distance_ = 1, returns_ = 0;
};

// The arena that may hold `address`, going by where it is mapped.
std::optional<Arena> arena_of(const RemoteMemory& memory, uint64_t address) {
  const Mapping* mapping = find_mapping(memory.maps(), address);
  if (!mapping || !mapping->writable || mapping->shared) return std::nullopt;
  if (mapping->path == "[heap]") {
    // The heap can be several mappings in a row (mprotect, VMA names); together they are the arena.
    const Mapping* first = mapping;
    const Mapping* last = mapping;
    const Mapping* begin = memory.maps().data();
    const Mapping* end = begin + memory.maps().size();
    while (first != begin && (first - 1)->path == "[heap]" && (first - 1)->end == first->start)
      --first;
    while (last + 1 != end && (last + 1)->path == "[heap]" && (last + 1)->start == last->end)
      ++last;
    return Arena{first->start, last->end, true};
  }
  if (mapping->inode != 0) return std::nullopt;
  struct HeapInfo {
    uint64_t arena, previous, size, mprotect_size;
  };
  uint64_t start = address & ~(kHeapAlignment - 1);
  if (start < mapping->start) return std::nullopt;
  auto info = memory.read_object<HeapInfo>(start);
  if (!info || info->size > kHeapAlignment || info->size % 4096 != 0 ||
      address >= start + info->size || info->arena % 8 != 0 || info->mprotect_size < info->size) {
    return std::nullopt;
  }
  return Arena{start, start + info->size, false};
}

bool place_in(const RemoteMemory& memory, const Arena& arena, std::span<const uint64_t> addresses,
              std::span<HeapPlace> places, const ScanLimits& limits, ScanTotals& totals) {
  // Where the first chunk begins depends on the C library's release (sizes of heap_info and of
  // malloc_state); a wrong start soon leaves the chain, or falls in step with it, which is as good.
  const uint64_t latest = arena.is_main ? 0 : 0x1000;
  ForwardReader reader(memory, limits, totals);
  for (uint64_t offset = 0; offset <= latest; offset += 16) {
    if (Walk(reader, arena, addresses, places).run(arena.start + offset)) return true;
  }
  std::fill(places.begin(), places.end(), HeapPlace{});
  return false;
}

}  // namespace

std::vector<HeapPlace> find_heap_places(RemoteMemory& memory, std::span<const uint64_t> addresses,
                                        const ScanLimits& limits, ScanTotals& totals) {
  std::vector<HeapPlace> places(addresses.size());
  for (size_t i = 0; i < addresses.size();) {
    size_t end = i + 1;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      if (attempt > 0 && !memory.refresh().ok()) return places;
      auto arena = arena_of(memory, addresses[i]);
      if (!arena) break;
      end = i + 1;
      while (end < addresses.size() && addresses[end] < arena->end) ++end;
      if (place_in(memory, *arena, addresses.subspan(i, end - i),
                   std::span(places).subspan(i, end - i), limits, totals))
        break;
    }
    i = end;
  }
  return places;
}

}  // namespace sigma
