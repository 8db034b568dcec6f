// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What is read from rings: one operation once, whoever tells of it, and completions by index.
#include "catch.h"
#include "session_rig.h"

namespace {

constexpr uint32_t kQp = 17;

struct RingRig : Rig {
  explicit RingRig(uint64_t first = 0) {
    context("mlx5_0");
    create_qp(kQp, {});
    ring(SIGMA_RING_BEGIN, 0, first);
  }

  sigma_ring_origin origin = SIGMA_RING_BY_COMMAND;
  uint8_t tier = SIGMA_TIER_NONE;
  std::string reason;  // of the SIGMA_RINGs that follow
  uint8_t mode = SIGMA_RING_READ;

  // The records that follow are another reader's: the preloaded library reads a GPU's memory (tier
  // 2).
  void read_by_library() { origin = SIGMA_RING_BY_LIBRARY, tier = 2; }
  void read_by_observer() { origin = SIGMA_RING_BY_COMMAND, tier = SIGMA_TIER_NONE; }

  void ring(sigma_ring_event event, uint32_t life, uint64_t first = 0, uint64_t posted = 0,
            sigma_initiator initiator = SIGMA_INITIATOR_UNKNOWN) {
    sigma_ring record{};
    record.context = kContext;
    record.first = first;
    record.posted = posted;
    record.number = kQp;
    record.life = life;
    record.entries = 64;
    record.kind = SIGMA_RING_SEND;
    record.event = static_cast<uint8_t>(event);
    record.origin = static_cast<uint8_t>(origin);
    record.mode = mode;
    reason.copy(record.reason, sizeof record.reason - 1);
    record.initiator = static_cast<uint8_t>(initiator);
    record.tier = initiator == SIGMA_INITIATOR_GPU ? uint8_t{1} : tier;
    send(record, SIGMA_RING, kPid);
  }
  static sigma_ring_post written(uint64_t index, bool signaled = true) {
    sigma_ring_post record{};
    record.context = kContext;
    record.post_ns = 1000;
    record.post_error_ns = 10;
    record.index = index;
    record.bytes = 64;
    record.number = kQp;
    record.blocks = 1;
    record.num_sge = 1;
    record.flags = SIGMA_RING_MARGIN;
    if (signaled) record.flags |= SIGMA_RING_SIGNALED;
    record.opcode = IBV_WR_RDMA_WRITE;
    record.qp_type = IBV_QPT_RC;
    record.tier = SIGMA_TIER_NONE;
    return record;
  }
  void ring_post(sigma_ring_post record) {
    record.tier = tier;
    send(record, SIGMA_RING_POST, kPid);
  }
  static sigma_ring_completion cqe(uint16_t counter, uint8_t status = IBV_WC_SUCCESS) {
    sigma_ring_completion record{};
    record.context = kContext;
    record.complete_ns = 5000;
    record.complete_error_ns = 10;
    record.number = kQp;
    record.wqe_counter = counter;
    record.status = status;
    record.wc_opcode = IBV_WC_RDMA_WRITE;
    record.queue = SIGMA_QUEUE_SEND;
    record.tier = SIGMA_TIER_NONE;
    return record;
  }
  void ring_completion(sigma_ring_completion record) {
    record.tier = tier;
    send(record, SIGMA_RING_COMPLETION, kPid);
  }
  void ring_gap(uint64_t first, uint64_t count) {
    sigma_ring_gap record{};
    record.context = kContext;
    record.first = first;
    record.count = count;
    record.number = kQp;
    record.kind = SIGMA_RING_SEND;
    record.reason = SIGMA_GAP_LAPPED;
    record.tier = tier;
    send(record, SIGMA_RING_GAP, kPid);
  }
  void probe_post(uint64_t wr_id, uint32_t index, uint8_t flags = IBV_SEND_SIGNALED,
                  uint32_t tid = 0) {
    sigma_post record = post(kQp, wr_id, flags);
    record.flags = SIGMA_POST_HAS_INDEX;
    record.index = index;
    record.qp_type = IBV_QPT_RC;
    send_post(record, kPid, tid);
  }
};

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

TEST_CASE("rings: requests of a queue that turns out to be a GPU's are its own") {
  RingRig rig;
  rig.ring_post(RingRig::written(0));
  rig.ring_completion(RingRig::cqe(0));
  rig.ring_post(RingRig::written(1));
  rig.ring(SIGMA_RING_STATE, 0, 0, 2, SIGMA_INITIATOR_GPU);
  rig.ring_completion(RingRig::cqe(1));
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[0].initiator == sigma::Initiator::unknown);
  CHECK(rig.operations[1].initiator == sigma::Initiator::gpu);
  CHECK(rig.operations[1].tier == uint8_t{1});
  auto& counters = rig.finish();
  CHECK(counters.operations == 2);
  CHECK(counters.initiators_late == 1);
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

TEST_CASE("rings: entries of a life that has ended are counted and dropped") {
  RingRig rig;
  rig.ring_post(RingRig::written(0));
  rig.set_state(kQp, IBV_QPS_RTS);
  rig.set_state(kQp, IBV_QPS_RESET);
  CHECK(rig.operations.size() == 1);  // unfinished
  rig.ring(SIGMA_RING_BEGIN, 1);
  rig.ring_post(RingRig::written(1));  // says life 0
  sigma_ring_post second = RingRig::written(0);
  second.life = 1;
  rig.ring_post(second);
  sigma_ring_completion cqe = RingRig::cqe(0);
  cqe.life = 1;
  rig.ring_completion(cqe);
  auto& counters = rig.finish();
  CHECK(counters.ring_records_stale == 1);
  CHECK(counters.operations == 2);
}

TEST_CASE("rings: an observer that comes later does not take the library's ring, where that reads it") {
  RingRig rig;
  rig.read_by_library();
  const bool reads = GENERATE(true, false);
  rig.mode = reads ? SIGMA_RING_READ : SIGMA_RING_SETUP;
  rig.ring(SIGMA_RING_BEGIN, 0);
  rig.mode = SIGMA_RING_READ;
  rig.read_by_observer();
  rig.ring(SIGMA_RING_BEGIN, 1);
  if (reads) rig.read_by_library();
  auto post = RingRig::written(0);
  post.life = reads ? 0 : 1;
  rig.ring_post(post);
  auto& counters = rig.finish();
  CHECK(rig.operations.size() == 1);
  CHECK(counters.ring_records_refused == reads);
}

TEST_CASE("rings: what the library tells behind a DESTROY is of the queue pair that ended") {
  RingRig rig;
  rig.read_by_library();
  rig.ring(SIGMA_RING_BEGIN, 0);
  rig.ring_post(RingRig::written(0));
  const bool ends_first = GENERATE(false, true);
  if (ends_first) rig.ring(SIGMA_RING_END, 0, 0, 1);
  rig.destroy_qp(kQp);
  CHECK(rig.operations.size() == (ends_first ? 1 : 0));
  if (!ends_first) {
    rig.ring_post(RingRig::written(1));
    rig.ring_completion(RingRig::cqe(1));
    rig.ring(SIGMA_RING_END, 0, 0, 2);
    CHECK(rig.operations.size() == 2);
  }
  rig.ring(SIGMA_RING_STATE, 0, 0, 3);  // of nobody any more
  auto& counters = rig.finish();
  CHECK(counters.ring_records_stale == 1);
  CHECK(counters.qps_seen == 1);
  CHECK(counters.qps_older_than_attach == 0);
}

TEST_CASE("rings: what the library tells behind a RESET is of the life before, to its last word") {
  RingRig rig;
  rig.read_by_library();
  rig.ring(SIGMA_RING_BEGIN, 3);
  const auto post = [&](uint64_t index, uint32_t life) {
    auto record = RingRig::written(index);
    record.life = life;
    rig.ring_post(record);
  };
  const auto complete = [&](uint16_t index, uint32_t life) {
    auto record = RingRig::cqe(index);
    record.life = life;
    rig.ring_completion(record);
  };
  post(0, 3);
  rig.set_state(kQp, IBV_QPS_RTS);
  rig.set_state(kQp, IBV_QPS_RESET);
  CHECK(rig.operations.empty());  // its completion may come yet
  const bool reset_again = GENERATE(false, true);
  rig.set_state(kQp, IBV_QPS_RTS);
  if (reset_again) {  // before the library came to the first one
    rig.set_state(kQp, IBV_QPS_RESET);
    rig.set_state(kQp, IBV_QPS_RTR);
  }
  complete(0, 3);
  post(1, 3);
  const bool end_lost = GENERATE(false, true);
  if (!end_lost) rig.ring(SIGMA_RING_END, 3, 0, 2);
  if (!end_lost) complete(0, 3);
  const uint32_t next = reset_again ? 5 : 4;
  rig.ring(SIGMA_RING_BEGIN, next);
  post(1, 3);  // of the past, and so is its state
  rig.ring(SIGMA_RING_STATE, 3, 0, 2);
  post(0, next);
  complete(0, next);
  const bool destroyed = GENERATE(false, true);
  if (destroyed) {
    rig.destroy_qp(kQp);
    rig.ring(SIGMA_RING_END, next, 0, 1);
  }
  auto& counters = rig.finish();
  REQUIRE(rig.operations.size() == 3);
  for (const auto& [at, index, life, finished] :
       {std::tuple(0, 0, 0u, true), {1, 1, 0u, false}, {2, 0, reset_again ? 2u : 1u, true}}) {
    const auto& operation = rig.operations[static_cast<size_t>(at)];
    INFO(at);
    CHECK(operation.index == static_cast<uint64_t>(index));
    CHECK(operation.qp->life == life);
    CHECK(operation.status.has_value() == finished);
  }
  CHECK(counters.ring_ends_unseen == end_lost);
  const auto queues = rig.session.queue_pairs();
  REQUIRE(queues.size() == (reset_again ? 3u : 2u));
  const sigma::QueuePair &first = *rig.operations[0].qp, &last = *rig.operations[2].qp;
  CHECK(first.state == uint8_t{IBV_QPS_RTS});
  CHECK(last.state == uint8_t{reset_again ? IBV_QPS_RTR : IBV_QPS_RTS});
  REQUIRE(first.observed);
  CHECK(first.observed->posted == 2);
  CHECK(first.observed->end_unseen == end_lost);
  CHECK(first.destroyed_ns.has_value());
  CHECK(last.destroyed_ns.has_value() == destroyed);
}

TEST_CASE("rings: a RESET without a further word of the library's ends with its job") {
  RingRig rig;
  rig.read_by_library();
  rig.ring(SIGMA_RING_BEGIN, 0);
  rig.ring_post(RingRig::written(0));
  rig.set_state(kQp, IBV_QPS_RTS);
  rig.set_state(kQp, IBV_QPS_RESET);
  if (GENERATE(false, true)) rig.destroy_qp(kQp);
  if (GENERATE(false, true)) rig.process(SIGMA_PROCESS_EXIT, RingRig::kPid);
  CHECK(rig.session.queue_pairs().size() == 2);
  rig.finish();
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].qp->life == 0);
  CHECK(rig.session.queue_pairs().size() == 2);
}

