// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How often a doorbell's 16 bits went round: said where it is known, and that it is not where it is not.
#include "observe/laps.h"

#include <random>

#include "observe_rig.h"

using namespace observe_rig;

namespace {

using sigma::CompletionLook;
using sigma::CqReader;
using sigma::posted_bounds;

constexpr uint64_t kLong = 3'600'000'000'000;  // for which time bounds nothing
constexpr uint64_t kShort = 1'000;             // that a copy takes

// A queue pair, its completion ring, and their readers.
struct Pair {
  explicit Pair(uint32_t blocks = 1024, uint32_t entries = 1024, bool collapsed = false)
      : ring(blocks), cq(collapsed ? 1 : entries, 64), send(spec_of(ring), 0, SendReader::Mode::read, false) {
    sigma::CqSpec spec;
    spec.owner = {.pid = 7, .context = 1, .by_file = false, .number = 3};
    spec.ring_addr = 0x1000;
    spec.ring = {.entries = cq.entries, .entry_bytes = 64, .collapsed = collapsed};
    completions = std::make_unique<CqReader>(spec, 0, [this](uint32_t number) { return number == kQp ? &send : nullptr; });
  }

  // `posts` requests of one block; every `each`th asks for a completion, and has it.
  void run(uint64_t posts, uint64_t each, bool consume = true) {
    for (uint64_t i = 1; i <= posts; ++i) {
      ring.post();
      if (each != 0 && i % each == 0) complete(ring.posted - 1);
    }
    if (consume) cq.consumed = cq.produced;
  }
  void complete(uint64_t position) { cq.complete(static_cast<uint16_t>(position)); }

  // What a look shows before anything of it is taken in. `keeps`: the owner stores its index.
  CompletionLook first_copy(bool generous = true) {
    const uint32_t consumer = keeps ? cq.consumed & 0xffffff : 0;
    const auto wanted = reads ? completions->wanted(generous, consumer) : CqReader::Wanted{};
    bytes = cq.copy(wanted.first, wanted.count);
    return {.reader = completions.get(),
            .wanted = wanted,
            .entries = RingBytes{std::span<const std::byte>(bytes)},
            .consumer = consumer,
            .consumed_before = consumed,
            .shared = shared};
  }
  // The count as a look finds it that comes so long after the one before. nullopt: it is not known.
  std::optional<uint64_t> count(uint64_t elapsed_ns = kLong, uint64_t copy_ns = kShort) {
    CompletionLook look = first_copy();
    return count(look, elapsed_ns, copy_ns);
  }
  std::optional<uint64_t> count(CompletionLook& look, uint64_t elapsed_ns = kLong, uint64_t copy_ns = kShort) {
    return posted_bounds(send, ring.doorbell(), elapsed_ns, copy_ns, &look).only(ring.doorbell());
  }
  // Takes in what is there, soon after the look before.
  void look() {
    now += 1000;
    const LookTimes times{now - 1000, now};
    const auto wanted = send.on_doorbell(ring.doorbell(), times, PostedBounds::within_a_round(send.posted()), out);
    if (wanted.any()) {
      const auto blocks = ring.copy(wanted.first, wanted.end);
      send.on_copy(wanted, RingBytes{std::span<const std::byte>(blocks)}, ring.doorbell(),
                   PostedBounds::within_a_round(wanted.end), times, out);
    }
    for (int i = 0; i < 3; ++i) {
      const CompletionLook look = first_copy();
      if (look.wanted.count == 0) continue;
      if (completions->has_news(look.wanted, look.entries))
        completions->on_copies(look.wanted, look.entries, look.entries, look.consumer, times, out);
      else
        completions->on_nothing(look.consumer);
    }
    consumed = cq.consumed;
  }

  Ring ring;
  CqRing cq;
  SendReader send;
  std::unique_ptr<CqReader> completions;
  bool keeps = true, reads = true, shared = false;
  uint64_t consumed = 0, now = 1'000'000;
  RecordBuffer out;
  std::vector<std::byte> bytes;
};

}  // namespace

