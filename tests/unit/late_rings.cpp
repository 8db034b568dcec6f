// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Rings of queues older than the tracer, found in memory that a test makes: structures of many
// layouts with decoys around, and memory that means harm.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/be.h"
#include "catch.h"
#include "decode/cqe.h"
#include "decode/wqe.h"
#include "observe/cq_place.h"
#include "observe/known_fields.h"
#include "observe/late_rings.h"
#include "observe/send_place.h"

using namespace sigma;

namespace {

using Random = std::mt19937_64;

// Regions at addresses, as a process has them.
class FakeMemory : public OwnerMemory {
 public:
  uint64_t add(size_t bytes) {
    const uint64_t address = next_;
    next_ += (bytes + 0xffff) / 0x10000 * 0x10000 + 0x10000;
    regions_[address].resize(bytes);
    return address;
  }
  std::byte* at(uint64_t address) {
    auto region = std::prev(regions_.upper_bound(address));
    return region->second.data() + (address - region->first);
  }
  void put64(uint64_t address, uint64_t value) { std::memcpy(at(address), &value, 8); }
  void put32(uint64_t address, uint32_t value) { std::memcpy(at(address), &value, 4); }
  void put_be32(uint64_t address, uint32_t value) {
    const Be32 big(value);
    std::memcpy(at(address), &big, 4);
  }

  bool read(uint64_t address, std::span<std::byte> out) const override {
    ++reads;
    read_bytes += out.size();
    if (out.empty() || writable_from(address) < out.size()) return false;
    const auto region = std::prev(regions_.upper_bound(address));
    std::memcpy(out.data(), region->second.data() + (address - region->first), out.size());
    return true;
  }
  uint64_t writable_from(uint64_t address) const override {
    auto region = regions_.upper_bound(address);
    if (region == regions_.begin()) return 0;
    --region;
    const uint64_t offset = address - region->first;
    return offset < region->second.size() ? region->second.size() - offset : 0;
  }

  mutable uint64_t reads = 0, read_bytes = 0;

 private:
  std::map<uint64_t, std::vector<std::byte>> regions_;
  uint64_t next_ = 0x7f0000000000;
};

// Where a made-up library has its fields.
struct Layout {
  uint16_t buffer, ring, blocks, max_post, end, doorbell;
};
constexpr Layout kLayouts[] = {{0x40, 0x2b8, 0x2dc, 0x2e0, 0x300, 0x310},
                               {0x18, 0x80, 0x84 + 4, 0x90, 0xa0, 0xc8},
                               {0x60, 0x120, 0x100, 0x104, 0x210, 0x1f8}};
constexpr size_t kObjectBytes = 0x400;

struct FakeQp {
  uint32_t number = 0, blocks = 0;
  uint64_t object = 0, ring = 0, doorbell = 0;
  uint32_t posted = 0;
};

class Job {
 public:
  explicit Job(uint64_t seed, const Layout& layout) : random(seed), layout_(layout) {
    doorbells_ = memory.add(1 << 20);
  }

  FakeQp make_qp(uint32_t blocks, uint32_t receive_bytes) {
    FakeQp qp;
    qp.number = ++number_;
    qp.blocks = blocks;
    const uint64_t buffer = memory.add(receive_bytes + size_t{blocks} * 64);
    qp.ring = buffer + receive_bytes;
    qp.doorbell = doorbells_ + 64 * doorbells_used_++;
    qp.object = memory.add(kObjectBytes);
    for (uint64_t at = 0; at < kObjectBytes; at += 8) memory.put64(qp.object + at, noise(qp));
    memory.put64(qp.object + layout_.buffer, buffer);
    memory.put64(qp.object + layout_.ring, qp.ring);
    memory.put32(qp.object + layout_.blocks, blocks);
    memory.put32(qp.object + layout_.max_post, blocks - blocks / 4);
    memory.put64(qp.object + layout_.end, qp.ring + uint64_t{blocks} * 64);
    memory.put64(qp.object + layout_.doorbell, qp.doorbell);
    return qp;
  }

  // WQEs of one to three blocks, the rest of which may hold anything.
  void post(FakeQp& qp, uint32_t count) {
    for (; count > 0; --count) {
      const uint32_t units = 2 + static_cast<uint32_t>(random() % 11), wide = (units + 3) / 4;
      if (wide > qp.blocks) continue;
      for (uint32_t i = 0; i < wide; ++i) {
        const uint64_t at = qp.ring + ((qp.posted + i) % qp.blocks) * 64;
        for (int word = 0; word < 8; ++word) memory.put64(at + 8 * word, random());
      }
      const uint64_t at = qp.ring + (qp.posted % qp.blocks) * 64;
      memory.put_be32(at, (qp.posted & 0xffff) << 8 | 0x08);
      memory.put_be32(at + 4, qp.number << 8 | units);
      qp.posted += wide;
    }
    memory.put_be32(qp.doorbell + 4, qp.posted & 0xffff);
    memory.put_be32(qp.doorbell, static_cast<uint32_t>(random() % 4));
  }

