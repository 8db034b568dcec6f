// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Walking completion rings by small cases; by a model: rings_completion_model.cpp.
#include <random>
#include <vector>

#include "catch.h"
#include "completion_device.h"
#include "cqe_writer.h"
#include "decode/completion_ring.h"

using namespace sigma;

namespace {

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
    CompletionDevice device(ring, true, random);
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
    CompletionDevice device(ring, true, random);
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
