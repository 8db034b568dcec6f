// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Single completions, as libmlx5's cq.c and UCX read them.
#include "decode/cqe.h"

#include <infiniband/verbs.h>

#include "catch.h"
#include "cqe_writer.h"

using namespace sigma;

namespace {

Cqe decoded(const CqeFields& fields, uint8_t owner = 0) {
  const CqeBytes bytes = image_of(fields, owner);
  return decode_cqe(bytes);
}

}  // namespace

TEST_CASE("completions of a requester") {
  struct {
    uint8_t wqe, wc;
    bool bytes;
  } const rows[] = {
      {MLX5_OPCODE_SEND, IBV_WC_SEND, false},
      {MLX5_OPCODE_SEND_IMM, IBV_WC_SEND, false},
      {MLX5_OPCODE_SEND_INVAL, IBV_WC_SEND, false},
      {MLX5_OPCODE_RDMA_WRITE, IBV_WC_RDMA_WRITE, false},
      {MLX5_OPCODE_RDMA_WRITE_IMM, IBV_WC_RDMA_WRITE, false},
      {MLX5_OPCODE_RDMA_READ, IBV_WC_RDMA_READ, true},
      {MLX5_OPCODE_ATOMIC_CS, IBV_WC_COMP_SWAP, false},
      {MLX5_OPCODE_ATOMIC_FA, IBV_WC_FETCH_ADD, false},
      {MLX5_OPCODE_ATOMIC_MASKED_CS, IBV_WC_COMP_SWAP, false},
      {MLX5_OPCODE_ATOMIC_MASKED_FA, IBV_WC_FETCH_ADD, false},
      {MLX5_OPCODE_TSO, IBV_WC_TSO, false},
      {MLX5_OPCODE_NOP, IBV_WC_DRIVER1, false},
      {MLX5_OPCODE_UMR, IBV_WC_DRIVER1, false},
  };
  for (const auto& row : rows) {
    INFO("WQE opcode " << int{row.wqe});
    const Cqe cqe = decoded({.wqe_opcode = row.wqe, .wqe_counter = 0xfffe, .bytes = 4096}, 1);
    CHECK(cqe.kind == CqeKind::requester);
    CHECK(cqe.owner == 1);
    CHECK(cqe.qp_num == 0x1234);
    CHECK(cqe.srqn_uidx == 0x42);
    CHECK(cqe.wqe_counter == 0xfffe);
    CHECK(cqe.wqe_opcode == row.wqe);
    CHECK(cqe.wc_opcode == row.wc);
    CHECK(cqe.has_bytes == row.bytes);
    CHECK(cqe.bytes == 4096);
    CHECK(cqe.has_timestamp);
    CHECK(cqe.timestamp == 0x0102030405060708);
    CHECK(cqe.status == IBV_WC_SUCCESS);
    CHECK_FALSE(cqe.has_source);
  }
}

TEST_CASE("completions of a responder") {
  struct {
    uint8_t opcode;
    uint8_t wc;
    bool imm, invalidate;
  } const rows[] = {
      {MLX5_CQE_RESP_WR_IMM, IBV_WC_RECV_RDMA_WITH_IMM, true, false},
      {MLX5_CQE_RESP_SEND, IBV_WC_RECV, false, false},
      {MLX5_CQE_RESP_SEND_IMM, IBV_WC_RECV, true, false},
      {MLX5_CQE_RESP_SEND_INV, IBV_WC_RECV, false, true},
  };
  for (const auto& row : rows) {
    INFO("opcode " << int{row.opcode});
    const Cqe cqe = decoded({.opcode = row.opcode,
                             .bytes = 100,
                             .imm = 0xcafe0001,
                             .source_qp = 0x777,
                             .solicited = 1});
    CHECK(cqe.kind == CqeKind::responder);
    CHECK(cqe.wc_opcode == row.wc);
    CHECK(cqe.has_imm == row.imm);
    CHECK(cqe.has_invalidate == row.invalidate);
    CHECK(cqe.imm == (row.imm || row.invalidate ? 0xcafe0001 : 0));
    CHECK((cqe.has_bytes && cqe.bytes == 100));
    CHECK(cqe.solicited);
    CHECK(cqe.has_source);
    CHECK(cqe.source_qp == 0x777);
    CHECK(cqe.source_lid == 0x11);
    CHECK(cqe.service_level == 3);
    CHECK(cqe.dlid_path_bits == 5);
    CHECK(cqe.grh);
  }
}

TEST_CASE("payload in the completion: over its first half, or before it") {
  // Scatter-to-CQE, as libmlx5 asks for by default.
  CqeFields fields{.opcode = MLX5_CQE_RESP_SEND, .bytes = 32, .source_qp = 0x777, .format = 1};
  CqeBytes bytes = image_of(fields, 0);
  std::fill_n(bytes.begin(), 32, std::byte{0xee});
  Cqe cqe = decode_cqe(bytes);
  CHECK_FALSE(cqe.has_source);
  CHECK(cqe.source_qp == 0);
  CHECK((cqe.has_bytes && cqe.bytes == 32));
  CHECK((cqe.qp_num == 0x1234 && cqe.wqe_counter == 7 && cqe.has_timestamp));

  fields.format = 2;
  cqe = decoded(fields);
  CHECK(cqe.has_source);
  CHECK(cqe.source_qp == 0x777);
}

