// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The readers of rings, on rings that a test writes: posted = seen + missed, whatever happens.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/be.h"
#include "catch.h"
#include "observe/cq_reader.h"
#include "observe/interval.h"
#include "observe/process_reader.h"
#include "observe/send_reader.h"

namespace {

using sigma::LookTimes;
using sigma::RecordBuffer;
using sigma::RingBytes;
using sigma::SendReader;

constexpr uint32_t kQp = 0x4711;

void put32(std::byte* at, uint32_t value) {
  const sigma::Be32 field(value);
  std::memcpy(at, &field, sizeof(field));
}

// A send ring and its writer. Each request says its position in its remote address.
struct Ring {
  explicit Ring(uint32_t size) : blocks(size), memory(size * 64) {}

  // RDMA WRITE with one data segment, or one of `wide` blocks with inline data.
  void post(uint32_t wide = 1) {
    const uint32_t units = wide == 1 ? 3 : wide * 4;
    for (uint32_t i = 0; i < wide; ++i) std::memset(at(posted + i), 0, 64);
    std::byte* wqe = at(posted);
    put32(wqe, static_cast<uint32_t>((posted & 0xffff) << 8 | 0x08));
    put32(wqe + 4, kQp << 8 | units);
    put32(wqe + 8, 0x08);
    put32(wqe + 16, static_cast<uint32_t>(posted >> 32));
    put32(wqe + 20, static_cast<uint32_t>(posted));
    put32(wqe + 24, 77);
    if (wide == 1) {
      put32(wqe + 32, 64);
      put32(wqe + 36, 55);
    } else {
      put32(wqe + 32, 0x80000000u | (wide * 64 - 36));
    }
    posted += wide;
  }
  std::byte* at(uint64_t position) { return memory.data() + (position & (blocks - 1)) * 64; }
  uint16_t doorbell() const { return static_cast<uint16_t>(posted); }
  std::vector<std::byte> copy(uint64_t first, uint64_t end) {
    std::vector<std::byte> bytes;
    for (; first < end; ++first) bytes.insert(bytes.end(), at(first), at(first) + 64);
    return bytes;
  }

  uint32_t blocks;
  uint64_t posted = 0;
  std::vector<std::byte> memory;
};

struct Heard {
  std::vector<sigma_ring_post> posts;
  std::vector<sigma_ring_gap> gaps;
  std::vector<sigma_ring_completion> completions;
  std::vector<sigma_ring> states;
  std::vector<RecordBuffer::Run> runs;  // the last ones, whose room is used again
  uint64_t seen = 0, missed = 0;

  void take(RecordBuffer& out) {
    out.take(runs);
    for (const RecordBuffer::Run& run : runs) RecordBuffer::for_each(run.bytes, [&](auto record) { hear(record); });
  }
  void hear(std::span<const std::byte> record) {
    switch (reinterpret_cast<const sigma_header*>(record.data())->type) {
      case SIGMA_RING_POST:
        posts.push_back(*reinterpret_cast<const sigma_ring_post*>(record.data()));
        seen += posts.back().blocks;
        break;
      case SIGMA_RING_GAP:
        gaps.push_back(*reinterpret_cast<const sigma_ring_gap*>(record.data()));
        missed += gaps.back().count;
        break;
      case SIGMA_RING_COMPLETION:
        completions.push_back(*reinterpret_cast<const sigma_ring_completion*>(record.data()));
        break;
      case SIGMA_RING:
        states.push_back(*reinterpret_cast<const sigma_ring*>(record.data()));
        break;
    }
  }
  // Likewise, where the place may be rounds of 65,536 off.
  void check_places() const {
    size_t wrong = 0;
    for (size_t i = 0; i < posts.size(); ++i)
      wrong += (posts[i].remote_addr & 0xffff) != (posts[i].index & 0xffff) || posts[i].rkey != 77 ||
               (i > 0 && (posts[i].index <= posts[i - 1].index || posts[i].remote_addr <= posts[i - 1].remote_addr));
    CHECK(wrong == 0);
  }
  // Every request is what was posted at its place, each once, in order.
  void check_posts() const {
    size_t wrong = 0;
    for (size_t i = 0; i < posts.size(); ++i)
      wrong += posts[i].remote_addr != posts[i].index || posts[i].rkey != 77 ||
               (i > 0 && posts[i].index <= posts[i - 1].index);
    CHECK(wrong == 0);
  }
};

sigma::SendSpec spec_of(const Ring& ring) {
  sigma::SendSpec spec;
  spec.owner = {.pid = 7, .context = 1, .by_file = false, .number = kQp};
  spec.ring_addr = 0x1000;
  spec.doorbell_addr = 0x2000;
  spec.blocks = ring.blocks;
  spec.service = sigma::QpService::rc;
  return spec;
}

struct Watched {
  explicit Watched(uint32_t blocks, SendReader::Mode mode = SendReader::Mode::read, bool probes_tell = false)
      : ring(blocks), reader(std::make_unique<SendReader>(spec_of(ring), 0, mode, probes_tell)) {}

