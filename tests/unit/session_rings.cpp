// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What is read from rings: one operation once, whoever tells of it, and completions by index.
#include "catch.h"
#include "session_ring_rig.h"

namespace {

constexpr uint32_t kQp = RingRig::kQp;

}  // namespace

TEST_CASE("rings: a post and its completion, both from memory") {
  RingRig rig;
  rig.ring_post(RingRig::written(0));
  rig.ring_completion(RingRig::cqe(0));
  REQUIRE(rig.operations.size() == 1);
  const auto& operation = rig.operations[0];
  CHECK(operation.source == sigma::Source::ring);
  CHECK(operation.initiator == sigma::Initiator::unknown);
  CHECK(operation.complete_source == sigma::CompleteSource::ring);
  CHECK(operation.index == uint64_t{0});
  CHECK(operation.time_ns == uint64_t{1000});
  CHECK(operation.time_error_ns == uint64_t{10});
  CHECK(operation.complete_ns == uint64_t{5000});
  CHECK(operation.status == uint32_t{IBV_WC_SUCCESS});
  CHECK_FALSE(operation.wr_id);
  CHECK(operation.tid == 0);
  CHECK(rig.finish().operations == 1);
}

TEST_CASE("rings: a completion ends the interval in which its request was posted") {
  RingRig rig;
  sigma_ring_post post = RingRig::written(0);
  post.post_ns = 2000;
  post.post_error_ns = 1000;
  rig.ring_post(post);
  sigma_ring_completion cqe = RingRig::cqe(0);
  cqe.complete_ns = 1500;
  cqe.complete_error_ns = 0;
  rig.ring_completion(cqe);
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].time_ns == uint64_t{1250});
  CHECK(rig.operations[0].time_error_ns == uint64_t{250});
}

TEST_CASE("rings: a probe's post completes by its index, and those before it") {
  RingRig rig;
  rig.probe_post(70, 0, 0);
  rig.probe_post(71, 1, 0);
  rig.probe_post(72, 2);
  rig.ring_completion(RingRig::cqe(2));
  REQUIRE(rig.operations.size() == 3);
  CHECK(rig.operations[0].complete_source == sigma::CompleteSource::inferred);
  CHECK(rig.operations[1].complete_source == sigma::CompleteSource::inferred);
  CHECK(rig.operations[2].complete_source == sigma::CompleteSource::ring);
  CHECK(rig.operations[2].wr_id == uint64_t{72});
  CHECK(rig.operations[2].source == sigma::Source::probe);
  CHECK(rig.operations[2].flags == 0);
}

TEST_CASE("rings: what a probe told is not told again, pending or completed") {
  RingRig rig;
  rig.probe_post(70, 0);
  rig.ring_post(RingRig::written(0));
  rig.ring_completion(RingRig::cqe(0));
  rig.probe_post(71, 1);
  rig.ring_completion(RingRig::cqe(1));
  rig.ring_post(RingRig::written(1));
  CHECK(rig.operations.size() == 2);
  auto& counters = rig.finish();
  CHECK(counters.operations == 2);
  CHECK(counters.ring_posts_merged == 2);
  CHECK(counters.unfinished == 0);
}

TEST_CASE("rings: a queue driven by verbs and past them") {
  RingRig rig;
  rig.probe_post(70, 0);
  rig.probe_post(72, 2);  // 1 was written without a call
  rig.ring_completion(RingRig::cqe(0));
  rig.ring_completion(RingRig::cqe(1));  // waits for its post
  rig.ring_completion(RingRig::cqe(2));
  CHECK(rig.operations.size() == 2);
  rig.ring_post(RingRig::written(0));
  rig.ring_post(RingRig::written(1));
  rig.ring_post(RingRig::written(2));
  REQUIRE(rig.operations.size() == 3);
  CHECK(rig.operations[2].source == sigma::Source::ring);
  CHECK(rig.operations[2].index == uint64_t{1});
  CHECK(rig.operations[2].status == uint32_t{IBV_WC_SUCCESS});
  CHECK(rig.finish().completions_without_post == 0);
}

