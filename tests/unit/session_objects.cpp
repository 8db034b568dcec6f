// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who an operation belongs to: devices with equal numbers, both hooks, handles, lives, peers,
// address handles, shared receive queues, fork, exec and exit.
#include "catch.h"
#include "session_rig.h"

using sigma::Opcode;
using sigma::Queue;

namespace {

constexpr uint32_t kNode0 = 231u << 20 | 192, kNode1 = 231u << 20 | 193;

std::array<uint8_t, 16> gid(uint8_t last) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last};
}

ib_uverbs_modify_qp connect(uint32_t handle, uint32_t peer, uint8_t gid_last) {
  ib_uverbs_modify_qp core{};
  core.qp_handle = handle;
  core.attr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_PATH_MTU | IBV_QP_RQ_PSN;
  core.qp_state = IBV_QPS_RTR;
  core.dest_qp_num = peer;
  core.path_mtu = IBV_MTU_1024;
  core.rq_psn = 1;
  core.dest.is_global = 1;
  const auto address = gid(gid_last);
  std::copy(address.begin(), address.end(), core.dest.dgid);
  return core;
}

sigma_post in_context(sigma_post post, uint64_t context) {
  post.context = context;
  return post;
}
sigma_completion in_context(sigma_completion completion, uint64_t context) {
  completion.context = context;
  return completion;
}

void create_ah(Rig& rig, uint32_t handle, uint8_t gid_last, uint64_t context = Rig::kContext) {
  ib_uverbs_create_ah core{};
  core.attr.is_global = 1;
  const auto address = gid(gid_last);
  std::copy(address.begin(), address.end(), core.attr.grh.dgid);
  rig.uverbs(
      UverbsRecord::write(IB_USER_VERBS_CMD_CREATE_AH, core, ib_uverbs_create_ah_resp{handle}),
      Rig::kPid, context);
}

sigma_post ud_send(uint32_t qp, uint64_t wr_id, uint32_t ah, uint32_t remote_qpn) {
  sigma_post post = Rig::post(qp, wr_id, IBV_SEND_SIGNALED, IBV_WR_SEND);
  post.flags |= SIGMA_POST_HAS_AH;
  post.ah_handle = ah;
  post.remote_qpn = remote_qpn;
  return post;
}

}  // namespace

TEST_CASE("session: the fields of an operation are those of its post and completion") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  rig.modify_qp(connect(17, 18, 2));
  sigma_post post =
      Rig::post(17, 5, IBV_SEND_SIGNALED | IBV_SEND_INLINE, IBV_WR_RDMA_WRITE_WITH_IMM);
  post.local_addr = 0x7000;
  post.lkey = 0x10;
  post.remote_addr = 0x8000;
  post.rkey = 0x20;
  post.bytes = 4096;
  post.imm = htonl(0xcafe);
  post.num_sge = 3;
  rig.send_post(post, Rig::kPid, 101);
  const uint64_t posted = rig.now;
  rig.send_completion(Rig::completion(17, 5));
  REQUIRE(rig.operations.size() == 1);
  const auto& operation = rig.operations[0];
  REQUIRE(operation.qp);
  CHECK(operation.qp->device == "rxe0");
  CHECK(operation.qp->qp_num == 17);
  CHECK(operation.qp->path_mtu == 1024u);
  CHECK(operation.pid == Rig::kPid);
  CHECK(operation.tid == 101);
  CHECK(operation.comm_text == "comm100");
  CHECK(operation.time_ns == posted);
  CHECK(operation.complete_ns == rig.now);
  CHECK(operation.latency_ns == rig.now - posted);
  CHECK(operation.opcode == Opcode::rdma_write_with_imm);
  CHECK(operation.bytes == 4096u);
  CHECK(operation.sge_count == 3u);
  CHECK(operation.signaled == true);
  CHECK(operation.is_inline == true);
  CHECK(operation.local_addr == 0x7000u);
  CHECK_FALSE(operation.lkey);  // inline data has none
  CHECK(operation.remote_addr == 0x8000u);
  CHECK(operation.rkey == 0x20u);
  CHECK(operation.imm == 0xcafeu);
  CHECK(operation.peer_qp_num == 18u);
  CHECK(operation.peer.gid == gid(2));
  CHECK(operation.status == uint32_t{IBV_WC_SUCCESS});
  CHECK_FALSE(operation.vendor_err);
}

