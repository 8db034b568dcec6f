// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Polls and the ring's completions, paired: with gaps in either, by threads at once, and through the session.
#include <rdma/mlx5-abi.h>

#include "catch.h"
#include "session/pick_ups.h"
#include "session_ring_rig.h"

namespace {

using sigma::PickUps;

struct Pairs {
  PickUps pick_ups;
  sigma::Counters counters;
  std::vector<uint64_t> delays;

  void told(uint64_t ns, std::optional<uint64_t> wr_id = {}, uint64_t error_ns = 0) {
    keep(pick_ups.on_told({ns, error_ns, wr_id, {}}, counters));
  }
  void poll(uint64_t ns, uint64_t wr_id, uint32_t tid = 1) { keep(pick_ups.on_poll({ns, tid, wr_id, {}}, counters)); }
  void keep(const std::optional<PickUps::Delay>& delay) {
    if (delay) delays.push_back(delay->ns);
  }
};

using Delays = std::vector<uint64_t>;

}  // namespace

TEST_CASE("pick-ups: whichever of the two is told first") {
  Pairs pairs;
  pairs.told(100, 1);
  pairs.poll(130, 1);
  pairs.poll(250, 2);
  pairs.told(210, 2);
  CHECK(pairs.delays == Delays{30, 40});
  CHECK(pairs.counters.pick_ups == 2);
  CHECK(pairs.counters.pick_ups_by_order == 0);
}

