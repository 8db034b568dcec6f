// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Walking completion rings: by small cases, and against a model of a device, an owner that consumes
// (and unzips in place, as UCX does), and a reader, that take turns at every 16 bytes.
#include <array>
#include <deque>
#include <random>
#include <vector>

#include "catch.h"
#include "cqe_writer.h"
#include "decode/completion_ring.h"

using namespace sigma;

namespace {

constexpr uint8_t kInvalid = 0xf1;  // op_own before the first lap

// Writes completions by the rules of each layout, never over what the owner has not consumed.
class Device {
 public:
  Device(const CompletionRing& ring, bool requester, std::mt19937& random)
      : ring_(ring),
        requester_(requester),
        random_(random),
        memory_(ring.entries * ring.entry_bytes) {
    for (uint32_t slot = 0; slot < ring.entries; ++slot) {
      entry(slot)[63] = std::byte{kInvalid};
      if (ring.layout == CqLayout::compressed_enhanced) entry(slot)[62] = std::byte{0xff};
    }
  }

  // One 16-byte piece of what is to be written, or the next completions.
  void write() {
    if (pieces_.empty() && !produce()) return;
    const Piece& piece = pieces_.front();
    std::memcpy(memory_.data() + piece.at, piece.bytes.data(), piece.bytes.size());
    if (piece.produced > produced_) {
      produced_ = piece.produced;
      if (piece.session > 0) sessions_.push_back({piece.produced - piece.session, piece.session});
    }
    pieces_.pop_front();
  }

  // The owner consumes one completion; in the enhanced layout it marks the entries that a block
  // covers (UCX). Its index is published where a session ends.
  void consume(bool publish) {
    if (consumed_ == produced_) return;
    while (!sessions_.empty() && sessions_.front().first + sessions_.front().second <= consumed_)
      sessions_.pop_front();
    const bool inside = !sessions_.empty() && sessions_.front().first <= consumed_;
    const uint64_t last =
        inside ? sessions_.front().first + sessions_.front().second - 1 : consumed_;
    auto next = entry((consumed_ + 1) % ring_.entries);
    if (inside && consumed_ < last && unzips && ring_.layout == CqLayout::compressed_basic)
      next[63] = entry(sessions_.front().first % ring_.entries)[63];
    if (inside && consumed_ < last && ring_.layout == CqLayout::compressed_enhanced) {
      next[63] = std::byte{3 << 2};
      next[62] = static_cast<std::byte>(consumed_ / ring_.entries);
    }
    ++consumed_;
    // DPDK invalidates what a session of the basic layout covered.
    if (inside && consumed_ > last && !unzips && ring_.layout == CqLayout::compressed_basic)
      for (uint64_t at = sessions_.front().first; at <= last; ++at)
        entry(at % ring_.entries)[63] = std::byte{MLX5_CQE_INVALID << 4};
    if (publish && consumed_ > last) published_ = consumed_;
  }

  CqeFields completion(uint64_t position) const {
    CqeFields fields;
    fields.opcode = requester_ ? MLX5_CQE_REQ : MLX5_CQE_RESP_SEND;
    fields.wqe_opcode = requester_ ? uint8_t{MLX5_OPCODE_RDMA_READ} : uint8_t{0};
    fields.wqe_counter = static_cast<uint16_t>(requester_ ? position * 3 : position);
    fields.bytes = static_cast<uint32_t>(position * 7 + 1);
    fields.timestamp = position + 1;
    return fields;
  }
  bool is(const Cqe& cqe, uint64_t position) const {
    const CqeFields fields = completion(position);
    return cqe.kind == (requester_ ? CqeKind::requester : CqeKind::responder) &&
           cqe.qp_num == fields.qp_num && cqe.wqe_counter == fields.wqe_counter &&
           (!cqe.has_bytes || cqe.bytes == fields.bytes) &&
           (!cqe.has_timestamp || cqe.timestamp == fields.timestamp);
  }

  uint32_t doorbell() const { return published_ & 0xffffff; }
  uint64_t produced() const { return produced_; }
  uint64_t consumed() const { return consumed_; }
  std::span<const std::byte> memory() const { return memory_; }
  bool publishes = true;
  bool unzips = false;  // basic layout: marks a session's entries as UCX 1.13 does

 private:
  struct Piece {
    size_t at;
    std::array<std::byte, 16> bytes;
    uint64_t produced;  // with this piece
    uint32_t session;   // completions of the session that it ends, if it is one
  };