TEST_CASE("session: a send has no remote address, and without SGEs no local one") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  sigma_post post = Rig::post(17, 5, IBV_SEND_SIGNALED, IBV_WR_SEND);
  post.num_sge = 0;
  post.bytes = 0;
  rig.send_post(post);
  rig.send_completion(Rig::completion(17, 5, IBV_WC_SEND));
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].opcode == Opcode::send);
  CHECK(rig.operations[0].bytes == 0u);
  CHECK_FALSE(rig.operations[0].remote_addr);
  CHECK_FALSE(rig.operations[0].rkey);
  CHECK_FALSE(rig.operations[0].imm);
  CHECK_FALSE(rig.operations[0].local_addr);
}

TEST_CASE("session: a receive takes opcode, length and immediate data from its completion") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  for (uint64_t wr_id : {1, 2, 3, 4}) rig.send_post(Rig::recv(17, wr_id));
  auto wc = Rig::completion(17, 1, IBV_WC_RECV);
  wc.byte_len = 1234;
  rig.send_completion(wc);
  wc = Rig::completion(17, 2, IBV_WC_RECV_RDMA_WITH_IMM);
  wc.byte_len = 77;
  wc.wc_flags = IBV_WC_WITH_IMM;
  wc.imm = htonl(9);
  rig.send_completion(wc);
  wc = Rig::completion(17, 3, IBV_WC_RECV, IBV_WC_LOC_LEN_ERR);
  wc.vendor_err = 0x68;
  rig.send_completion(wc);
  rig.finish();
  REQUIRE(rig.operations.size() == 4);
  CHECK(rig.operations[0].opcode == Opcode::recv);
  CHECK(rig.operations[0].bytes == 1234u);
  CHECK_FALSE(rig.operations[0].imm);
  CHECK(rig.operations[1].opcode == Opcode::recv_rdma_with_imm);
  CHECK(rig.operations[1].bytes == 77u);
  CHECK(rig.operations[1].imm == 9u);
  CHECK(rig.operations[2].status == uint32_t{IBV_WC_LOC_LEN_ERR});
  CHECK(rig.operations[2].vendor_err == 0x68u);
  CHECK_FALSE(rig.operations[2].bytes);
  CHECK_FALSE(rig.operations[3].bytes);  // unfinished: the buffer's size is not the message's
  CHECK_FALSE(rig.operations[3].status);
}

TEST_CASE("session: first errors and flushes are counted apart, with the posted opcode") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  rig.send_post(Rig::post(17, 1, IBV_SEND_SIGNALED, IBV_WR_RDMA_READ));
  rig.send_post(Rig::post(17, 2, IBV_SEND_SIGNALED, IBV_WR_SEND));
  auto wc = Rig::completion(17, 1, 0, IBV_WC_REM_ACCESS_ERR);
  wc.vendor_err = 0x88;
  wc.byte_len = 0xdeadbeef;
  rig.send_completion(wc);
  rig.send_completion(Rig::completion(17, 2, 0x80, IBV_WC_WR_FLUSH_ERR));
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[0].opcode == Opcode::rdma_read);
  CHECK(rig.operations[0].bytes == 64u);
  CHECK(rig.operations[0].status == uint32_t{IBV_WC_REM_ACCESS_ERR});
  CHECK(rig.operations[0].vendor_err == 0x88u);
  CHECK(rig.operations[1].opcode == Opcode::send);
  CHECK(rig.session.counters().errors_first == 1);
  CHECK(rig.session.counters().errors_flushed == 1);
}