TEST_CASE("pick-ups: polls that were not seen shift nothing") {
  Pairs pairs;
  for (uint64_t i = 0; i < 100; ++i) pairs.told(1000 * i, i);
  for (uint64_t i = 0; i < 100; ++i)
    if (i % 7 != 3) pairs.poll(200'000 + 1000 * i, i);
  CHECK(pairs.delays == Delays(86, 200'000));
  pairs.pick_ups.close(pairs.counters);
  CHECK(pairs.counters.pick_ups_unpolled == 14);
  CHECK(pairs.counters.pick_ups_untold == 0);
}

TEST_CASE("pick-ups: completions that the ring did not tell shift nothing") {
  Pairs pairs;
  for (uint64_t i = 0; i < 100; ++i) pairs.poll(1000 * i + 300, i);
  for (uint64_t i = 0; i < 100; ++i)
    if (i % 7 != 3) pairs.told(1000 * i, i);
  CHECK(pairs.delays == Delays(86, 300));
  pairs.pick_ups.close(pairs.counters);
  CHECK(pairs.counters.pick_ups_untold == 14);
}

TEST_CASE("pick-ups: after a gap in both they find each other again") {
  Pairs pairs;
  for (uint64_t i = 0; i < 100; ++i) {
    if (i < 40 || i > 50) pairs.told(1000 * i, i);
    if (i < 45 || i > 60) pairs.poll(1000 * i + 300, i);
  }
  CHECK(pairs.delays == Delays(40 + 39, 300));
}

TEST_CASE("pick-ups: without a known request by order, and no poll is of a later completion") {
  Pairs pairs;
  pairs.poll(1300, 7);
  pairs.poll(2300, 7);
  pairs.poll(3300, 7);
  pairs.told(2000);  // that at 1000 was missed
  pairs.told(3000);
  CHECK(pairs.delays == Delays{300, 300});
  CHECK(pairs.counters.pick_ups_early == 1);
  CHECK(pairs.counters.pick_ups_by_order == 2);
}

TEST_CASE("pick-ups: a wr_id that is used again is not one that was passed") {
  Pairs pairs;
  for (uint64_t i = 0; i < 40; ++i) {
    pairs.told(1000 * i, i % 2);
    if (i != 10) pairs.poll(1000 * i + 300, i % 2);
  }
  CHECK(pairs.delays.size() >= 38);
  for (const uint64_t delay : pairs.delays) CHECK(delay == 300);
}

TEST_CASE("pick-ups: two threads poll at once, and return in another order than they took") {
  Pairs pairs;
  for (uint64_t i = 0; i < 100; i += 2) {
    pairs.told(1000 * i, i);
    pairs.told(1000 * i + 10, i + 1);
    pairs.poll(1000 * i + 110, i + 1, 2);
    pairs.poll(1000 * i + 150, i, 1);
  }
  CHECK(pairs.counters.pick_ups == 100);
  pairs.pick_ups.close(pairs.counters);
  CHECK(pairs.counters.pick_ups_unpolled == 0);

  Pairs later;  // the ring is read afterwards
  for (uint64_t i = 0; i < 100; i += 2) {
    later.poll(1000 * i + 110, i + 1, 2);
    later.poll(1000 * i + 150, i, 1);
    later.told(1000 * i, i);
    later.told(1000 * i + 10, i + 1);
  }
  CHECK(later.counters.pick_ups == 100);
}

TEST_CASE("pick-ups: none is negative, and what is early beyond the error is none") {
  Pairs pairs;
  pairs.told(1000, 1, 50);
  pairs.poll(960, 1);
  CHECK(pairs.delays == Delays{0});
  pairs.told(2000, 2, 50);
  pairs.poll(1900, 2);
  CHECK(pairs.delays == Delays{0});
  CHECK(pairs.counters.pick_ups_early == 1);
}

TEST_CASE("pick-ups: what nobody polls is bounded") {
  Pairs pairs;
  for (uint64_t i = 0; i < 100'000; ++i) pairs.told(1000 * i, i);
  CHECK(pairs.counters.pick_ups_unpolled >= 90'000);
}

namespace {

// Polls of its ring are probed, if `flags` say so.
struct PolledRig : RingRig {
  static constexpr uint32_t kCqn = 5;
  std::vector<sigma::PickUp> picked_up;
  void on_pick_up(const sigma::PickUp& pick_up) override { picked_up.push_back(pick_up); }

  explicit PolledRig(uint16_t flags = SIGMA_RING_POLLED) {
    uverbs(UverbsRecord(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE)
               .driver(RDMA_DRIVER_MLX5)
               .handle(UVERBS_ATTR_CREATE_CQ_HANDLE, 1)
               .in(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, cq_ptr(1))
               .out(UVERBS_ATTR_UHW_OUT, mlx5_ib_create_cq_resp{kCqn, 0}));
    sigma_ring cq{};
    cq.context = kContext;
    cq.number = kCqn;
    cq.kind = SIGMA_RING_CQ;
    cq.event = SIGMA_RING_BEGIN;
    cq.flags = flags;
    cq.tier = SIGMA_TIER_NONE;
    send(cq, SIGMA_RING, kPid);
  }
  void completed(uint16_t counter, uint64_t ns) {
    sigma_ring_completion record = cqe(counter);
    record.complete_ns = ns;
    ring_completion(record);
  }
  void polled(uint64_t wr_id, uint64_t ns) {
    now = ns - 1;
    send_completion(completion(kQp, wr_id));
  }
};

}  // namespace

TEST_CASE("pick-ups: a poll of what the ring tells completes nothing, and says when it was picked up") {
  PolledRig rig;
  rig.probe_post(70, 0);
  rig.probe_post(71, 1);
  rig.completed(0, 5000);
  CHECK(rig.operations.size() == 1);  // not held back for its poll
  rig.polled(70, 7000);
  rig.polled(71, 7500);
  rig.completed(1, 6000);
  CHECK(rig.operations.size() == 2);
  REQUIRE(rig.picked_up.size() == 2);
  CHECK(rig.picked_up[0].delay_ns == 2000);
  CHECK(rig.picked_up[0].error_ns == 10);
  CHECK(rig.picked_up[0].queue == sigma::Queue::send);
  CHECK(rig.picked_up[0].qp->qp_num == PolledRig::kQp);
  CHECK(rig.picked_up[0].pid == PolledRig::kPid);
  CHECK(rig.picked_up[1].delay_ns == 1500);
  const sigma::Counters& counters = rig.finish();
  CHECK(counters.operations == 2);
  CHECK(counters.polls_known == 2);
  CHECK(counters.pick_ups == 2);
  CHECK(counters.pick_ups_by_order == 0);
  CHECK(counters.pick_ups_untold + counters.pick_ups_unpolled + counters.pick_ups_early == 0);
}

TEST_CASE("pick-ups: a completion that waits for its post keeps its place") {
  PolledRig rig;
  rig.probe_post(70, 0);
  rig.probe_post(72, 2);  // 1 was written without a call
  rig.completed(0, 5000);
  rig.completed(1, 5100);
  rig.completed(2, 5200);
  rig.polled(70, 6000);
  rig.polled(71, 6100);
  rig.polled(72, 6200);
  REQUIRE(rig.picked_up.size() == 3);
  for (const auto& each : rig.picked_up) CHECK(each.delay_ns == 1000);
  CHECK(rig.finish().pick_ups_by_order == 1);
}

TEST_CASE("pick-ups: a life's end leaves nothing to the next one") {
  PolledRig rig;
  rig.set_state(PolledRig::kQp, IBV_QPS_RTS);
  rig.probe_post(70, 0);
  rig.completed(0, 5000);
  rig.set_state(PolledRig::kQp, IBV_QPS_RESET);
  rig.polled(70, 6000);
  CHECK(rig.picked_up.empty());
  const sigma::Counters& counters = rig.finish();
  CHECK(counters.pick_ups_unpolled == 1);
  CHECK(counters.pick_ups_untold == 1);
}

TEST_CASE("pick-ups: none where polls are probed for another reason, and failed requests have none") {
  PolledRig others(0);
  others.probe_post(70, 0);
  others.completed(0, 5000);
  others.polled(70, 6000);
  CHECK(others.picked_up.empty());
  CHECK(others.finish().pick_ups_untold == 0);

  PolledRig rig;
  rig.probe_post(70, 0);
  rig.ring_completion(RingRig::cqe(0, IBV_WC_RETRY_EXC_ERR));
  rig.now = 6000;
  rig.send_completion(Rig::completion(PolledRig::kQp, 70, 0, IBV_WC_RETRY_EXC_ERR));
  CHECK(rig.picked_up.empty());
  CHECK(rig.finish().pick_ups_untold == 0);
}
