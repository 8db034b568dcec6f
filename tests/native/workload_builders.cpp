// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Posts by ibv_wr_*.
#include "workload.h"

// ibv_wr_*: every builder with every setter; one batch committed, one aborted, one failing.
void builders() {
  World world("sigma_ex", IBV_QPT_UD);
  ibv_qp_ex* qp = &world.qp;
  world.say_first_sight();
  auto result = [&](unsigned outcome, int error) {
    say(result_text(SIGMA_QUEUE_SEND, address(world.plain()), address(&world.context), 17, outcome,
                    error, 0));
  };
  auto expected = [&](unsigned position, unsigned opcode) {
    PostText text = world.post(SIGMA_QUEUE_SEND);
    text.position = position;
    text.opcode = opcode;
    text.flags = SIGMA_POST_STAGED | common_flags();
    text.wr_id = qp->wr_id = 1000 + position;
    text.send_flags = qp->wr_flags = position % 2 ? IBV_SEND_SIGNALED : 0;
    return text;
  };
  std::vector<PostText> texts;
  ibv_wr_start(qp);
  texts.push_back(expected(0, IBV_WR_RDMA_WRITE));
  ibv_wr_rdma_write(qp, 11, 0x1111);
  ibv_wr_set_sge(qp, 21, 0x2222, 333);
  texts.back().rkey = 11, texts.back().remote = 0x1111;
  texts.back().lkey = 21, texts.back().local = 0x2222, texts.back().bytes = 333,
  texts.back().sges = 1;

  const ibv_sge sges[3] = {{.addr = 0x10, .length = 1, .lkey = 3},
                           {.addr = 0x20, .length = 2, .lkey = 4},
                           {.addr = 0x30, .length = 4, .lkey = 5}};
  texts.push_back(expected(1, IBV_WR_RDMA_READ));
  ibv_wr_rdma_read(qp, 12, 0x1112);
  ibv_wr_set_sge_list(qp, 3, sges);
  texts.back().rkey = 12, texts.back().remote = 0x1112;
  texts.back().lkey = 3, texts.back().local = 0x10, texts.back().bytes = 7, texts.back().sges = 3;

  texts.push_back(expected(2, IBV_WR_RDMA_WRITE_WITH_IMM));
  char data[64];
  ibv_wr_rdma_write_imm(qp, 13, 0x1113, htonl(0xcafe));
  ibv_wr_set_inline_data(qp, data, 64);
  texts.back().rkey = 13, texts.back().remote = 0x1113, texts.back().imm = htonl(0xcafe);
  texts.back().local = address(data), texts.back().bytes = 64, texts.back().sges = 1;
  texts.back().send_flags |= IBV_SEND_INLINE;

  const ibv_data_buf buffers[2] = {{.addr = data, .length = 10}, {.addr = data + 20, .length = 30}};
  texts.push_back(expected(3, IBV_WR_SEND));
  ibv_wr_send(qp);
  ibv_wr_set_ud_addr(qp, &world.ah, 0x777, 0x888);
  ibv_wr_set_inline_data_list(qp, 2, buffers);
  texts.back().ah = 4711, texts.back().remote_qpn = 0x777, texts.back().flags |= SIGMA_POST_HAS_AH;
  texts.back().local = address(data), texts.back().bytes = 40, texts.back().sges = 2;
  texts.back().send_flags |= IBV_SEND_INLINE;

  texts.push_back(expected(4, IBV_WR_SEND_WITH_IMM));
  ibv_wr_send_imm(qp, htonl(0xbeef));
  texts.back().imm = htonl(0xbeef);
  texts.push_back(expected(5, IBV_WR_SEND_WITH_INV));
  ibv_wr_send_inv(qp, 15);
  texts.back().rkey = 15;
  texts.push_back(expected(6, IBV_WR_LOCAL_INV));
  ibv_wr_local_inv(qp, 16);
  texts.back().rkey = 16;
  texts.push_back(expected(7, IBV_WR_ATOMIC_CMP_AND_SWP));
  ibv_wr_atomic_cmp_swp(qp, 17, 0x1117, 1, 2);
  ibv_wr_set_sge(qp, 27, 0x2227, 8);
  texts.back().rkey = 17, texts.back().remote = 0x1117;
  texts.back().lkey = 27, texts.back().local = 0x2227, texts.back().bytes = 8,
  texts.back().sges = 1;
  texts.push_back(expected(8, IBV_WR_ATOMIC_FETCH_AND_ADD));
  ibv_wr_atomic_fetch_add(qp, 18, 0x1118, 1);
  texts.back().rkey = 18, texts.back().remote = 0x1118;
  texts.push_back(expected(9, IBV_WR_TSO));
  ibv_wr_send_tso(qp, data, 42, 1400);
  ibv_wr_set_sge_list(qp, 3, sges);
  texts.back().bytes = 49, texts.back().sges = 3, texts.back().local = 0x10, texts.back().lkey = 3;
  texts.push_back(expected(10, IBV_WR_BIND_MW));
  ibv_mw window = {};
  ibv_mw_bind_info info = {};
  ibv_wr_bind_mw(qp, &window, 19, &info);
  texts.back().rkey = 19;
  ibv_wr_complete(qp);
  for (const PostText& text : texts) say(text.text());
  result(SIGMA_OUTCOME_COMMITTED, 0);

  // The first of two is reported before the batch's end is known.
  ibv_wr_start(qp);
  const PostText first = expected(0, IBV_WR_SEND);
  ibv_wr_send(qp);
  (void)expected(1, IBV_WR_SEND);
  ibv_wr_send(qp);
  ibv_wr_abort(qp);
  say(first.text());
  result(SIGMA_OUTCOME_ABORTED, 0);

  ibv_wr_start(qp);
  const PostText only = expected(0, IBV_WR_SEND);
  ibv_wr_send(qp);
  world.complete_result = EINVAL;
  ibv_wr_complete(qp);
  say(only.text());
  result(SIGMA_OUTCOME_COMMITTED, 0);
  if (checked()) result(SIGMA_OUTCOME_REFUSED, EINVAL);
}
