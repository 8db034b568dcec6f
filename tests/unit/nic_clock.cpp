// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The fit of a device's clock: its answer is never further from the truth than the error it states.
#include "session/nic_clock.h"

#include <rdma/mlx5-abi.h>

#include <cstring>
#include <random>
#include <vector>

#include "catch.h"
#include "session_rig.h"

using namespace sigma;

namespace {

__extension__ using Wide = unsigned __int128;

// A clock as a device has it: an offset, and a rate near its nominal one.
struct Truth {
  uint64_t offset = 0x1234567890;
  uint32_t nominal_khz = 156250;
  double ppm = 50;
  uint64_t mult() const {
    return static_cast<uint64_t>(static_cast<long double>(nominal_khz) * 1e3L *
                                 (1 + static_cast<long double>(ppm) * 1e-6L) / 1e9L *
                                 18446744073709551616.0L);
  }
  uint64_t ticks(uint64_t ns) const {
    return offset + static_cast<uint64_t>((static_cast<Wide>(ns) * mult()) >> 64);
  }
};

// A reading whose bracket is `width` wide, and the clock read anywhere within.
NicClock::Reading read_at(const Truth& truth, uint64_t ns, uint32_t width,
                          std::mt19937_64& random) {
  const uint64_t begin = ns - std::uniform_int_distribution<uint64_t>(0, width)(random);
  return {truth.ticks(ns), begin + width / 2, width / 2 + 1, truth.nominal_khz};
}

void check_stamp(const NicClock& clock, const Truth& truth, uint64_t ns, uint64_t most_error_ns) {
  const auto time = clock.host_time(truth.ticks(ns));
  REQUIRE(time.has_value());
  const uint64_t off = time->ns > ns ? time->ns - ns : ns - time->ns;
  INFO("off by " << off << ", stated " << time->error_ns);
  CHECK(off <= time->error_ns);
  CHECK(time->error_ns <= most_error_ns);
}

}  // namespace

TEST_CASE("a stamp is where the stated error says, at any rate, offset and spacing of readings") {
  std::mt19937_64 random(7);
  for (const double ppm : {-200.0, -50.0, 0.0, 50.0, 200.0})
    for (const uint64_t start : {uint64_t{5'000'000}, uint64_t{400'000'000'000'000}})
      for (const uint64_t every : {uint64_t{1'000'000}, uint64_t{250'000'000}}) {
        const Truth truth{.offset = random() >> 8, .ppm = ppm};
        NicClock clock;
        uint64_t now = start;
        for (int i = 0; i < 100; ++i) {
          clock.add(read_at(truth, now, 1000, random));
          if (i > 4) {
            // Ahead of the newest reading, as live stamps are; and behind it.
            for (int n = 0; n < 8; ++n) {
              check_stamp(clock, truth, now + random() % every, 3000);
              check_stamp(clock, truth, now - random() % (3 * every), 3000);
            }
          }
          now += every / 2 + random() % every;
        }
        CHECK(clock.restarts() == 0);
      }
}

TEST_CASE("one wide reading among good ones costs nothing") {
  std::mt19937_64 random(8);
  const Truth truth;
  NicClock clock;
  uint64_t now = 1'000'000'000;
  for (int i = 0; i < 40; ++i, now += 100'000'000)
    clock.add(read_at(truth, now, i % 5 == 4 ? 20'000'000 : 400, random));
  check_stamp(clock, truth, now - 50'000'000, 1500);
}