TEST_CASE("rings: a job that ends before the library told a queue's end leaves it unseen") {
  RingRig rig;
  rig.read_by_library();
  rig.ring(SIGMA_RING_BEGIN, 0);
  rig.ring_post(RingRig::written(0));
  rig.ring(SIGMA_RING_STATE, 0, 0, 1);
  rig.ring_post(RingRig::written(1));
  const bool traced_to_the_end = GENERATE(false, true);
  if (traced_to_the_end) rig.process(SIGMA_PROCESS_EXIT, RingRig::kPid);
  auto& counters = rig.finish();
  REQUIRE(rig.operations.size() == 2);
  const auto& observed = *rig.operations[1].qp->observed;
  CHECK(observed.end_unseen == traced_to_the_end);
  CHECK(observed.posted == (traced_to_the_end ? 2 : 1));
  CHECK(counters.ring_ends_unseen == (traced_to_the_end ? 1 : 0));
}

TEST_CASE("rings: a queue that hung has hung, whatever else is then said of it") {
  RingRig rig;
  rig.read_by_library();
  rig.reason = "not mapped";
  rig.ring(SIGMA_RING_BEGIN, 0);
  rig.ring_post(RingRig::written(0));
  const auto say = [&](sigma_ring_event event, std::string_view reason) {
    rig.reason = reason;
    rig.ring(event, 0, 0, 1);
  };
  const std::string_view last = GENERATE("killed", "not waited for", "seen", "moves", "given up");
  say(SIGMA_RING_STATE, SIGMA_RING_HUNG);
  if (last == "moves") {
    say(SIGMA_RING_STATE, SIGMA_RING_MOVES);
    say(SIGMA_RING_END, "not mapped");
  } else if (last == "given up") {
    rig.mode = SIGMA_RING_SETUP;
    say(SIGMA_RING_STATE, "a copy failed");
  } else if (last != "killed") {
    say(SIGMA_RING_END, last == "seen" ? SIGMA_RING_HUNG : SIGMA_RING_END_UNSEEN);
  }
  rig.process(SIGMA_PROCESS_EXIT, RingRig::kPid);
  auto& counters = rig.finish();
  REQUIRE(rig.operations.size() == 1);
  const auto& observed = *rig.operations[0].qp->observed;
  INFO(last);
  CHECK(observed.hung == (last != "moves"));
  CHECK(observed.reason == (last == "given up" ? "a copy failed" : "not mapped"));
  CHECK(observed.end_unseen == (last != "seen" && last != "moves"));
  CHECK(counters.ring_ends_unseen == observed.end_unseen);
}