TEST_CASE("rings: calls at once get their index from the ring, by what they posted") {
  RingRig rig;
  rig.probe_post(70, 0, IBV_SEND_SIGNALED, 1);
  rig.probe_post(71, 0, IBV_SEND_SIGNALED, 2);
  rig.ring_post(RingRig::written(0));
  rig.ring_post(RingRig::written(1));
  rig.ring_completion(RingRig::cqe(0));
  rig.ring_completion(RingRig::cqe(1));
  CHECK(rig.operations.size() == 2);
  CHECK(rig.finish().operations == 2);
}

TEST_CASE("rings: a queue whose completions are read is not taken for stuck") {
  RingRig rig;
  rig.probe_post(70, 0);
  rig.probe_post(71, 1);
  const uint64_t posted_ns = rig.now;
  CHECK(rig.session.stalled_queues(posted_ns + 1).size() == 1);
  rig.now += 1'000'000;
  rig.ring_completion(RingRig::cqe(0));
  CHECK(rig.session.stalled_queues(posted_ns + 1).empty());
  CHECK(rig.session.stalled_queues(rig.now + 1).size() == 1);
}

TEST_CASE("rings: the index goes on behind 65,535") {
  RingRig rig(65'530);
  for (uint64_t index = 65'530; index < 65'545; ++index) {
    if (index % 2)
      rig.ring_post(RingRig::written(index));
    else
      rig.probe_post(index, index & 0xffff);
    rig.ring_completion(RingRig::cqe(static_cast<uint16_t>(index)));
  }
  REQUIRE(rig.operations.size() == 15);
  for (size_t i = 0; i < 15; ++i) CHECK(rig.operations[i].index == 65'530 + i);
}

TEST_CASE("rings: a gap's completions are no operations, but its errors are") {
  RingRig rig;
  rig.ring_gap(0, 10);
  rig.ring_completion(RingRig::cqe(4));
  rig.ring_completion(RingRig::cqe(5, IBV_WC_REM_ACCESS_ERR));
  rig.ring_post(RingRig::written(10));
  rig.ring(SIGMA_RING_END, 0, 0, 11);
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].status == uint32_t{IBV_WC_REM_ACCESS_ERR});
  CHECK(rig.operations[0].index == uint64_t{5});
  auto& counters = rig.finish();
  CHECK(counters.ring_blocks_missed == 10);
  CHECK(counters.ring_gaps == 1);
  CHECK(counters.completions_without_post == 2);
  const auto queues = rig.session.queue_pairs();
  REQUIRE(queues.size() == 1);
  REQUIRE(queues[0]->observed);
  CHECK(queues[0]->observed->posted == 11);
  CHECK(queues[0]->observed->seen + queues[0]->observed->missed == 11);
}

TEST_CASE("rings: requests that move no data keep the order and are not reported") {
  RingRig rig;
  rig.ring_post(RingRig::written(0, false));
  sigma_ring_post nop = RingRig::written(1);
  nop.opcode = SIGMA_WR_NOP;
  rig.ring_post(nop);
  rig.ring_completion(RingRig::cqe(1));
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].complete_source == sigma::CompleteSource::inferred);
  CHECK(rig.finish().operations == 1);
}

TEST_CASE("rings: an error is told also where it is of a request that moves no data") {
  RingRig rig;
  rig.ring_post(RingRig::written(0));
  auto nop = RingRig::written(1);
  nop.opcode = SIGMA_WR_NOP;
  rig.ring_post(nop);
  rig.ring_completion(RingRig::cqe(1, IBV_WC_WR_FLUSH_ERR));
  REQUIRE(rig.operations.size() == 2);
  // What became of the request before it nobody has read.
  CHECK(rig.operations[0].index == uint64_t{0});
  CHECK_FALSE(rig.operations[0].status);
  CHECK(rig.operations[1].index == uint64_t{1});
  CHECK(rig.operations[1].status == uint32_t{IBV_WC_WR_FLUSH_ERR});
  CHECK(rig.finish().errors_flushed == 1);
}

