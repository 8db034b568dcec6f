// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The uverbs decoder against records as rdma-core's commands make them. Expected values are those
// that the test itself put in.
#include "decode/uverbs.h"

#include <infiniband/verbs.h>
#include <rdma/mlx5-abi.h>

#include <memory>
#include <random>
#include <vector>

#include "catch.h"
#include "decode_uverbs_record.h"

using sigma::decode_uverbs;
using sigma::UverbsAction;
using sigma::UverbsCommand;
using sigma::UverbsFacts;
using sigma::UverbsObject;

namespace {

UverbsFacts decode(UverbsRecord& record) {
  const auto command = UverbsCommand::parse(record.bytes());
  REQUIRE(command);
  bool undecoded = true;
  const auto facts = decode_uverbs(*command, &undecoded);
  REQUIRE(facts);
  CHECK_FALSE(undecoded);
  return *facts;
}

UverbsRecord create_qp_by_ioctl() {
  return UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE)
      .handle(UVERBS_ATTR_CREATE_QP_HANDLE, 41)
      .in(UVERBS_ATTR_CREATE_QP_USER_HANDLE, uint64_t{0x5555deadbe10})
      .handle(UVERBS_ATTR_CREATE_QP_PD_HANDLE, 3)
      .handle(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, 4)
      .handle(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, 5)
      .in(UVERBS_ATTR_CREATE_QP_TYPE, uint64_t{IBV_QPT_RC})
      .in(UVERBS_ATTR_CREATE_QP_CAP, ib_uverbs_qp_cap{128, 512, 1, 1, 64})
      .out(UVERBS_ATTR_CREATE_QP_RESP_CAP, ib_uverbs_qp_cap{256, 512, 2, 1, 124})
      .out(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, uint32_t{0x11});
}

ib_uverbs_modify_qp modify_to_rtr() {
  ib_uverbs_modify_qp core{};
  core.qp_handle = 41;
  core.attr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  core.qp_state = IBV_QPS_RTR;
  core.path_mtu = IBV_MTU_4096;
  core.dest_qp_num = 0x123456;
  core.rq_psn = 0xabcdef;
  core.max_dest_rd_atomic = 16;
  core.min_rnr_timer = 12;
  // Rubbish outside the mask.
  core.timeout = 99;
  core.sq_psn = 77;
  core.dest.is_global = 1;
  for (int i = 0; i < 16; ++i) core.dest.dgid[i] = static_cast<uint8_t>(0xf0 + i);
  core.dest.flow_label = 0xfffff;
  core.dest.sgid_index = 3;
  core.dest.hop_limit = 64;
  core.dest.traffic_class = 106;
  core.dest.sl = 5;
  core.dest.static_rate = 2;
  core.dest.port_num = 1;
  return core;
}

}  // namespace

TEST_CASE("decode: QP created by ioctl") {
  auto record = create_qp_by_ioctl();
  const UverbsFacts facts = decode(record);
  CHECK(facts.object == UverbsObject::qp);
  CHECK(facts.action == UverbsAction::create);
  CHECK_FALSE(facts.failed);
  CHECK(facts.handle == 41u);
  CHECK(facts.user_handle == 0x5555deadbe10u);
  CHECK(facts.pd == 3u);
  CHECK(facts.send_cq == 4u);
  CHECK(facts.recv_cq == 5u);
  CHECK_FALSE(facts.srq);
  CHECK(facts.qp_type == IBV_QPT_RC);
  CHECK(facts.sq_sig_all == false);
  CHECK(facts.qp_num == 0x11u);
  CHECK(facts.max_send_wr == 256u);
  CHECK(facts.max_send_sge == 2u);
  CHECK(facts.max_recv_wr == 512u);
  CHECK(facts.max_inline_data == 124u);
  CHECK_FALSE(facts.ring_addr);
}

TEST_CASE("decode: sq_sig_all is a creation flag, and unknown where attributes are missing") {
  auto flagged = create_qp_by_ioctl().in(
      UVERBS_ATTR_CREATE_QP_FLAGS,
      uint32_t{IB_UVERBS_QP_CREATE_SQ_SIG_ALL | IB_UVERBS_QP_CREATE_SCATTER_FCS});
  CHECK(decode(flagged).sq_sig_all == true);
  auto truncated = create_qp_by_ioctl().flags(SIGMA_UVERBS_TRUNCATED);
  CHECK_FALSE(decode(truncated).sq_sig_all);
}

