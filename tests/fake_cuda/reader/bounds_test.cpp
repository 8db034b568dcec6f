// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How many requests there can have been, and when, where the records and completions that the reader finds do
// not say it alone: rounds of 65,536, laps, queues without a doorbell record.
#include <unistd.h>

#include <string>
#include <vector>

#include "reader/observed.h"
#include "reader/rig.h"

using namespace rig;
using sigma::gpu::SamplerOptions;

TEST_CASE("after a pause counts are modulo 65,536 only where so many may have been posted") {
  const Driver driver;
  struct Case {
    uint32_t entries;  // of the completion queue; 0: collapsed
    bool posts, modulo;
    uint32_t blocks = 128;
  };
  const Case each =
      GENERATE(Case{256, true, false}, Case{0, false, false}, Case{0, true, true},
               Case{0, true, false, 1024});  // its ring shows that it is in its first lap
  CAPTURE(each.entries, each.posts);
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  DeviceQueue queue({.blocks = each.blocks, .cq_entries = each.entries});
  SamplerOptions options = patient();
  options.most_posts_per_s = 1'000'000'000'000'000;  // every look comes after a pause
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  const auto post = [&] {
    for (int i = 0; i < 20; ++i) queue.post(i % 4 == 0);
    queue.ring_doorbell();
    queue.complete_all();
  };
  for (int round = 0; round < 5; ++round) {
    if (each.posts) post();
    observed.look();
    observed.look();
  }
  observed.end_all();
  CHECK(compare(queue).missed == 0);
  bool modulo = false;
  for (const sigma_ring& ring : Records::get().rings)
    modulo |= (ring.flags & SIGMA_RING_MODULO) != 0;
  CHECK(modulo == each.modulo);
}

