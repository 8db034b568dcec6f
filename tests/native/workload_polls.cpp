// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Polls of plain and of extended completion queues.
#include <utility>

#include "workload.h"

namespace {

// The number `k`: each field its own value.
ibv_wc completion(uint32_t k, uint64_t first_wr_id, bool failed, bool with_imm) {
  ibv_wc wc = {};
  wc.wr_id = first_wr_id + k;
  wc.status = failed ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS;
  wc.opcode = k % 2 ? IBV_WC_RECV : IBV_WC_RDMA_WRITE;
  wc.vendor_err = k + 1;
  wc.byte_len = k + 2;
  wc.imm_data = k + 3;
  wc.qp_num = k + 4;
  wc.src_qp = k + 5;
  wc.wc_flags = with_imm ? IBV_WC_WITH_IMM : 0;
  return wc;
}

}  // namespace

void polls() {
  World world;
  const unsigned limit = walked_limit();
  bool first = true;
  for (const int n : {0, 1, 2, 16, -5, 300}) {
    std::vector<ibv_wc> ready(n > 0 ? static_cast<size_t>(n) : 0), got(512);
    for (size_t i = 0; i < ready.size(); i++) {
      ibv_wc& wc = ready[i];
      const auto k = static_cast<uint32_t>(i);
      wc = completion(k, 0x100000, k % 3 == 0, true);
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
      const auto k = static_cast<uint32_t>(i);
      ready[i] = completion(k, 0x200000, k % 5 == 0, k % 3 != 0);
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