  std::span<std::byte, 64> entry(uint64_t slot) {
    return std::span<std::byte, 64>(
        memory_.data() + slot * ring_.entry_bytes + ring_.entry_bytes - 64, 64);
  }
  void put(uint64_t position, const CqeBytes& bytes, uint64_t produced, uint32_t session = 0) {
    const size_t at = position % ring_.entries * ring_.entry_bytes + ring_.entry_bytes - 64;
    for (size_t piece = 0; piece < 64; piece += 16) {
      Piece& queued = pieces_.emplace_back();
      queued.at = at + piece;
      std::memcpy(queued.bytes.data(), bytes.data() + piece, 16);
      queued.produced = piece == 48 ? produced : 0;
      queued.session = piece == 48 ? session : 0;
    }
  }

  bool produce() {
    const uint64_t at = produced_;
    const uint64_t fill =
        ring_.layout == CqLayout::compressed_basic ? ring_.entries / 4 * 3 : ring_.entries;
    const uint64_t limit = (publishes ? published_ : consumed_) + fill;
    if (at == limit) return false;
    const uint64_t room = limit - at;
    uint64_t count = 1;
    if (ring_.layout == CqLayout::compressed_basic && random_() % 2)
      count = std::min<uint64_t>(room, 2 + random_() % 30);
    // UCX gives all entries of a session the owner bit of its first.
    if (unzips) count = std::min(count, ring_.entries - at % ring_.entries);
    const bool titled = at % ring_.entries != 0;
    if (ring_.layout == CqLayout::compressed_enhanced && titled && random_() % 2) {
      count = std::min({room, ring_.entries - at % ring_.entries, uint64_t{1} + random_() % 7});
      CqeBytes block{};
      for (uint64_t i = 0; i < count; ++i) put_mini(block, i, completion(at + i));
      put_block_mark(block, count, static_cast<uint8_t>(at / ring_.entries));
      put(at, block, at + count, static_cast<uint32_t>(count));
      return true;
    }
    CqeFields fields = completion(at);
    if (count > 1) {
      for (uint64_t array = 0; array < count; array += 8) {
        CqeBytes minis{};
        for (uint64_t i = array; i < std::min(count, array + 8); ++i)
          put_mini(minis, i - array, completion(at + i));
        put(at + (array == 0 ? 1 : array), minis, 0);
      }
      fields.format = 3;
      fields.bytes = static_cast<uint32_t>(count);
    }
    const auto lap = static_cast<uint8_t>(at / ring_.entries);
    put(at, image_of(fields, lap & 1, ring_.layout == CqLayout::compressed_enhanced ? lap : 0),
        at + count, count > 1 ? static_cast<uint32_t>(count) : 0);
    return true;
  }

