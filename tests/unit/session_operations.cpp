// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What an operation says, and which requests become operations: refused, staged, cut, those of
// shared receive queues.
#include "catch.h"
#include "session_rig.h"

using sigma::Opcode;

TEST_CASE("session: the fields of an operation are those of its post and completion") {
  Rig rig;
  rig.context();
  rig.create_qp(17, {});
  rig.modify_qp(to_rtr(17, 18, 2));
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
  CHECK(operation.peer.gid == mapped_gid(2));
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
