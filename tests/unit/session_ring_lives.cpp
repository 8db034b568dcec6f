// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Rings have lives and readers: whose word is taken, until when, and what is said of the reading.
#include "catch.h"
#include "session_ring_rig.h"

namespace {

constexpr uint32_t kQp = RingRig::kQp;

}  // namespace

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