  CompletionRing ring_;
  bool requester_;
  std::mt19937& random_;
  std::vector<std::byte> memory_;
  std::deque<Piece> pieces_;
  std::deque<std::pair<uint64_t, uint32_t>> sessions_;  // first, completions
  uint64_t produced_ = 0, consumed_ = 0, published_ = 0;
};

struct Counts {
  uint64_t seen = 0, lost = 0, wrong = 0, unstable = 0, no_bytes = 0, in_runs = 0;
};

// `pace`: turns of device and owner between two samples, at most; `during`: the same per 16 bytes
// copied.
Counts run_model(uint32_t seed, const CompletionRing& ring, bool counts_laps, unsigned pace,
                 unsigned during_copy) {
  std::mt19937 random(seed);
  Device device(ring, seed % 2, random);
  device.publishes = counts_laps;
  device.unzips = seed / 2 % 2;
  CompletionCursor cursor;
  Counts counts;
  const auto run = [&](unsigned most) {
    for (unsigned n = random() % (most + 1); n > 0; --n)
      random() % 5 < 3 ? device.write() : device.consume(random() % 4 == 0);
  };
  const auto copy = [&](uint64_t from, uint32_t entries, unsigned most) {
    std::vector<std::byte> bytes(size_t{entries} * ring.entry_bytes);
    for (size_t at = 0; at < bytes.size(); at += 16) {
      const size_t source = (from * ring.entry_bytes + at) % device.memory().size();
      std::memcpy(bytes.data() + at, device.memory().data() + source, 16);
      run(most);
    }
    return bytes;
  };

  // What a run gives is what comes one by one.
  const auto take_run = [&](uint64_t from, const std::vector<std::byte>& first,
                            const std::vector<std::byte>& again) {
    CompletionCursor one = cursor;
    std::array<Cqe, 3> run;
    const size_t taken = next_run(ring, cursor, from, RingBytes(first), RingBytes(again), run);
    for (size_t i = 0; i < taken; ++i) {
      const uint64_t position = one.next;
      Cqe cqe;
      uint64_t lost = 0;
      CHECK(next_completion(ring, one, from, RingBytes(first), RingBytes(again), cqe, lost) ==
            CqNext::completion);
      CHECK(cqe == run[i]);
      ++counts.seen;
      ++counts.in_runs;
      counts.wrong += !device.is(run[i], position);
    }
    CHECK(one.next == cursor.next);
    CHECK(one.anchor_at == cursor.anchor_at);
    CHECK(one.anchor == cursor.anchor);
  };

  constexpr int kSamples = 500, kDrains = 50;  // the last ones without a writer
  for (int sample = 0; sample < kSamples + kDrains; ++sample) {
    const unsigned during = sample < kSamples ? during_copy : 0;
    if (sample < kSamples) run(pace);
    if (sample == kSamples)  // what is on its way
      for (int i = 0; i < 1'000; ++i) device.write();
    if (sample >= kSamples)
      for (int i = 0; i < 200; ++i) device.consume(true);
    const uint64_t from = copy_from(ring, cursor);
    const auto entries =
        static_cast<uint32_t>(std::min(ring.entries, kMaxSession) + cursor.next - from);
    const auto first = copy(from, entries, during);
    const auto again = copy(from, entries, during);
    if (counts_laps) counts.lost += consumed_to(ring, cursor, device.doorbell());
    for (bool more = true; more;) {
      Cqe cqe;
      uint64_t lost = 0;
      const uint64_t position = cursor.next;
      switch (next_completion(ring, cursor, from, RingBytes(first), RingBytes(again), cqe, lost)) {
        case CqNext::completion:
          ++counts.seen;
          counts.wrong += !device.is(cqe, position);
          counts.no_bytes += !cqe.has_bytes;
          CHECK(cursor.next == position + 1);
          take_run(from, first, again);
          break;
        case CqNext::lost:
          counts.lost += lost;
          CHECK(lost > 0);
          CHECK(cursor.next == position + lost);
          break;
        case CqNext::unstable:
          ++counts.unstable;
          more = false;
          break;
        default:
          more = false;
      }
    }
    CHECK(cursor.next <= device.produced());
    CHECK(counts.seen + counts.lost == cursor.next);
  }
  // A compressed ring may end within what only its owner understands.
  if (ring.layout == CqLayout::plain) CHECK(cursor.next == device.produced());
  return counts;
}

CqNext next(const CompletionRing& ring, CompletionCursor& cursor, std::span<const std::byte> bytes,
            Cqe& out, uint64_t from = 0) {
  uint64_t lost = 0;
  return next_completion(ring, cursor, from, RingBytes(bytes), RingBytes(bytes), out, lost);
}

}  // namespace

TEST_CASE("geometries that a completion ring can have") {
  CHECK(valid(CompletionRing{1024, 64}));
  CHECK(valid(CompletionRing{1, 128}));
  CHECK_FALSE(valid(CompletionRing{1000, 64}));
  CHECK_FALSE(valid(CompletionRing{1024, 32}));
  CHECK_FALSE(valid(CompletionRing{1u << 23, 64}));
}

TEST_CASE("an entry is there by its lap's parity, once both copies agree") {
  const CompletionRing ring{4, 128};
  std::vector<std::byte> memory(4 * 128);
  const auto put = [&](size_t slot, const CqeFields& fields, uint8_t owner) {
    const CqeBytes bytes = image_of(fields, owner);
    std::copy(bytes.begin(), bytes.end(), memory.begin() + static_cast<long>(slot * 128 + 64));
  };
  CompletionCursor cursor;
  Cqe cqe;
  CHECK(next(ring, cursor, memory, cqe) == CqNext::end);  // zeros are no completion of WQE 0
  put(0, {.opcode = MLX5_CQE_INVALID}, 0);
  CHECK(next(ring, cursor, memory, cqe) == CqNext::end);
  put(0, {.wqe_counter = 11}, 1);  // of another lap
  CHECK(next(ring, cursor, memory, cqe) == CqNext::end);

  const auto before = memory;
  put(0, {.wqe_counter = 11}, 0);
  uint64_t lost = 0;
  CHECK(next_completion(ring, cursor, 0, RingBytes(before), RingBytes(memory), cqe, lost) ==
        CqNext::unstable);
  CHECK(next(ring, cursor, memory, cqe) == CqNext::completion);
  CHECK(cqe.wqe_counter == 11);
  CHECK(next(ring, cursor, memory, cqe) == CqNext::end);

  for (size_t slot = 1; slot < 4; ++slot) put(slot, {}, 0);
  while (next(ring, cursor, memory, cqe) == CqNext::completion) {
  }
  CHECK(cursor.next == 4);
  put(0, {.opcode = MLX5_CQE_RESIZE_CQ}, 1);
  // Position 4: before it stands entry 3.
  std::vector<std::byte> turned(memory.begin() + 3 * 128, memory.end());
  turned.insert(turned.end(), memory.begin(), memory.begin() + 3 * 128);
  CHECK(copy_from(ring, cursor) == 3);
  CHECK(next(ring, cursor, turned, cqe, 3) == CqNext::resized);
}

TEST_CASE("laps are counted by the consumer index, also over its 24 bits") {
  const CompletionRing ring{8, 64};
  CompletionCursor cursor;
  CHECK(consumed_to(ring, cursor, 8) == 0);
  CHECK(consumed_to(ring, cursor, 20) == 12);
  CHECK(cursor.next == 12);
  CHECK(consumed_to(ring, cursor, 0xffffff) == 0xffffff - 20);
  CHECK(consumed_to(ring, cursor, 3) == 4);
  CHECK(cursor.consumed == 0x1000003);
  CHECK(cursor.next == 0x1000003 - 8);
}

TEST_CASE("a collapsed ring shows its latest completion, once") {
  CompletionCursor cursor;
  Cqe cqe;
  CqeBytes bytes{};
  CHECK_FALSE(next_collapsed(cursor, bytes, bytes, cqe));  // zeroed memory
  bytes.fill(std::byte{0xff});                             // NVSHMEM's memset
  CHECK_FALSE(next_collapsed(cursor, bytes, bytes, cqe));
  const CqeBytes old = bytes;
  bytes = image_of({.wqe_counter = 5}, 0);
  CHECK_FALSE(next_collapsed(cursor, old, bytes, cqe));
  CHECK(next_collapsed(cursor, bytes, bytes, cqe));
  CHECK(cqe.wqe_counter == 5);
  CHECK_FALSE(next_collapsed(cursor, bytes, bytes, cqe));
  bytes = image_of({.opcode = MLX5_CQE_REQ_ERR, .wqe_counter = 9, .syndrome = 0x15}, 1);
  CHECK(next_collapsed(cursor, bytes, bytes, cqe));
  CHECK((cqe.kind == CqeKind::requester_error && cqe.wqe_counter == 9));
}

TEST_CASE("a lap on a ring that counts nobody's laps shows at the last entry read") {
  for (const uint64_t laps : {0u, 1u, 2u}) {
    const CompletionRing ring{16, 64};
    std::mt19937 random(1);
    Device device(ring, true, random);
    device.publishes = false;
    const auto produce = [&](uint64_t to) {
      while (device.produced() < to) {
        device.write();
        if (device.produced() - device.consumed() == ring.entries) device.consume(false);
      }
    };
    CompletionCursor cursor;
    Cqe cqe;
    produce(10);
    while (next(ring, cursor, device.memory(), cqe) == CqNext::completion) {
    }
    REQUIRE(cursor.next == 10);
    const auto anchor = [&] {
      return std::span<const std::byte, 64>(device.memory().data() + 9 * 64, 64);
    };
    produce(25);  // not the anchor's place
    CHECK(anchor_stands(cursor, anchor()));
    produce(26 + 5 + laps * 32);
    CHECK_FALSE(anchor_stands(cursor, anchor()));
    // 21 have passed, or 32 more: known modulo twice the ring
    CHECK(skip_to_newest(ring, cursor, RingBytes(device.memory())) == 21);
    CHECK(cursor.next == 31);
  }
}

TEST_CASE("after a lap what still stands is read, and nothing else (seeded)") {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const CompletionRing ring{16, random() % 2 ? 64u : 128u};
    Device device(ring, true, random);
    device.publishes = false;
    const auto write = [&] {
      if (device.produced() - device.consumed() == ring.entries) device.consume(false);
      device.write();
    };
    CompletionCursor cursor;
    Cqe cqe;
    uint64_t told = 0, lost = 0;
    const auto read = [&](uint64_t from, const RingBytes& first, const RingBytes& again,
                          uint64_t unknown) {
      for (uint64_t gone = 0;;) {
        const uint64_t at = cursor.next;
        const CqNext got = next_completion(ring, cursor, from, first, again, cqe, gone);
        if (got == CqNext::lost) lost += gone;
        if (got == CqNext::end || got == CqNext::unstable) return;
        if (got != CqNext::completion) continue;
        CHECK(device.is(cqe, at + unknown));
        ++told;
      }
    };
    while (device.produced() < 1 + seed % 12) write();
    const std::vector<std::byte> begin(device.memory().begin(), device.memory().end());
    read(0, RingBytes(begin), RingBytes(begin), 0);
    const uint64_t begun = cursor.next;
    REQUIRE(begun == device.produced());

    // How many times two laps have passed is not known.
    const uint64_t unknown = random() % 3 * 32, lapped = cursor.next + 16 + random() % 16 + unknown;
    while (device.produced() < lapped) write();
    const std::vector<std::byte> one(device.memory().begin(), device.memory().end());
    const uint64_t produced = device.produced();
    for (unsigned pieces = random() % 3 * (random() % 48); pieces > 0; --pieces) write();
    const std::vector<std::byte> two(device.memory().begin(), device.memory().end());
    const Remains remains = skip_overwritten(ring, cursor, RingBytes(one), RingBytes(two));
    lost += remains.lost;
    read(remains.from, remains.first, remains.again, unknown);
    CHECK(told + lost == cursor.next);
    CHECK(cursor.next + unknown <= device.produced());
    CHECK(cursor.has_anchor);
    // The oldest only shows that the next one stands; one more may be half written.
    if (const uint64_t moved = device.produced() - produced; moved + 2 < ring.entries)
      CHECK(begun + lost + unknown <= produced + moved + 2 - ring.entries);
    if (one == two) CHECK(cursor.next + unknown == produced);
    if (one == two) CHECK(begun + lost + unknown == produced - (ring.entries - 1));
  }
}