  std::vector<SendCandidate> certify(const FakeQp& qp) {
    uint64_t budget = 64 << 20;
    return certify_send(memory, ObjectWindow(memory, qp.object, kObjectBytes), qp.number, budget);
  }

  FakeMemory memory;
  Random random;

 private:
  // What else a structure holds: numbers, flags, pointers to itself and to what is there.
  uint64_t noise(const FakeQp& qp) {
    switch (random() % 6) {
      case 0:
        return uint64_t{1} << random() % 16 | uint64_t{1} << (32 + random() % 12);
      case 1:
        return qp.object + random() % kObjectBytes / 8 * 8;
      case 2:
        return doorbells_ + 64 * (random() % 64);
      case 3:
        return random();
      case 4:
        return qp.ring - 64 * (1 + random() % 4);
      default:
        return 0;
    }
  }

  const Layout& layout_;
  uint64_t doorbells_ = 0, doorbells_used_ = 0;
  uint32_t number_ = 0x100;
};

SendPlace truth_of(const FakeQp& qp) { return {qp.ring, qp.doorbell, qp.blocks}; }

}  // namespace

TEST_CASE("late rings: queues that have posted certify themselves, and vote for the others") {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    Job job(seed, kLayouts[seed % std::size(kLayouts)]);
    FieldVote<SendFields> votes;
    size_t placed = 0, wrong = 0;
    std::vector<FakeQp> idle;
    for (int i = 0; i < 40; ++i) {
      FakeQp qp = job.make_qp(uint32_t{4} << job.random() % 8, job.random() % 2 ? 0 : 4096);
      if (i % 2) {
        idle.push_back(qp);
        continue;
      }
      job.post(qp, 1 + static_cast<uint32_t>(job.random() % (i % 4 ? 8 : 2000)));
      const auto candidates = job.certify(qp);
      const auto place = only_place(candidates);
      if (!place) continue;
      ++placed;
      wrong += *place != truth_of(qp);
      std::vector<SendFields> fields;
      for (const SendCandidate& each : candidates)
        if (each.place == *place) fields.push_back(each.layout);
      votes.add(fields);
    }
    CHECK(placed >= 12);  // a decoy may lead to a doorbell with the same value: then neither is taken
    CHECK(wrong == 0);
    const std::vector<SendFields> winners = votes.winners();
    REQUIRE_FALSE(winners.empty());
    for (const FakeQp& qp : idle) {
      const ObjectWindow object(job.memory, qp.object, kObjectBytes);
      const auto place = place_by(job.memory, object, qp.number, winners);
      REQUIRE(place);
      CHECK(*place == truth_of(qp));
    }
  }
}

