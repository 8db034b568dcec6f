// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The reader of a send ring: posted = seen + missed, whatever happens.
#include <random>
#include <string>

#include "observe_rig.h"

using namespace observe_rig;

TEST_CASE("observe: what is posted between two looks is seen, once, with its interval") {
  Watched watched(64);
  watched.ring.post();
  watched.ring.post(3);
  watched.look();
  watched.look();
  watched.ring.post();
  watched.look();
  REQUIRE(watched.heard.posts.size() == 3);
  watched.heard.check_posts();
  CHECK(watched.heard.posts[1].blocks == 3);
  CHECK(watched.heard.posts[1].flags & SIGMA_RING_INLINE);
  CHECK(watched.heard.posts[0].flags & SIGMA_RING_MARGIN);
  CHECK(watched.heard.posts[2].post_ns == 1'002'500);
  CHECK(watched.heard.posts[2].post_error_ns == 500);
  CHECK(watched.heard.seen == watched.ring.posted);
  CHECK(watched.heard.gaps.empty());
}

TEST_CASE("observe: seen and missed are what was posted, at any pace and across 65,536 (seeded)") {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    std::mt19937 random(seed);
    Watched watched(64);
    while (watched.ring.posted < 200'000) {
      const uint32_t burst = random() % (seed % 2 ? 40 : 150);
      for (uint32_t i = 0; i < burst; ++i) watched.ring.post(1 + random() % 3);
      watched.look(random() % 4 == 0 ? random() % 50 : 0);
    }
    watched.look();
    watched.last(watched.ring.posted);
    watched.heard.check_posts();
    CHECK(watched.heard.seen + watched.heard.missed == watched.ring.posted);
    CHECK(watched.heard.seen > 0);
    REQUIRE(watched.heard.states.back().event == SIGMA_RING_END);
    CHECK(watched.heard.states.back().posted == watched.ring.posted);
  }
}

TEST_CASE("observe: an entry without a certificate waits for a later doorbell, and is then right or missed") {
  Watched watched(64);
  for (int i = 0; i < 60; ++i) watched.ring.post();
  watched.look();  // those that stand short of a quarter of the ring from the writer wait
  const size_t at_once = watched.heard.posts.size();
  CHECK(at_once < 60);
  watched.ring.post();
  watched.look();
  watched.heard.check_posts();
  CHECK(watched.heard.seen == 61);
  CHECK(watched.heard.missed == 0);
}

TEST_CASE("observe: a writer that laps the copy gives no false post") {
  Watched watched(64);
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 50; ++i) watched.ring.post();
    watched.look(60);  // the copied slots are others already
  }
  watched.look();
  watched.last(watched.ring.posted);
  watched.heard.check_posts();
  CHECK(watched.heard.seen + watched.heard.missed == watched.ring.posted);
  CHECK(watched.heard.missed > 0);
}

TEST_CASE("observe: that a request had not completed before the copy certifies nothing of it") {
  Watched watched(64);
  for (int i = 0; i < 60; ++i) watched.ring.post();
  const LookTimes times{1000, 2000};
  const auto wanted =
      watched.reader->on_doorbell(watched.ring.doorbell(), times, PostedBounds::within_a_round(0), watched.out);
  CHECK(watched.reader->completed(2, 2));
  for (int i = 0; i < 13; ++i) watched.ring.post();
  put32(watched.ring.at(10) + 20, 0xdead);  // of request 74, whose index is written last
  const auto bytes = watched.ring.copy(wanted.first, wanted.end);
  watched.reader->on_copy(wanted, RingBytes{std::span<const std::byte>(bytes)}, watched.ring.doorbell(),
                          PostedBounds::within_a_round(wanted.end), times, watched.out);
  watched.ring.post();
  watched.ring.post();
  watched.look();
  watched.last(watched.ring.posted);
  watched.heard.check_posts();
  CHECK(watched.heard.missed > 0);
  CHECK(watched.heard.seen + watched.heard.missed == watched.ring.posted);
}

TEST_CASE("observe: a ring whose end failed goes on where its last look ended") {
  Watched watched(64);
  for (int i = 0; i < 70; ++i) watched.ring.post();
  watched.look();
  watched.ring.post();
  watched.last(64);
  REQUIRE(watched.heard.states.back().event == SIGMA_RING_END);
  CHECK(watched.heard.states.back().posted == 71);
  const uint64_t seen = watched.heard.seen;
  watched.ring.post();
  watched.reader->resume(1, watched.now, watched.out);
  watched.look();
  REQUIRE(watched.heard.states.back().event == SIGMA_RING_BEGIN);
  CHECK(watched.heard.states.back().first == 71);
  CHECK(watched.heard.states.back().life == 1);
  CHECK(watched.heard.posts.back().index == 71);
  CHECK(watched.heard.posts.back().life == 1);
  CHECK(watched.heard.seen == seen + 1);
  watched.last(72);
  CHECK(watched.heard.states.back().posted == 1);
  watched.heard.check_posts();
}