TEST_CASE("compressed entries on a ring that has none are not understood, and said so") {
  const CompletionRing ring{8, 64};
  const CqeBytes bytes = image_of({.bytes = 5, .format = 3}, 0);
  CompletionCursor cursor;
  Cqe cqe;
  CHECK(next(ring, cursor, bytes, cqe) == CqNext::lost);
  CHECK(cursor.next == 1);
}

TEST_CASE("a session that UCX 1.13 has unzipped: the mark hides a byte count, and nothing else") {
  const CompletionRing ring{16, 64, CqLayout::compressed_basic};
  std::vector<std::byte> memory(16 * 64, std::byte{0xff});
  const auto put = [&](size_t slot, const CqeBytes& bytes) {
    std::copy(bytes.begin(), bytes.end(), memory.begin() + static_cast<long>(slot * 64));
  };
  CqeBytes minis[2] = {};
  for (uint16_t i = 0; i < 10; ++i)
    put_mini(minis[i / 8], i % 8,
             {.wqe_opcode = MLX5_OPCODE_RDMA_READ, .wqe_counter = i, .bytes = 100u + i});
  put(0, image_of({.wqe_opcode = MLX5_OPCODE_RDMA_READ, .bytes = 10, .format = 3}, 0));
  put(1, minis[0]);
  put(8, minis[1]);
  for (const bool unzipped : {false, true}) {
    if (unzipped)
      for (size_t slot = 1; slot < 10; ++slot) memory[slot * 64 + 63] = memory[63];
    CompletionCursor cursor;  // of an owner that keeps no index, as UCX
    for (uint16_t i = 0; i < 10; ++i) {
      Cqe cqe;
      REQUIRE(next(ring, cursor, memory, cqe) == CqNext::completion);
      CHECK(cqe.wqe_counter == i);
      CHECK(cqe.has_bytes == (!unzipped || i != 7));
      if (cqe.has_bytes) CHECK(cqe.bytes == 100u + i);
      CHECK(cqe.has_timestamp == (i == 0));
    }
    Cqe cqe;
    CHECK(next(ring, cursor, memory, cqe) == CqNext::end);
    CHECK(cursor.next == 10);
  }
}