  // `meanwhile`: requests that are posted between the doorbell's copy and the blocks'.
  void look(uint32_t meanwhile = 0, bool laps = false, uint64_t at_least = 0) {
    now += 1000;
    const LookTimes times{now - 1000, now};
    const auto wanted = reader->on_doorbell(ring.doorbell(), times, {.possible = laps, .at_least = at_least}, out);
    for (uint32_t i = 0; i < meanwhile; ++i) ring.post();
    if (wanted.any()) {
      const auto bytes = ring.copy(wanted.first, wanted.end);
      reader->on_copy(wanted, RingBytes{std::span<const std::byte>(bytes)}, ring.doorbell(), times, out);
    }
    heard.take(out);
  }
  void last(uint64_t first) {
    const auto bytes = ring.copy(first, ring.posted);
    reader->on_last(first, RingBytes{std::span<const std::byte>(bytes)}, ring.posted, LookTimes{now, now + 10}, out);
    heard.take(out);
  }

  Ring ring;
  RecordBuffer out;
  Heard heard;
  uint64_t now = 1'000'000;
  std::unique_ptr<SendReader> reader;
};

}  // namespace

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
  const auto wanted = watched.reader->on_doorbell(watched.ring.doorbell(), times, {}, watched.out);
  CHECK(watched.reader->completed(2, 2));
  for (int i = 0; i < 13; ++i) watched.ring.post();
  put32(watched.ring.at(10) + 20, 0xdead);  // of request 74, whose index is written last
  const auto bytes = watched.ring.copy(wanted.first, wanted.end);
  watched.reader->on_copy(wanted, RingBytes{std::span<const std::byte>(bytes)}, watched.ring.doorbell(), times,
                          watched.out);
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