TEST_CASE("session: two devices give both their first queue pairs the same number") {
  Rig rig;
  rig.context("rxe0", 100, 0x1000);
  rig.context("rxe1", 100, 0x2000);
  rig.create_qp(17, {}, 100, 0x1000);
  rig.create_qp(17, {.ptr = 0x777000}, 100, 0x2000);
  rig.modify_qp(connect(17, 40, 2), 100, 0x1000);
  rig.modify_qp(connect(17, 50, 3), 100, 0x2000);
  rig.send_post(in_context(Rig::post(17, 1), 0x1000));
  rig.send_post(in_context(Rig::post(17, 1), 0x2000));
  rig.send_completion(in_context(Rig::completion(17, 1), 0x2000));
  rig.send_completion(in_context(Rig::completion(17, 1), 0x1000));
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[0].qp->device == "rxe1");
  CHECK(rig.operations[0].peer_qp_num == 50u);
  CHECK(rig.operations[1].qp->device == "rxe0");
  CHECK(rig.operations[1].peer_qp_num == 40u);
  CHECK(rig.session.counters().qps_seen == 2);
  CHECK(rig.session.queue_pairs().size() == 2);
}

TEST_CASE("session: two processes use one device") {
  Rig rig;
  rig.context("rxe0", 100, 0x1000);
  rig.context("rxe0", 200, 0x1000);
  rig.create_qp(17, {}, 100, 0x1000);
  rig.create_qp(18, {.handle = 17}, 200, 0x1000);
  rig.send_post(Rig::post(17, 1), 100);
  rig.send_post(Rig::post(18, 1), 200);
  rig.send_completion(Rig::completion(17, 1), 100);
  rig.send_completion(Rig::completion(18, 1), 200);
  rig.destroy_qp(17, 200, 0x1000);  // the handle is the second process's
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[0].pid == 100);
  CHECK(rig.operations[1].pid == 200);
  for (const auto& qp : rig.session.queue_pairs())
    CHECK(qp->destroyed_ns.has_value() == (qp->qp_num == 18));
}

TEST_CASE("session: lives of one number are told apart") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  rig.modify_qp(connect(17, 40, 2));
  rig.send_post(Rig::post(17, 1));
  rig.send_completion(Rig::completion(17, 1));
  rig.set_state(17, IBV_QPS_RESET);
  rig.modify_qp(connect(17, 41, 3));
  rig.send_post(Rig::post(17, 1));
  rig.send_completion(Rig::completion(17, 1));
  rig.destroy_qp(17);
  rig.create_qp(17, {.sig_all = true});
  rig.send_post(Rig::post(17, 1, 0));
  rig.send_completion(Rig::completion(17, 1));
  REQUIRE(rig.operations.size() == 3);
  for (uint32_t life = 0; life < 3; ++life) CHECK(rig.operations[life].qp->life == life);
  CHECK(rig.operations[0].peer_qp_num == 40u);
  CHECK(rig.operations[1].peer_qp_num == 41u);
  CHECK(rig.operations[1].qp->type == IBV_QPT_RC);
  CHECK_FALSE(rig.operations[2].peer_qp_num);
  CHECK(rig.operations[2].signaled == true);
  CHECK(rig.session.counters().qps_seen == 2);  // queue pairs, not lives
  CHECK(rig.finish().qps_peer_unknown == 1);
}

TEST_CASE("session: the kernel's hook and the data path meet") {
  Rig rig;
  rig.nodes = {{kNode0, "mlx5_0"}, {kNode1, "mlx5_1"}};
  const uint64_t file0 = 0xffff888000001000, file1 = 0xffff888000002000;
  const auto open = [] { return UverbsRecord(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT); };
  rig.uverbs_kernel(open(), 100, file0, kNode0);
  rig.uverbs_kernel(open(), 100, file1, kNode1);
  rig.uverbs_kernel(Rig::create_qp_record(17, {}), 100, file0, kNode0);
  rig.uverbs_kernel(Rig::create_qp_record(17, {.ptr = 0x777000}), 100, file1, kNode1);

  SECTION("the context is named before its first post") {
    rig.context("mlx5_0", 100, 0x1000);
    rig.context("mlx5_1", 100, 0x2000);
  }
  SECTION("the context is named after it: the ibv_qp tells meanwhile") {}
  rig.send_post(in_context(Rig::post(17, 1), 0x1000));
  sigma_post second = in_context(Rig::post(17, 1), 0x2000);
  second.queue_ptr = 0x777000;
  rig.send_post(second);
  rig.send_completion(in_context(Rig::completion(17, 1), 0x2000));
  rig.send_completion(in_context(Rig::completion(17, 1), 0x1000));
  rig.context("mlx5_0", 100, 0x1000);
  rig.context("mlx5_1", 100, 0x2000);
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[0].qp->device == "mlx5_1");
  CHECK(rig.operations[1].qp->device == "mlx5_0");
  CHECK_FALSE(rig.operations[0].flags);
  CHECK(rig.operations[0].latency_ns);
  CHECK(rig.session.counters().qps_older_than_attach == 0);

  // Closing the context ends what its file holds.
  rig.send_post(in_context(Rig::post(17, 2), 0x1000));
  rig.context_closed(100, 0x1000);
  REQUIRE(rig.operations.size() == 3);
  CHECK(rig.operations[2].complete_source == sigma::CompleteSource::none);
}

