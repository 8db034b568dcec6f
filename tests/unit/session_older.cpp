// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Queue pairs older than the attach: what reveals them, and how posts and completions come into
// step.
#include "catch.h"
#include "session_rig.h"

using sigma::Opcode;
using sigma::Queue;

TEST_CASE("session: completions alone reveal an older queue pair") {
  Rig rig;
  rig.context();
  auto wc = Rig::completion(17, 9, IBV_WC_RECV);
  wc.byte_len = 10;
  rig.send_completion(wc);
  REQUIRE(rig.operations.size() == 1);
  REQUIRE(rig.operations[0].qp);
  CHECK(rig.operations[0].qp->older_than_attach);
  CHECK(rig.operations[0].queue == Queue::recv);
  CHECK(rig.operations[0].opcode == Opcode::recv);
  CHECK(rig.operations[0].bytes == 10u);
  CHECK_FALSE(rig.operations[0].time_ns);
  CHECK_FALSE(rig.operations[0].tid);
  CHECK(rig.session.counters().completions_without_post == 1);
  CHECK(rig.session.counters().qps_older_than_attach == 1);
}

TEST_CASE("session: distinct wr_ids bring an older queue into step") {
  Rig rig;
  rig.context();
  rig.qp_seen(17);
  // Four outstanding at the attach, then a window of four, wr_ids counting up.
  for (uint64_t wr_id = 0; wr_id < 40; ++wr_id) {
    rig.send_post(Rig::post(17, wr_id + 4));
    rig.send_completion(Rig::completion(17, wr_id));
  }
  REQUIRE(rig.operations.size() == 40);
  size_t certain = 0;
  for (const auto& operation : rig.operations) {
    if (*operation.wr_id < 4) CHECK_FALSE(operation.time_ns);
    if (*operation.wr_id >= 4) CHECK(operation.time_ns);
    if (operation.latency_ns) {
      ++certain;
      CHECK(*operation.latency_ns == 9);  // posts and completions alternate
    }
  }
  CHECK(certain >= 20);
  CHECK(rig.session.counters().ambiguous == 40 - 4 - certain);
}

TEST_CASE("session: few wr_ids, used again and again, do not") {
  Rig rig;
  rig.context();
  rig.qp_seen(17);
  for (uint64_t i = 0; i < 200; ++i) {
    rig.send_post(Rig::post(17, i % 4));
    rig.send_completion(Rig::completion(17, i % 4));
  }
  for (const auto& operation : rig.operations) CHECK_FALSE(operation.latency_ns);
}

TEST_CASE(
    "session: more unflagged requests than a queue can hold show that sq_sig_all is not set") {
  Rig rig;
  rig.context();
  rig.qp_seen(17, IBV_QPS_INIT);
  for (int i = 0; i < 1000; ++i) {
    for (int k = 0; k < 99; ++k) rig.send_post(Rig::post(17, 0, 0));
    rig.send_post(Rig::post(17, 0));
    const uint64_t posted = rig.now;
    rig.send_completion(Rig::completion(17, 0));
    const auto& last = rig.operations.back();
    if (i < 600) CHECK_FALSE(last.latency_ns);
    if (i > 700) CHECK(last.latency_ns == rig.now - posted);
  }
  CHECK(rig.operations.back().qp->sq_sig_all == false);
  CHECK(rig.operations.size() == 100000);
}

TEST_CASE("session: an mlx5 queue whose first request has index 0 is in step") {
  Rig rig;
  rig.context("mlx5_0");
  rig.qp_seen(17);
  sigma_post post = Rig::post(17, 0);
  post.flags = SIGMA_POST_HAS_INDEX;
  rig.send_post(post);
  rig.send_completion(Rig::completion(17, 0));
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].latency_ns);
  CHECK(rig.operations[0].index == 0u);
}

TEST_CASE("session: an mlx5 call whose index did not move on was refused") {
  Rig rig;
  rig.context("mlx5_0");
  rig.create_qp(17, {});
  sigma_post post = Rig::post(17, 1);
  post.flags = SIGMA_POST_HAS_INDEX;
  rig.send_post(post);
  post.wr_id = 2;
  post.index = 1;
  rig.send_post(post);  // refused
  post.wr_id = 3;
  rig.send_post(post);
  rig.send_completion(Rig::completion(17, 1));
  rig.send_completion(Rig::completion(17, 3));
  CHECK(rig.finish().refused == 1);
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[1].wr_id == 3u);
  CHECK_FALSE(rig.operations[1].flags);
}

TEST_CASE("session: netlink names the peers of older queue pairs, before or after their posts") {
  Rig rig;
  sigma_qp_peer peer{};
  std::strcpy(peer.device, "rxe0");
  peer.peer_qp_num = 99;
  peer.qp_type = IBV_QPT_RC;
  peer.qp_num = 17;
  rig.send(peer, SIGMA_QP_PEER, 0);
  rig.context();
  rig.qp_seen(17);
  rig.qp_seen(18);
  rig.send_post(Rig::post(17, 1));
  rig.send_post(Rig::post(18, 1));
  peer.qp_num = 18;
  peer.peer_qp_num = 98;
  rig.send(peer, SIGMA_QP_PEER, 0);
  rig.qp_seen(19);
  rig.send_post(Rig::post(19, 1));
  CHECK(rig.finish().qps_peer_unknown == 1);
  REQUIRE(rig.operations.size() == 3);
  CHECK(rig.operations[0].peer_qp_num == 99u);
  CHECK(rig.operations[1].peer_qp_num == 98u);
  CHECK_FALSE(rig.operations[2].peer_qp_num);
}

TEST_CASE("session: what the device tells of an older queue pair's path is known, a later command stays") {
  Rig rig;
  rig.context();
  rig.qp_seen(17);
  rig.send_post(Rig::post(17, 1));
  sigma_qp_peer peer{};
  std::strcpy(peer.device, "rxe0");
  peer.qp_num = 17;
  peer.peer_qp_num = 99;
  peer.qp_type = IBV_QPT_RC;
  peer.has_path = 1;
  peer.peer_gid_low = 0xffff0a000002;
  peer.path_mtu = 4096;
  peer.timeout = 14;
  rig.send(peer, SIGMA_QP_PEER, 0);
  CHECK(rig.finish().qps_peer_unknown == 0);
  REQUIRE(rig.operations.size() == 1);
  const auto& qp = *rig.operations[0].qp;
  REQUIRE(qp.peer.gid);
  CHECK((qp.peer.gid->at(10) == 0xff && qp.peer.gid->at(12) == 10 && qp.peer.gid->at(15) == 2));
  CHECK_FALSE(qp.peer.lid);
  CHECK((qp.path_mtu == 4096u && qp.timeout == 14 && qp.retry_cnt == 0));
  CHECK_FALSE(qp.port);
}