TEST_CASE("observe: a destroy command that fails brings its ring back, one that does not ends it") {
  Watched watched(64);
  alignas(8) std::byte doorbell[8] = {};
  std::vector<sigma_ring_slot> slots(8);
  slots[5].kind = SIGMA_RING_SEND;
  sigma::ProcessReader reader(static_cast<uint32_t>(getpid()), {.read_posts = true, .probes_tell = false}, slots.data());
  sigma::SendSpec spec = spec_of(watched.ring);
  spec.owner.pid = static_cast<uint32_t>(getpid());
  spec.ring_addr = reinterpret_cast<uint64_t>(watched.ring.memory.data());
  spec.doorbell_addr = reinterpret_cast<uint64_t>(doorbell);
  spec.slot = 5;
  reader.open(spec, watched.out);
  const auto post_and_look = [&] {
    watched.ring.post();
    put32(doorbell + 4, watched.ring.doorbell());
    for (int i = 0; i < 50; ++i) REQUIRE(reader.look(watched.out));  // one that was held up certifies nothing
    watched.heard.take(watched.out);
  };
  post_and_look();
  const auto ends = [&](uint8_t reason) {  // as BPF says it, with nothing new
    slots[5].dead = reason;
    ++slots[5].looks;
    sigma_ring_drain drain{};
    drain.slot = 5;
    drain.posted = watched.ring.posted;
    drain.reason = reason;
    drain.kind = SIGMA_RING_SEND;
    drain.last = drain.counted = 1;
    reader.on_drain(drain, {}, watched.out);
    watched.heard.take(watched.out);
    CHECK(watched.heard.states.back().event == SIGMA_RING_END);
  };
  const auto reason = static_cast<uint8_t>(GENERATE(SIGMA_DRAIN_DESTROY, SIGMA_DRAIN_RESET));
  ends(reason);
  post_and_look();
  CHECK(watched.heard.seen == 1);  // not before it is known
  slots[5].dead = 0;
  reader.resume_send(spec.owner, 1000, watched.out);
  post_and_look();
  CHECK(watched.heard.seen == 3);
  ends(reason);
  reader.close_send(spec.owner, 2000, watched.out);
  reader.resume_send(spec.owner, 3000, watched.out);  // of nothing
  post_and_look();
  CHECK(watched.heard.seen == 3);
  CHECK(watched.heard.missed == 0);
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

TEST_CASE("observe: rounds of 65,536 that may have passed unseen are marked") {
  Watched watched(64);
  watched.ring.post();
  watched.look();
  watched.ring.post();
  watched.look(0, true);
  REQUIRE(watched.heard.posts.size() == 2);
  CHECK_FALSE(watched.heard.posts[0].flags & SIGMA_RING_MODULO);
  CHECK(watched.heard.posts[1].flags & SIGMA_RING_MODULO);
}

TEST_CASE("observe: rounds of 65,536 are counted where completions tell how many have passed") {
  Watched watched(64);
  for (uint64_t i = 0; i < 48; ++i) {
    watched.ring.post();
    if (i % 16 == 15) watched.look();
  }
  // Every request asks for a completion: the one of index 47 has number 47 in its ring.
  REQUIRE(watched.reader->blocks_per_completion() == 1);
  REQUIRE(watched.reader->completed(47, 47));
  const uint64_t more = 3 * 65'536 + 17;
  for (uint64_t i = 0; i < more; ++i) watched.ring.post();
  const uint64_t consumed = 48 + more - 60;
  watched.look(0, true, watched.reader->completed_at(consumed - 1));
  watched.ring.post();
  watched.look();
  CHECK(watched.reader->posted() == 48 + more + 1);
  CHECK(watched.heard.seen + watched.heard.missed + watched.reader->posted() - watched.reader->next() == 48 + more + 1);
  for (const auto& post : watched.heard.posts) CHECK_FALSE(post.flags & SIGMA_RING_MODULO);
}

TEST_CASE("observe: another counter that does not fit the doorbell adds no rounds, but a doubt") {
  // What is ahead by less than a round, less a ring, counts something else: other queues' completions, or
  // requests that asked for none in between.
  for (const uint64_t ahead : {uint64_t{1}, uint64_t{5000}, uint64_t{65'536 - 65}, uint64_t{41} * 65'536 + 100}) {
    Watched watched(64);
    for (int i = 0; i < 40; ++i) watched.ring.post();
    watched.look();
    watched.ring.post();
    watched.look(0, true, watched.ring.posted + ahead);
    watched.look();
    CHECK(watched.reader->posted() == watched.ring.posted);
    watched.reader->end(watched.now, SIGMA_GAP_ENDED, true, watched.out);
    watched.heard.take(watched.out);
    CHECK(watched.heard.seen + watched.heard.missed == watched.ring.posted);
    CHECK(watched.heard.states.back().flags & SIGMA_RING_MODULO);
  }
}

TEST_CASE("observe: whatever another counter says, seen and missed are what is said to be posted (seeded)") {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    std::mt19937 random(seed);
    Watched watched(64);
    uint64_t rounds = 0;
    for (int look = 0; look < 400; ++look) {
      const bool long_ago = random() % 8 == 0;
      const uint64_t burst = long_ago ? random() % 400'000 : random() % 80;
      for (uint64_t i = 0; i < burst; ++i) watched.ring.post(1 + random() % 3);
      const uint64_t outstanding = std::min<uint64_t>(random() % 64, watched.ring.posted);
      // Right, unknown, or of something else.
      const uint64_t says[] = {watched.ring.posted - outstanding, 0, random()};
      const uint32_t which = random() % 3;
      const bool round = watched.ring.posted - watched.reader->posted() >= 65'536;
      watched.look(0, long_ago, long_ago ? says[which] : 0);
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

// ---- completion rings ---------------------------------------------------------------------------

namespace {

struct CqRing {
  explicit CqRing(uint32_t size, uint32_t stride) : entries(size), stride(stride), memory(size * stride) {
    for (uint32_t i = 0; i < size; ++i) memory[(i + 1) * stride - 1] = std::byte{0xf0};
  }
  void complete(uint16_t counter) { write(produced++, counter); }
  void write(uint64_t position, uint16_t counter) {
    std::byte* cqe = memory.data() + (position & (entries - 1)) * stride + stride - 64;
    std::memset(cqe, 0, 64);
    put32(cqe + 56, 0x08u << 24 | kQp);
    cqe[60] = static_cast<std::byte>(counter >> 8);
    cqe[61] = static_cast<std::byte>(counter);
    cqe[55] = std::byte{1};  // a time stamp
    cqe[63] = static_cast<std::byte>(position / entries & 1);
  }
  std::vector<std::byte> copy(uint64_t first, uint64_t count) {
    std::vector<std::byte> bytes;
    for (uint64_t i = first; i < first + count; ++i) {
      const auto* entry = memory.data() + (i & (entries - 1)) * stride;
      bytes.insert(bytes.end(), entry, entry + stride);
    }
    return bytes;
  }
  uint32_t entries, stride;
  uint64_t produced = 0, consumed = 0;
  std::vector<std::byte> memory;
};

struct WatchedCq {
  WatchedCq(uint32_t entries, uint32_t stride, bool counts) : ring(entries, stride), counts(counts) {
    sigma::CqSpec spec;
    spec.owner = {.pid = 7, .context = 1, .by_file = false, .number = 3};
    spec.ring_addr = 0x1000;
    spec.ring = {.entries = entries, .entry_bytes = stride};
    reader = std::make_unique<sigma::CqReader>(spec, 0, [](uint32_t) { return nullptr; });
  }
  void look() {
    now += 1000;
    const LookTimes times{now - 1000, now};
    const auto wanted = reader->wanted(false);
    const auto bytes = ring.copy(wanted.first, wanted.count);
    const RingBytes copy{std::span<const std::byte>(bytes)};
    const uint32_t consumer = counts ? ring.consumed & 0xffffff : 0;
    if (reader->has_news(wanted, copy))
      reader->on_copies(wanted, copy, copy, consumer, times, out);
    else
      reader->on_nothing(consumer);
    heard.take(out);
  }
  CqRing ring;
  bool counts;
  RecordBuffer out;
  Heard heard;
  uint64_t now = 1'000'000;
  std::unique_ptr<sigma::CqReader> reader;
};

}  // namespace

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

TEST_CASE("observe: how far each queue pair has come, by one pass over completions of all (seeded)") {
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
  for (uint32_t queue = 0; queue < kQueues; ++queue) CHECK(reached.of(7 * queue, posted[queue]) == last[queue]);
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
    watched.reader->on_counted(watched.ring.consumed & 0xffffff, {watched.now - 1000, watched.now}, watched.out);
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

// ---- intervals ----------------------------------------------------------------------------------

TEST_CASE("observe: the interval shrinks at once, grows slowly, and is long after a second of idleness") {
  sigma::Interval interval;
  interval.set_smallest_ring(128);
  uint64_t now_ns = 1'000'000'000;
  interval.looked(0.6, now_ns);
  const uint64_t busy = interval.ns();
  CHECK(busy <= 50'000 / 4);
  interval.looked(0.01, now_ns);
  CHECK(interval.ns() <= busy * 5 / 4 + 1);
  for (int i = 0; i < 100; ++i) interval.looked(0, now_ns += interval.ns());
  CHECK(interval.ns() == 100'000);
  now_ns += 2'000'000'000;
  for (int i = 0; i < 100; ++i) interval.looked(0, now_ns += interval.ns());
  CHECK(interval.ns() == sigma::Interval::kIdleNs);
  interval.looked(0.5, now_ns);
  CHECK(interval.ns() <= 100'000);
}
