// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The reader of a completion ring: each entry once, and what was missed is counted.
#include "observe_rig.h"

using namespace observe_rig;

TEST_CASE("observe: completions are read in order, each once, in entries of 64 and 128 bytes") {
  for (const uint32_t stride : {64u, 128u}) {
    WatchedCq watched(32, stride, true);
    for (uint32_t round = 0; round < 100; ++round) {
      for (uint32_t i = 0; i < round % 20; ++i)
        watched.ring.complete(static_cast<uint16_t>(watched.ring.produced));
      do watched.look();
      while (watched.reader->next() < watched.ring.produced);
      watched.ring.consumed = watched.ring.produced;
    }
    REQUIRE(watched.heard.completions.size() == watched.ring.produced);
    for (size_t i = 0; i < watched.heard.completions.size(); ++i)
      CHECK(watched.heard.completions[i].wqe_counter == (i & 0xffff));
    CHECK(watched.heard.missed == 0);
  }
}

TEST_CASE("observe: sessions that a copy cuts were there since it was made, and the next copies are longer") {
  for (const uint32_t stride : {64u, 128u}) {
    WatchedCq watched(4096, stride, false, sigma::CqLayout::compressed_basic);
    watched.look();
    const uint64_t begin_ns = watched.now, end_ns = begin_ns + 1000;
    for (int i = 0; i < 50; ++i) watched.ring.complete_session(20);
    int looks = 0;
    for (; watched.heard.completions.size() < 1000 && looks < 8; ++looks) watched.look();
    REQUIRE(watched.heard.completions.size() == 1000);
    CHECK(looks < 8);
    CHECK(watched.heard.missed == 0);
    size_t wrong = 0;
    for (size_t i = 0; i < 1000; ++i) {
      const sigma_ring_completion& completion = watched.heard.completions[i];
      const uint64_t earliest_ns = completion.complete_ns - completion.complete_error_ns;
      wrong += completion.wqe_counter != i || earliest_ns > begin_ns + 1 || completion.complete_ns < begin_ns ||
               end_ns > completion.complete_ns + completion.complete_error_ns;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("observe: overwritten completions are counted by the consumer's index") {
  WatchedCq watched(32, 64, true);
  watched.ring.complete(0);
  watched.look();
  watched.ring.consumed = 1;
  watched.look();
  for (int i = 1; i < 500; ++i) watched.ring.complete(static_cast<uint16_t>(i));
  watched.ring.consumed = 500;
  for (int i = 0; i < 20; ++i) watched.look();
  CHECK(watched.heard.completions.size() + watched.heard.missed == 500);
  // The oldest that still stands may be about to be overwritten: nothing shows that it is not.
  CHECK(watched.heard.missed == 500 - 1 - 31);
}

TEST_CASE("observe: after a stall two looks take all that the owner has passed, and a lap's losses are one gap") {
  WatchedCq watched(1024, 64, true);
  const auto produce = [&](uint64_t count) {
    for (; count > 0; --count) watched.ring.complete(static_cast<uint16_t>(watched.ring.produced));
  };
  produce(8);
  watched.look();
  watched.ring.consumed = 8;
  watched.look();
  produce(700);
  watched.ring.consumed = 700;
  watched.look();  // tells how far the owner is
  watched.look();
  CHECK(watched.reader->next() >= 700);
  while (watched.reader->next() < 708) watched.look();
  CHECK(watched.heard.completions.size() == 708);
  CHECK(watched.heard.missed == 0);

  produce(1500);  // the device is a lap ahead of the reader, and not of the owner
  watched.ring.consumed = watched.ring.produced - 900;
  watched.look();
  watched.look();
  while (watched.reader->next() < watched.ring.produced) watched.look();
  CHECK(watched.heard.completions.size() + watched.heard.missed == watched.ring.produced);
  CHECK(watched.heard.missed >= 1500 - 1024);
  CHECK(watched.heard.missed <= 1500 - 1024 + 1);
  CHECK(watched.heard.gaps.size() <= 3);
}

TEST_CASE("observe: the first completion is read also by a reader that comes late in the first lap") {
  for (const uint64_t consumed : {9u, 20u, 31u}) {
    WatchedCq watched(32, 64, true);
    for (uint64_t i = 0; i < std::min<uint64_t>(consumed + 2, 31); ++i)
      watched.ring.complete(static_cast<uint16_t>(watched.ring.produced));
    watched.ring.consumed = std::min(consumed, watched.ring.produced);
    for (int i = 0; i < 8; ++i) watched.look();
    CHECK(watched.heard.missed == 0);
    REQUIRE(watched.heard.completions.size() == watched.ring.produced);
    CHECK(watched.heard.completions[0].wqe_counter == 0);
  }
}

TEST_CASE("observe: the first completion is doubtful once the next lap may have begun") {
  WatchedCq watched(32, 64, true);
  for (int i = 0; i < 32; ++i) watched.ring.complete(static_cast<uint16_t>(watched.ring.produced));
  watched.ring.consumed = 20;
  for (int i = 0; i < 8; ++i) watched.look();
  CHECK(watched.heard.missed == 1);
  CHECK(watched.heard.completions.size() == 31);
}

TEST_CASE("observe: the last lap of a ring that nobody counts is read from its last copy") {
  // So many entries were read, and so many more came before the end.
  for (const uint64_t read : {0u, 1u, 40u})
    for (const uint64_t more : {3u, 20u, 31u, 33u, 50u, 63u, 100u}) {
      WatchedCq watched(32, 64, false);
      for (uint64_t i = 0; i < read; ++i) {
        watched.ring.complete(static_cast<uint16_t>(watched.ring.produced));
        watched.look();
      }
      REQUIRE(watched.heard.completions.size() == read);
      for (uint64_t i = 0; i < more; ++i) watched.ring.complete(static_cast<uint16_t>(watched.ring.produced));
      const uint64_t first = read - std::min<uint64_t>(read, 7);
      const auto bytes = watched.ring.copy(first, 32);
      watched.reader->on_last(first, RingBytes{std::span<const std::byte>(bytes)}, 0, {watched.now, watched.now + 10},
                              watched.out);
      watched.reader->end(watched.now + 10, watched.out);
      watched.heard.take(watched.out);
      CAPTURE(read, more);
      // Without an entry that was read before, more than two laps cannot be told from none.
      if (read == 0 && more > 63) continue;
      const uint64_t told = watched.heard.completions.size() - read;
      CHECK(told >= std::min<uint64_t>(more, 31));
      CHECK(watched.heard.completions.back().wqe_counter == watched.ring.produced - 1);
      CHECK((told + watched.heard.missed - more) % 64 == 0);
      for (size_t i = 1; i < watched.heard.completions.size(); ++i)
        CHECK(watched.heard.completions[i].wqe_counter > watched.heard.completions[i - 1].wqe_counter);
    }
}

TEST_CASE("observe: completions that are only counted for a while are missed as they are overwritten") {
  WatchedCq watched(32, 64, true);
  const auto complete = [&](int count) {
    for (int i = 0; i < count; ++i) watched.ring.complete(static_cast<uint16_t>(watched.ring.produced));
  };
  complete(5);
  watched.look();
  watched.look();
  watched.ring.consumed = 5;
  watched.look();
  REQUIRE(watched.heard.completions.size() == 5);
  watched.reader->set_counted(true, "observer cpu", watched.now, watched.out);
  REQUIRE_FALSE(watched.reader->is_read());
  for (int round = 0; round < 10; ++round) {
    complete(20);
    watched.ring.consumed = watched.ring.produced - 3;
    watched.now += 1000;
    watched.reader->on_counted(watched.ring.consumed & 0xffffff, {}, {watched.now - 1000, watched.now}, watched.out);
  }
  watched.heard.take(watched.out);
  CHECK(watched.heard.missed == watched.ring.consumed - 32 - 5);
  CHECK(watched.heard.completions.size() == 5);
  for (const auto& gap : watched.heard.gaps) CHECK(gap.reason == SIGMA_GAP_COUNTED);
  CHECK(watched.heard.states.back().mode == SIGMA_RING_COUNTED);
  watched.reader->set_counted(false, "", watched.now, watched.out);
  complete(4);  // over the oldest of the last lap
  for (int i = 0; i < 10; ++i) watched.look();
  watched.reader->end(watched.now, watched.out);
  watched.heard.take(watched.out);
  CHECK(watched.heard.completions.size() > 5 + 20);
  CHECK(watched.heard.completions.back().wqe_counter == watched.ring.produced - 1);
  CHECK(watched.heard.completions.size() + watched.heard.missed == watched.ring.produced);
}

TEST_CASE("observe: completions of a ring that counts nobody's laps are read also where others are counted") {
  WatchedCq watched(32, 64, false);
  watched.reader->set_counted(true, "observer cpu", watched.now, watched.out);
  CHECK(watched.reader->is_read());
  watched.ring.complete(0);
  watched.look();
  CHECK(watched.heard.completions.size() == 1);
}

TEST_CASE("observe: a lap on a ring that counts nobody's laps is noticed") {
  WatchedCq watched(32, 64, false);
  for (int i = 0; i < 10; ++i) watched.ring.complete(static_cast<uint16_t>(i));
  for (int i = 0; i < 5; ++i) watched.look();
  CHECK(watched.heard.completions.size() == 10);
  for (int i = 10; i < 70; ++i) watched.ring.complete(static_cast<uint16_t>(i));
  for (int i = 0; i < 5; ++i) watched.look();
  watched.ring.complete(70);
  for (int i = 0; i < 5; ++i) watched.look();
  CHECK(watched.heard.missed > 0);
  CHECK(watched.heard.completions.back().wqe_counter == 70);
}

// The device writes a last entry to the old ring, and goes on in the new one; what the library had not
// consumed it copies there, one place further on, after the command has returned.
TEST_CASE("observe: a resized ring is read from where the old one ended, before and after the library has copied") {
  for (const uint64_t consumed : {0u, 5u})
    for (const uint32_t entries : {8u, 16u, 64u}) {
      WatchedCq watched(32, 64, true);
      for (uint16_t i = 0; i < 5; ++i) watched.ring.complete(i);
      for (int i = 0; i < 3; ++i) watched.look();
      watched.ring.consumed = consumed;
      watched.look();
      for (uint16_t i = 5; i < 7; ++i) watched.ring.complete(i);  // after the last look at it

      CqRing fresh(entries, 64);
      fresh.produced = watched.ring.produced + 1;
      watched.ring = fresh;
      watched.ring.consumed = consumed;
      sigma::CqSpec spec = watched.reader->spec();
      spec.ring.entries = entries;
      watched.reader->on_resized(spec);
      watched.ring.complete(7);
      watched.look();
      CHECK(watched.heard.completions.size() == 5);
      for (uint64_t i = consumed; i < 7; ++i) watched.ring.write(i + 1, static_cast<uint16_t>(i));
      for (uint16_t i = 8; i < 100; ++i) {
        for (int n = 0; n < 3; ++n) watched.look();
        watched.ring.consumed = watched.ring.produced;
        watched.ring.complete(i);
      }
      for (int n = 0; n < 3; ++n) watched.look();
      INFO("consumed " << consumed << ", entries " << entries);
      CHECK(watched.heard.missed == 0);
      REQUIRE(watched.heard.completions.size() == 100);
      for (size_t i = 0; i < 100; ++i) CHECK(watched.heard.completions[i].wqe_counter == i);
    }
}

TEST_CASE("observe: an owner's index that is first seen after many laps counts them") {
  WatchedCq watched(32, 64, true);
  for (uint16_t i = 0; i < 5; ++i) watched.ring.complete(i);
  for (int i = 0; i < 2; ++i) watched.look();  // its owner has consumed none yet
  REQUIRE(watched.heard.completions.size() == 5);
  for (uint16_t i = 5; i < 1000; ++i) watched.ring.complete(i);
  watched.ring.consumed = 998;
  for (int i = 0; i < 10; ++i) watched.look();
  CHECK(watched.heard.completions.size() + watched.heard.missed == 1000);
  for (const auto& completion : watched.heard.completions) CHECK(completion.cq_index == completion.wqe_counter);
}