TEST_CASE("session: a context that is named late takes its queue pairs along") {
  Rig rig;
  rig.create_qp(17, {});
  rig.send_post(Rig::post(17, 1));
  rig.send_completion(Rig::completion(17, 1));
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].qp->device.empty());
  rig.context("rxe0");
  CHECK(rig.operations[0].qp->device == "rxe0");
  rig.send_post(Rig::post(17, 2));
  rig.send_completion(Rig::completion(17, 2));
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[1].qp == rig.operations[0].qp);
  CHECK(rig.session.counters().qps_seen == 1);
}

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

TEST_CASE("session: datagrams have a peer each, through their address handles") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {.type = IBV_QPT_UD});
  create_ah(rig, 5, 2);
  create_ah(rig, 6, 3);
  rig.send_post(ud_send(17, 1, 5, 40));
  rig.send_post(ud_send(17, 2, 6, 41));
  rig.send_post(ud_send(17, 3, 7, 42));
  // The handle may go before the completion comes.
  rig.uverbs(UverbsRecord(UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY)
                 .handle(UVERBS_ATTR_DESTROY_AH_HANDLE, 5));
  for (uint64_t wr_id : {1, 2, 3}) rig.send_completion(Rig::completion(17, wr_id, IBV_WC_SEND));
  rig.send_post(Rig::recv(17, 4));
  auto wc = Rig::completion(17, 4, IBV_WC_RECV);
  wc.src_qp = 43;
  wc.slid = 0x12;
  rig.send_completion(wc);
  REQUIRE(rig.operations.size() == 4);
  CHECK(rig.operations[0].peer_qp_num == 40u);
  CHECK(rig.operations[0].peer.gid == gid(2));
  CHECK(rig.operations[1].peer_qp_num == 41u);
  CHECK(rig.operations[1].peer.gid == gid(3));
  CHECK(rig.operations[2].peer_qp_num == 42u);
  CHECK_FALSE(rig.operations[2].peer.gid);
  CHECK(rig.operations[3].peer_qp_num == 43u);
  CHECK(rig.operations[3].peer.lid == 0x12);
  CHECK(rig.finish().qps_peer_unknown == 0);
}

TEST_CASE("session: equal address handles of two contexts are not mixed up") {
  Rig rig;
  rig.context("rxe0", 100, 0x1000);
  rig.context("rxe0", 100, 0x2000);
  rig.create_qp(17, {.type = IBV_QPT_UD}, 100, 0x1000);
  rig.create_qp(18, {.type = IBV_QPT_UD}, 100, 0x2000);
  create_ah(rig, 5, 2, 0x1000);
  create_ah(rig, 5, 3, 0x2000);
  rig.send_post(in_context(ud_send(18, 1, 5, 40), 0x2000));
  rig.send_post(in_context(ud_send(17, 1, 5, 40), 0x1000));
  rig.finish();
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[0].qp->qp_num == 17);
  CHECK(rig.operations[0].peer.gid == gid(2));
  CHECK(rig.operations[1].peer.gid == gid(3));
}