TEST_CASE("decode: QP created by write, plain and extended") {
  const auto fill = [](auto& core) {
    core.user_handle = 0x7f0012345678;
    core.pd_handle = 1;
    core.send_cq_handle = 2;
    core.recv_cq_handle = 6;
    core.srq_handle = 9;
    core.sq_sig_all = 1;
    core.qp_type = IBV_QPT_UD;
    core.is_srq = 1;
  };
  const ib_uverbs_create_qp_resp resp{21, 0xabc, 10, 20, 3, 4, 55, 0};
  const auto check = [](const UverbsFacts& facts) {
    CHECK(facts.handle == 21u);
    CHECK(facts.user_handle == 0x7f0012345678u);
    CHECK(facts.qp_num == 0xabcu);
    CHECK(facts.qp_type == IBV_QPT_UD);
    CHECK(facts.sq_sig_all == true);
    CHECK(facts.srq == 9u);
    CHECK(facts.send_cq == 2u);
    CHECK(facts.recv_cq == 6u);
    CHECK(facts.max_recv_wr == 20u);
    CHECK(facts.max_inline_data == 55u);
  };
  ib_uverbs_create_qp plain{};
  fill(plain);
  auto record = UverbsRecord::write(IB_USER_VERBS_CMD_CREATE_QP, plain, resp);
  check(decode(record));

  ib_uverbs_ex_create_qp extended{};
  fill(extended);
  auto record_ex = UverbsRecord::write(
      IB_USER_VERBS_CMD_FLAG_EXTENDED | uint32_t{IB_USER_VERBS_EX_CMD_CREATE_QP}, extended,
      ib_uverbs_ex_create_qp_resp{resp, 0, 0});
  check(decode(record_ex));

  plain.is_srq = 0;
  auto without_srq = UverbsRecord::write(IB_USER_VERBS_CMD_CREATE_QP, plain, resp);
  CHECK_FALSE(decode(without_srq).srq);
}

TEST_CASE("decode: MODIFY_QP gives only what its mask names") {
  auto record = UverbsRecord::write(IB_USER_VERBS_CMD_MODIFY_QP, modify_to_rtr());
  const UverbsFacts facts = decode(record);
  CHECK(facts.action == UverbsAction::modify);
  CHECK(facts.handle == 41u);
  CHECK(facts.qp_state == IBV_QPS_RTR);
  CHECK(facts.path_mtu_bytes == 4096u);
  CHECK(facts.peer_qp_num == 0x123456u);
  CHECK(facts.rq_psn == 0xabcdefu);
  CHECK(facts.max_dest_rd_atomic == 16);
  CHECK(facts.min_rnr_timer == 12);
  CHECK_FALSE(facts.timeout);
  CHECK_FALSE(facts.sq_psn);
  CHECK_FALSE(facts.port);
  REQUIRE(facts.address);
  REQUIRE(facts.address->dgid);
  CHECK((*facts.address->dgid)[0] == 0xf0);
  CHECK((*facts.address->dgid)[15] == 0xff);
  CHECK(facts.address->flow_label == 0xfffffu);
  CHECK(facts.address->sgid_index == 3);
  CHECK(facts.address->hop_limit == 64);
  CHECK(facts.address->traffic_class == 106);
  CHECK(facts.address->sl == 5);
  CHECK(facts.address->static_rate == 2);
  CHECK(facts.address->port == 1);
  CHECK_FALSE(facts.address->dlid);
}

TEST_CASE("decode: MODIFY_QP on InfiniBand without GRH has a LID and no GID") {
  auto core = modify_to_rtr();
  core.dest.is_global = 0;
  core.dest.dlid = 0x1234;
  auto record = UverbsRecord::write(
      IB_USER_VERBS_CMD_FLAG_EXTENDED | uint32_t{IB_USER_VERBS_EX_CMD_MODIFY_QP},
      ib_uverbs_ex_modify_qp{core, 0, 0});
  const UverbsFacts facts = decode(record);
  REQUIRE(facts.address);
  CHECK(facts.address->dlid == 0x1234);
  CHECK_FALSE(facts.address->dgid);
  CHECK_FALSE(facts.address->flow_label);
  CHECK(facts.address->sl == 5);
}

TEST_CASE("decode: MODIFY_QP without an address vector has none") {
  auto core = modify_to_rtr();
  core.attr_mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  core.qp_state = IBV_QPS_RTS;
  core.timeout = 14;
  core.retry_cnt = 7;
  core.rnr_retry = 6;
  core.max_rd_atomic = 4;
  auto record = UverbsRecord::write(IB_USER_VERBS_CMD_MODIFY_QP, core);
  const UverbsFacts facts = decode(record);
  CHECK_FALSE(facts.address);
  CHECK_FALSE(facts.peer_qp_num);
  CHECK(facts.timeout == 14);
  CHECK(facts.retry_cnt == 7);
  CHECK(facts.rnr_retry == 6);
  CHECK(facts.sq_psn == 77u);
  CHECK(facts.max_rd_atomic == 4);
}