TEST_CASE("late rings: the 16 bits of an index go round") {
  Job job(5, kLayouts[0]);
  FakeQp qp = job.make_qp(256, 0);
  qp.posted = 65'500;
  job.post(qp, 1);
  for (int i = 0; i < 80; ++i) {
    job.post(qp, 1);
    const auto place = only_place(job.certify(qp));
    // For a lap after the wrap a WQE may end at zero, which is what much of memory says.
    if (qp.posted < 65'536) REQUIRE(place);
    if (place) CHECK(*place == truth_of(qp));
  }
}

TEST_CASE("late rings: what does not fit is not taken") {
  Job job(7, kLayouts[0]);
  FakeQp qp = job.make_qp(64, 4096);
  CHECK(job.certify(qp).empty());  // it has not posted
  job.post(qp, 20);
  REQUIRE(only_place(job.certify(qp)));

  SECTION("a doorbell at which no WQE ends") {
    job.memory.put_be32(qp.doorbell + 4, qp.posted + 1);
    for (const SendCandidate& each : job.certify(qp)) CHECK(each.place.doorbell_addr != qp.doorbell);
  }
  SECTION("no doorbell record") {
    job.memory.put_be32(qp.doorbell, 0x10000);
    for (const SendCandidate& each : job.certify(qp)) CHECK(each.place.doorbell_addr != qp.doorbell);
  }
  SECTION("a WQE at another's place") {
    const uint64_t at = qp.ring + 5 * 64;
    job.memory.put_be32(at, 6 << 8 | 0x08);
    job.memory.put_be32(at + 4, qp.number << 8 | 3);
    for (const SendCandidate& each : job.certify(qp)) CHECK(each.place.ring_addr != qp.ring);
  }
  SECTION("another queue's number") {
    ++qp.number;
    CHECK(job.certify(qp).empty());
  }
  SECTION("a layout whose ring holds something else") {
    const ObjectWindow object(job.memory, qp.object, kObjectBytes);
    const SendFields fields{kLayouts[0].ring, kLayouts[0].blocks, kLayouts[0].doorbell};
    REQUIRE(place_by(job.memory, object, qp.number, fields));
    job.memory.put_be32(qp.doorbell + 4, qp.posted + 1);
    CHECK_FALSE(place_by(job.memory, object, qp.number, fields));
  }
}

TEST_CASE("late rings: an end pointer tells a short ring from a long one") {
  Job job(11, kLayouts[0]);
  FakeQp qp = job.make_qp(64, 0);
  qp.ring = job.memory.add(1024 * 64);  // room for more behind it
  job.memory.put64(qp.object + kLayouts[0].ring, qp.ring);
  job.memory.put64(qp.object + kLayouts[0].end, qp.ring + 64 * 64);
  job.memory.put32(qp.object + 0x3f0, 256);
  job.post(qp, 3);
  const auto place = only_place(job.certify(qp));
  REQUIRE(place);
  CHECK(place->blocks == 64);
  job.memory.put64(qp.object + kLayouts[0].end, 0);
  CHECK_FALSE(only_place(job.certify(qp)));
}

TEST_CASE("late rings: hostile memory costs bounded work and gives no place outside of it") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    FakeMemory memory;
    std::vector<uint64_t> regions;
    for (int i = 0; i < 8; ++i) regions.push_back(memory.add(64 + random() % (1 << 18) / 8 * 8));
    const uint64_t object_at = memory.add(0x800);
    const uint32_t number = static_cast<uint32_t>(random() & 0xffffff);
    // Pointers into everything, counts, and blocks that all claim to be this queue's.
    for (uint64_t at = 0; at < 0x800; at += 8) {
      const uint64_t target = regions[random() % regions.size()] + random() % (1 << 17) / 4 * 4;
      memory.put64(object_at + at, random() % 3 ? target & ~uint64_t{63} : uint64_t{1} << random() % 20);
    }
    for (const uint64_t region : regions)
      for (uint64_t at = 0; at + 8 <= memory.writable_from(region); at += 8) {
        if (random() % 4 == 0) memory.put_be32(region + at, static_cast<uint32_t>(random() & 0xffffff));
        if (random() % 2) memory.put_be32(region + at + 4, number << 8 | (random() & 0x3f));
      }
    uint64_t budget = 4 << 20;
    const ObjectWindow object(memory, object_at, 0x800);
    memory.read_bytes = 0;
    for (const SendCandidate& each : certify_send(memory, object, number, budget)) {
      CHECK(memory.writable_from(each.place.ring_addr) >= uint64_t{each.place.blocks} * 64);
      CHECK(memory.writable_from(each.place.doorbell_addr) >= 8);
    }
    CHECK(memory.read_bytes < (4 << 20) + (1 << 20));
    budget = 4 << 20;
    memory.read_bytes = 0;
    const uint32_t entries = 1u << random() % 12;
    for (const CqCandidate& each : certify_cq(memory, object, entries, {number}, budget))
      CHECK(memory.writable_from(each.place.ring_addr) >= uint64_t{entries} * each.place.entry_bytes);
    CHECK(memory.read_bytes < (4 << 20) + (1 << 20));
  }
}

// ---- completion queues --------------------------------------------------------------------------

namespace {

struct FakeCq {
  static constexpr uint16_t kBuffer = 0x120, kOther = 0x160, kActive = 0x1a0, kDoorbell = 0x1d0;
  static constexpr size_t kBytes = 0x300;

  FakeCq(FakeMemory& into, Random& random, uint32_t size, uint32_t bytes)
      : memory(into), entries(size), entry_bytes(bytes) {
    ring = memory.add(size_t{entries} * entry_bytes);
    doorbell = memory.add(64);
    object = memory.add(kBytes);
    for (uint64_t at = 0; at < kBytes; at += 8)
      memory.put64(object + at, random() % 3 ? 0 : object + random() % kBytes / 8 * 8);
    memory.put64(object + kBuffer, ring);
    memory.put64(object + kOther, 0);
    memory.put64(object + kActive, object + kBuffer);
    memory.put32(object + kDoorbell - 12, 0x321);
    memory.put32(object + kDoorbell - 8, 0);
    memory.put64(object + kDoorbell, doorbell);
    memory.put32(object + kDoorbell + 16, entry_bytes);
    for (uint32_t slot = 0; slot < entries; ++slot)
      *memory.at(ring + (uint64_t{slot} + 1) * entry_bytes - 1) = std::byte{0xf0};
  }

