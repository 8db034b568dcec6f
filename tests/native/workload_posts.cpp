// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Posts by ibv_post_send, ibv_post_recv and ibv_post_srq_recv, one call at a time.
#include "workload.h"

namespace {

void say_refused(World& world, unsigned queue, unsigned accepted) {
  if (checked())
    say(result_text(queue, address(world.plain()), address(&world.context), world.qp.qp_base.qp_num,
                    SIGMA_OUTCOME_REFUSED, ENOMEM, accepted));
}

}  // namespace

// Every opcode of ibv_post_send, one request a call.
void opcodes() {
  World world;
  world.say_first_sight();
  for (const ibv_wr_opcode opcode :
       {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
        IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV,
        IBV_WR_BIND_MW, IBV_WR_SEND_WITH_INV, IBV_WR_TSO}) {
    ibv_sge sge = {.addr = 0x1000u + opcode, .length = 100u + opcode, .lkey = 0x55u + opcode};
    ibv_send_wr wr = {};
    wr.wr_id = 0xabc0 + opcode;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;

    PostText text = world.post(SIGMA_QUEUE_SEND);
    text.flags = common_flags();
    text.opcode = opcode;
    text.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
    text.wr_id = 0xabc0 + opcode;
    text.local = 0x1000u + opcode;
    text.lkey = 0x55u + opcode;
    text.bytes = 100u + opcode;
    text.sges = 1;
    switch (opcode) {
      case IBV_WR_RDMA_WRITE_WITH_IMM:
        wr.imm_data = htonl(0x1234);
        text.imm = htonl(0x1234);
        [[fallthrough]];
      case IBV_WR_RDMA_WRITE:
      case IBV_WR_RDMA_READ:
        wr.wr.rdma.remote_addr = text.remote = 0x70000000u + opcode;
        wr.wr.rdma.rkey = text.rkey = 0x99u + opcode;
        break;
      case IBV_WR_ATOMIC_CMP_AND_SWP:
      case IBV_WR_ATOMIC_FETCH_AND_ADD:
        wr.wr.atomic.remote_addr = text.remote = 0x80000000u + opcode;
        wr.wr.atomic.rkey = text.rkey = 0x88u + opcode;
        wr.wr.atomic.compare_add = 1;
        break;
      case IBV_WR_SEND_WITH_IMM:
        wr.imm_data = text.imm = htonl(0x4321);
        break;
      case IBV_WR_LOCAL_INV:
      case IBV_WR_SEND_WITH_INV:
        wr.invalidate_rkey = text.rkey = 0x77;
        break;
      case IBV_WR_BIND_MW:
        wr.bind_mw.rkey = text.rkey = 0x66;
        break;
      case IBV_WR_TSO:
        wr.tso.hdr_sz = 54;
        text.bytes += 54;
        break;
      default:
        break;
    }
    ibv_send_wr* bad = nullptr;
    provider_post_send(world.plain(), &wr, &bad);
    say(text.text());
  }
}

// Lists: SGEs from none to 40, an inline request, requests without data, all in one chain.
void chain() {
  World world;
  world.say_first_sight();
  std::vector<std::vector<ibv_sge>> sges;
  for (const unsigned n : {0u, 1u, 2u, 7u, 31u, 32u, 33u, 40u}) {
    std::vector<ibv_sge>& list = sges.emplace_back();
    for (unsigned i = 0; i < n; i++)
      list.push_back({.addr = 0x5000u + i, .length = 1000u + i, .lkey = 7u + i});
  }
  std::vector<ibv_send_wr> wrs(sges.size());
  for (size_t i = 0; i < wrs.size(); i++) {
    wrs[i].wr_id = 100 + i;
    wrs[i].next = i + 1 < wrs.size() ? &wrs[i + 1] : nullptr;
    wrs[i].sg_list = sges[i].data();
    wrs[i].num_sge = static_cast<int>(sges[i].size());
    wrs[i].opcode = IBV_WR_SEND;
    wrs[i].send_flags = i == 2 ? IBV_SEND_INLINE : 0;
  }
  ibv_send_wr* bad = nullptr;
  provider_post_send(world.plain(), wrs.data(), &bad);
  for (size_t i = 0; i < wrs.size(); i++) {
    PostText text = world.post(SIGMA_QUEUE_SEND);
    const size_t n = sges[i].size(), seen = n < 32 ? n : 32;
    text.position = static_cast<unsigned>(i);
    text.opcode = IBV_WR_SEND;
    text.send_flags = i == 2 ? IBV_SEND_INLINE : 0;
    text.wr_id = 100 + i;
    text.sges = static_cast<unsigned>(n);
    text.local = n ? 0x5000 : 0;
    text.lkey = n ? 7 : 0;
    text.bytes = seen * 1000 + seen * (seen ? seen - 1 : 0) / 2;
    text.flags = common_flags() | (n > 32 ? SIGMA_POST_SGE_TRUNCATED : 0);
    say(text.text());
  }
}