TEST_CASE("session: shared receive queues are matched by wr_id while it is unique") {
  const uint64_t srq = 0xa000;
  Rig rig;
  rig.context();
  rig.create_srq(3, srq);
  rig.create_qp(17, {.srq = 3});
  rig.create_qp(18, {.srq = 3});
  for (uint64_t wr_id : {1, 2, 7, 7, 3}) rig.send_post(Rig::srq_recv(srq, wr_id));
  const auto complete = [&](uint32_t qp, uint64_t wr_id) {
    rig.send_completion(Rig::completion(qp, wr_id, IBV_WC_RECV));
  };
  complete(18, 3);
  complete(17, 1);
  complete(17, 7);
  complete(18, 7);
  complete(18, 8);
  rig.finish();
  REQUIRE(rig.operations.size() == 6);
  CHECK(rig.operations[0].qp->qp_num == 18);
  CHECK(rig.operations[0].latency_ns);
  CHECK(rig.operations[0].tid == Rig::kPid);
  CHECK(rig.operations[1].qp->qp_num == 17);
  CHECK(rig.operations[1].latency_ns);
  // Which of the two posts with wr_id 7 it was is not known, nor then which one is left.
  CHECK(rig.operations[2].flags == sigma::kAmbiguous);
  CHECK_FALSE(rig.operations[2].time_ns);
  CHECK_FALSE(rig.operations[2].latency_ns);
  CHECK(rig.operations[3].flags == sigma::kAmbiguous);
  CHECK_FALSE(rig.operations[3].time_ns);
  CHECK_FALSE(rig.operations[4].time_ns);  // never posted before our eyes
  CHECK(rig.session.counters().completions_without_post == 1);
  // What is left has no queue pair.
  CHECK(rig.operations[5].wr_id == 2u);
  CHECK_FALSE(rig.operations[5].qp);
  CHECK(rig.session.counters().unfinished == 1);
}

TEST_CASE("session: refused requests are not reported") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  const uint64_t call = rig.now + 1;
  for (uint16_t position = 0; position < 4; ++position) {
    sigma_post post = Rig::post(17, 10 + position);
    post.call_ns = call;
    post.position = position;
    rig.send_post(post);
    if (position == 1) rig.send_post(Rig::post(17, 50), Rig::kPid, 555);  // another thread's
  }
  rig.result(SIGMA_OUTCOME_REFUSED, call, 17, 2);
  for (uint64_t wr_id : {10, 11, 50}) rig.send_completion(Rig::completion(17, wr_id));
  CHECK(rig.finish().refused == 2);
  REQUIRE(rig.operations.size() == 3);
  for (const auto& operation : rig.operations) CHECK(operation.latency_ns);
  // The other thread's request stood inside the call: the order is not known for certain.
  CHECK(rig.operations[2].flags & sigma::kConcurrent);
}

TEST_CASE("session: a refused receive leaves its shared queue") {
  Rig rig;
  rig.context();
  rig.create_srq(3, 0xa000);
  rig.create_qp(17, {.srq = 3});
  sigma_post post = Rig::srq_recv(0xa000, 4);
  post.call_ns = rig.now + 1;
  rig.send_post(post);
  rig.result(SIGMA_OUTCOME_REFUSED, post.call_ns, 0, 0, Rig::kPid, SIGMA_QUEUE_SRQ, 0xa000);
  CHECK(rig.finish().refused == 1);
  CHECK(rig.operations.empty());
}

