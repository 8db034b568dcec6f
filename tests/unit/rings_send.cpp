// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The certifier of send rings: by tables, and against a model in which writer and reader take turns
// at every 16 bytes.
#include <random>

#include "catch.h"
#include "decode/send_ring.h"
#include "wqe_writer.h"

using namespace sigma;

namespace {

constexpr uint32_t kQpNum = 0x1234;

uint8_t post(WqeWriter& writer, uint64_t position, uint32_t inline_bytes,
             uint32_t qp_num = kQpNum) {
  writer.begin(position, {MLX5_OPCODE_SEND, qp_num});
  return writer.inline_data(inline_bytes).end();
}

}  // namespace

TEST_CASE("geometries that a ring can have") {
  CHECK(valid(SendRing{0xffffff, 1}));
  CHECK(valid(SendRing{1, 32'768}));
  CHECK_FALSE(valid(SendRing{1, 0}));
  CHECK_FALSE(valid(SendRing{1, 96}));
  CHECK_FALSE(valid(SendRing{1, 65'536}));
  CHECK_FALSE(valid(SendRing{0x1000000, 64}));
}

TEST_CASE("doorbells become positions, and what was lapped a gap") {
  const SendRing ring{kQpNum, 128};
  struct {
    uint16_t doorbell;
    uint64_t gap, first, end;
  } const steps[] = {
      {0, 0, 0, 0},
      {5, 0, 0, 5},
      {133, 0, 5, 133},    // exactly a ring
      {262, 1, 134, 262},  // one more
      {262, 0, 262, 262},  // idle
      {65'500, 65'110, 65'372, 65'500},
      {10, 0, 65'500, 65'546},  // over the 16 bits
      {9, 65'407, 130'953, 131'081},
  };
  SendCursor cursor;
  uint64_t lost = 0, seen = 0;
  for (const auto& expected : steps) {
    INFO("doorbell " << expected.doorbell);
    const SendStep step = advance(ring, cursor, expected.doorbell, false);
    CHECK(step.gap == expected.gap);
    CHECK(step.first == expected.first);
    CHECK(step.end == expected.end);
    lost += finish(cursor, step, step.first);
    seen += step.end - step.first;
    CHECK(seen + lost == cursor.posted);
  }
  CHECK_FALSE(cursor.modulo);
}

TEST_CASE("a wrap that passed unseen makes the count one modulo 65,536, until it is repaired") {
  const SendRing ring{kQpNum, 128};
  SendCursor cursor;
  finish(cursor, advance(ring, cursor, 100, false), 0);
  const SendStep step = advance(ring, cursor, 110, true);
  CHECK(cursor.modulo);
  CHECK((step.first == 100 && step.end == 110));
  CHECK(finish(cursor, step, step.first) == 0);
  CHECK(add_laps(cursor, 3) == 3 * 65'536);
  CHECK_FALSE(cursor.modulo);
  CHECK((cursor.posted == 3 * 65'536 + 110 && cursor.next == cursor.posted));
  CHECK(advance(ring, cursor, 111, false).first == 3 * 65'536 + 110);
}

TEST_CASE("a chain leads from WQE to WQE to the doorbell, and nowhere else") {
  const SendRing ring{kQpNum, 16};
  WqeWriter writer(ring.blocks);
  uint64_t at = 65'530;
  const uint64_t first = at;
  for (const uint32_t bytes : {8u, 100u, 300u, 8u, 60u}) at += post(writer, at, bytes);
  const uint64_t end = at;
  REQUIRE(end - first == 1 + 2 + 5 + 1 + 2);
  CHECK(chain_start(ring, writer.view(first, end), first, end) == first);

  SECTION("from the middle of a WQE it finds the next one") {
    CHECK(chain_start(ring, writer.view(first + 2, end), first + 2, end) == first + 3);
    CHECK(chain_start(ring, writer.view(first + 4, end), first + 4, end) == first + 8);
  }
  SECTION("one that ends elsewhere is none") {
    CHECK(chain_start(ring, writer.view(first, end - 1), first, end - 1) == end - 1);
    CHECK(chain_start(ring, writer.view(first, end + 1), first, end + 1) == end + 1);
  }
  SECTION("it breaks at an index that is a lap ahead") {
    post(writer, first + 3 + ring.blocks, 8);
    CHECK(chain_start(ring, writer.view(first, end), first, end) == first + 8);
  }
  SECTION("it breaks at another queue's number, and at size 0") {
    post(writer, first + 8, 8, kQpNum + 1);
    CHECK(chain_start(ring, writer.view(first, end), first, end) == first + 9);
    writer.begin(first + 9, {MLX5_OPCODE_NOP, kQpNum}).end(0);
    CHECK(chain_start(ring, writer.view(first, end), first, end) == end);
  }
  SECTION("nothing to look at") {
    CHECK(chain_start(ring, RingBytes(), end, end) == end);
    CHECK(chain_start(ring, RingBytes(), first, end) == end);  // slots that could not be read
  }
}

TEST_CASE("certificates") {
  const SendRing ring{kQpNum, 128};
  // 96 blocks behind the doorbell there is a quarter of the ring to go.
  CHECK(margin_certain(ring, 904, 1000));
  CHECK_FALSE(margin_certain(ring, 903, 1000));
  CHECK(posterior(ring, 900, 1000, 1000) == Posterior::wait);
  CHECK(posterior(ring, 900, 1000, 1028) == Posterior::certain);
  CHECK(posterior(ring, 900, 1000, 1029) == Posterior::refused);
  CHECK(unfinished_certain(900, 900));
  CHECK_FALSE(unfinished_certain(899, 900));
}

// ---- the model ----------------------------------------------------------------------------------

namespace {

// Writes WQEs unit by unit in libmlx5's order (addresses first, index and size last), in batches
// that one doorbell publishes; each carries its position in every field that the reader reports.
class Writer {
 public:
  Writer(uint32_t blocks, unsigned largest_batch, std::mt19937& random)
      : blocks_(blocks), largest_batch_(largest_batch), random_(random), ring_(blocks * 64) {}

  void step() {
    if (pending_.empty()) {
      if (batch_left_ == 0) {
        doorbell_ = next_;
        batch_left_ = 1 + random_() % largest_batch_;
        return;
      }
      --batch_left_;
      write_next();
    }
    const Unit& unit = pending_.back();
    std::memcpy(ring_.data() + unit.at % ring_.size(), unit.bytes.data(), unit.bytes.size());
    pending_.pop_back();
  }

  uint16_t doorbell() const { return static_cast<uint16_t>(doorbell_); }
  uint64_t posted() const { return doorbell_; }
  std::span<const std::byte> ring() const { return ring_; }
  static uint64_t address_of(uint64_t position) { return position << 8 | 0x5a; }

 private:
  struct Unit {
    uint64_t at;
    std::array<std::byte, 16> bytes;
  };

  // The control segment is taken first from the back of `pending_`... after all others.
  void write_next() {
    WqeWriter scratch(16);
    const unsigned pointers = random_() % 8;
    scratch.begin(next_, {MLX5_OPCODE_RDMA_WRITE, kQpNum});
    scratch.remote(address_of(next_), static_cast<uint32_t>(next_));
    for (unsigned i = 0; i < pointers; ++i)
      scratch.data(64, static_cast<uint32_t>(next_), address_of(next_));
    const uint8_t count = scratch.end();
    const size_t units = 2 + pointers;
    for (size_t unit = 0; unit < units; ++unit) {
      Unit entry{next_ * 64 + unit * 16, {}};
      std::memcpy(entry.bytes.data(), scratch.ring().data() + (next_ * 64 + unit * 16) % 1024, 16);
      pending_.push_back(entry);
    }
    std::reverse(pending_.begin() + 1, pending_.end());
    next_ += count;
  }

  uint32_t blocks_;
  unsigned largest_batch_;
  std::mt19937& random_;
  std::vector<std::byte> ring_;
  std::vector<Unit> pending_;  // the last one goes next
  uint64_t next_ = 0, doorbell_ = 0;
  unsigned batch_left_ = 0;
};

struct Counts {
  uint64_t inspected = 0, certain = 0, refused = 0, lost = 0, torn = 0, false_certain = 0;
};

bool is_true(const Wqe& wqe, uint64_t position) {
  return wqe.index == (position & 0xffff) && !wqe.malformed && wqe.has_remote &&
         wqe.remote_addr == Writer::address_of(position) &&
         wqe.rkey == static_cast<uint32_t>(position) && wqe.bytes == wqe.num_sge * 64u &&
         (wqe.num_sge == 0 || (wqe.local_addr == Writer::address_of(position) &&
                               wqe.lkey == static_cast<uint32_t>(position)));
}

enum class Proof { posterior, margin };

// `pace`: units that are written between two samples; `during`: per unit that is copied, in
// eighths.
Counts run_model(uint32_t seed, uint32_t blocks, unsigned largest_batch, unsigned pace,
                 unsigned during, Proof proof) {
  std::mt19937 random(seed);
  Writer writer(blocks, largest_batch, random);
  const SendRing ring{kQpNum, blocks};
  SendCursor cursor;
  Counts counts;
  struct Pending {
    uint64_t position, posted_after;
    bool right;
  };
  std::vector<Pending> pending;
  const auto let_write = [&](unsigned most) {
    for (unsigned n = random() % (most + 1); n > 0; --n) writer.step();
  };

  for (int sample = 0; sample < 400; ++sample) {
    let_write(pace);
    const SendStep step = advance(ring, cursor, writer.doorbell(), false);
    std::erase_if(pending, [&](const Pending& entry) {
      const Posterior verdict = posterior(ring, entry.position, entry.posted_after, cursor.posted);
      if (verdict == Posterior::wait) return false;
      (verdict == Posterior::certain ? counts.certain : counts.refused) += 1;
      counts.false_certain += verdict == Posterior::certain && !entry.right;
      return true;
    });

    // The copy: unit by unit, while the writer goes on.
    std::vector<std::byte> copy((step.end - step.first) * 64);
    for (size_t at = 0; at < copy.size(); at += 16) {
      std::memcpy(copy.data() + at,
                  writer.ring().data() + (step.first * 64 + at) % writer.ring().size(), 16);
      if (random() % 8 < during) let_write(4);
    }
    const uint64_t posted_after = extend16(cursor.posted, writer.doorbell());

    const RingBytes slots{copy};
    const uint64_t start = chain_start(ring, slots, step.first, step.end);
    for (uint64_t at = start; at < step.end;) {
      Wqe wqe;
      REQUIRE(decode_wqe(slots, (at - step.first) * 64, QpService::rc, wqe));
      const bool right = is_true(wqe, at);
      ++counts.inspected;
      counts.torn += !right;
      if (proof == Proof::posterior) {
        pending.push_back({at, posted_after, right});
      } else if (margin_certain(ring, at, posted_after)) {
        ++counts.certain;
        counts.false_certain += !right;
      } else {
        ++counts.refused;
      }
      at += wqe.blocks;
    }
    counts.lost += finish(cursor, step, start);
    CHECK(cursor.posted == step.end);
  }
  CHECK(cursor.next == cursor.posted);
  CHECK(cursor.posted <= writer.posted());
  return counts;
}

void add(Counts& total, const Counts& counts) {
  total.inspected += counts.inspected;
  total.certain += counts.certain;
  total.refused += counts.refused;
  total.lost += counts.lost;
  total.torn += counts.torn;
  total.false_certain += counts.false_certain;
}

}  // namespace

TEST_CASE("model: whatever the interleaving, what a later doorbell certifies was posted") {
  Counts total;
  for (uint32_t seed = 1; seed <= 60; ++seed)
    add(total, run_model(seed, 16u << seed % 3, 1 + seed % 12, 10 << seed % 5, seed % 7,
                         Proof::posterior));
  INFO("inspected " << total.inspected << " certain " << total.certain << " refused "
                    << total.refused << " torn " << total.torn << " lost " << total.lost);
  CHECK(total.false_certain == 0);
  // The model reaches what it is for: torn WQEs that fit by index, and both verdicts.
  CHECK(total.torn > 100);
  CHECK(total.certain > 10'000);
  CHECK(total.refused > 1'000);
}

TEST_CASE("model: the margin holds while no batch is longer than it") {
  Counts total;
  for (uint32_t seed = 1; seed <= 60; ++seed)  // batches of up to 4 WQEs of up to 3 blocks in 64
    add(total, run_model(seed, 64, 1 + seed % 4, 10 << seed % 5, seed % 7, Proof::margin));
  CHECK(total.false_certain == 0);
  CHECK(total.torn > 100);
  CHECK(total.certain > 10'000);
}

TEST_CASE("what is not written yet behind the last post") {
  const SendRing ring{kQpNum, 64};
  std::vector<std::byte> memory(64 * kWqeBlockBytes);
  const auto slots = [&](uint64_t first, uint64_t end) {
    const std::span<const std::byte> all(memory);
    const size_t from = first % 64 * kWqeBlockBytes, bytes = (end - first) * kWqeBlockBytes;
    const size_t head = std::min(bytes, all.size() - from);
    return RingBytes(all.subspan(from, head), all.first(bytes - head));
  };
  const auto write = [&](uint64_t position, uint8_t segments) {
    std::byte* at = memory.data() + position % 64 * kWqeBlockBytes;
    const uint32_t words[2] = {htobe32(static_cast<uint32_t>(position & 0xffff) << 8 | 8),
                               htobe32(kQpNum << 8 | segments)};
    memcpy(at, words, sizeof words);
  };
  constexpr uint64_t kNone = ~uint64_t{0};
  for (const uint64_t base : {uint64_t{0}, uint64_t{40}, uint64_t{65'530}}) {
    INFO("base " << base);
    // `until`: blocks to look at; `reusable`: what completions say.
    const auto from = [&](uint64_t until, bool begins, uint64_t reusable) {
      return unwritten_from(ring, slots(base, until), base, begins, base, reusable);
    };
    std::fill(memory.begin(), memory.end(), std::byte{0x5a});  // nothing that one would know
    CHECK(from(base + 1, true, base) == base);
    CHECK(from(base + 1, true, base + 1) == kNone);  // it may have been used again
    CHECK(from(base + 1, false, base) == kNone);     // in a WQE, maybe
    CHECK(from(base + 32, false, base) == base);
    write(base, 4);
    CHECK(from(base + 1, true, base) == kNone);
    CHECK(from(base + 32, true, base) == base + 1);
    write(base + 15, 4);
    CHECK(from(base + 32, true, base) == base + 16);
    write(base + 16, 4);
    CHECK(from(base + 32, true, base) == kNone);  // not 16 behind it
    CHECK(from(base + 33, true, base) == base + 17);
    CHECK(unwritten_from(ring, RingBytes{}, base, true, base, base) == kNone);
    // What was there a lap ago needs no completion; what is there a lap later is not it.
    write(base + 20, 4);
    const auto write_of_lap = [&](uint64_t position, uint64_t index) {
      write(index, 4);
      CHECK(index % 64 == position % 64);
    };
    if (base >= 64) {
      write_of_lap(base + 5, base + 5 - 64);
      CHECK(from(base + 32, true, kNone) == base + 5);
    }
    write_of_lap(base + 5, base + 5 + 64);
    CHECK(from(base + 32, true, kNone) == kNone);
    if (base + 7 < 64) {
      memset(memory.data() + (base + 7) * kWqeBlockBytes, 0, kWqeBlockBytes);
      CHECK(from(base + 32, true, kNone) == base + 7);
    }
  }
}