TEST_CASE("errors: status, vendor's syndrome, first or flushed") {
  // infiniband/mlx5dv.h, MLX5_CQE_SYNDROME_*, and what libmlx5 makes of them.
  struct {
    uint8_t syndrome, status;
  } const rows[] = {
      {0x01, IBV_WC_LOC_LEN_ERR},    {0x02, IBV_WC_LOC_QP_OP_ERR},
      {0x04, IBV_WC_LOC_PROT_ERR},   {0x05, IBV_WC_WR_FLUSH_ERR},
      {0x06, IBV_WC_MW_BIND_ERR},    {0x10, IBV_WC_BAD_RESP_ERR},
      {0x11, IBV_WC_LOC_ACCESS_ERR}, {0x12, IBV_WC_REM_INV_REQ_ERR},
      {0x13, IBV_WC_REM_ACCESS_ERR}, {0x14, IBV_WC_REM_OP_ERR},
      {0x15, IBV_WC_RETRY_EXC_ERR},  {0x16, IBV_WC_RNR_RETRY_EXC_ERR},
      {0x22, IBV_WC_REM_ABORT_ERR},  {0x7f, IBV_WC_GENERAL_ERR},
  };
  for (const auto& row : rows)
    for (const uint8_t opcode : {MLX5_CQE_REQ_ERR, MLX5_CQE_RESP_ERR}) {
      const Cqe cqe = decoded({.opcode = opcode, .syndrome = row.syndrome, .vendor = 0x88});
      CHECK(cqe.kind ==
            (opcode == MLX5_CQE_REQ_ERR ? CqeKind::requester_error : CqeKind::responder_error));
      CHECK(cqe.status == row.status);
      CHECK(cqe.syndrome == row.syndrome);
      CHECK(cqe.vendor_err == 0x88);
      CHECK(cqe.flushed == (row.syndrome == 0x05));
      CHECK(cqe.wqe_counter == 7);
      CHECK(cqe.qp_num == 0x1234);
      CHECK_FALSE(cqe.has_timestamp);  // the syndromes stand in its place
      CHECK_FALSE(cqe.has_bytes);
    }
  CHECK(decoded({.opcode = MLX5_CQE_REQ_ERR}).wqe_opcode == MLX5_OPCODE_RDMA_WRITE);
}

TEST_CASE("entries that are no completions") {
  CHECK(decoded({.opcode = MLX5_CQE_INVALID}).kind == CqeKind::invalid);
  CHECK(decoded({.opcode = MLX5_CQE_RESIZE_CQ}).kind == CqeKind::resize);
  CHECK(decoded({.opcode = MLX5_CQE_NO_PACKET}).kind == CqeKind::no_packet);
  CHECK(decoded({.opcode = MLX5_CQE_SIG_ERR}).kind == CqeKind::signature_error);
  CHECK(decoded({.opcode = 9}).kind == CqeKind::other);

  CqeBytes bytes = image_of({.opcode = MLX5_CQE_RESP_SEND}, 0);
  bytes[offsetof(mlx5_cqe64, app)] = std::byte{1};
  CHECK(decode_cqe(bytes).tag_matching);
}

TEST_CASE("mini entries take from the title what they do not say") {
  CqeBytes array{};
  const CqeFields first{.wqe_opcode = MLX5_OPCODE_RDMA_READ, .wqe_counter = 100, .bytes = 11};
  const CqeFields second{.wqe_opcode = MLX5_OPCODE_SEND, .wqe_counter = 108, .bytes = 22};
  put_mini(array, 0, first);
  put_mini(array, 1, second);
  const Cqe title = decoded({.wqe_counter = 100, .bytes = 2, .format = 3});
  const auto mini = [&](size_t number) {
    return std::span<const std::byte, 8>(array.data() + number * 8, 8);
  };

  const Cqe a = expand_mini(title, mini(0), 0);
  CHECK((a.wqe_counter == 100 && a.has_bytes && a.bytes == 11 && a.wc_opcode == IBV_WC_RDMA_READ));
  CHECK((a.has_timestamp && a.qp_num == 0x1234 && a.format == 0));
  const Cqe b = expand_mini(title, mini(1), 1);
  CHECK((b.wqe_counter == 108 && !b.has_bytes && b.wc_opcode == IBV_WC_SEND));
  CHECK_FALSE(b.has_timestamp);  // the title's time is not this one's

  const Cqe received = decoded({.opcode = MLX5_CQE_RESP_SEND, .wqe_counter = 0xffff});
  put_mini(array, 0, {.opcode = MLX5_CQE_RESP_SEND, .bytes = 33});
  const Cqe c = expand_mini(received, mini(0), 2);
  CHECK((c.wqe_counter == 1 && c.bytes == 33 && c.wc_opcode == IBV_WC_RECV));
}
