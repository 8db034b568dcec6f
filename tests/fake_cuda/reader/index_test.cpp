// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A stack's own producer index, and words that look like one: an index says how often the doorbell
// record's 16 bits went round while nobody looked, a decoy changes nothing.
#include <unistd.h>

#include <cstring>

#include "gpu_interpose/producer_index.h"
#include "reader/observed.h"
#include "reader/rig.h"

using namespace rig;
using sigma::gpu::ProducerIndex;
using sigma::gpu::SamplerOptions;
using State = ProducerIndex::State;

namespace {

constexpr uint64_t kRound = 65'536;
constexpr uint64_t kFast = 1'000'000'000'000;  // blocks in a second

void post(DeviceQueue& queue, uint64_t blocks) {
  for (const uint64_t end = queue.posted + blocks; queue.posted < end;) {
    for (int i = 0; i < 32 && queue.posted < end; ++i) queue.post();
    queue.ring_doorbell();
    queue.complete_all();
  }
}

// In plain sight across a round, so that a right one is certified.
ProducerIndex certified(uint32_t behind = 0) {
  ProducerIndex index;
  index.begin(0x1000, 128, behind, true);
  for (const uint64_t at : {uint64_t{10}, uint64_t{60'000}, kRound + 5})
    index.check({at, at}, at, true, 0);
  return index;
}

}  // namespace

TEST_CASE("a producer index counts what the record's 16 bits do not, and no decoy does") {
  const Driver driver;
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  constexpr Index kIndices[] = {Index::right,   Index::none,    Index::narrow,
                                Index::shifted, Index::stopped, Index::leaping};
  const bool mapped = GENERATE(false, true);
  std::vector<std::unique_ptr<DeviceQueue>> queues;
  SamplerOptions options = patient();
  options.most_posts_per_s = 20'000;  // 65,536 may be posted in 3.3 s
  Observed observed(options, mapped);
  for (const Index index : kIndices) {
    queues.push_back(
        std::make_unique<DeviceQueue>(Shape{.qp_num = 0x100 + static_cast<uint32_t>(queues.size()),
                                            .stack = SIGMA_GPU_STACK_NVSHMEM,
                                            .index = index,
                                            .index_until = kRound + 500}));
    observed.add(*queues.back());
  }
  observed.refresh();
  for (const uint64_t blocks : {20, 40'000, 20, 25'600, 20}) {
    for (auto& queue : queues) post(*queue, blocks);
    for (int i = 0; i < 17; ++i) observed.look();
  }
  CHECK(observed.index_of(0) == SIGMA_GPU_INDEX_CERTIFIED);
  CHECK(observed.index_of(1) == SIGMA_GPU_INDEX_NONE);
  CHECK(observed.index_of(2) == SIGMA_GPU_INDEX_DROPPED);
  CHECK(observed.index_of(3) == SIGMA_GPU_INDEX_DROPPED);
  CHECK(observed.index_of(4) == SIGMA_GPU_INDEX_CERTIFIED);  // it has told the truth up to now
  CHECK(observed.index_of(5) == SIGMA_GPU_INDEX_CERTIFIED);

  // A round while nobody looks.
  const uint64_t looked_ns = now_ns();
  for (auto& queue : queues) post(*queue, kRound + 20);
  while (now_ns() - looked_ns < 3'400'000'000) usleep(10'000);
  observed.look();
  for (auto& queue : queues) post(*queue, 20);
  observed.look();
  observed.end_all();

  CHECK(observed.index_of(0) == SIGMA_GPU_INDEX_CERTIFIED);
  for (uint32_t i = 2; i < queues.size(); ++i)
    CHECK(observed.index_of(i) != SIGMA_GPU_INDEX_CERTIFIED);
  CHECK(compare(*queues[0]).missed > kRound);
  for (uint32_t i = 0; i < queues.size(); ++i) {
    CAPTURE(i);
    bool modulo = false;
    uint64_t posted = 0;
    for (const sigma_ring& ring : Records::get().rings) {
      if (ring.number != queues[i]->shape().qp_num || ring.kind != SIGMA_RING_SEND) continue;
      modulo |= (ring.flags & SIGMA_RING_MODULO) != 0;
      posted = ring.posted;
    }
    CHECK(modulo == (i != 0));
    // The others are a round short, and say so.
    CHECK(posted == queues[i]->posted - (i != 0 ? kRound : 0));
  }
}

TEST_CASE("a producer index that is only just certified tells where the record stands") {
  ProducerIndex index = certified();
  REQUIRE(index.state() == State::certified);
  constexpr uint64_t now = 3 * kRound + 77;
  // Between the readings more was posted; the record lags behind the first one, or is between them.
  CHECK(index.resolve({now, now + 40}, static_cast<uint16_t>(now - 3), kFast, 1'000'000) ==
        now - 3);
  CHECK(index.resolve({now + 50, now + 90}, static_cast<uint16_t>(now + 70), kFast, 1'000'000) ==
        now + 70);
  CHECK(index.state() == State::certified);
}

TEST_CASE("a producer index says nothing where it cannot know") {
  ProducerIndex index = certified();
  constexpr uint64_t known = kRound + 5;
  // More than a round came between the readings.
  CHECK(index.resolve({known + 10, known + 10 + kRound}, 0, kFast, 1'000'000) ==
        ProducerIndex::kUnknown);
  CHECK(index.state() == State::certified);
  // It has not moved, and the record has.
  CHECK(index.resolve({known, known}, 1, kFast, 1'000'000) == ProducerIndex::kUnknown);
  CHECK(index.state() == State::certified);
}

TEST_CASE("a producer index is dropped when it contradicts the queue") {
  constexpr uint64_t known = kRound + 5;
  struct Case {
    const char* what;
    ProducerIndex::Reading reading;
    uint16_t record;
    uint64_t most_per_s;
  };
  const Case each =
      GENERATE(Case{"the record is ahead of it", {known + 10, known + 10}, 16, kFast},
               Case{"it is far ahead of the record", {known + 400, known + 400}, 16, kFast},
               Case{"it went back", {known - 1, known - 1}, 4, kFast},
               Case{"so many cannot be", {known + kRound, known + kRound}, 5, 100});
  CAPTURE(each.what);
  ProducerIndex index = certified();
  REQUIRE(index.state() == State::certified);
  CHECK(index.resolve(each.reading, each.record, each.most_per_s, 1'000'000) ==
        ProducerIndex::kUnknown);
  CHECK(index.state() == State::dropped);
}

TEST_CASE("a producer index that never passed a round in plain sight is not relied on") {
  ProducerIndex index;
  index.begin(0x1000, 128, 0, true);
  for (uint64_t at = 0; at < 60'000; at += 100) index.check({at, at}, at, true, 0);
  CHECK(index.state() == State::found);
  CHECK(index.resolve({2 * kRound, 2 * kRound}, 0, kFast, 1'000'000) == ProducerIndex::kUnknown);
}

TEST_CASE("an index that is stored behind the record may be as far behind as its stack says") {
  ProducerIndex index = certified(1024);
  constexpr uint64_t now = 4 * kRound + 9;
  CHECK(index.resolve({now, now}, static_cast<uint16_t>(now + 1000), kFast, 1'000'000) ==
        now + 1000);
  index.check({now + 2, now + 2}, now + 2 + 1025, true, 0);
  CHECK(index.state() == State::dropped);
}

TEST_CASE("of a queue taken up in use the index may be whole rounds ahead of the position") {
  ProducerIndex index;
  index.begin(0x1000, 128, 0, false);
  constexpr uint64_t ahead = 7 * kRound;
  for (const uint64_t at : {uint64_t{50'000}, uint64_t{60'000}, kRound + 5})
    index.check({ahead + at, ahead + at}, at, true, 0);
  REQUIRE(index.state() == State::certified);
  CHECK(index.resolve({ahead + 3 * kRound, ahead + 3 * kRound}, 0, kFast, 1'000'000) == 3 * kRound);
}

TEST_CASE(
    "a producer index that agreed once is certified also where the position is a round short") {
  ProducerIndex index;
  index.begin(0x1000, 128, 0, true);
  index.check({100, 100}, 100, true, 0);
  index.lost_sight();  // and a round went by
  index.check({kRound + 300, kRound + 300}, 300, false, 0);
  CHECK(index.state() == State::found);  // the carry was not in plain sight
  SECTION("it carries, and tells how many rounds went by") {
    index.check({2 * kRound + 7, 2 * kRound + 7}, kRound + 7, false, 0);
    REQUIRE(index.state() == State::certified);
    CHECK(index.resolve({2 * kRound + 9, 2 * kRound + 9}, 9, kFast, 1'000'000) == 2 * kRound + 9);
  }
  SECTION("it gains a round in plain sight, which the record does not") {
    index.check({2 * kRound + 310, 2 * kRound + 310}, 310, false, 0);
    CHECK(index.state() == State::dropped);
  }
}

TEST_CASE("a producer index that never agreed with all of a position is not relied on") {
  ProducerIndex index;
  index.begin(0x1000, 128, 0, true);
  for (const uint64_t at : {uint64_t{100}, uint64_t{60'000}, kRound + 5, kRound + 900})
    index.check({5 * kRound + at, 5 * kRound + at}, at, false, 0);
  CHECK(index.state() == State::found);
}
