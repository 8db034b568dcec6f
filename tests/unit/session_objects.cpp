// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who an operation belongs to: devices with equal numbers, both hooks, handles, lives, peers,
// address handles, fork, exec and exit.
#include "catch.h"
#include "session_rig.h"

namespace {

constexpr uint32_t kNode0 = 231u << 20 | 192, kNode1 = 231u << 20 | 193;

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
  const auto address = mapped_gid(gid_last);
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

TEST_CASE("session: two devices give both their first queue pairs the same number") {
  Rig rig;
  rig.context("rxe0", 100, 0x1000);
  rig.context("rxe1", 100, 0x2000);
  rig.create_qp(17, {}, 100, 0x1000);
  rig.create_qp(17, {.ptr = 0x777000}, 100, 0x2000);
  rig.modify_qp(to_rtr(17, 40, 2), 100, 0x1000);
  rig.modify_qp(to_rtr(17, 50, 3), 100, 0x2000);
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
  rig.modify_qp(to_rtr(17, 40, 2));
  rig.send_post(Rig::post(17, 1));
  rig.send_completion(Rig::completion(17, 1));
  rig.set_state(17, IBV_QPS_RESET);
  rig.modify_qp(to_rtr(17, 41, 3));
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
  CHECK(rig.operations[0].peer.gid == mapped_gid(2));
  CHECK(rig.operations[1].peer_qp_num == 41u);
  CHECK(rig.operations[1].peer.gid == mapped_gid(3));
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
  CHECK(rig.operations[0].peer.gid == mapped_gid(2));
  CHECK(rig.operations[1].peer.gid == mapped_gid(3));
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

TEST_CASE("session: a process that is gone when it is first told of has the name that its exit says") {
  sigma::SessionOptions options;
  options.comm_of = [](uint32_t) { return std::string(); };
  Rig rig(options);
  rig.context();
  rig.create_qp(17, {});
  rig.send_post(Rig::post(17, 1));
  rig.send_completion(Rig::completion(17, 1));  // asked for here, and not found
  rig.send_post(Rig::post(17, 2));
  rig.process(SIGMA_PROCESS_EXIT, 100, 0, "short");
  REQUIRE(rig.operations.size() == 2);
  CHECK(rig.operations[0].comm_text.empty());
  CHECK(rig.operations[1].comm_text == "short");
  REQUIRE(rig.session.processes().size() == 1);
  CHECK(rig.session.processes()[0].comm == "short");
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
