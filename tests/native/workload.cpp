// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// workload SCENARIO: drives the provider library in a process of its own, and says what it did.
//
// Protocol over stdin and stdout: it prints "ready", waits for a line, acts, prints one line of
// truth.h for each record that a tracer should have seen, prints "end", waits for a line or the end
// of input, exits.
#include <arpa/inet.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bpf/records.h"
#include "provider.h"
#include "truth.h"

namespace {

template <typename T>
uint64_t address(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

void say(const std::string& line) {
  printf("%s\n", line.c_str());
}

// One device with its objects, as an application has them.
struct World {
  ibv_device device = {};
  ibv_context context = {};
  ibv_pd pd = {};
  ibv_cq send_cq = {}, recv_cq = {};
  ibv_srq srq = {};
  ibv_qp_ex qp = {};
  ibv_ah ah = {};
  provider_completions completions = {};
  int complete_result = 0;

  explicit World(const char* name = "sigma_0", ibv_qp_type type = IBV_QPT_RC,
                 uint32_t number = 17) {
    snprintf(device.name, sizeof(device.name), "%s", name);
    context.device = &device;
    context.cmd_fd = 77;
    pd.context = &context;
    send_cq.context = recv_cq.context = &context;
    send_cq.cq_context = &completions;
    srq.context = &context;
    ah.context = &context;
    ah.handle = 4711;
    ibv_qp& base = qp.qp_base;
    base.context = &context;
    base.pd = &pd;
    base.send_cq = &send_cq;
    base.recv_cq = &recv_cq;
    base.srq = nullptr;
    base.handle = 5;
    base.qp_num = number;
    base.state = IBV_QPS_RTS;
    base.qp_type = type;
    base.qp_context = &complete_result;
    provider_make_ex(&qp);
  }

  ibv_qp* plain() { return &qp.qp_base; }
  void say_context(unsigned kind = SIGMA_CONTEXT_SEEN) {
    say(context_text(address(&context), kind, device.name, context.cmd_fd));
  }
  void say_first_sight() {
    say_context();
    say_queue_pair();
  }
  void say_queue_pair() {
    const ibv_qp& base = qp.qp_base;
    say(qp_text(address(&base), address(&context), base.qp_num, base.handle, base.qp_type,
                base.state, address(base.send_cq), address(base.recv_cq), address(base.srq)));
  }
  // What all posts to the QP have in common.
  PostText post(unsigned queue) {
    PostText text;
    text.queue = queue;
    text.queue_ptr = address(plain());
    text.context = address(&context);
    text.qp_num = qp.qp_base.qp_num;
    text.qp_type = qp.qp_base.qp_type;
    return text;
  }
};

// Given by the test where it changes what is expected: flags that every post carries.
unsigned common_flags() {
  const char* text = getenv("WORKLOAD_POST_FLAGS");
  return text ? static_cast<unsigned>(strtoul(text, nullptr, 16)) : 0;
}
bool checked() {
  return (common_flags() & SIGMA_POST_UNVERIFIED) == 0;
}

void say_refused(World& world, unsigned queue, unsigned accepted) {
  if (checked())
    say(result_text(queue, address(world.plain()), address(&world.context), world.qp.qp_base.qp_num,
                    SIGMA_OUTCOME_REFUSED, ENOMEM, accepted));
}

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
  const char* limit_text = getenv("WORKLOAD_WALKED");
  const unsigned walked = limit_text ? static_cast<unsigned>(atoi(limit_text)) : 256;
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

void polls() {
  World world;
  const char* limit_text = getenv("WORKLOAD_WALKED");
  const unsigned limit = limit_text ? static_cast<unsigned>(atoi(limit_text)) : 256;
  bool first = true;
  for (const int n : {0, 1, 2, 16, -5, 300}) {
    std::vector<ibv_wc> ready(n > 0 ? static_cast<size_t>(n) : 0), got(512);
    for (size_t i = 0; i < ready.size(); i++) {
      ibv_wc& wc = ready[i];
      const auto k = static_cast<uint32_t>(i);
      wc.wr_id = 0x100000 + i;
      wc.status = i % 3 ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR;
      wc.opcode = i % 2 ? IBV_WC_RECV : IBV_WC_RDMA_WRITE;
      wc.vendor_err = k + 1;
      wc.byte_len = k + 2;
      wc.imm_data = k + 3;
      wc.qp_num = k + 4;
      wc.src_qp = k + 5;
      wc.wc_flags = IBV_WC_WITH_IMM;
      wc.pkey_index = static_cast<uint16_t>(k + 6);
      wc.slid = static_cast<uint16_t>(k + 7);
      wc.sl = static_cast<uint8_t>(k % 16);
      wc.dlid_path_bits = static_cast<uint8_t>(k % 8);
    }
    world.completions = {ready.data(), n};
    provider_poll_cq(&world.send_cq, 512, got.data());
    if (n > 0 && first) world.say_context(), first = false;
    for (uint32_t k = 0; n > 0 && k < static_cast<uint32_t>(n) && k < limit; k++) {
      CompletionText text;
      text.cq = address(&world.send_cq);
      text.context = address(&world.context);
      text.wr_id = 0x100000 + k;
      text.status = k % 3 ? 0 : 12;
      text.opcode = k % 2 ? 128 : 1;
      text.vendor = k + 1;
      text.bytes = k + 2;
      text.imm = k + 3;
      text.qp_num = k + 4;
      text.src_qp = k + 5;
      text.wc_flags = 2;
      text.pkey = k + 6;
      text.slid = k + 7;
      text.sl = k % 16;
      text.path_bits = k % 8;
      text.batch = static_cast<unsigned>(n);
      say(text.text());
    }
  }
}

// By the extended CQ, one at a time: wr_id and status are its own, the rest is where the layout
// says.
void extended_polls() {
  World world;
  provider_cq_ex cq = {};
  cq.ex.context = &world.context;
  bool first = true;
  for (const int n : {0, 1, 4, 0, 40}) {
    std::vector<ibv_wc> ready(static_cast<size_t>(n));
    for (size_t i = 0; i < ready.size(); i++) {
      ibv_wc& wc = ready[i];
      const auto k = static_cast<uint32_t>(i);
      wc.wr_id = 0x200000 + i;
      wc.status = i % 5 ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR;
      wc.opcode = i % 2 ? IBV_WC_RECV : IBV_WC_RDMA_WRITE;
      wc.vendor_err = k + 1;
      wc.byte_len = k + 2;
      wc.imm_data = k + 3;
      wc.qp_num = k + 4;
      wc.src_qp = k + 5;
      wc.wc_flags = i % 3 ? IBV_WC_WITH_IMM : 0;
    }
    cq.ready = {ready.data(), n};
    ibv_poll_cq_attr attributes = {};
    int got = 0;
    for (int result = provider_start_poll(&cq.ex, &attributes); result == 0;
         result = provider_next_poll(&cq.ex)) {
      const auto k = static_cast<uint32_t>(got++);
      if (std::exchange(first, false)) world.say_context();
      CompletionText text;
      text.cq = address(&cq);
      text.context = address(&world.context);
      text.wr_id = 0x200000 + k;
      text.status = k % 5 ? 0 : 12;
      text.qp_num = k + 4;
      if (text.status != 0) {
        text.vendor = k + 1;
      } else {
        text.opcode = k % 2 ? 128 : 1;
        text.bytes = k + 2;
        text.src_qp = k + 5;
        text.wc_flags = k % 3 ? 2 : 0;
        if (text.wc_flags != 0) text.imm = k + 3;
      }
      text.batch = 1;
      say(text.text());
    }
  }
}

// A context is closed and another opened at its address; the QP there has the same number.
void reopen() {
  for (const char* name : {"sigma_a", "sigma_b"}) {
    static World world;
    world.~World();
    new (&world) World(name);
    ibv_send_wr wr = {};
    ibv_send_wr* bad = nullptr;
    provider_post_send(world.plain(), &wr, &bad);
    provider_close_device(&world.context);
    world.say_first_sight();
    PostText text = world.post(SIGMA_QUEUE_SEND);
    text.flags = common_flags();
    say(text.text());
    world.say_context(SIGMA_CONTEXT_CLOSED);
  }
}

void command(World& world, uint16_t object, uint16_t method) {
  provider_command command = {};
  command.hdr.object_id = object;
  command.hdr.method_id = method;
  provider_execute_ioctl(&world.context, &command);
  say(uverbs_text(address(&world.context), object, method, 0, 0, 0, ""));
}

void plain_post(World& world) {
  ibv_send_wr wr = {};
  ibv_send_wr* bad = nullptr;
  provider_post_send(world.plain(), &wr, &bad);
  PostText text = world.post(SIGMA_QUEUE_SEND);
  text.flags = common_flags();
  say(text.text());
}

// Queue pairs are destroyed, by either kind of command, and others come to stand at their address.
// Their number is all that changes. The tracer has seen commands of this context, so it may rely on
// them.
void replaced() {
  World world;
  world.say_context();
  command(world, 7, 0);  // a memory region: of no consequence
  world.say_queue_pair();
  for (int i = 0; i < 3; i++) plain_post(world);
  world.qp.qp_base.qp_num = 18;
  command(world, 4, 1);
  world.say_queue_pair();
  for (int i = 0; i < 3; i++) plain_post(world);
  world.qp.qp_base.qp_num = 19;
  command(world, 0, 0);
  world.say_queue_pair();
  for (int i = 0; i < 3; i++) plain_post(world);
  command(world, 4, 2);  // modified: still the same, so not reported again
  plain_post(world);
}

// The same by a library whose commands are not seen: read anew at each post.
void replaced_unseen() {
  World world;
  world.say_context();
  for (const uint32_t number : {17, 18, 17}) {
    world.qp.qp_base.qp_num = number;
    world.say_queue_pair();
    plain_post(world);
    plain_post(world);
  }
}

// Long enough for whatever is remembered of a queue pair to be used.
void many_posts() {
  World world;
  world.say_context();
  command(world, 3, 0);
  world.say_queue_pair();
  for (int i = 0; i < 1000; i++) plain_post(world);
}

std::string hex(const std::vector<uint8_t>& bytes, size_t limit) {
  std::string text;
  for (size_t i = 0; i < bytes.size() && i < limit; i++) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

// uverbs commands: inline and pointed-to inputs, small and large outputs, a payload that is cut,
// more attributes than are read, and more payload than a record holds.
void commands() {
  World world;
  bool first = true;
  auto run = [&](std::vector<std::vector<uint8_t>> payloads, std::vector<uint16_t> flags,
                 int result) {
    provider_command command = {};
    command.hdr.object_id = 3;
    command.hdr.method_id = 1;
    command.hdr.driver_id = 9;
    command.num_attrs = static_cast<int>(payloads.size());
    command.result = result;
    for (size_t i = 0; i < payloads.size(); i++) {
      auto& attr = command.attrs[i];
      attr.attr_id = static_cast<uint16_t>(0x1000 + i);
      attr.len = static_cast<uint16_t>(payloads[i].size());
      attr.flags = flags[i];
      if (payloads[i].size() <= 8 && !(flags[i] & 2))
        memcpy(&attr.data, payloads[i].data(), payloads[i].size());
      else
        attr.data = address(payloads[i].data());
    }
    provider_execute_ioctl(&world.context, &command);
    if (first) world.say_context(), first = false;
    std::string attributes;
    size_t used = 64 + 16 * (payloads.size() < 24 ? payloads.size() : 24);
    unsigned record_flags = payloads.size() > 24 ? SIGMA_UVERBS_TRUNCATED : 0;
    for (size_t i = 0; i < payloads.size() && i < 24; i++) {
      const size_t n = payloads[i].size();
      std::string text;
      if (n <= 8 && !(flags[i] & 2)) {
        text = fmt::format("={:x}", static_cast<uint64_t>(command.attrs[i].data));
      } else if (used + 640 > 4096) {
        text = "absent";
        record_flags |= SIGMA_UVERBS_TRUNCATED;
      } else {
        text = hex(payloads[i], 640);
        used += ((n < 640 ? n : 640) + 7) / 8 * 8;
        if (n > 640) record_flags |= SIGMA_UVERBS_TRUNCATED;
      }
      attributes += attribute_text(static_cast<unsigned>(0x1000 + i), static_cast<unsigned>(n),
                                   flags[i], text);
    }
    say(uverbs_text(address(&world.context), 3, 1, 9, result, record_flags, attributes));
  };
  auto bytes = [](size_t n) {
    std::vector<uint8_t> list(n);
    for (size_t i = 0; i < n; i++) list[i] = static_cast<uint8_t>(i * 7 + n);
    return list;
  };
  run({}, {}, 0);
  run({bytes(0), bytes(4), bytes(8), bytes(9), bytes(100)}, {1, 1, 1, 1, 1}, 0);
  run({bytes(4), bytes(8), bytes(300)}, {2, 3, 2}, 0);
  run({bytes(16)}, {1}, 22);
  run({bytes(640), bytes(641), bytes(2000)}, {1, 1, 1}, 0);
  run(std::vector<std::vector<uint8_t>>(8, bytes(640)), std::vector<uint16_t>(8, 1), 0);
  run(std::vector<std::vector<uint8_t>>(30, bytes(12)), std::vector<uint16_t>(30, 1), 0);
}

// Many threads, each on a QP of its own, posting and polling at once. Says totals only.
void threads(unsigned n_threads, unsigned rounds) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < n_threads; t++)
    threads.emplace_back([t, rounds] {
      World world("sigma_t", IBV_QPT_RC, 100 + t);
      ibv_wc wc = {};
      for (unsigned i = 0; i < rounds; i++) {
        ibv_send_wr wr = {};
        wr.wr_id = i;
        ibv_send_wr* bad = nullptr;
        provider_post_send(world.plain(), &wr, &bad);
        wc.wr_id = i;
        wc.qp_num = 100 + t;
        const ibv_wc ready = wc;
        world.completions = {&ready, 1};
        provider_poll_cq(&world.send_cq, 1, &wc);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

void one_post() {
  World world;
  ibv_send_wr wr = {};
  ibv_send_wr* bad = nullptr;
  provider_post_send(world.plain(), &wr, &bad);
  world.say_first_sight();
  PostText text = world.post(SIGMA_QUEUE_SEND);
  text.flags = common_flags();
  say(text.text());
}

// A child that posts and exits with 7 while threads of its parent come and go; then an exec.
void processes(const char* self) {
  const pid_t parent = getpid();
  std::thread([] {}).join();  // a thread is no process
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    World world("sigma_child");
    ibv_send_wr wr = {};
    ibv_send_wr* bad = nullptr;
    provider_post_send(world.plain(), &wr, &bad);
    std::thread([] {}).join();
    _exit(7);
  }
  int status;
  waitpid(child, &status, 0);
  const char* comm = "workload";
  say(process_text(SIGMA_PROCESS_FORK, static_cast<uint32_t>(parent), static_cast<uint32_t>(child),
                   0, comm));
  say(process_text(SIGMA_PROCESS_EXIT, static_cast<uint32_t>(child), 0, 7 << 8, comm));
  say(process_text(SIGMA_PROCESS_EXEC, static_cast<uint32_t>(parent), 0, 0, comm));
  fflush(stdout);
  execl(self, self, "after_exec", nullptr);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string scenario = argv[1];
  auto wait_for_line = [] {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) == 1)
      if (byte == '\n') return true;
    return false;
  };
  if (scenario != "after_exec") {
    printf("ready\n");
    fflush(stdout);
    if (!wait_for_line()) return 0;
  }
  do {
    if (scenario == "opcodes") opcodes();
    if (scenario == "chain") chain();
    if (scenario == "datagrams") datagrams();
    if (scenario == "refusals") refusals();
    if (scenario == "long_lists") long_lists();
    if (scenario == "unreadable") unreadable();
    if (scenario == "builders") builders();
    if (scenario == "polls") polls();
    if (scenario == "extended_polls") extended_polls();
    if (scenario == "reopen") reopen();
    if (scenario == "replaced") replaced();
    if (scenario == "replaced_unseen") replaced_unseen();
    if (scenario == "many_posts") many_posts();
    if (scenario == "commands") commands();
    if (scenario == "one_post") one_post();
    if (scenario == "threads") threads(4, 2000);
    if (scenario == "flood") threads(8, 20000);
    if (scenario == "processes") processes(argv[0]);
    printf("end\n");
    fflush(stdout);
  } while (wait_for_line());  // once more for each further line
  return 0;
}