  void complete(uint32_t qp_num, uint64_t count) {
    for (; count > 0; --count, ++produced) {
      const uint64_t at = ring + (produced % entries + 1) * entry_bytes - 64;
      memory.put_be32(at + 56, qp_num);
      memory.put_be32(at + 60, static_cast<uint32_t>(produced << 16));
      *memory.at(at + 63) = static_cast<std::byte>(produced / entries & 1);
    }
  }
  void consume(uint32_t count) {
    consumed += count;
    memory.put32(object + kDoorbell - 8, consumed);
    memory.put_be32(doorbell, consumed & 0xffffff);
  }
  std::vector<CqCandidate> certify(const std::set<uint32_t>& queue_pairs) const {
    uint64_t budget = 64 << 20;
    return certify_cq(memory, ObjectWindow(memory, object, kBytes), entries, queue_pairs, budget);
  }
  CqPlace truth() const { return {ring, doorbell, entry_bytes, 0x321}; }

  FakeMemory& memory;
  uint32_t entries, entry_bytes, consumed = 0;
  uint64_t ring = 0, doorbell = 0, object = 0, produced = 0;
};

}  // namespace

TEST_CASE("late rings: completion queues by what they hold, wherever they are in their laps") {
  Random random(3);
  for (const uint32_t entry_bytes : {64u, 128u}) {
    for (int round = 0; round < 40; ++round) {
      FakeMemory memory;
      FakeCq cq(memory, random, 1u << (1 + random() % 8), entry_bytes);
      const uint64_t count = 1 + random() % (cq.entries * 5);
      const auto unread = static_cast<uint32_t>(random() % (std::min<uint64_t>(count, cq.entries) + 1));
      cq.complete(0x77, count);
      cq.consume(static_cast<uint32_t>(count) - unread);
      CAPTURE(entry_bytes, round, cq.entries, count, unread);
      const auto place = only_place(cq.certify({0x77}));
      REQUIRE(place);
      CHECK(*place == cq.truth());
      const auto start = start_of(memory, *place, cq.entries);
      REQUIRE(start);
      CHECK(start->next % (2 * cq.entries) == count % (2 * cq.entries));
      if (cq.consumed != 0) {
        CHECK(start->next == count);
        CHECK(start->consumed == cq.consumed);
      }
    }
  }
}

TEST_CASE("late rings: a completion queue whose owner keeps no index, and one that is unused") {
  Random random(4);
  FakeMemory memory;
  FakeCq used(memory, random, 64, 64), unused(memory, random, 128, 64);
  used.complete(0x77, 150);
  const auto candidates = used.certify({0x77});
  REQUIRE(only_place(candidates));
  CHECK(*only_place(candidates) == used.truth());
  const auto start = start_of(memory, used.truth(), used.entries);
  REQUIRE(start);
  CHECK(start->next % 128 == 150 % 128);

  CHECK(unused.certify({0x77}).empty());
  const std::vector<CqFields> fields{{FakeCq::kActive, FakeCq::kDoorbell}};
  const ObjectWindow object(memory, unused.object, FakeCq::kBytes);
  const auto place = place_by(memory, object, unused.entries, {0x77}, fields);
  REQUIRE(place);
  CHECK(*place == unused.truth());
  CHECK(start_of(memory, *place, unused.entries)->next == 0);
}

TEST_CASE("late rings: a completion queue after a resize is read in its present buffer") {
  Random random(6);
  FakeMemory memory;
  FakeCq cq(memory, random, 64, 64);
  cq.complete(0x77, 30);
  cq.consume(30);
  const uint64_t old = cq.ring;
  cq.ring = memory.add(64 * 64);
  std::memcpy(memory.at(cq.ring), memory.at(old), 64 * 64);
  memory.put64(cq.object + FakeCq::kOther, cq.ring);
  memory.put64(cq.object + FakeCq::kActive, cq.object + FakeCq::kOther);
  const auto place = place_by(memory, ObjectWindow(memory, cq.object, FakeCq::kBytes), 64, {0x77},
                              {{FakeCq::kActive, FakeCq::kDoorbell}});
  REQUIRE(place);
  CHECK(place->ring_addr == cq.ring);
}