TEST_CASE("decode: completion queues") {
  auto record = UverbsRecord(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE)
                    .handle(UVERBS_ATTR_CREATE_CQ_HANDLE, 8)
                    .in(UVERBS_ATTR_CREATE_CQ_CQE, uint32_t{100})
                    .in(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, uint64_t{0x4000})
                    .out(UVERBS_ATTR_CREATE_CQ_RESP_CQE, uint32_t{127});
  UverbsFacts facts = decode(record);
  CHECK(facts.object == UverbsObject::cq);
  CHECK(facts.handle == 8u);
  CHECK(facts.user_handle == 0x4000u);
  CHECK(facts.cqe == 127u);

  // libmlx5: 128-byte entries, the ring and its doorbell record in the driver's part.
  mlx5_ib_create_cq uhw{};
  uhw.buf_addr = 0x7f1000;
  uhw.db_addr = 0x7f2040;
  uhw.cqe_size = 128;
  uhw.flags = MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS;
  uhw.cqe_comp_en = 1;
  record.driver(RDMA_DRIVER_MLX5)
      .in(UVERBS_ATTR_UHW_IN, uhw)
      .out(UVERBS_ATTR_UHW_OUT, mlx5_ib_create_cq_resp{0x402, 0});
  facts = decode(record);
  CHECK(facts.cqe == 128u);
  CHECK(facts.ring_addr == 0x7f1000u);
  CHECK(facts.doorbell_addr == 0x7f2040u);
  CHECK(facts.cqe_size == 128u);
  CHECK(facts.cqn == 0x402u);
  CHECK(facts.driver_flags == uint32_t{MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS});
  CHECK(facts.cqes_compressed);

  auto resize = UverbsRecord::write(IB_USER_VERBS_CMD_RESIZE_CQ, ib_uverbs_resize_cq{0, 8, 500},
                                    ib_uverbs_resize_cq_resp{511, 0});
  facts = decode(resize);
  CHECK(facts.action == UverbsAction::modify);
  CHECK(facts.handle == 8u);
  CHECK(facts.cqe == 511u);
}

TEST_CASE("decode: mlx5 queue pair rings are in the driver's part, of mlx5 only") {
  mlx5_ib_create_qp uhw{};
  uhw.buf_addr = 0x7f3000;
  uhw.db_addr = 0x7f4080;
  uhw.sq_wqe_count = 256;
  uhw.rq_wqe_count = 512;
  uhw.rq_wqe_shift = 4;
  auto record = create_qp_by_ioctl().in(UVERBS_ATTR_UHW_IN, uhw);
  CHECK_FALSE(decode(record).ring_addr);
  record.driver(RDMA_DRIVER_MLX5);
  const UverbsFacts facts = decode(record);
  CHECK(facts.ring_addr == 0x7f3000u);
  CHECK(facts.doorbell_addr == 0x7f4080u);
  CHECK(facts.sq_wqe_count == 256u);
  CHECK(facts.rq_wqe_count == 512u);
  CHECK(facts.rq_wqe_shift == 4u);
}

TEST_CASE("decode: memory regions") {
  auto record = UverbsRecord::write(IB_USER_VERBS_CMD_REG_MR,
                                    ib_uverbs_reg_mr{0, 0x10000, 4096, 0x10000, 2, 7},
                                    ib_uverbs_reg_mr_resp{31, 0x1111, 0x2222});
  UverbsFacts facts = decode(record);
  CHECK(facts.object == UverbsObject::mr);
  CHECK(facts.action == UverbsAction::create);
  CHECK(facts.handle == 31u);
  CHECK(facts.mr_addr == 0x10000u);
  CHECK(facts.mr_length == 4096u);
  CHECK(facts.lkey == 0x1111u);
  CHECK(facts.rkey == 0x2222u);
  CHECK(facts.access == 7u);

  // A change of access rights alone leaves the range.
  auto rereg = UverbsRecord::write(
      IB_USER_VERBS_CMD_REREG_MR,
      ib_uverbs_rereg_mr{0, 31, IBV_REREG_MR_CHANGE_ACCESS, 0x99, 0x99, 0x99, 2, 1},
      ib_uverbs_rereg_mr_resp{0x3333, 0x4444});
  facts = decode(rereg);
  CHECK(facts.action == UverbsAction::modify);
  CHECK_FALSE(facts.mr_addr);
  CHECK(facts.access == 1u);
  CHECK(facts.rkey == 0x4444u);

  auto dmabuf = UverbsRecord(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR)
                    .handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, 33)
                    .in(UVERBS_ATTR_REG_DMABUF_MR_IOVA, uint64_t{0xabc000})
                    .in(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, uint64_t{1 << 20})
                    .out(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, uint32_t{5})
                    .out(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, uint32_t{6});
  facts = decode(dmabuf);
  CHECK(facts.handle == 33u);
  CHECK(facts.mr_addr == 0xabc000u);
  CHECK(facts.rkey == 6u);
}

