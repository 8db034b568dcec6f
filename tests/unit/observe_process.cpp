// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// All rings of a process: their ends, and how often they are looked at.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "observe/interval.h"
#include "observe/process_reader.h"
#include "observe_rig.h"

using namespace observe_rig;

namespace {

// A send ring of this process itself, which a ProcessReader finds at its addresses.
struct OwnRing : Watched {
  OwnRing() : Watched(64), slots(8), spec(spec_of(ring)) {
    slots[5].kind = SIGMA_RING_SEND;
    spec.owner.pid = pid;
    spec.ring_addr = reinterpret_cast<uint64_t>(ring.memory.data());
    spec.doorbell_addr = reinterpret_cast<uint64_t>(doorbell);
    spec.slot = 5;
  }
  void post() {
    ring.post();
    put32(doorbell + 4, ring.doorbell());
  }
  // As BPF says that it ends, with nothing new.
  sigma_ring_drain drained(uint8_t reason) {
    slots[5].dead = reason;
    ++slots[5].looks;
    sigma_ring_drain drain{};
    drain.slot = 5;
    drain.posted = ring.posted;
    drain.reason = reason;
    drain.kind = SIGMA_RING_SEND;
    drain.last = drain.counted = 1;
    return drain;
  }

  const uint32_t pid = static_cast<uint32_t>(getpid());
  alignas(8) std::byte doorbell[8] = {};
  std::vector<sigma_ring_slot> slots;
  sigma::SendSpec spec;
};

}  // namespace

TEST_CASE("observe: a destroy command that fails brings its ring back, one that does not ends it") {
  OwnRing watched;
  sigma::ProcessReader reader(watched.pid, {.read_posts = true, .probes_tell = false}, watched.slots.data());
  reader.open(watched.spec, watched.out);
  const auto post_and_look = [&] {
    watched.post();
    for (int i = 0; i < 50; ++i) REQUIRE(reader.look(watched.out));  // one that was held up certifies nothing
    watched.heard.take(watched.out);
  };
  post_and_look();
  const auto ends = [&](uint8_t reason) {
    reader.on_drain(watched.drained(reason), {}, watched.out);
    watched.heard.take(watched.out);
    CHECK(watched.heard.states.back().event == SIGMA_RING_END);
  };
  const auto reason = static_cast<uint8_t>(GENERATE(SIGMA_DRAIN_DESTROY, SIGMA_DRAIN_RESET));
  ends(reason);
  post_and_look();
  CHECK(watched.heard.seen == 1);  // not before it is known
  watched.slots[5].dead = 0;
  reader.resume_send(watched.spec.owner, 1000, watched.out);
  post_and_look();
  CHECK(watched.heard.seen == 3);
  ends(reason);
  reader.close_send(watched.spec.owner, 2000, watched.out);
  reader.resume_send(watched.spec.owner, 3000, watched.out);  // of nothing
  post_and_look();
  CHECK(watched.heard.seen == 3);
  CHECK(watched.heard.missed == 0);
  watched.heard.check_posts();
}

TEST_CASE("observe: what a process's threads have written counts as read once, however often it is looked at") {
  OwnRing watched;
  sigma::ProcessReader reader(watched.pid, {.read_posts = true, .probes_tell = false}, watched.slots.data());
  reader.open(watched.spec, watched.out);
  for (int i = 0; i < 50; ++i) REQUIRE(reader.look(watched.out));
  CHECK(reader.fresh_bytes() == 0);
  watched.post();
  for (int i = 0; i < 50; ++i) REQUIRE(reader.look(watched.out));  // after one that was held up it is read again
  const uint64_t bytes = reader.fresh_bytes();
  CHECK(bytes >= 64 + 64);  // the block and the doorbell's line
  for (int i = 0; i < 50; ++i) REQUIRE(reader.look(watched.out));
  CHECK(reader.fresh_bytes() == bytes);
}

