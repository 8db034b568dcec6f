// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// All rings of a process: their ends, and how often they are looked at.
#include <unistd.h>

#include "observe/interval.h"
#include "observe/process_reader.h"
#include "observe_rig.h"

using namespace observe_rig;

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
