// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// mlx5's WQE indices: which requests have one, and what they tell about refused and concurrent
// calls.
#include "catch.h"
#include "session/wqe_blocks.h"
#include "session_rig.h"

namespace {

constexpr uint32_t kOther = 555;  // another thread

// A request of 64 bytes, which takes one basic block, in a call that found the queue at `index`.
sigma_post indexed(uint64_t wr_id, uint32_t index) {
  sigma_post post = Rig::post(17, wr_id);
  post.flags = SIGMA_POST_HAS_INDEX;
  post.index = index;
  post.qp_type = IBV_QPT_RC;
  return post;
}

// A list of requests, posted by one call.
void send_list(Rig& rig, uint64_t first_wr_id, uint32_t index, int count,
               uint32_t tid = Rig::kPid) {
  const uint64_t call_ns = rig.now + 1;
  for (int i = 0; i < count; ++i) {
    sigma_post post = indexed(first_wr_id + i, index);
    post.call_ns = call_ns;
    post.position = static_cast<uint16_t>(i);
    if (i % 2 == 1) {  // inline: 16 + 16 + 4 + 100 bytes, three basic blocks
      post.send_flags |= IBV_SEND_INLINE;
      post.bytes = 100;
    }
    rig.send_post(post, Rig::kPid, tid);
  }
}

Rig& prepare(Rig& rig) {
  rig.context("mlx5_0");
  rig.create_qp(17, {});
  return rig;
}

}  // namespace

TEST_CASE("mlx5 basic blocks: what a request takes in the ring") {
  sigma_post post = indexed(0, 0);
  CHECK(sigma::mlx5_wqe_blocks(post) == uint16_t{1});
  post.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;  // ctrl, raddr, atomic, data
  CHECK(sigma::mlx5_wqe_blocks(post) == uint16_t{1});
  post.opcode = IBV_WR_RDMA_WRITE;
  post.send_flags = IBV_SEND_INLINE;
  post.bytes = 28;  // 16 + 16 + 32
  CHECK(sigma::mlx5_wqe_blocks(post) == uint16_t{1});
  post.bytes = 29;
  CHECK(sigma::mlx5_wqe_blocks(post) == uint16_t{2});
  post.bytes = 0;
  CHECK(sigma::mlx5_wqe_blocks(post) == uint16_t{1});

  post.send_flags = 0;
  post.opcode = IBV_WR_SEND;
  post.qp_type = IBV_QPT_UD;
  post.bytes = 64;  // ctrl, av of three, data
  CHECK(sigma::mlx5_wqe_blocks(post) == uint16_t{2});
  post.num_sge = 0;
  post.bytes = 0;
  CHECK(sigma::mlx5_wqe_blocks(post) == uint16_t{1});
}

TEST_CASE("mlx5 basic blocks: not known where the record does not tell") {
  sigma_post post = indexed(0, 0);
  post.num_sge = 3;  // empty elements take no room: 16 + 16 + between one and three of 16
  CHECK_FALSE(sigma::mlx5_wqe_blocks(post));
  post.opcode = IBV_WR_SEND;  // 16 + at most 48
  CHECK(sigma::mlx5_wqe_blocks(post) == uint16_t{1});
  post.flags |= SIGMA_POST_SGE_TRUNCATED;
  CHECK_FALSE(sigma::mlx5_wqe_blocks(post));
  post = indexed(0, 0);
  post.qp_type = 0xff;
  CHECK_FALSE(sigma::mlx5_wqe_blocks(post));
  post = indexed(0, 0);
  post.opcode = IBV_WR_LOCAL_INV;
  CHECK_FALSE(sigma::mlx5_wqe_blocks(post));
}

TEST_CASE("indices: each request of a list has its own") {
  Rig rig;
  send_list(prepare(rig), 1, 65534, 4);
  rig.send_completion(Rig::completion(17, 1));
  rig.finish();
  REQUIRE(rig.operations.size() == 4);
  CHECK(rig.operations[0].index == 65534u);
  CHECK(rig.operations[1].index == 65535u);
  CHECK(rig.operations[2].index == 2u);  // 16 bits wide
  CHECK(rig.operations[3].index == 3u);
}