TEST_CASE("laps: by time alone, as many requests as a device executes, as large as they were") {
  for (const uint32_t wide : {1u, 4u, 15u}) {
    Pair pair;
    pair.ring.post(wide);
    pair.look();
    REQUIRE(pair.send.largest_request() == wide);
    // A round of 65,536 takes 2.5 ms at one block each.
    const uint64_t round_ns = 2'500'000 / wide;
    const auto known = [&](uint64_t ns) {
      return posted_bounds(pair.send, pair.ring.doorbell(), ns, kShort, nullptr).only(pair.ring.doorbell()).has_value();
    };
    CHECK(known(round_ns * 9 / 10));
    CHECK_FALSE(known(round_ns * 11 / 10));
    CHECK_FALSE(known(kLong));
  }
  Pair unseen;
  CHECK(posted_bounds(unseen.send, 0, 1'200'000, kShort, nullptr).only(0));
  CHECK_FALSE(posted_bounds(unseen.send, 0, 1'300'000, kShort, nullptr).only(0));
}

TEST_CASE("laps: completions tell, after however long") {
  for (const bool keeps : {true, false})  // else the last entry read shows that none was overwritten
    for (const uint64_t each : {uint64_t{300}, uint64_t{512}, uint64_t{1024}})
      for (const uint64_t posts : {uint64_t{3}, uint64_t{65'530}, uint64_t{65'536}, uint64_t{65'540}, uint64_t{90'000}}) {
        Pair pair;
        pair.keeps = keeps;
        pair.run(200, 100);
        pair.look();
        pair.run(posts, each);
        CAPTURE(keeps, each, posts);
        CHECK(pair.count() == pair.ring.posted);
      }
}