TEST_CASE("session: staged batches count from their commit, aborted ones not at all") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  const auto stage = [&](uint64_t call, uint64_t wr_id, uint32_t tid = Rig::kPid) {
    sigma_post post = Rig::post(17, wr_id);
    post.flags = SIGMA_POST_STAGED;
    post.call_ns = call;
    rig.send_post(post, Rig::kPid, tid);
  };
  const uint64_t first = rig.now + 1;
  stage(first, 1);
  stage(first, 2);
  rig.result(SIGMA_OUTCOME_COMMITTED, first, 17);
  const uint64_t committed = rig.now;
  const uint64_t second = rig.now + 1;
  stage(second, 3);
  rig.result(SIGMA_OUTCOME_ABORTED, second, 17);
  rig.send_completion(Rig::completion(17, 1));
  rig.send_completion(Rig::completion(17, 2));
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[0].time_ns == committed);
  CHECK(rig.operations[1].time_ns == committed);
  CHECK(rig.operations[0].flags == 0);

  // A commit that fails takes its batch back.
  const uint64_t third = rig.now + 1;
  stage(third, 4);
  rig.result(SIGMA_OUTCOME_COMMITTED, third, 17);
  rig.result(SIGMA_OUTCOME_REFUSED, third, 17, 0);
  // Another thread posts between a batch's start and its commit.
  const uint64_t fourth = rig.now + 1;
  stage(fourth, 5);
  rig.send_post(Rig::post(17, 6), Rig::kPid, 777);
  rig.result(SIGMA_OUTCOME_COMMITTED, fourth, 17);
  // And one whose end never comes.
  stage(rig.now + 1, 7);
  const auto& counters = rig.finish();
  CHECK(counters.aborted == 1);
  CHECK(counters.refused == 1);
  CHECK(counters.staged_unresolved == 1);
  REQUIRE(rig.operations.size() == 4);
  CHECK(rig.operations[2].wr_id == 6u);
  CHECK(rig.operations[2].flags == sigma::kConcurrent);
  CHECK(rig.operations[3].wr_id == 5u);
  CHECK(rig.operations[3].flags == sigma::kConcurrent);
}

TEST_CASE("session: what a probe could not verify or read is marked") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  sigma_post post = Rig::post(17, 1);
  post.flags = SIGMA_POST_UNVERIFIED | SIGMA_POST_SGE_TRUNCATED;
  rig.send_post(post);
  post = Rig::post(17, 0, 0, 0);
  post.flags = SIGMA_POST_UNREADABLE;
  post.bytes = post.num_sge = 0;
  rig.send_post(post);
  const auto& counters = rig.finish();
  CHECK(counters.unverified == 1);
  CHECK(counters.truncated == 2);
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[0].flags == (sigma::kUnverified | sigma::kTruncated));
  CHECK(rig.operations[1].opcode == Opcode::unknown);
  CHECK_FALSE(rig.operations[1].bytes);
  CHECK_FALSE(rig.operations[1].remote_addr);
}

TEST_CASE("session: a list that was cut leaves the queue out of step behind it") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  sigma_post post = Rig::post(17, 0);
  post.flags = SIGMA_POST_LIST_TRUNCATED;
  post.omitted = 10;
  rig.send_post(post);
  rig.send_post(Rig::post(17, 0));
  rig.send_completion(Rig::completion(17, 0));
  rig.send_completion(Rig::completion(17, 0));
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[0].latency_ns);  // before the cut the order is known
  CHECK(rig.operations[1].flags == sigma::kAmbiguous);
}

TEST_CASE("session: a forked child owns none of its parent's queue pairs") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  rig.create_srq(3, 0xa000);
  rig.process(SIGMA_PROCESS_FORK, 100, 200, "child");
  rig.qp_seen(17, IBV_QPS_RTS, 200);
  rig.qp_seen(17, IBV_QPS_RTS, 200);
  rig.send_post(Rig::post(17, 1), 200);
  rig.send_completion(Rig::completion(17, 1), 200);
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].pid == 200);
  CHECK(rig.operations[0].comm_text == "child");
  CHECK(rig.operations[0].qp->pid == 100);
  CHECK_FALSE(rig.operations[0].qp->older_than_attach);
  CHECK(rig.session.counters().qps_inherited == 1);
  CHECK(rig.session.counters().qps_seen == 1);

  // The child's end ends nothing of the parent's.
  rig.context_closed(200);
  rig.process(SIGMA_PROCESS_EXIT, 200);
  rig.send_post(Rig::post(17, 2), 100);
  rig.send_completion(Rig::completion(17, 2), 100);
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[1].qp == rig.operations[0].qp);
  CHECK(rig.operations[1].latency_ns);
}