TEST_CASE("model: completions of plain rings") {
  Counts total;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    const Counts counts =
        run_model(seed, {8u << seed % 4, 64u << seed % 2}, true, 4u << seed % 9, seed % 3);
    total.seen += counts.seen, total.lost += counts.lost;
    total.wrong += counts.wrong, total.unstable += counts.unstable;
    total.in_runs += counts.in_runs;
  }
  CHECK(total.wrong == 0);
  CHECK(total.seen > 10'000);
  CHECK(total.in_runs > 5'000);
  CHECK(total.lost > 1'000);
  CHECK(total.unstable > 100);
}

TEST_CASE("a run ends before what is not whole, not there, or no ordinary entry") {
  const CompletionRing ring{8, 64};
  std::vector<std::byte> memory(8 * 64);
  const auto put = [&](size_t slot, const CqeFields& fields, uint8_t owner) {
    const CqeBytes bytes = image_of(fields, owner);
    std::copy(bytes.begin(), bytes.end(), memory.begin() + static_cast<long>(slot * 64));
  };
  const auto run_of = [&](const std::vector<std::byte>& again, size_t room = 8) {
    CompletionCursor cursor;
    cursor.next = 1;
    std::vector<Cqe> run(room);
    const size_t taken = next_run(ring, cursor, 0, RingBytes(memory), RingBytes(again), run);
    CHECK(cursor.next == 1 + taken);
    CHECK(cursor.has_anchor == (taken > 0));
    for (size_t i = 0; i < taken; ++i) CHECK(run[i].wqe_counter == i + 1);
    return taken;
  };
  for (uint16_t slot = 0; slot < 8; ++slot) put(slot, {.wqe_counter = slot}, 0);
  CHECK(run_of(memory) == 7);
  CHECK(run_of(memory, 3) == 3);
  for (size_t byte = 4 * 64; byte < 5 * 64; ++byte) {
    auto again = memory;
    again[byte] ^= std::byte{1};
    CHECK(run_of(again) == 3);
  }
  const auto four = memory;
  for (const CqeFields& other : {CqeFields{.opcode = MLX5_CQE_INVALID}, CqeFields{.opcode = MLX5_CQE_RESIZE_CQ}}) {
    put(4, other, 0);
    CHECK(run_of(memory) == 3);
  }
  put(4, {.wqe_counter = 4}, 1);  // of another lap
  CHECK(run_of(memory) == 3);
  put(4, {.wqe_counter = 4}, 0);
  memory[4 * 64 + 63] |= std::byte{3 << 2};  // compressed
  CHECK(run_of(memory) == 3);
  std::fill_n(memory.begin() + 4 * 64, 64, std::byte{});
  CHECK(run_of(memory) == 3);
  memory = four;
  memory.resize(6 * 64);
  CHECK(run_of(memory) == 5);
}

TEST_CASE("model: completions of compressed rings, also unzipped in place") {
  for (const CqLayout layout : {CqLayout::compressed_basic, CqLayout::compressed_enhanced})
    for (const bool counts_laps : {true, false}) {
      if (layout == CqLayout::compressed_basic && !counts_laps)
        continue;  // not in turns of 16 bytes
      INFO("enhanced " << (layout == CqLayout::compressed_enhanced) << " index " << counts_laps);
      Counts total;
      for (uint32_t seed = 1; seed <= 40; ++seed) {
        const uint32_t smallest = layout == CqLayout::compressed_basic ? 256 : 32;
        const CompletionRing ring{smallest << seed % 3, 64u << seed % 2, layout};
        const Counts counts = run_model(seed, ring, counts_laps, 16u << seed % 5, seed % 2);
        total.seen += counts.seen, total.lost += counts.lost, total.wrong += counts.wrong;
        total.no_bytes += counts.no_bytes;
      }
      CHECK(total.wrong == 0);
      CHECK(total.seen > 10'000);
      CHECK(total.lost > 500);
      // What UCX's mark stands over, in the basic layout only
      CHECK((total.no_bytes > 0) == (layout == CqLayout::compressed_basic));
      CHECK(total.no_bytes < total.seen / 8);
    }
}