TEST_CASE("laps: completions of many queue pairs tell of each, as do all of one among receives") {
  for (const bool shared : {true, false}) {
    Pair pair(1024, 1024);
    pair.shared = shared;
    pair.run(200, 100);
    pair.look();
    for (int i = 0; i < 70; ++i) {
      pair.run(1024, 1024);
      // Of another queue pair, or of a receive.
      std::byte* entry = pair.cq.memory.data() + (pair.cq.produced & 1023) * 64;
      pair.complete(pair.ring.posted + 30'000);
      if (shared)
        put32(entry + 56, 0x08u << 24 | (kQp + 1));
      else
        entry[63] |= std::byte{0x20};
    }
    pair.cq.consumed = pair.cq.produced;
    CAPTURE(shared);
    CHECK(pair.count() == pair.ring.posted);
  }
}

TEST_CASE("laps: no completion, no round") {
  Pair pair;
  pair.run(300, 1);
  pair.look();
  CHECK(pair.count() == 300);
  pair.run(700, 0);
  CHECK(pair.count() == 1000);
  // Another queue's completions are not this one's.
  std::vector<std::byte> before = pair.cq.memory;
  for (int i = 0; i < 40; ++i) {
    std::byte* entry = pair.cq.memory.data() + (pair.cq.produced & 1023) * 64;
    pair.complete(0);
    put32(entry + 56, 0x08u << 24 | (kQp + 1));
  }
  pair.cq.consumed = pair.cq.produced;
  CHECK(pair.count() == 1000);
}

TEST_CASE("laps: a doorbell that was read long after the completions may have gone round since") {
  Pair pair;
  pair.run(200, 1);
  pair.look();
  pair.run(50, 1);
  CompletionLook look = pair.first_copy();
  // Held up here: what the copy shows is right, and a round short.
  pair.ring.posted += 65'536;
  CHECK_FALSE(pair.count(look, kLong, 4'000'000));
  CHECK(pair.count(look, kLong, kShort) == 250);  // as if it could not be
  pair.ring.posted -= 65'536;
  CHECK(pair.count(look, 2'000'000, 1'000'000) == 250);  // too short a time
}

TEST_CASE("laps: overwritten completions do not tell, unless all were alike and this queue's alone") {
  for (const bool shared : {false, true})
    for (const uint64_t posts : {uint64_t{5'000}, uint64_t{66'000}, uint64_t{200'000}}) {
      Pair pair(1024, 256);
      pair.shared = shared;
      for (int i = 0; i < 20; ++i) {
        pair.run(20, 1);
        pair.look();
      }
      REQUIRE(pair.send.blocks_per_completion() == 1);
      pair.run(posts, 1);
      CAPTURE(shared, posts);
      if (shared && posts > 65'000)
        CHECK_FALSE(pair.count());
      else
        CHECK(pair.count() == pair.ring.posted);
    }
}

TEST_CASE("laps: completions that were not alike after all are found out by the index of the newest") {
  Pair pair(1024, 256);
  for (int i = 0; i < 20; ++i) {
    pair.run(20, 1);
    pair.look();
  }
  // Every second asks for one: so many more were posted that the doorbell alone would fit.
  pair.run(132'072, 2);
  pair.run(300, 1);
  REQUIRE(static_cast<uint16_t>(pair.ring.posted - pair.cq.produced) <= 1024);
  CHECK_FALSE(pair.count());
}

TEST_CASE("laps: an owner's index that is not kept is not believed against the last entry read") {
  for (const bool keeps : {true, false}) {
    Pair pair(64, 32);
    pair.keeps = keeps;
    for (int i = 0; i < 40; ++i) {
      pair.run(4, 1, i == 0);  // the device is let overrun it
      pair.look();
    }
    CHECK(pair.count() == pair.ring.posted);
    pair.run(65'536, 1, false);
    CHECK_FALSE(pair.count());
  }
}

TEST_CASE("laps: the first completions tell where some have never been written") {
  for (const bool keeps : {true, false}) {
    Pair pair(64, 32);
    pair.keeps = keeps;
    CHECK(pair.count() == 0);
    pair.run(20, 1);
    CHECK(pair.count() == 20);
  }
  Pair pair(64, 32);
  pair.keeps = false;
  pair.run(64 + 20, 1);  // two laps on, they look like the first
  CHECK_FALSE(pair.count());
}

TEST_CASE("laps: a collapsed ring tells that nothing has completed, and no more") {
  Pair pair(1024, 1, true);
  pair.keeps = false;
  CHECK(pair.count() == 0);
  pair.run(20, 20);
  pair.look();
  CHECK(pair.count() == 20);
  pair.run(600, 0);
  CHECK(pair.count() == 620);
  pair.complete(300);
  CHECK_FALSE(pair.count());
  CHECK(pair.count(2'000'000) == 620);  // too short a time
}

TEST_CASE("laps: completions that are not read are counted by their owner") {
  Pair pair(16, 64);
  pair.run(16, 1);
  pair.look();
  pair.reads = false;
  pair.run(3'000, 1);
  REQUIRE(pair.send.blocks_per_completion() == 1);
  CHECK(pair.count() == pair.ring.posted);
  pair.run(65'000, 1);
  CHECK_FALSE(pair.count());
}

TEST_CASE("laps: a GPU's doorbell record may be behind its completions") {
  Pair pair;
  pair.run(200, 1);
  pair.look();
  pair.run(500, 100);
  CompletionLook look = pair.first_copy();
  const auto record = static_cast<uint16_t>(pair.ring.posted - 100);
  CHECK_FALSE(posted_bounds(pair.send, record, kLong, kShort, &look).only(record));
  pair.send.set_gpu_initiated(pair.now, pair.out);
  CHECK(posted_bounds(pair.send, record, kLong, kShort, &look).only(record) == pair.ring.posted - 100);
}

TEST_CASE("laps: how far each queue pair has come, by one pass over completions of all (seeded)") {
  std::mt19937 random(7);
  constexpr uint32_t kQueues = 300;  // more than have places of their own
  std::vector<uint64_t> posted(kQueues), last(kQueues);
  sigma::ReachedIndices reached;
  for (uint64_t& each : posted) each = 1'000'000 + random() % 200'000;
  for (int i = 0; i < 20'000; ++i) {
    const uint32_t queue = random() % (kQueues - 1);  // one has no entry
    // The first may be behind what was known; from one to the next there is less than a ring.
    last[queue] = last[queue] == 0 ? posted[queue] + random() % 60'000 - 30'000 : last[queue] + 1 + random() % 32'768;
    reached.add(7 * queue, static_cast<uint16_t>(last[queue]));
  }
  for (uint32_t queue = 0; queue + 1 < kQueues; ++queue)
    CHECK(reached.of(7 * queue, posted[queue], 32'768) == last[queue]);
  CHECK(reached.of(7 * (kQueues - 1), posted.back(), 32'768) == posted.back());
}

TEST_CASE("laps: entries that the library has moved are not taken for a round") {
  sigma::ReachedIndices reached;
  for (const uint16_t index : {10, 12, 11, 13}) reached.add(kQp, index);
  CHECK_FALSE(reached.of(kQp, 20, 64));
}