TEST_CASE("with one reading the rate is the maker's word, and the error says so") {
  std::mt19937_64 random(9);
  const Truth truth{.ppm = -80};
  NicClock clock;
  CHECK(!clock.host_time(truth.ticks(1000)));
  clock.add(read_at(truth, 1'000'000'000, 200, random));
  check_stamp(clock, truth, 1'000'500'000, 2000);
  check_stamp(clock, truth, 1'100'000'000, 200'000);
  NicClock unknown;
  auto reading = read_at(truth, 1'000'000'000, 200, random);
  reading.nominal_khz = 0;
  unknown.add(reading);
  CHECK(!unknown.host_time(reading.ticks));
}

TEST_CASE(
    "a host clock that is slewed hard, and a device that is reset, cost the older readings only") {
  std::mt19937_64 random(10);
  Truth truth;
  NicClock clock;
  uint64_t now = 1'000'000'000;
  for (int i = 0; i < 20; ++i, now += 100'000'000) clock.add(read_at(truth, now, 400, random));
  // From now on 400 ppm faster; the offset makes the clocks meet here.
  const uint64_t meet = truth.ticks(now);
  truth.ppm += 400;
  truth.offset += meet - truth.ticks(now);
  for (int i = 0; i < 20; ++i, now += 100'000'000) clock.add(read_at(truth, now, 400, random));
  check_stamp(clock, truth, now - 150'000'000, 2000);
  CHECK(clock.restarts() == 0);

  truth.offset = 0;
  truth.ppm = 0;
  for (int i = 0; i < 4; ++i, now += 100'000'000) clock.add(read_at(truth, now, 400, random));
  CHECK(clock.restarts() == 1);
  check_stamp(clock, truth, now - 50'000'000, 2000);
}

TEST_CASE("readings and stamps that mean nothing harm nothing") {
  std::mt19937_64 random(11);
  NicClock clock;
  for (int i = 0; i < 200'000; ++i) {
    const auto any = [&] { return random() >> (random() % 64); };
    clock.add({any(), any(), static_cast<uint32_t>(any()), static_cast<uint32_t>(any())});
    const auto time = clock.host_time(any());
    if (time) CHECK(time->error_ns <= 1'000'000'001);
  }
}

namespace {

// A session that knows the clock of mlx5_0, and a CQ of process 100.
struct ClockRig : Rig {
  Truth truth;
  std::mt19937_64 random{12};

  explicit ClockRig(uint16_t cq_flags = 0) {
    now = 1'000'000'000;
    context("mlx5_0");
    mlx5_ib_create_cq driver{};
    driver.flags = cq_flags;
    uverbs(UverbsRecord(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE)
               .driver(RDMA_DRIVER_MLX5)
               .handle(UVERBS_ATTR_CREATE_CQ_HANDLE, 1)
               .in(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, cq_ptr(1))
               .in(UVERBS_ATTR_UHW_IN, driver));
    create_qp(7, {});
    for (int i = 0; i < 10; ++i) {
      now += 10'000'000;
      sigma_clock_sample sample{};
      const auto reading = read_at(truth, now + 1, 200, random);
      sample.ticks = reading.ticks;
      sample.error_ns = 200;
      sample.nominal_khz = reading.nominal_khz;
      std::strcpy(sample.device, "mlx5_0");
      send(sample, SIGMA_CLOCK_SAMPLE, 1);
    }
  }
  // Posted, completed 5 us later, polled 20 us after that; the stamp's clock is `off` ns off.
  const KeptOperation& complete(int64_t off = 0) {
    now += 1000;
    send_post(post(7, 1));
    const uint64_t completed = now + 5000;
    now = completed + 20'000;
    auto wc = completion(7, 1);
    wc.flags = SIGMA_WC_NIC_STAMP;
    wc.nic_stamp = truth.ticks(completed + static_cast<uint64_t>(off));
    send_completion(wc);
    completed_ns = completed;
    return operations.back();
  }
  // Likewise, but read from the ring: it came up between two looks, 2 us before it completed and 20 us
  // after.
  const KeptOperation& complete_in_ring(int64_t off = 0, uint16_t flags = 0) {
    now += 1000;
    sigma_post posted = post(7, 1);
    posted.flags = SIGMA_POST_HAS_INDEX;
    send_post(posted);
    completed_ns = now + 5000;
    now = completed_ns + 20'000;
    sigma_ring_completion cqe{};
    cqe.context = kContext;
    cqe.complete_ns = completed_ns + 9'000;
    cqe.complete_error_ns = 11'000;
    cqe.number = 7;
    cqe.life = ~0u;
    cqe.queue = SIGMA_QUEUE_SEND;
    cqe.tier = SIGMA_TIER_NONE;
    cqe.flags = static_cast<uint16_t>(SIGMA_RING_NIC_STAMP | flags);
    cqe.nic_stamp = truth.ticks(completed_ns + static_cast<uint64_t>(off));
    send(cqe, SIGMA_RING_COMPLETION, kPid);
    return operations.back();
  }
  // That the time is the stamp's.
  void check_stamp(const Operation& operation) const {
    CHECK(operation.complete_source == CompleteSource::nic);
    REQUIRE(operation.complete_error_ns.has_value());
    const int64_t off = static_cast<int64_t>(*operation.complete_ns - completed_ns);
    CHECK(std::abs(off) <= static_cast<int64_t>(*operation.complete_error_ns));
    CHECK(*operation.complete_error_ns < 1000);
  }
  uint64_t completed_ns = 0;
};

}  // namespace

TEST_CASE("a completion's stamp is its time, with its error and source") {
  ClockRig rig;
  const auto& operation = rig.complete();
  rig.check_stamp(operation);
  CHECK(operation.latency_ns == *operation.complete_ns - *operation.time_ns);
  CHECK(rig.finish().nic_stamps_used == 1);
}

TEST_CASE("a stamp from the future, or from before the post, is refused and counted") {
  for (const int64_t off : {int64_t{1'000'000'000}, int64_t{30'000}, int64_t{-10'000}}) {
    ClockRig rig;
    const auto& operation = rig.complete(off);
    CHECK(operation.complete_source == CompleteSource::poll);
    CHECK(operation.complete_ns == rig.now);
    CHECK(!operation.complete_error_ns);
    CHECK(rig.finish().nic_stamps_refused == 1);
  }
}

TEST_CASE("stamps of a real-time CQ are told apart") {
  ClockRig rig(MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS);
  CHECK(rig.complete().complete_source == CompleteSource::poll);
  CHECK(rig.finish().nic_stamps_real_time == 1);
}

TEST_CASE("a completion that was read from a ring has its stamp's time as well") {
  ClockRig rig;
  const auto& operation = rig.complete_in_ring();
  rig.check_stamp(operation);
  CHECK(rig.finish().nic_stamps_used == 1);
}

TEST_CASE("where a ring's stamp cannot be believed, the looks at the ring tell when") {
  for (const int64_t off : {int64_t{1'000'000'000}, int64_t{30'000}, int64_t{-10'000}}) {
    ClockRig rig;
    const auto& operation = rig.complete_in_ring(off);
    CHECK(operation.complete_source == CompleteSource::ring);
    CHECK(operation.complete_ns == rig.completed_ns + 9'000);
    CHECK(operation.complete_error_ns == uint64_t{11'000});
    auto& counters = rig.finish();
    CHECK(counters.nic_stamps_refused == 1);
    CHECK(counters.nic_stamps_used == 0);
  }
  ClockRig rig;
  CHECK(rig.complete_in_ring(0, SIGMA_RING_REAL_TIME).complete_source == CompleteSource::ring);
  CHECK(rig.finish().nic_stamps_real_time == 1);
}

TEST_CASE("a completion that does not say its queue pair is found by its CQ, or not at all") {
  Rig rig;
  rig.context();
  rig.create_cq(1);
  rig.create_qp(7, {});
  rig.create_qp(8, {});
  rig.send_post(Rig::post(7, 1));
  rig.send_post(Rig::post(8, 2));
  rig.send_post(Rig::post(8, 3));
  rig.send_post(Rig::post(7, 3));
  const auto anonymous = [&](uint64_t wr_id) {
    auto wc = Rig::completion(0, wr_id);
    wc.unknown = SIGMA_WC_NO_QP_NUM | SIGMA_WC_NO_OPCODE;
    rig.send_completion(wc);
  };
  anonymous(2);
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].qp->qp_num == 8);
  CHECK(rig.operations[0].flags == kAmbiguous);
  anonymous(3);  // both queue pairs have one
  CHECK(rig.session.counters().completions_unmatched == 1);
  CHECK(rig.finish().completions_fields_unknown == 2);
}