TEST_CASE("late rings: completions of strangers, and owner bits of no ring, certify nothing") {
  Random random(8);
  FakeMemory memory;
  FakeCq cq(memory, random, 64, 64);
  cq.complete(0x77, 100);
  cq.consume(90);
  CHECK(cq.certify({0x78}).empty());
  CHECK_FALSE(cq.certify({0x77}).empty());
  *memory.at(cq.ring + 64 * 10 + 63) ^= std::byte{1};
  CHECK(cq.certify({0x77}).empty());
}

TEST_CASE("late rings: the fields of another build give no place") {
  // As of the releases in the table, and what a build may look like that nobody has measured.
  constexpr Layout kBuilds[] = {{0x40, 0x260, 0x284, 0x288, 0x2a8, 0x2b8},
                                {0x40, 0x2b8, 0x2dc, 0x2e0, 0x300, 0x310},
                                {0x40, 0x2c0, 0x2e4, 0x2e8, 0x308, 0x318},
                                {0x40, 0x2d0, 0x2f4, 0x2f8, 0x318, 0x328}};
  size_t right = 0;
  for (const Layout& layout : kBuilds)
    for (const Layout& told : kBuilds)
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        Job job(seed, layout);
        FakeQp qp = job.make_qp(64u << seed % 4, 256 * (seed % 3));
        if (seed % 2 == 0) job.post(qp, 40);
        const auto place = place_by(job.memory, ObjectWindow(job.memory, qp.object, kObjectBytes), qp.number,
                                    std::vector<SendFields>{{told.ring, told.blocks, told.doorbell}});
        CAPTURE(layout.ring, told.ring, seed);
        if (&layout == &told) {
          REQUIRE(place);
          CHECK(*place == truth_of(qp));
          ++right;
        } else {
          CHECK_FALSE(place);
        }
      }
  CHECK(right == 80);
}

TEST_CASE("late rings: what votes tell is remembered by build, and not for libraries without one") {
  KnownFields known;
  CHECK(known.of("00").sends.empty());
  known.learn("00", {{{8, 16, 24}}, {}});
  known.learn("", {{{8, 16, 24}}, {}});
  REQUIRE(known.of("00").sends.size() == 1);
  CHECK(known.of("").sends.empty());
  // Debian 11, 12, 13 and sid as of rdma-core 65.0
  for (const char* build : {"c5814279212a3275fb448d682e6984e141f755b0", "800c6ca768baceb592682738a03643f11379cbdd",
                            "746f5276b649cf32baf1b69182c5b2a48b985f6f", "a7e9437a27b9d3a7d44205709d165833694eef8b"}) {
    CHECK(known.of(build).sends.size() == 1);
    CHECK(known.of(build).cqs.size() == 1);
  }
}

TEST_CASE("late rings: what others tell of, the library or a command heard late, is not said to be older") {
  constexpr uint64_t kContext = 0x10000, kOther = 0x20000, kBegunNs = 1000;
  LiveObjects live;
  live.pid = getpid();
  for (const uint64_t address : {kContext, kOther}) live.contexts.emplace_back().address = address;
  for (const uint32_t number : {0xfeed01u, 0xfeed02u, 0xfeed03u}) {
    LiveDevxQp& qp = live.devx_qps.emplace_back();
    qp.context = kContext;
    qp.handle = qp.qp_num = number;
  }
  KnownFields known;
  LateLimits limits;  // these numbers stand nowhere
  limits.scan = {1 << 20, std::chrono::milliseconds(100)};
  LateRings late(live.pid, known, limits);
  CHECK(late.begin(live, "", kBegunNs).sends.empty());
  const auto is = [&](size_t count) {
    return late.devx_without_completions() == count && late.unplaced_qps() == count;
  };
  CHECK(is(3));
  late.told_inside(kOther, 0xfeed01);
  CHECK(is(3));
  late.told_inside(kContext, 0xfeed01);
  CHECK(is(2));
  late.told_by_command(kContext, 0xfeed02, kBegunNs - 1);
  CHECK(is(1));
  // This one made another queue pair, after the one with its number had gone.
  late.told_by_command(kContext, 0xfeed03, kBegunNs + 1);
  CHECK(is(1));
  // Once it has gone it is not looked for, and was not seen all the same.
  late.gone(kContext, ObjectKind::qp, 0xfeed03);
  late.gone(kContext, ObjectKind::cq, 0xfeed03);
  late.gone(kOther, ObjectKind::devx, 0xfeed03);
  CHECK_FALSE(late.done());
  late.gone(kContext, ObjectKind::devx, 0xfeed03);
  CHECK(late.done());
  CHECK(is(1));
}