void datagrams() {
  World world("sigma_ud", IBV_QPT_UD);
  world.say_first_sight();
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM}) {
    ibv_send_wr wr = {};
    wr.opcode = opcode;
    wr.wr.ud.ah = &world.ah;
    wr.wr.ud.remote_qpn = 0x123456;
    wr.wr.ud.remote_qkey = 0x11111111;
    ibv_send_wr* bad = nullptr;
    provider_post_send(world.plain(), &wr, &bad);
    PostText text = world.post(SIGMA_QUEUE_SEND);
    text.opcode = opcode;
    text.flags = SIGMA_POST_HAS_AH | common_flags();
    text.ah = 4711;
    text.remote_qpn = 0x123456;
    say(text.text());
  }
}

// Lists of three whose request number `bad` is refused; receives and SRQ receives likewise.
void refusals() {
  World world;
  world.say_first_sight();
  for (int refused = 0; refused < 4; refused++) {
    ibv_send_wr wrs[3] = {};
    for (int i = 0; i < 3; i++) {
      wrs[i].wr_id = static_cast<uint64_t>(i) | (i == refused ? PROVIDER_REFUSED : 0);
      wrs[i].next = i < 2 ? &wrs[i + 1] : nullptr;
      wrs[i].opcode = IBV_WR_SEND;
      PostText text = world.post(SIGMA_QUEUE_SEND);
      text.position = static_cast<unsigned>(i);
      text.opcode = IBV_WR_SEND;
      text.wr_id = wrs[i].wr_id;
      text.flags = common_flags();
      say(text.text());
    }
    ibv_send_wr* bad = nullptr;
    if (provider_post_send(world.plain(), wrs, &bad))
      say_refused(world, SIGMA_QUEUE_SEND, static_cast<unsigned>(refused));
  }
  for (const unsigned queue : {SIGMA_QUEUE_RECV, SIGMA_QUEUE_SRQ}) {
    ibv_sge sge = {.addr = 0x9000, .length = 4096, .lkey = 9};
    ibv_recv_wr wrs[2] = {};
    for (int i = 0; i < 2; i++) {
      wrs[i].wr_id = static_cast<uint64_t>(i) | (i == 1 ? PROVIDER_REFUSED : 0);
      wrs[i].next = i < 1 ? &wrs[i + 1] : nullptr;
      wrs[i].sg_list = &sge;
      wrs[i].num_sge = 1;
      PostText text = world.post(queue);
      if (queue == SIGMA_QUEUE_SRQ)
        text.queue_ptr = address(&world.srq), text.qp_num = 0, text.qp_type = 0xff;
      text.position = static_cast<unsigned>(i);
      text.wr_id = wrs[i].wr_id;
      text.local = 0x9000;
      text.lkey = 9;
      text.bytes = 4096;
      text.sges = 1;
      text.flags = common_flags();
      say(text.text());
    }
    ibv_recv_wr* bad = nullptr;
    if (queue == SIGMA_QUEUE_RECV) {
      if (provider_post_recv(world.plain(), wrs, &bad)) say_refused(world, queue, 1);
    } else if (provider_post_srq_recv(&world.srq, wrs, &bad) && checked()) {
      say(result_text(queue, address(&world.srq), address(&world.context), 0, SIGMA_OUTCOME_REFUSED,
                      ENOMEM, 1));
    }
  }
}

// Lists longer than the walk, and longer than what is counted.
void long_lists() {
  World world;
  world.say_first_sight();
  const unsigned walked = walked_limit();
  const unsigned counted = walked == 256 ? 4096 : 32;
  for (const unsigned n : {300u, 6000u}) {
    std::vector<ibv_send_wr> wrs(n);
    for (unsigned i = 0; i < n; i++) {
      wrs[i].wr_id = i;
      wrs[i].next = i + 1 < n ? &wrs[i + 1] : nullptr;
      wrs[i].opcode = IBV_WR_SEND;
    }
    ibv_send_wr* bad = nullptr;
    provider_post_send(world.plain(), wrs.data(), &bad);
    for (unsigned i = 0; i < walked; i++) {
      PostText text = world.post(SIGMA_QUEUE_SEND);
      text.position = i;
      text.opcode = IBV_WR_SEND;
      text.wr_id = i;
      text.flags = common_flags();
      if (i + 1 == walked) {
        text.flags |= SIGMA_POST_LIST_TRUNCATED;
        text.omitted = n - walked <= counted ? n - walked : 0xffff;
      }
      say(text.text());
    }
  }
}

// A request, its QP or its SGE list at addresses that cannot be read.
void unreadable() {
  World world;
  world.say_first_sight();
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND;
  wr.wr_id = 1;
  wr.num_sge = 2;
  wr.sg_list = reinterpret_cast<ibv_sge*>(8);
  ibv_send_wr* bad = nullptr;
  provider_post_send(world.plain(), &wr, &bad);
  PostText text = world.post(SIGMA_QUEUE_SEND);
  text.opcode = IBV_WR_SEND;
  text.wr_id = 1;
  text.sges = 2;
  text.flags = SIGMA_POST_UNREADABLE | common_flags();
  say(text.text());

  wr.num_sge = 0;
  provider_post_send(reinterpret_cast<ibv_qp*>(16), &wr, &bad);
  PostText stranger;
  stranger.queue_ptr = 16;
  stranger.opcode = IBV_WR_SEND;
  stranger.wr_id = 1;
  stranger.flags = SIGMA_POST_UNREADABLE | common_flags();
  say(stranger.text());
}
