// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "session/opcodes.h"

#include <infiniband/verbs.h>

#include <array>

namespace sigma {
namespace {

// IBV_WR_DRIVER1 and IBV_WR_ATOMIC_WRITE stand for themselves: what the provider makes of them is
// its own.
constexpr WrTraits kDriver{Opcode::driver, false, false, false};

constexpr auto kWr = [] {
  std::array<WrTraits, IBV_WR_TSO + 1> table{};
  table[IBV_WR_RDMA_WRITE] = {Opcode::rdma_write, true, false, false};
  table[IBV_WR_RDMA_WRITE_WITH_IMM] = {Opcode::rdma_write_with_imm, true, true, false};
  table[IBV_WR_SEND] = {Opcode::send, false, false, false};
  table[IBV_WR_SEND_WITH_IMM] = {Opcode::send_with_imm, false, true, false};
  table[IBV_WR_RDMA_READ] = {Opcode::rdma_read, true, false, false};
  table[IBV_WR_ATOMIC_CMP_AND_SWP] = {Opcode::atomic_cmp_and_swp, true, false, false};
  table[IBV_WR_ATOMIC_FETCH_AND_ADD] = {Opcode::atomic_fetch_and_add, true, false, false};
  table[IBV_WR_LOCAL_INV] = {Opcode::local_inv, false, false, true};
  table[IBV_WR_BIND_MW] = {Opcode::bind_mw, false, false, false};
  table[IBV_WR_SEND_WITH_INV] = {Opcode::send_with_inv, false, false, true};
  table[IBV_WR_TSO] = {Opcode::tso, false, false, false};
  return table;
}();

constexpr auto kWcSend = [] {
  std::array<WcTraits, IBV_WC_TSO + 1> table{};
  table[IBV_WC_SEND] = {WcSide::send, Opcode::send, false};
  table[IBV_WC_RDMA_WRITE] = {WcSide::send, Opcode::rdma_write, false};
  table[IBV_WC_RDMA_READ] = {WcSide::send, Opcode::rdma_read, true};
  table[IBV_WC_COMP_SWAP] = {WcSide::send, Opcode::atomic_cmp_and_swp, true};
  table[IBV_WC_FETCH_ADD] = {WcSide::send, Opcode::atomic_fetch_and_add, true};
  table[IBV_WC_BIND_MW] = {WcSide::send, Opcode::bind_mw, false};
  table[IBV_WC_LOCAL_INV] = {WcSide::send, Opcode::local_inv, false};
  table[IBV_WC_TSO] = {WcSide::send, Opcode::tso, false};
  return table;
}();

}  // namespace

WrTraits traits_of_wr(uint8_t wr_opcode) {
  return wr_opcode < kWr.size() ? kWr[wr_opcode] : kDriver;
}

WcTraits traits_of_wc(uint32_t wc_opcode) {
  if (wc_opcode < kWcSend.size()) return kWcSend[wc_opcode];
  if (wc_opcode == IBV_WC_RECV) return {WcSide::recv, Opcode::recv, true};
  if (wc_opcode == IBV_WC_RECV_RDMA_WITH_IMM)
    return {WcSide::recv, Opcode::recv_rdma_with_imm, true};
  if (wc_opcode >= IBV_WC_TM_ADD && wc_opcode <= IBV_WC_TM_NO_TAG)
    return {WcSide::tag_matching, Opcode::unknown, false};
  return {WcSide::send, Opcode::driver, false};
}

}  // namespace sigma