TEST_CASE("indices: behind a request of unknown size they are unknown") {
  Rig rig;
  prepare(rig);
  const uint64_t call_ns = rig.now + 1;
  for (uint16_t i = 0; i < 3; ++i) {
    sigma_post post = indexed(i, 7);
    post.call_ns = call_ns;
    post.position = i;
    if (i == 1) post.num_sge = 5;
    rig.send_post(post);
  }
  rig.finish();
  REQUIRE(rig.operations.size() == 3);
  CHECK(rig.operations[0].index == 7u);
  CHECK(rig.operations[1].index == 8u);
  CHECK_FALSE(rig.operations[2].index);
}

TEST_CASE("indices: of a list that was accepted in part, the rest is refused") {
  Rig rig;
  send_list(prepare(rig), 1, 0, 6);  // at 0, 1, 4, 5, 8, 9
  SECTION("while all are pending") {}
  SECTION("after the accepted ones have completed") {
    for (uint64_t id = 1; id <= 3; ++id) rig.send_completion(Rig::completion(17, id));
  }
  rig.send_post(indexed(100, 5));  // the fourth did not get in
  for (uint64_t id = rig.operations.size() + 1; id <= 3; ++id)
    rig.send_completion(Rig::completion(17, id));
  rig.send_completion(Rig::completion(17, 100));
  CHECK(rig.finish().refused == 3);
  REQUIRE(rig.operations.size() == 4);
  for (const auto& operation : rig.operations) {
    CHECK(operation.latency_ns);
    CHECK_FALSE(operation.flags);
  }
  CHECK(rig.operations[3].index == 5u);
}

TEST_CASE("indices: two threads that found the queue at one place are marked") {
  Rig rig;
  prepare(rig);
  rig.send_post(indexed(1, 0));
  rig.send_post(indexed(2, 1));
  rig.send_post(indexed(3, 1), Rig::kPid, kOther);
  rig.send_post(indexed(4, 3));
  rig.finish();
  REQUIRE(rig.operations.size() == 4);
  CHECK(rig.operations[0].flags == 0);
  CHECK(rig.operations[1].flags == sigma::kConcurrent);
  CHECK(rig.operations[2].flags == sigma::kConcurrent);
  CHECK_FALSE(rig.operations[2].index);
  CHECK(rig.operations[3].flags == 0);  // the index has caught up: both are in
  CHECK(rig.operations[3].index == 3u);
}

TEST_CASE("indices: a call between two others that are not both in is marked as well") {
  Rig rig;
  prepare(rig);
  rig.send_post(indexed(1, 0));
  rig.send_post(indexed(2, 0), Rig::kPid, kOther);
  rig.send_post(indexed(3, 1), Rig::kPid, kOther + 1);  // only one of them is in
  rig.send_post(indexed(4, 3));
  rig.finish();
  REQUIRE(rig.operations.size() == 4);
  for (int i = 0; i < 3; ++i) CHECK(rig.operations[i].flags == sigma::kConcurrent);
  CHECK(rig.operations[3].flags == 0);
}

TEST_CASE("indices: a refusal that a return told of keeps no one waiting") {
  Rig rig;
  prepare(rig);
  rig.send_post(indexed(1, 0));
  sigma_post refused = indexed(2, 1);
  refused.call_ns = rig.now + 1;
  rig.send_post(refused);
  rig.result(SIGMA_OUTCOME_REFUSED, refused.call_ns, 17, 0);
  rig.send_post(indexed(3, 1), Rig::kPid, kOther);
  rig.send_post(indexed(4, 2));
  CHECK(rig.finish().refused == 1);
  REQUIRE(rig.operations.size() == 3);
  for (const auto& operation : rig.operations) CHECK(operation.flags == 0);
}
