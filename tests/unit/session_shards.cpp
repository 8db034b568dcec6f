// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What several threads could get wrong: records of one queue that go to different ones, because
// something is learnt late. Rig::finish says that they make the same of it as one does.
#include "catch.h"
#include "session_rig.h"

namespace {

constexpr uint32_t kFirst = 40, kQps = 12;

// `rounds` of a send on each queue pair and its completion.
void traffic(Rig& rig, uint32_t rounds, uint64_t& wr_id) {
  for (uint32_t round = 0; round < rounds; ++round) {
    for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) rig.send_post(Rig::post(qp, wr_id + qp));
    for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) rig.send_completion(Rig::completion(qp, wr_id + qp));
    wr_id += 1000;
  }
}

}  // namespace

TEST_CASE("session: a shared receive queue that becomes known in mid-traffic") {
  Rig rig;
  rig.context();
  rig.create_cq(1);
  for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) rig.create_qp(qp, {});
  uint64_t wr_id = 1;
  traffic(rig, 100, wr_id);
  // Sends and a batch are under way as their queue pair turns out to have one.
  for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) {
    rig.send_post(Rig::post(qp, wr_id + qp));
    sigma_post staged = Rig::post(qp, wr_id + qp + 500);
    staged.flags |= SIGMA_POST_STAGED;
    staged.call_ns = 7000 + qp;
    rig.send_post(staged);
  }
  for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) rig.qp_seen(qp, IBV_QPS_RTS, Rig::kPid, Rig::kContext, 0, 0, 0xa000);
  for (uint32_t i = 0; i < 100; ++i) rig.send_post(Rig::srq_recv(0xa000, 900'000 + i));
  for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) {
    rig.result(SIGMA_OUTCOME_COMMITTED, 7000 + qp, qp);
    rig.send_completion(Rig::completion(qp, wr_id + qp));
    rig.send_completion(Rig::completion(qp, wr_id + qp + 500));
  }
  for (uint32_t i = 0; i < 100; ++i)
    rig.send_completion(Rig::completion(kFirst + i % kQps, 900'000 + 99 - i, IBV_WC_RECV));
  wr_id += 1000;
  traffic(rig, 100, wr_id);
  const auto& counters = rig.finish();
  CHECK(counters.operations == 200 * kQps + 2 * kQps + 100);
  CHECK(counters.unfinished == 0);
  CHECK(counters.completions_without_post == 0);
  CHECK(counters.staged_unresolved == 0);
}

TEST_CASE("session: completions that name no queue pair, between others that do") {
  Rig rig;
  rig.context();
  rig.create_cq(1);
  rig.create_cq(2);
  for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp)
    rig.create_qp(qp, {.send_cq = qp % 2 ? 1u : 2u, .recv_cq = qp % 2 ? 1u : 2u});
  uint64_t wr_id = 1;
  for (uint32_t round = 0; round < 50; ++round) {
    for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) rig.send_post(Rig::post(qp, wr_id + qp));
    for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) {
      sigma_completion wc = Rig::completion(qp, wr_id + qp, IBV_WC_RDMA_WRITE, IBV_WC_SUCCESS, Rig::cq_ptr(qp % 2 ? 1 : 2));
      if (round % 10 == 3) {
        wc.unknown = SIGMA_WC_NO_QP_NUM;
        wc.qp_num = 0;
      }
      rig.send_completion(wc);
    }
    wr_id += 1000;
  }
  const auto& counters = rig.finish();
  CHECK(counters.operations == 50 * kQps);
  CHECK(counters.completed == 50 * kQps);
}

TEST_CASE("session: a pause, a forked child and an end in mid-traffic") {
  Rig rig;
  rig.context();
  rig.create_cq(1);
  for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) rig.create_qp(qp, {});
  uint64_t wr_id = 1;
  traffic(rig, 60, wr_id);
  for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) rig.send_post(Rig::post(qp, wr_id));
  rig.window(SIGMA_WINDOW_PAUSE, Rig::kPid);
  traffic(rig, 10, wr_id);  // nobody looks
  rig.window(SIGMA_WINDOW_RESUME, Rig::kPid);
  traffic(rig, 60, wr_id);
  sigma_process fork{};
  fork.kind = SIGMA_PROCESS_FORK;
  fork.child_pid = 101;
  rig.send(fork, SIGMA_PROCESS, Rig::kPid);
  // The child posts to its parent's queue pairs.
  for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) {
    rig.send_post(Rig::post(qp, wr_id + qp), 101);
    rig.send_completion(Rig::completion(qp, wr_id + qp), 101);
  }
  for (uint32_t qp = kFirst; qp < kFirst + kQps; ++qp) rig.send_post(Rig::post(qp, wr_id));
  sigma_process exit{};
  exit.kind = SIGMA_PROCESS_EXIT;
  rig.send(exit, SIGMA_PROCESS, Rig::kPid);
  const auto& counters = rig.finish();
  CHECK(counters.operations == 120 * kQps + 3 * kQps);
  CHECK(counters.unfinished == 2 * kQps);
}
