// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Shared receive queues whose completions are read from memory: which request one is of is told by its
// slot, as long as the order is known in which slots are used again.
#include <rdma/mlx5-abi.h>

#include "catch.h"
#include "session_rig.h"

namespace {

constexpr uint32_t kSrq = 3, kFirst = 17, kSecond = 18;
constexpr uint64_t kSrqPtr = 0xa000;

// Two queue pairs on one shared receive queue of four slots.
struct SharedRig : Rig {
  SharedRig() {
    context("mlx5_0");
    uverbs(UverbsRecord(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE)
               .driver(RDMA_DRIVER_MLX5)
               .handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, kSrq)
               .in(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, kSrqPtr)
               .in(UVERBS_ATTR_CREATE_SRQ_MAX_WR, uint32_t{3})
               .in(UVERBS_ATTR_UHW_IN, mlx5_ib_create_srq{.buf_addr = 0x7000, .db_addr = 0x8000}));
    for (const uint32_t qp : {kFirst, kSecond}) create_qp(qp, {.srq = kSrq});
  }
  void receive(uint64_t wr_id) { send_post(srq_recv(kSrqPtr, wr_id)); }
  void complete(uint32_t qp, uint16_t slot) {
    sigma_ring_completion record{};
    record.context = kContext;
    record.complete_ns = ++now;
    record.number = qp;
    record.life = ~0u;
    record.wqe_counter = slot;
    record.wc_opcode = IBV_WC_RECV;
    record.bytes = 48;
    record.queue = SIGMA_QUEUE_SRQ;
    record.tier = SIGMA_TIER_NONE;
    send(record, SIGMA_RING_COMPLETION, kPid);
  }
  void miss_completions(uint64_t count) {
    sigma_ring_gap record{};
    record.context = kContext;
    record.count = count;
    record.number = 1;
    record.kind = SIGMA_RING_CQ;
    record.reason = SIGMA_GAP_LAPPED;
    record.tier = SIGMA_TIER_NONE;
    send(record, SIGMA_RING_GAP, kPid);
  }
};

}  // namespace

TEST_CASE("shared receives: it is said where missed completions are known modulo the ring's laps") {
  SharedRig rig;
  for (const uint16_t flags : {uint16_t{0}, uint16_t{SIGMA_RING_MODULO}})
    for (const uint8_t event : {SIGMA_RING_STATE, SIGMA_RING_END}) {
      sigma_ring record{};
      record.context = SharedRig::kContext;
      record.number = 1;
      record.kind = SIGMA_RING_CQ;
      record.event = event;
      record.flags = flags;
      record.missed = 5;
      record.tier = SIGMA_TIER_NONE;
      rig.send(record, SIGMA_RING, SharedRig::kPid);
    }
  const sigma::Counters counters = rig.finish();
  CHECK(counters.ring_completions_missed == 10);
  CHECK(counters.ring_completions_modulo == 1);
}

TEST_CASE("shared receives: a slot is used again after those that were freed before it") {
  SharedRig rig;
  for (uint64_t wr_id = 100; wr_id < 104; ++wr_id) rig.receive(wr_id);
  rig.complete(kFirst, 2);
  rig.complete(kSecond, 0);
  rig.receive(104);  // takes slot 2
  rig.receive(105);
  rig.complete(kFirst, 0);
  rig.complete(kFirst, 2);
  REQUIRE(rig.operations.size() == 4);
  const uint64_t wanted[] = {102, 100, 105, 104};
  for (size_t i = 0; i < 4; ++i) CHECK(rig.operations[i].wr_id == wanted[i]);
  CHECK(rig.finish().receives_without_post == 0);
}

TEST_CASE("shared receives: behind a missed completion none is matched with a guess, and none is told twice") {
  SharedRig rig;
  for (uint64_t wr_id = 100; wr_id < 104; ++wr_id) rig.receive(wr_id);
  rig.complete(kFirst, 0);
  rig.miss_completions(1);  // of slot 1
  rig.complete(kSecond, 2);
  rig.receive(104);
  rig.receive(105);  // in slot 1, which nobody told of
  rig.complete(kFirst, 1);
  REQUIRE(rig.operations.size() == 3);
  CHECK(rig.operations[0].wr_id == uint64_t{100});
  for (size_t i = 1; i < 3; ++i) {
    CHECK_FALSE(rig.operations[i].wr_id);
    CHECK_FALSE(rig.operations[i].time_ns);
    CHECK(rig.operations[i].bytes == uint64_t{48});
  }
  const auto& counters = rig.finish();
  CHECK(counters.receives_without_post == 2);
  CHECK(counters.unfinished == 3);  // of six posted one was missed and two are outstanding
}

TEST_CASE("shared receives: a queue pair that ends gives back what it has not polled in an order of its own") {
  const bool resets = GENERATE(false, true);
  SharedRig rig;
  for (uint64_t wr_id = 100; wr_id < 104; ++wr_id) rig.receive(wr_id);
  if (resets) rig.set_state(kFirst, IBV_QPS_RTS);
  rig.complete(kFirst, 0);
  rig.complete(kFirst, 1);
  if (resets) rig.set_state(kFirst, IBV_QPS_RESET);
  else rig.destroy_qp(kFirst);
  rig.receive(104);  // in slot 1: the library goes through the ring from its end
  rig.complete(kSecond, 1);
  rig.complete(kSecond, 2);
  REQUIRE(rig.operations.size() == 4);
  CHECK_FALSE(rig.operations[2].wr_id);
  CHECK_FALSE(rig.operations[3].wr_id);
  const auto& counters = rig.finish();
  CHECK(counters.receives_without_post == 2);
  CHECK(counters.unfinished == 1);
}