TEST_CASE("rings: what a second reader tells of a life is refused, whoever is the first") {
  RingRig rig;  // the observer has begun
  const bool library_first = GENERATE(false, true);
  const auto first = [&] { library_first ? rig.read_by_library() : rig.read_by_observer(); };
  const auto second = [&] { library_first ? rig.read_by_observer() : rig.read_by_library(); };
  first();
  if (library_first) rig.ring(SIGMA_RING_BEGIN, 0);  // the observer has told nothing: it makes room
  rig.ring_post(RingRig::written(0));
  rig.ring_completion(RingRig::cqe(0));
  second();
  rig.ring(SIGMA_RING_BEGIN, 0);
  rig.ring_post(RingRig::written(0));
  rig.ring_post(RingRig::written(1));
  rig.ring_gap(1, 5);
  rig.ring_completion(RingRig::cqe(0));
  rig.ring_completion(RingRig::cqe(1, IBV_WC_WR_FLUSH_ERR));
  rig.ring(SIGMA_RING_END, 0, 0, 6);
  first();  // if it is the observer, by what BPF copied as the ring ended
  rig.ring_post(RingRig::written(1));
  rig.ring_completion(RingRig::cqe(1));
  rig.ring(SIGMA_RING_END, 0, 0, 2);
  CHECK(rig.operations.size() == 2);
  for (const auto& operation : rig.operations) CHECK(operation.status == uint32_t{IBV_WC_SUCCESS});
  const auto observed = rig.session.queue_pairs().at(0)->observed;
  REQUIRE(observed);
  CHECK(observed->posted == 2);
  CHECK(observed->seen == 2);
  CHECK(observed->missed == 0);
  auto& counters = rig.finish();
  CHECK(counters.ring_records_refused == 7);
  CHECK(counters.ring_posts == 2);
  CHECK(counters.ring_completions == 2);
  CHECK(counters.errors_flushed == 0);
  CHECK(counters.completions_without_post == 0);
}