TEST_CASE("session: exec and exit end a process's objects") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  rig.send_post(Rig::post(17, 1));
  rig.process(SIGMA_PROCESS_EXEC, 100, 0, "next");
  REQUIRE(rig.operations.size() == 1);
  CHECK(rig.operations[0].complete_source == sigma::CompleteSource::none);
  CHECK(rig.operations[0].qp->destroyed_ns);
  rig.context();
  rig.create_qp(17, {});
  rig.send_post(Rig::post(17, 2));
  rig.process(SIGMA_PROCESS_EXIT, 100);
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[1].comm_text == "next");
  CHECK(rig.operations[1].qp->life == 1);
  REQUIRE(rig.session.processes().size() == 1);
  CHECK(rig.session.processes()[0].comm == "next");
  CHECK(rig.session.processes()[0].exit_ns);
}

TEST_CASE("session: memory regions and completion queues are kept for the side file") {
  Rig rig;
  rig.context();
  rig.create_cq(4);
  rig.uverbs(UverbsRecord::write(IB_USER_VERBS_CMD_REG_MR,
                                 ib_uverbs_reg_mr{0, 0x10000, 4096, 0x10000, 2, 7},
                                 ib_uverbs_reg_mr_resp{31, 0x11, 0x22}));
  rig.uverbs(UverbsRecord::write(IB_USER_VERBS_CMD_DEREG_MR, ib_uverbs_dereg_mr{31}));
  rig.uverbs(UverbsRecord::write(IB_USER_VERBS_CMD_REG_MR,
                                 ib_uverbs_reg_mr{0, 0x20000, 8192, 0x20000, 2, 7},
                                 ib_uverbs_reg_mr_resp{31, 0x33, 0x44}));
  const auto regions = rig.session.memory_regions();
  REQUIRE(regions.size() == 2);
  CHECK(regions[0].addr == 0x10000);
  CHECK(regions[0].destroyed_ns);
  CHECK(regions[1].length == 8192);
  CHECK(regions[1].rkey == 0x44u);
  CHECK(regions[1].device == "rxe0");
  CHECK_FALSE(regions[1].destroyed_ns);
  REQUIRE(rig.session.completion_queues().size() == 1);
  CHECK(rig.session.completion_queues()[0].handle == 4u);
}

TEST_CASE("session: memory is bounded, and what is given up is counted") {
  sigma::SessionOptions options;
  options.limits = {.pending_per_queue = 8, .pending = 12, .closed_objects = 4};
  Rig rig(options);
  rig.context();
  rig.create_qp(17, {});
  rig.create_qp(18, {});
  for (uint64_t wr_id = 0; wr_id < 20; ++wr_id) rig.send_post(Rig::post(17, wr_id));
  CHECK(rig.operations.size() == 12);
  CHECK(rig.session.counters().operations_evicted == 12);
  for (size_t i = 0; i < 12; ++i) CHECK(rig.operations[i].wr_id == i);
  for (uint64_t wr_id = 0; wr_id < 8; ++wr_id) rig.send_post(Rig::post(18, wr_id));
  CHECK(rig.session.counters().operations_evicted == 16);
  // Their completions come after all: they were reported, and are not reported again.
  for (uint64_t wr_id = 0; wr_id < 20; ++wr_id) rig.send_completion(Rig::completion(17, wr_id));
  for (uint64_t wr_id = 0; wr_id < 8; ++wr_id) rig.send_completion(Rig::completion(18, wr_id));
  CHECK(rig.finish().operations == 28);
  CHECK(rig.operations.size() == 28);

  Rig objects(options);
  objects.context();
  for (uint32_t i = 0; i < 50; ++i) {
    objects.create_qp(100 + i, {});
    objects.destroy_qp(100 + i);
  }
  CHECK(objects.session.queue_pairs().size() == 4);
  CHECK(objects.session.counters().qps_seen == 50);
}

TEST_CASE("session: finish is idempotent, and later records are ignored") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  rig.send_post(Rig::post(17, 1));
  rig.finish();
  rig.finish();
  rig.send_post(Rig::post(17, 2));
  rig.finish();
  CHECK(rig.operations.size() == 1);
}