TEST_CASE("decode: a destroy by ioctl passes a handle, by write a struct that may be inline") {
  struct Row {
    UverbsRecord record;
    UverbsObject object;
  };
  const auto write = [](uint32_t cmd, const auto& core) { return UverbsRecord::write(cmd, core); };
  std::vector<Row> rows = {
      {UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY)
           .handle(UVERBS_ATTR_DESTROY_QP_HANDLE, 77)
           .out(UVERBS_ATTR_DESTROY_QP_RESP, ib_uverbs_destroy_qp_resp{0}),
       UverbsObject::qp},
      {UverbsRecord(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY)
           .handle(UVERBS_ATTR_DESTROY_CQ_HANDLE, 77),
       UverbsObject::cq},
      {UverbsRecord(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY)
           .handle(UVERBS_ATTR_DESTROY_SRQ_HANDLE, 77),
       UverbsObject::srq},
      {UverbsRecord(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY)
           .handle(UVERBS_ATTR_DESTROY_MR_HANDLE, 77),
       UverbsObject::mr},
      {UverbsRecord(UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY)
           .handle(UVERBS_ATTR_DESTROY_AH_HANDLE, 77),
       UverbsObject::ah},
      {write(IB_USER_VERBS_CMD_DESTROY_QP, ib_uverbs_destroy_qp{0, 77, 0}), UverbsObject::qp},
      {write(IB_USER_VERBS_CMD_DESTROY_CQ, ib_uverbs_destroy_cq{0, 77, 0}), UverbsObject::cq},
      {write(IB_USER_VERBS_CMD_DESTROY_SRQ, ib_uverbs_destroy_srq{0, 77, 0}), UverbsObject::srq},
      {write(IB_USER_VERBS_CMD_DEREG_MR, ib_uverbs_dereg_mr{77}), UverbsObject::mr},
      {write(IB_USER_VERBS_CMD_DESTROY_AH, ib_uverbs_destroy_ah{77}), UverbsObject::ah},
  };
  for (Row& row : rows) {
    const UverbsFacts facts = decode(row.record);
    CHECK(facts.object == row.object);
    CHECK(facts.action == UverbsAction::destroy);
    CHECK(facts.handle == 77u);
  }
}

TEST_CASE("decode: address handles") {
  ib_uverbs_create_ah core{};
  core.user_handle = 0x1;
  core.pd_handle = 2;
  core.attr.is_global = 1;
  core.attr.grh.dgid[10] = 0xff;
  core.attr.grh.dgid[15] = 9;
  core.attr.grh.sgid_index = 1;
  core.attr.grh.traffic_class = 32;
  core.attr.sl = 3;
  core.attr.port_num = 2;
  auto record =
      UverbsRecord::write(IB_USER_VERBS_CMD_CREATE_AH, core, ib_uverbs_create_ah_resp{15});
  const UverbsFacts facts = decode(record);
  CHECK(facts.object == UverbsObject::ah);
  CHECK(facts.handle == 15u);
  REQUIRE(facts.address);
  CHECK((*facts.address->dgid)[10] == 0xff);
  CHECK((*facts.address->dgid)[15] == 9);
  CHECK(facts.address->sl == 3);
  CHECK(facts.address->port == 2);
  CHECK(facts.address->traffic_class == 32);
}

TEST_CASE("decode: shared receive queues and their ibv_srq") {
  auto record = UverbsRecord::write(IB_USER_VERBS_CMD_CREATE_SRQ,
                                    ib_uverbs_create_srq{0, 0x8000, 1, 256, 1, 0},
                                    ib_uverbs_create_srq_resp{61, 256, 1, 5});
  UverbsFacts facts = decode(record);
  CHECK(facts.object == UverbsObject::srq);
  CHECK(facts.handle == 61u);
  CHECK(facts.user_handle == 0x8000u);
  auto by_ioctl = UverbsRecord(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE)
                      .handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, 62)
                      .in(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, uint64_t{0x9000});
  facts = decode(by_ioctl);
  CHECK(facts.handle == 62u);
  CHECK(facts.user_handle == 0x9000u);
}