TEST_CASE("a round of 65,536 between two looks is counted where the completion queue has it all") {
  const Driver driver;
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  DeviceQueue queue({.blocks = 128, .cq_entries = 2048});
  SamplerOptions options = patient();
  options.most_posts_per_s = 1'000'000'000'000'000;
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  auto random = random_numbers(19);
  for (const uint64_t blocks :
       {uint64_t{20}, 65'536 + random() % 100, 65'536 * 2 + random() % 30'000, uint64_t{30}}) {
    for (const uint64_t end = queue.posted + blocks; queue.posted < end;) {
      queue.post(random() % 8 == 0);
      queue.ring_doorbell();
      while (queue.posted - queue.completed > 100) {
        // Of those that make room, the last one completes.
        for (int i = 0; i < 80 && queue.completed + 2 < queue.posted; ++i)
          queue.complete_unsignaled();
        queue.complete_next();
      }
    }
    observed.look();
    observed.look();
  }
  observed.end_all();
  const Verdict verdict = compare(queue);
  CHECK(verdict.seen + verdict.missed == posted_of(queue));
  CHECK(verdict.missed > 65'536 * 3);
  for (const sigma_ring& ring : Records::get().rings) CHECK_FALSE(ring.flags & SIGMA_RING_MODULO);
}

TEST_CASE("a queue without a doorbell record is followed by its completions") {
  const Driver driver;
  const uint32_t entries = GENERATE(0u, 32u);
  Records::get().posts.clear(), Records::get().gaps.clear();
  DeviceQueue queue({.blocks = 128, .cq_entries = entries, .doorbell_record = false});
  auto random = random_numbers(5);
  Observed observed(patient());
  observed.add(queue);
  observed.refresh();
  for (int round = 0; round < 200; ++round) {
    for (unsigned i = random() % 12; i > 0; --i) queue.post(random() % 4 == 0);
    queue.complete_all();
    observed.look();
  }
  observed.look();
  observed.end_all();
  CHECK(compare(queue).missed == 0);
}

TEST_CASE(
    "a post is bounded by the look that found its slot unwritten, not by the doorbell record") {
  const Driver driver;
  const bool doorbell_record = GENERATE(true, false);
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  const uint32_t entries = GENERATE(0u, 64u);
  DeviceQueue queue({.blocks = 128,
                     .cq_entries = entries,
                     .doorbell_record = doorbell_record,
                     .stack = SIGMA_GPU_STACK_DOCA});
  Observed observed(patient());
  observed.add(queue);
  observed.refresh();
  std::vector<uint64_t> unwritten_ns;
  auto random = random_numbers(17);
  for (int round = 0; round < 100; ++round) {
    observed.look();
    const uint64_t ns = now_ns();
    observed.look();
    for (unsigned i = 1 + random() % 6; i > 0; --i) {
      queue.post(random() % 4 == 0);
      unwritten_ns.push_back(ns);
    }
    // The record and the completion lag by a few looks.
    for (unsigned i = random() % 4; i > 0; --i) observed.look();
    queue.ring_doorbell();
    queue.complete_all();
    observed.look();
  }
  observed.look();
  observed.end_all();
  CHECK(compare(queue).missed == 0);
  const auto& posts = Records::get().posts;
  REQUIRE(posts.size() == unwritten_ns.size());
  for (size_t i = 0; i < posts.size(); ++i) {
    REQUIRE(posts[i].post_ns != 0);
    // No wider than it must be: a look later than that found it unwritten.
    CHECK(posts[i].post_ns - posts[i].post_error_ns >= unwritten_ns[i]);
  }
  for (const sigma_ring& ring : Records::get().rings)
    if (ring.kind == SIGMA_RING_SEND && ring.event == SIGMA_RING_END)
      CHECK(std::string(ring.reason) != SIGMA_RING_END_UNSEEN);
}

TEST_CASE(
    "of a queue without a doorbell record the end is known when nothing is written behind it") {
  const Driver driver;
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  DeviceQueue queue({.blocks = 128, .doorbell_record = false});
  Observed observed(patient());
  observed.add(queue);
  observed.refresh();
  for (int i = 0; i < 10; ++i) queue.post();
  for (int i = 0; i < 7; ++i) queue.complete_next();
  observed.look();
  observed.end_all();
  // Three more stand there: nobody knows whether they were rung for.
  size_t ends = 0;
  for (const sigma_ring& ring : Records::get().rings) {
    if (ring.kind != SIGMA_RING_SEND || ring.event != SIGMA_RING_END) continue;
    ++ends;
    CHECK(ring.posted == 7);
    CHECK(std::string(ring.reason) == "its end was not seen");
  }
  CHECK(ends == 1);
}

TEST_CASE("a completion ring that went round before its first look moves its queue all the same") {
  const Driver driver;
  struct Case {
    uint32_t entries;  // all of them are copied at once, or only what is likely
    bool looked_at;    // before its end, at which all of them are
    uint64_t posted;
  };
  const Case each = GENERATE(Case{16, true, 100}, Case{16, false, 40}, Case{32, true, 100},
                             Case{32, false, 100}, Case{64, false, 70});
  CAPTURE(each.entries, each.looked_at, each.posted);
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  DeviceQueue queue({.blocks = 128, .cq_entries = each.entries, .doorbell_record = false});
  Observed observed(patient());
  observed.add(queue);
  observed.refresh();
  while (queue.posted < each.posted) {
    queue.post(queue.posted % 8 == 3);
    queue.complete_next();
  }
  if (each.looked_at)
    for (int i = 0; i < 3; ++i) observed.look();
  observed.end_all();
  const Verdict verdict = compare(queue);
  CHECK(verdict.seen + verdict.missed == posted_of(queue));
}

TEST_CASE("of a queue that may have been lapped, old slots do not show where it ended") {
  const Driver driver;
  struct Case {
    uint64_t before, lap, after;  // posted: seen at once, while nobody looks, before the end
    bool looked_at;               // between them
    bool known;
  };
  // After a few less than 65,536 the newest completion is one that was told, and the slots behind
  // it are those of a lap ago.
  const Case each = GENERATE(Case{20, 65'530, 0, true, false}, Case{20, 65'530, 0, false, false},
                             Case{20, 65'530, 3, true, false}, Case{20, 65'530, 60, true, true},
                             Case{20, 0, 0, true, true});
  CAPTURE(each.lap, each.after, each.looked_at);
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  DeviceQueue queue({.blocks = 128, .doorbell_record = false, .stack = SIGMA_GPU_STACK_DOCA});
  SamplerOptions options = patient();
  options.most_posts_per_s = 131'072;  // 65,536 may be posted in half a second
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  const auto post = [&](uint64_t blocks) {
    for (uint64_t i = 0; i < blocks; ++i) {
      queue.post();
      queue.complete_next();
    }
  };
  post(each.before);
  observed.look();
  observed.look();
  const uint64_t looked_ns = now_ns();
  post(each.lap);
  while (now_ns() - looked_ns < 520'000'000) usleep(1000);
  if (each.looked_at) observed.look();
  post(each.after);
  if (each.after) observed.look();
  observed.end_all();
  size_t ends = 0;
  for (const sigma_ring& ring : Records::get().rings) {
    if (ring.kind != SIGMA_RING_SEND || ring.event != SIGMA_RING_END) continue;
    ++ends;
    CHECK((std::string(ring.reason) != SIGMA_RING_END_UNSEEN) == each.known);
    if (each.known) CHECK((queue.posted - ring.posted) % 65'536 == 0);
  }
  CHECK(ends == 1);
}