// After the last look nobody looks until the ring ends. Its doorbell has not moved by then, or a whole round.
TEST_CASE("observe: a round of 65,536 before a ring's end is thought possible by its owner's completions and the time") {
  struct Case {
    bool completions;   // its completion ring is known
    uint32_t consumed;  // more than at the last look
    uint64_t ms;        // since then
    bool modulo;
  };
  const Case cases[] = {{true, 0, 2'000, false}, {true, 63, 2'000, false}, {true, 65'536, 2'000, true}, {true, 65'536, 15, false},
                        {false, 0, 2, false},    {false, 0, 15, false},   {false, 0, 25, true}};
  // False: this process was held up, so that a round was possible between two looks already.
  const auto run = [](const Case& one) {
    CAPTURE(one.completions, one.consumed, one.ms);
    OwnRing watched;
    alignas(8) std::byte cq_doorbell[8] = {};
    std::vector<std::byte> entries(64 * 64);
    for (size_t i = 0; i < 64; ++i) entries[i * 64 + 63] = std::byte{0xf1};
    sigma::ProcessReader reader(watched.pid, {.read_posts = true, .probes_tell = false, .read_completions = true},
                                watched.slots.data());
    sigma::SendSpec& spec = watched.spec;
    spec.send_cqn = 9;
    spec.since_ns = sigma::monotonic_now_ns();
    if (one.completions) {
      sigma::CqSpec cq;
      cq.owner = spec.owner;
      cq.owner.number = 9;
      cq.ring_addr = reinterpret_cast<uint64_t>(entries.data());
      cq.doorbell_addr = reinterpret_cast<uint64_t>(cq_doorbell);
      cq.ring = {64, 64};
      cq.since_ns = spec.since_ns;
      reader.open(cq, watched.out);
    }
    reader.open(spec, watched.out);
    // One request, completed and polled: that its owner keeps an index is to be seen.
    watched.post();
    put32(entries.data() + 56, 0x08u << 24 | kQp);
    entries[63] = std::byte{0};
    put32(cq_doorbell, 1);
    uint64_t longest_ns = 0;
    for (uint64_t i = 0, last_ns = spec.since_ns; i < 50; ++i) {
      REQUIRE(reader.look(watched.out));
      const uint64_t now_ns = sigma::monotonic_now_ns();
      longest_ns = std::max(longest_ns, now_ns - std::exchange(last_ns, now_ns));
    }
    // At most so long after the last look's reading where no round is to be possible, else at least.
    const uint64_t before_ns = sigma::monotonic_now_ns();
    REQUIRE(reader.look(watched.out));
    const uint64_t after_ns = sigma::monotonic_now_ns();
    if (std::max(longest_ns, after_ns - before_ns) > 1'000'000) return false;
    const uint64_t since_ns = one.modulo ? after_ns : before_ns;
    sigma_ring_drain drain = watched.drained(SIGMA_DRAIN_DESTROY);
    drain.h.time_ns = since_ns + one.ms * 1'000'000;
    drain.consumer = 1 + one.consumed;
    reader.on_drain(drain, {}, watched.out);
    watched.heard.take(watched.out);
    REQUIRE(watched.heard.states.back().event == SIGMA_RING_END);
    CHECK(bool(watched.heard.states.back().flags & SIGMA_RING_MODULO) == one.modulo);
    return true;
  };
  for (const Case& one : cases) {
    int attempts = 1;
    while (!run(one)) REQUIRE(++attempts < 1000);
  }
}

TEST_CASE("observe: the interval shrinks at once, grows slowly, and is long after a second of idleness") {
  sigma::Interval interval;
  uint64_t now_ns = 1'000'000'000;
  interval.used(128, now_ns);
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
  interval.used(128, now_ns);
  interval.looked(0.5, now_ns);
  CHECK(interval.ns() <= 100'000);
}

TEST_CASE("observe: the smallest ring in use says how long the interval may be, by size") {
  sigma::Interval interval;
  uint64_t now_ns = 5'000'000'000;
  const auto for_ms = [&](uint64_t ms, auto&& at_look) {
    for (const uint64_t end_ns = now_ns + ms * 1'000'000; now_ns < end_ns; now_ns += interval.ns()) {
      at_look();
      interval.used(1024, now_ns);
      interval.looked(0.001, now_ns);
    }
  };
  interval.used(16, now_ns);  // opened, and not moved since
  for_ms(900, [] {});
  CHECK(interval.ns() == 100'000);
  for_ms(300, [] {});
  CHECK(interval.ns() == 500'000);
  // A burst begins on one as small.
  interval.used(16, now_ns);
  interval.looked(0.001, now_ns);
  CHECK(interval.ns() == 100'000);
  // One of 256 stays in use, however many of its size take turns; then none.
  uint64_t longest_ns = 0, moved_ns = now_ns;
  interval.used(256, now_ns);
  for_ms(5'000, [&] {
    if (now_ns - moved_ns > 900'000'000) interval.used(256, moved_ns = now_ns);
    longest_ns = std::max(longest_ns, interval.ns());
  });
  CHECK(longest_ns == 128'000);
  for_ms(1'100, [] {});
  CHECK(interval.ns() == 500'000);
}

TEST_CASE("observe: with doorbells alone the interval is what their 16 bits allow, at any rate") {
  for (const double blocks_per_ns : {1e-6, 3e-4, 5e-3, 2e-2}) {
    INFO(blocks_per_ns);
    sigma::Interval interval;
    uint64_t now_ns = 1'000'000'000, most = 0;
    for (int i = 0; i < 200; ++i) {
      const uint64_t elapsed_ns = interval.ns();
      const auto blocks = static_cast<uint64_t>(blocks_per_ns * static_cast<double>(elapsed_ns));
      most = std::max(most, blocks);
      interval.counted(blocks, elapsed_ns, now_ns += elapsed_ns);
    }
    CHECK(most < 16'384);
    const double allowed = std::min(8'192 / blocks_per_ns, double(sigma::Interval::kIdleNs));
    CHECK(static_cast<double>(interval.ns()) > allowed * 0.9);
  }
}

TEST_CASE("observe: a process's rings are not looked at more often for tiny ones that nobody uses") {
  Watched large(1024), tiny(16);
  alignas(8) std::byte doorbell[8] = {}, tiny_doorbell[8] = {}, cq_doorbell[8] = {};
  std::vector<std::byte> entries(8 * 64);
  for (size_t i = 0; i < 8; ++i) entries[i * 64 + 63] = std::byte{0xf1};
  sigma::ProcessReader reader(static_cast<uint32_t>(getpid()), {.read_posts = true, .probes_tell = false}, nullptr);
  const auto open = [&](Watched& watched, std::byte* at, uint32_t number) {
    sigma::SendSpec spec = spec_of(watched.ring);
    spec.owner = {.pid = static_cast<uint32_t>(getpid()), .context = 1, .by_file = false, .number = number};
    spec.ring_addr = reinterpret_cast<uint64_t>(watched.ring.memory.data());
    spec.doorbell_addr = reinterpret_cast<uint64_t>(at);
    reader.open(spec, large.out);
  };
  open(large, doorbell, kQp);
  open(tiny, tiny_doorbell, kQp + 1);
  sigma::CqSpec cq;
  cq.owner = {.pid = static_cast<uint32_t>(getpid()), .context = 1, .by_file = false, .number = 9};
  cq.ring_addr = reinterpret_cast<uint64_t>(entries.data());
  cq.doorbell_addr = reinterpret_cast<uint64_t>(cq_doorbell);
  cq.ring = {8, 64};
  reader.open(cq, large.out);
  const auto post_and_look = [&](int times) {
    for (int i = 0; i < times; ++i) {
      large.ring.post();
      put32(doorbell + 4, large.ring.doorbell());
      REQUIRE(reader.look(large.out));
    }
  };
  post_and_look(20);
  CHECK(reader.interval().ns() == 500'000);
  SECTION("until one is posted to") {
    put32(tiny_doorbell + 4, 1);
    post_and_look(1);
    CHECK(reader.interval().ns() <= 100'000);
  }
  SECTION("until one has a completion") {
    put32(entries.data() + 56, 0x08u << 24 | kQp);
    entries[63] = std::byte{0};
    post_and_look(1);
    CHECK(reader.interval().ns() <= 100'000);
  }
}

TEST_CASE("observe: under pressure an index that is nobody's is noticed, and the ring read on") {
  CqRing ring(8, 64);
  alignas(8) std::byte doorbell[8] = {};
  RecordBuffer out;
  Heard heard;
  sigma::ProcessReader reader(static_cast<uint32_t>(getpid()), {.read_posts = true, .read_completions = true}, nullptr);
  sigma::CqSpec spec;
  spec.owner = {.pid = static_cast<uint32_t>(getpid()), .context = 1, .by_file = false, .number = 9};
  spec.ring_addr = reinterpret_cast<uint64_t>(ring.memory.data());
  spec.doorbell_addr = reinterpret_cast<uint64_t>(doorbell);
  spec.ring = {8, 64};
  reader.open(spec, out);
  const auto look = [&](int times) {
    for (int i = 0; i < times; ++i) REQUIRE(reader.look(out));
    heard.take(out);
  };
  const auto complete = [&](uint64_t count) {
    for (; count > 0; --count) ring.complete(static_cast<uint16_t>(ring.produced));
  };
  complete(3);
  look(3);
  const bool keeps = GENERATE(false, true);
  put32(doorbell, keeps ? 3 : 2);  // else the library's, which has cleaned two away
  look(3);
  REQUIRE(heard.completions.size() == 3);
  reader.set_pressed(true, 1000, out);
  heard.take(out);
  REQUIRE(heard.states.back().mode == SIGMA_RING_COUNTED);
  for (int i = 0; i < 40; ++i) {
    complete(1);
    if (keeps) put32(doorbell, static_cast<uint32_t>(ring.produced));
    look(2);
  }
  CHECK(heard.states.back().mode == (keeps ? SIGMA_RING_COUNTED : SIGMA_RING_READ));
  CHECK(heard.completions.size() == (keeps ? 3u : 43u - heard.missed));
  CHECK(heard.missed == (keeps ? 43u - 3 - 8 : heard.missed));
  CHECK(heard.missed < 43u - 3 - 8 + 1);
  reader.close_cq(spec.owner, 2000, out);
  heard.take(out);
  CHECK(bool(heard.states.back().flags & SIGMA_RING_MODULO) == (!keeps && heard.missed > 0));
}