TEST_CASE("decode: failures, strangers and gaps are told apart") {
  auto failed = create_qp_by_ioctl().result(-12);
  CHECK(decode(failed).failed);

  auto stranger = UverbsRecord(UVERBS_OBJECT_FLOW, UVERBS_METHOD_FLOW_DESTROY).handle(0, 1);
  bool undecoded = true;
  CHECK_FALSE(decode_uverbs(*UverbsCommand::parse(stranger.bytes()), &undecoded));
  CHECK_FALSE(undecoded);

  // The QP number's memory was not readable: the pointer must not be taken for it.
  auto gap = UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE)
                 .handle(UVERBS_ATTR_CREATE_QP_HANDLE, 41)
                 .unread_out(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, 4);
  const auto facts = decode_uverbs(*UverbsCommand::parse(gap.bytes()), &undecoded);
  REQUIRE(facts);
  CHECK_FALSE(facts->qp_num);
  CHECK(undecoded);
}

TEST_CASE("decode: records shorter than they claim are refused") {
  auto record = create_qp_by_ioctl();
  const auto whole = record.bytes();
  REQUIRE(UverbsCommand::parse(whole));
  for (size_t size = 0; size < whole.size(); ++size) {
    // A copy of its own, so that ASan sees a read beyond it.
    std::vector<uint64_t> copy(size / 8 + 1);
    std::memcpy(copy.data(), whole.data(), size);
    CHECK_FALSE(UverbsCommand::parse({reinterpret_cast<const std::byte*>(copy.data()), size}));
  }
}

TEST_CASE("decode: attributes that point outside the payload read as absent") {
  auto record = create_qp_by_ioctl();
  const auto whole = record.bytes();
  std::vector<uint64_t> copy(whole.size() / 8 + 1);
  std::memcpy(copy.data(), whole.data(), whole.size());
  auto* attrs = reinterpret_cast<sigma_uverbs_attr*>(copy.data() + sizeof(sigma_uverbs) / 8);
  const auto* head = reinterpret_cast<const sigma_uverbs*>(copy.data());
  for (uint16_t offset : {uint16_t{0xfff0}, head->payload_bytes, uint16_t(head->payload_bytes - 1)})
    for (uint16_t i = 0; i < head->num_attrs; ++i) {
      const auto saved = attrs[i];
      attrs[i].offset = offset;
      if (attrs[i].len < 2) attrs[i].len = 4;
      const auto command = UverbsCommand::parse(std::as_bytes(std::span(copy)).first(whole.size()));
      REQUIRE(command);
      CHECK(command->bytes(attrs[i].attr_id).empty());
      attrs[i] = saved;
    }
}

TEST_CASE("decode: mutated records neither crash nor read outside (seeded)") {
  std::mt19937_64 random(20240611);
  mlx5_ib_create_qp uhw{};
  std::vector<UverbsRecord> seeds = {
      create_qp_by_ioctl().driver(RDMA_DRIVER_MLX5).in(UVERBS_ATTR_UHW_IN, uhw),
      UverbsRecord::write(IB_USER_VERBS_CMD_MODIFY_QP, modify_to_rtr()),
      UverbsRecord::write(IB_USER_VERBS_CMD_CREATE_AH, ib_uverbs_create_ah{},
                          ib_uverbs_create_ah_resp{15}),
      UverbsRecord::write(IB_USER_VERBS_CMD_REG_MR, ib_uverbs_reg_mr{}, ib_uverbs_reg_mr_resp{}),
  };
  size_t parsed = 0, decoded = 0;
  for (int round = 0; round < 40000; ++round) {
    const auto whole = seeds[round % seeds.size()].bytes();
    // Exactly as large as it is said to be: ASan guards the end.
    const size_t size = random() % 4 ? whole.size() : random() % whole.size();
    std::unique_ptr<std::byte[]> copy(new std::byte[size + 1]);
    std::memcpy(copy.get(), whole.data(), size);
    for (int flips = 1 + static_cast<int>(random() % 6); flips > 0 && size > 0; --flips)
      copy[random() % size] = static_cast<std::byte>(random());
    const auto command = UverbsCommand::parse({copy.get(), size});
    if (!command) continue;
    ++parsed;
    bool undecoded;
    if (decode_uverbs(*command, &undecoded)) ++decoded;
  }
  CHECK(parsed > 1000);
  CHECK(decoded > 500);
}