TEST_CASE("observe: the last look takes what had not been seen, and nothing twice") {
  Watched watched(64);
  for (int i = 0; i < 10; ++i) watched.ring.post();
  watched.look();
  for (int i = 0; i < 5; ++i) watched.ring.post();
  watched.last(8);  // BPF knew of 8 only
  CHECK(watched.heard.posts.size() == 15);
  watched.heard.check_posts();
  CHECK(watched.heard.seen == 15);
  CHECK(watched.heard.missed == 0);
}

TEST_CASE("observe: the last look after a long time has the newest part, the rest is a gap") {
  Watched watched(64);
  watched.look();
  for (int i = 0; i < 100; ++i) watched.ring.post();
  watched.last(100 - 64);
  CHECK(watched.heard.seen == 64);
  CHECK(watched.heard.missed == 36);
  watched.heard.check_posts();
}

TEST_CASE("observe: rounds of 65,536 before the last look are counted, or marked, by what bounds them") {
  constexpr uint64_t kMore = 65'536 + 20;
  for (const bool known : {true, false}) {
    Watched watched(64);
    for (int i = 0; i < 10; ++i) watched.ring.post();
    watched.look();
    for (uint64_t i = 0; i < kMore; ++i) watched.ring.post();
    const uint64_t posted = watched.ring.posted;
    watched.last(posted - 20, known ? PostedBounds{posted - 60, posted + 4} : PostedBounds{10, posted + 4});
    const sigma_ring& end = watched.heard.states.back();
    CAPTURE(known);
    CHECK(bool(end.flags & SIGMA_RING_MODULO) == !known);
    CHECK(end.posted == (known ? posted : posted - 65'536));
    CHECK(end.seen + end.missed == end.posted);
    CHECK(end.seen == 30);
    known ? watched.heard.check_posts() : watched.heard.check_places();
  }
}

TEST_CASE("observe: a queue that a probe explains is not read; a post beside it is") {
  Watched watched(64, SendReader::Mode::read, true);
  watched.ring.post();
  watched.reader->explain(0, 1, true);
  watched.look();
  CHECK(watched.reader->mode() == SendReader::Mode::probed);
  CHECK(watched.heard.posts.empty());
  watched.ring.post();
  watched.ring.post();
  watched.reader->explain(2, 1, true);  // nobody told of 1
  watched.look();
  watched.heard.check_posts();
  CHECK(watched.heard.seen + watched.heard.missed >= 1);
}

TEST_CASE("observe: what was overwritten is no gap where a probe has told of it, before or after") {
  Watched watched(16, SendReader::Mode::read, true);
  for (uint16_t i = 0; i < 10; ++i) {
    watched.ring.post();
    watched.reader->explain(i, 1, true);
  }
  watched.look();
  for (int i = 10; i < 100; ++i) watched.ring.post();
  watched.look();  // 84 of them are gone, and no record of them has come yet
  CHECK(watched.heard.missed == 0);
  for (uint16_t i = 10; i < 50; ++i) watched.reader->explain(i, 1, true);
  for (uint16_t i = 60; i < 100; ++i) watched.reader->explain(i, 1, true);  // 50 to 59 nobody told of
  watched.look();
  CHECK(watched.heard.missed == 0);  // the records of that time have not all come
  watched.reader->told_until(watched.now + 1);
  watched.look();
  CHECK(watched.heard.missed == 10);
  watched.reader->end(watched.now, SIGMA_GAP_ENDED, true, watched.out);
  watched.heard.take(watched.out);
  CHECK(watched.heard.missed == 10);
  watched.heard.check_posts();
}

TEST_CASE("observe: a list whose records come in pieces is one call, whatever comes between") {
  Watched watched(64, SendReader::Mode::read, true);
  const sigma::RingOwner owner = watched.reader->spec().owner;
  sigma::RingOwner other = owner;
  other.number = owner.number + 1;
  sigma::ToldPosts told;
  const auto give = [&] {
    told.give([&](const sigma::RingOwner& of, uint16_t index, uint32_t blocks, bool same_thread) {
      if (of == owner) watched.reader->explain(index, blocks, same_thread);
    });
  };
  const auto add = [&](const sigma::RingOwner& of, uint32_t tid, uint64_t call_ns, uint16_t index, uint16_t position,
                       uint32_t blocks, uint16_t flags = 0) {
    sigma_post post{};
    post.h.tid = tid;
    post.call_ns = call_ns;
    post.index = index;
    post.position = position;
    post.flags = flags;
    told.add(of, post, blocks);
  };
  uint16_t index = 0;
  for (uint64_t call = 1; call <= 200; ++call) {
    const uint32_t blocks = 1 + call % 2;
    for (uint16_t position = 0; position < 4; ++position) {
      watched.ring.post(blocks);
      add(owner, 1, call, index, position, blocks);
      if ((call + position) % 3 == 0) give();                                     // in the middle of it
      if ((call + position) % 5 == 0) add(other, 2, call, 0, position % 2, 1);  // by another CPU
    }
    index = static_cast<uint16_t>(index + 4 * blocks);
    if (call % 16 == 0) watched.look();
    watched.reader->told_until(watched.now);
  }
  // The sizes of some are not known: the next call tells where they end.
  watched.ring.post(1);
  watched.ring.post(3);
  watched.ring.post(1);
  add(owner, 1, 1000, index, 0, 1);
  give();
  add(owner, 1, 1000, index, 1, 0);
  give();
  add(owner, 1, 1000, index, 2, 1);
  give();
  index = static_cast<uint16_t>(index + 5);
  watched.ring.post();
  add(owner, 1, 1001, index, 0, 1);
  give();
  watched.look();
  watched.reader->told_until(watched.now + 1);
  watched.look();
  CHECK(watched.reader->mode() == SendReader::Mode::probed);
  CHECK(watched.heard.posts.empty());
  CHECK(watched.heard.missed == 0);
  // Behind a list that was cut short stand some that nobody has told of.
  for (int i = 0; i < 5; ++i) watched.ring.post();
  index = static_cast<uint16_t>(index + 1);
  add(owner, 1, 1002, index, 0, 0);
  add(owner, 1, 1002, index, 1, 1, SIGMA_POST_LIST_TRUNCATED);
  add(owner, 1, 1003, static_cast<uint16_t>(index + 4), 0, 1);
  give();
  watched.look();
  watched.heard.check_posts();
  CHECK(watched.heard.seen >= 3);
}

TEST_CASE("observe: a probed queue that is always busy is not taken for one with posts of its own") {
  Watched watched(1024, SendReader::Mode::read, true);
  uint16_t told = 0;
  watched.ring.post();
  watched.reader->explain(told++, 1, true);
  for (int round = 0; round < 1000; ++round) {
    for (int i = 0; i < 3; ++i) watched.ring.post();
    watched.look();  // before the records come
    while (told < watched.ring.posted) watched.reader->explain(told++, 1, true);
    watched.reader->told_until(watched.now + 1);
  }
  watched.look();
  CHECK(watched.heard.posts.empty());
  CHECK(watched.heard.missed == 0);
  watched.ring.post();
  watched.look();
  watched.reader->told_until(watched.now + 1);
  watched.look();
  CHECK(watched.heard.posts.size() == 1);  // this one nobody told of
}

TEST_CASE("observe: rounds of 65,536 that may have passed unseen are marked, from then on") {
  Watched watched(64);
  watched.ring.post();
  watched.look();
  watched.ring.post();
  watched.look(0, {1, 1 + 65'536 + 1});
  watched.ring.post();
  watched.look();
  REQUIRE(watched.heard.posts.size() == 3);
  CHECK_FALSE(watched.heard.posts[0].flags & SIGMA_RING_MODULO);
  CHECK(watched.heard.posts[1].flags & SIGMA_RING_MODULO);
  CHECK(watched.heard.posts[2].flags & SIGMA_RING_MODULO);
}

TEST_CASE("observe: rounds of 65,536 are counted where one count alone lies within the bounds") {
  for (const uint64_t more : {uint64_t{65'535}, uint64_t{65'536}, uint64_t{3} * 65'536 + 17}) {
    Watched watched(64);
    for (uint64_t i = 0; i < 48; ++i) watched.ring.post();
    watched.look();
    for (uint64_t i = 0; i < more; ++i) watched.ring.post();
    watched.look(0, {watched.ring.posted - 60, watched.ring.posted + 4});
    watched.ring.post();
    watched.look();
    CHECK(watched.reader->posted() == watched.ring.posted);
    watched.heard.check_posts();
    for (const auto& post : watched.heard.posts) CHECK_FALSE(post.flags & SIGMA_RING_MODULO);
  }
}

TEST_CASE("observe: bounds that no count with the doorbell's bits fits add no rounds, but a doubt") {
  for (const uint64_t ahead : {uint64_t{1}, uint64_t{5000}, uint64_t{65'536 - 65}, uint64_t{41} * 65'536 + 100}) {
    Watched watched(64);
    for (int i = 0; i < 40; ++i) watched.ring.post();
    watched.look();
    watched.ring.post();
    watched.look(0, {watched.ring.posted + ahead, watched.ring.posted + ahead + 64});
    watched.look();
    CHECK(watched.reader->posted() == watched.ring.posted);
    watched.reader->end(watched.now, SIGMA_GAP_ENDED, true, watched.out);
    watched.heard.take(watched.out);
    CHECK(watched.heard.seen + watched.heard.missed == watched.ring.posted);
    CHECK(watched.heard.states.back().flags & SIGMA_RING_MODULO);
  }
}

TEST_CASE("observe: whatever the bounds are, seen and missed are what is said to be posted (seeded)") {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    std::mt19937 random(seed);
    Watched watched(64);
    uint64_t rounds = 0;
    for (int look = 0; look < 200; ++look) {
      const bool long_ago = random() % 8 == 0;
      const uint64_t burst = long_ago ? random() % 400'000 : random() % 80;
      for (uint64_t i = 0; i < burst; ++i) watched.ring.post(1 + random() % 3);
      const uint64_t outstanding = std::min<uint64_t>(random() % 64, watched.ring.posted);
      // Right, none, or of something else.
      const uint64_t completed = watched.ring.posted - outstanding, other = random();
      const PostedBounds says[] = {{completed, completed + 80}, {0, ~uint64_t{0}}, {other, other + 80}};
      const uint32_t which = random() % 3;
      const bool round = watched.ring.posted - watched.reader->posted() >= 65'536;
      watched.look(0, long_ago ? says[which] : PostedBounds::within_a_round(watched.reader->posted()));
      rounds += round && which == 0;
    }
    watched.look();
    watched.last(watched.ring.posted - std::min<uint64_t>(watched.ring.posted, 64));
    watched.heard.check_places();
    const sigma_ring& end = watched.heard.states.back();
    REQUIRE(end.event == SIGMA_RING_END);
    CHECK(watched.heard.seen + watched.heard.missed == end.posted);
    CHECK((end.posted & 0xffff) == (watched.ring.posted & 0xffff));
    CHECK(rounds > 0);
  }
}

TEST_CASE("observe: a ring that was gone before its last look says so") {
  for (const bool seen : {true, false}) {
    Watched watched(64);
    watched.ring.post();
    watched.look();
    watched.reader->end(watched.now, SIGMA_GAP_ENDED, seen, watched.out);
    watched.heard.take(watched.out);
    CHECK(std::string(watched.heard.states.back().reason) == (seen ? "" : SIGMA_RING_END_UNSEEN));
  }
}

TEST_CASE("observe: a copy that was held up certifies nothing by itself; a later look decides of it") {
  for (const bool lapped : {false, true}) {
    Watched watched(64);
    for (int i = 0; i < 20; ++i) watched.ring.post();
    const LookTimes times{1000, 2000};
    const auto wanted =
        watched.reader->on_doorbell(watched.ring.doorbell(), times, PostedBounds::within_a_round(0), watched.out);
    auto bytes = watched.ring.copy(wanted.first, wanted.end);
    // Meanwhile a round may have passed, which the doorbell does not show; or it has.
    if (lapped) {
      for (int i = 0; i < 65'536; ++i) watched.ring.post();
      bytes = watched.ring.copy(wanted.first, wanted.end);
    }
    watched.reader->on_copy(wanted, RingBytes{std::span<const std::byte>(bytes)}, watched.ring.doorbell(),
                            {wanted.end, wanted.end + 65'536 + 64}, times, watched.out);
    watched.heard.take(watched.out);
    CHECK(watched.heard.posts.empty());
    watched.ring.post();
    watched.look(0, {watched.ring.posted - 5, watched.ring.posted + 5});
    watched.last(watched.ring.posted);
    watched.heard.check_posts();
    CHECK((watched.heard.posts.front().index < 20) == !lapped);
    CHECK(watched.heard.seen == (lapped ? 64 : 21));
    CHECK(watched.heard.seen + watched.heard.missed == watched.ring.posted);
  }
}

TEST_CASE("observe: what waits for a later doorbell is given up where there will be none, but for the last look") {
  for (const bool last : {false, true}) {
    Watched watched(64);
    for (int i = 0; i < 60; ++i) watched.ring.post();
    watched.look(2);  // two more between the doorbell's copy and the blocks'
    REQUIRE(watched.heard.posts.empty());
    if (last)
      watched.last(60);
    else
      watched.reader->end(watched.now, SIGMA_GAP_ENDED, true, watched.out);
    watched.heard.take(watched.out);
    // Who goes on posting may have been writing over them, by which no doorbell was moved yet.
    CHECK(watched.heard.posts.size() == (last ? 62 : 48 - 2));
    watched.heard.check_posts();
    const sigma_ring& end = watched.heard.states.back();
    CHECK(end.seen + end.missed == end.posted);
  }
}