TEST_CASE("rings: a second reader goes on where the first has ended") {
  RingRig rig;
  rig.ring_post(RingRig::written(0));
  rig.ring_completion(RingRig::cqe(0));
  rig.ring(SIGMA_RING_END, 0, 0, 1);
  rig.read_by_library();
  rig.ring(SIGMA_RING_BEGIN, 0, 1);
  rig.ring_post(RingRig::written(1));
  rig.ring_completion(RingRig::cqe(1));
  rig.ring(SIGMA_RING_END, 0, 0, 1);
  CHECK(rig.operations.size() == 2);
  CHECK(rig.session.queue_pairs().at(0)->observed->posted == 2);
  CHECK(rig.finish().ring_records_refused == 0);
}

TEST_CASE("rings: the library tells the posts, and the observer their completions") {
  RingRig rig;  // their ring stands in host memory, where the observer reads it
  rig.read_by_library();
  rig.ring(SIGMA_RING_BEGIN, 0);
  rig.ring_post(RingRig::written(0));
  rig.read_by_observer();
  sigma_ring_completion cqe = RingRig::cqe(0);
  cqe.life = ~0u;  // of a send ring that it does not read
  rig.ring_completion(cqe);
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].status == uint32_t{IBV_WC_SUCCESS});
  rig.read_by_library();
  rig.ring_completion(RingRig::cqe(0));
  CHECK(rig.operations.size() == 1);
  CHECK(rig.finish().ring_records_refused == 1);
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