TEST_CASE("rings: a flush whose cause was not read infers no success") {
  RingRig rig;
  rig.ring_post(RingRig::written(0, false));
  rig.ring_post(RingRig::written(1, false));
  rig.ring_post(RingRig::written(2));
  rig.ring_completion(RingRig::cqe(2, IBV_WC_WR_FLUSH_ERR));
  REQUIRE(rig.operations.size() == 3);
  for (size_t i = 0; i < 2; ++i) {
    CHECK_FALSE(rig.operations[i].status);
    CHECK((rig.operations[i].flags & sigma::kAmbiguous) != 0);
  }
  CHECK(rig.operations[2].status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("rings: errors complete their own request, the first and the flushed ones") {
  RingRig rig;
  rig.ring_post(RingRig::written(0, false));
  for (uint64_t index = 1; index < 4; ++index) rig.ring_post(RingRig::written(index));
  rig.ring_completion(RingRig::cqe(1, IBV_WC_REM_ACCESS_ERR));
  rig.ring_completion(RingRig::cqe(2, IBV_WC_WR_FLUSH_ERR));
  rig.ring_completion(RingRig::cqe(3, IBV_WC_WR_FLUSH_ERR));
  REQUIRE(rig.operations.size() == 4);
  CHECK(rig.operations[0].status == uint32_t{IBV_WC_SUCCESS});
  CHECK(rig.operations[1].status == uint32_t{IBV_WC_REM_ACCESS_ERR});
  CHECK(rig.operations[3].status == uint32_t{IBV_WC_WR_FLUSH_ERR});
  auto& counters = rig.finish();
  CHECK(counters.errors_first == 1);
  CHECK(counters.errors_flushed == 2);
}

TEST_CASE("rings: posts from memory complete by polls in their order") {
  RingRig rig;
  rig.set_state(kQp, IBV_QPS_RTS);
  rig.ring_post(RingRig::written(0, false));
  rig.ring_post(RingRig::written(1));
  rig.send_completion(Rig::completion(kQp, 4711));
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[1].complete_source == sigma::CompleteSource::poll);
  CHECK(rig.operations[1].wr_id == uint64_t{4711});
}

TEST_CASE("rings: receives complete in their order, with what was sent") {
  RingRig rig;
  for (uint64_t i = 0; i < 3; ++i) {
    sigma_post receive = Rig::recv(kQp, 100 + i);
    receive.flags = SIGMA_POST_HAS_INDEX;
    receive.index = static_cast<uint32_t>(i);
    rig.send_post(receive);
  }
  sigma_ring_completion cqe = RingRig::cqe(0);
  cqe.queue = SIGMA_QUEUE_RECV;
  cqe.wc_opcode = IBV_WC_RECV;
  cqe.wc_flags = IBV_WC_WITH_IMM;
  cqe.imm = htonl(7);
  cqe.bytes = 48;
  rig.ring_completion(cqe);
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].wr_id == uint64_t{100});
  CHECK(rig.operations[0].bytes == uint64_t{48});
  CHECK(rig.operations[0].imm == uint32_t{7});
  cqe.wqe_counter = 1;
  cqe.wc_flags = 0;
  rig.ring_completion(cqe);
  CHECK(rig.operations.back().wr_id == uint64_t{101});
  CHECK_FALSE(rig.operations.back().imm);
}

TEST_CASE("rings: a receive that no probe told of is reported at its completion") {
  RingRig rig;
  sigma_ring_completion cqe = RingRig::cqe(5);
  cqe.queue = SIGMA_QUEUE_RECV;
  cqe.wc_opcode = IBV_WC_RECV;
  cqe.bytes = 48;
  rig.ring_completion(cqe);
  REQUIRE(rig.operations.size() == 1);
  CHECK_FALSE(rig.operations[0].time_ns);
  CHECK(rig.operations[0].queue == sigma::Queue::recv);
  CHECK(rig.finish().receives_without_post == 1);
}
