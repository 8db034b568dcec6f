// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// WQEs as each stack writes them (rdma-core 44 and 691953d, UCX 9466d10, NVSHMEM 2d7d25f, DOCA
// gpunetio 467c76a), each at every place of a small ring, so that all of its segments run over the
// ring's end once.
#include "decode/wqe.h"

#include <infiniband/verbs.h>
#include <rdma/mlx5-abi.h>

#include <functional>
#include <string>

#include "bpf/records.h"
#include "catch.h"
#include "wqe_writer.h"

using namespace sigma;

namespace {

constexpr uint32_t kQpNum = 0x1234, kLkey = 0x1a1b, kRkey = 0x2a2b, kKey = 0x3a3b00;
constexpr uint64_t kLocal = 0x7f00'1122'3344, kRemote = 0x7f55'6677'8899;
constexpr uint8_t kSignaled = MLX5_WQE_CTRL_CQ_UPDATE;
const std::array<uint8_t, 16> kGid{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3};

struct Case {
  std::string name;
  QpService service;
  WqeWriter::Control control;
  std::function<void(WqeWriter&)> segments;
  std::function<void(Wqe&)> expected;
  uint8_t ds = 0;  // 0: what the segments need
};

WqeWriter::Control op(uint8_t opcode, uint8_t fm_ce_se = kSignaled, uint32_t imm = 0,
                      uint8_t opmod = 0) {
  return {opcode, kQpNum, opmod, fm_ce_se, imm};
}

void local(Wqe& wqe, uint64_t bytes, uint16_t sges = 1) {
  wqe.has_bytes = true;
  wqe.bytes = bytes;
  wqe.num_sge = sges;
  wqe.has_local = sges > 0;
  if (sges > 0) wqe.local_addr = kLocal, wqe.lkey = kLkey;
}
void inlined(Wqe& wqe, uint64_t bytes) {
  local(wqe, bytes, 0);
  wqe.is_inline = true;
}
void remote(Wqe& wqe) {
  wqe.has_remote = true;
  wqe.remote_addr = kRemote;
  wqe.rkey = kRkey;
}

// Address vectors as libmlx5's mlx5_create_ah fills them for each link layer.
mlx5_wqe_datagram_seg roce_address(uint64_t key, uint32_t qp_num) {
  uint8_t mac[6] = {2, 0, 0, 1, 2, 3};
  auto gid = kGid;
  mlx5_wqe_datagram_seg segment{};
  mlx5dv_set_dgram_seg(&segment, key, qp_num, 1, 0, 0, 0xc123, mac, 96, 64, 3u << 20 | 0x777,
                       gid.data());
  segment.av.stat_rate_sl = 5 << 1;
  return segment;
}
mlx5_wqe_datagram_seg ib_address(uint64_t key, uint32_t qp_num, bool grh) {
  uint8_t mac[6] = {};
  auto gid = kGid;
  mlx5_wqe_datagram_seg segment{};
  mlx5dv_set_dgram_seg(&segment, key, qp_num, 1, 4, 0, 0x11, mac, 96, 64,
                       grh ? 1u << 30 | 3u << 20 | 0x777 : 0, gid.data());
  return segment;
}
void roce_peer(Wqe& wqe, uint64_t key, uint32_t qp_num) {
  wqe.has_peer = true;
  wqe.peer = {qp_num, true, false, 5, 96, 64, 3, 0, 0x777, key, kGid};
}
void ib_peer(Wqe& wqe, uint64_t key, uint32_t qp_num, bool grh) {
  wqe.has_peer = true;
  wqe.peer = {qp_num, false, true, 4, 0, 0, 0, 0x11, 0, key, {}};
  if (grh) wqe.peer = {qp_num, true, true, 4, 96, 64, 3, 0x11, 0x777, key, kGid};
}

// UMR control segments: klm_octowords and flags as set_umr_control_seg and mkey_configure write
// them.
mlx5_wqe_umr_ctrl_seg umr(uint8_t flags, uint16_t klm_octowords) {
  mlx5_wqe_umr_ctrl_seg segment{};
  segment.flags = flags;
  segment.klm_octowords = htobe16(klm_octowords);
  segment.mkey_mask = htobe64(MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE | MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY);
  return segment;
}
constexpr uint8_t kUmrInline = MLX5_WQE_UMR_CTRL_FLAG_INLINE;
constexpr uint8_t kUmrWindow = kUmrInline | MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET;

void key(Wqe& wqe) {
  wqe.has_bytes = true;
  wqe.has_invalidate = true;
  wqe.rkey = kKey;
}

mlx5_wqe_eth_seg ethernet(uint16_t header_bytes) {
  mlx5_wqe_eth_seg segment{};
  uint8_t start[2] = {0xde, 0xad};
  mlx5dv_set_eth_seg(&segment, 0, 0, sizeof(start), start);
  segment.inline_hdr_sz = htobe16(header_bytes);
  return segment;
}

const uint32_t kImm = htobe32(0xcafe0001);

const Case kCases[] = {
    // ---- libmlx5, RC and UC
    {"libmlx5 SEND, two elements", QpService::rc, op(MLX5_OPCODE_SEND),
     [](WqeWriter& w) { w.data(100, kLkey, kLocal).data(28, 7, 8); },
     [](Wqe& e) { local(e, 128, 2); }},
    {"libmlx5 SEND, nothing", QpService::uc, op(MLX5_OPCODE_SEND, 0), [](WqeWriter&) {},
     [](Wqe& e) { local(e, 0, 0); }},
    {"libmlx5 SEND_IMM, solicited, fenced", QpService::rc,
     op(MLX5_OPCODE_SEND_IMM, kSignaled | MLX5_WQE_CTRL_SOLICITED | MLX5_WQE_CTRL_FENCE, kImm),
     [](WqeWriter& w) { w.inline_data(20); },
     [](Wqe& e) {
       inlined(e, 20);
       e.has_imm = e.solicited = e.fenced = true;
       e.imm = 0xcafe0001;
     }},
    {"libmlx5 SEND_INVAL", QpService::rc, op(MLX5_OPCODE_SEND_INVAL, kSignaled, htobe32(kKey)),
     [](WqeWriter& w) { w.data(64, kLkey, kLocal); },
     [](Wqe& e) {
       local(e, 64);
       e.has_invalidate = true;
       e.rkey = kKey;
     }},
    {"libmlx5 RDMA_WRITE, no completion", QpService::rc, op(MLX5_OPCODE_RDMA_WRITE, 0),
     [](WqeWriter& w) { w.remote(kRemote, kRkey).data(65'536, kLkey, kLocal); },
     [](Wqe& e) { local(e, 65'536), remote(e); }},
    {"libmlx5 RDMA_WRITE_IMM, 300 bytes inline", QpService::uc,
     op(MLX5_OPCODE_RDMA_WRITE_IMM, kSignaled, kImm),
     [](WqeWriter& w) { w.remote(kRemote, kRkey).inline_data(300); },
     [](Wqe& e) {
       inlined(e, 300), remote(e);
       e.has_imm = true;
       e.imm = 0xcafe0001;
     }},
    {"the longest inline WQE", QpService::rc, op(MLX5_OPCODE_RDMA_WRITE),
     [](WqeWriter& w) { w.remote(kRemote, kRkey).inline_data(63 * 16 - 36); },
     [](Wqe& e) { inlined(e, 63 * 16 - 36), remote(e); }},
    {"libmlx5 RDMA_READ, six elements", QpService::rc, op(MLX5_OPCODE_RDMA_READ),
     [](WqeWriter& w) {
       w.remote(kRemote, kRkey).data(1, kLkey, kLocal);
       for (uint32_t i = 2; i <= 6; ++i) w.data(i, i, i);
     },
     [](Wqe& e) { local(e, 21, 6), remote(e); }},
    {"a data pointer of 2 GiB", QpService::rc, op(MLX5_OPCODE_RDMA_READ),
     [](WqeWriter& w) { w.remote(kRemote, kRkey).data(0, kLkey, kLocal); },
     [](Wqe& e) { local(e, uint64_t{1} << 31), remote(e); }},
    {"the end mark of a list", QpService::rc, op(MLX5_OPCODE_RDMA_READ),
     [](WqeWriter& w) {
       w.remote(kRemote, kRkey).data(9, kLkey, kLocal).data(0, MLX5_INVALID_LKEY, 0);
     },
     [](Wqe& e) { local(e, 9), remote(e); }},
    {"libmlx5 ATOMIC_CS", QpService::rc, op(MLX5_OPCODE_ATOMIC_CS),
     [](WqeWriter& w) {
       w.remote(kRemote, kRkey).quads({1, 2}).data(8, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 8), remote(e); }},
    {"libmlx5 ATOMIC_FA", QpService::rc, op(MLX5_OPCODE_ATOMIC_FA),
     [](WqeWriter& w) {
       w.remote(kRemote, kRkey).quads({1, 2}).data(8, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 8), remote(e); }},
    {"libmlx5 LOCAL_INV", QpService::rc, op(MLX5_OPCODE_UMR, kSignaled, htobe32(kKey)),
     [](WqeWriter& w) { w.put(umr(kUmrWindow | MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN, 0)).zeros(64); },
     [](Wqe& e) {
       key(e);
       e.wr_opcode = IBV_WR_LOCAL_INV;
     }},
    {"libmlx5 BIND_MW", QpService::rc, op(MLX5_OPCODE_UMR, kSignaled, htobe32(kKey)),
     [](WqeWriter& w) { w.put(umr(kUmrWindow | MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE, 2)).zeros(128); },
     [](Wqe& e) {
       key(e);
       e.wr_opcode = IBV_WR_BIND_MW;
     }},
    {"libmlx5 unbinding of a type 1 window", QpService::rc,
     op(MLX5_OPCODE_UMR, kSignaled, htobe32(kKey)),
     [](WqeWriter& w) { w.put(umr(kUmrWindow, 0)).zeros(64); },
     [](Wqe& e) {
       key(e);
       e.wr_opcode = IBV_WR_BIND_MW;
     }},
    {"mlx5dv mkey_configure", QpService::dci, op(MLX5_OPCODE_UMR, kSignaled, htobe32(kKey)),
     [](WqeWriter& w) { w.put(umr(kUmrInline, 2)).zeros(128); },
     [](Wqe& e) {
       key(e);
       e.wr_opcode = SIGMA_WR_UMR;
     }},
    {"mlx5dv SET_PSV", QpService::rc, op(MLX5_OPCODE_SET_PSV, 0), [](WqeWriter& w) { w.zeros(32); },
     [](Wqe& e) {
       local(e, 0, 0);
       e.wr_opcode = SIGMA_WR_OTHER;
     }},
    {"mlx5dv memcpy", QpService::rc, op(MLX5_OPCODE_MMO, kSignaled, 0, 1),
     [](WqeWriter& w) { w.zeros(16).data(4096, kLkey, kLocal).data(4096, 5, 6); },
     [](Wqe& e) {
       local(e, 4096);
       e.wr_opcode = SIGMA_WR_OTHER;
     }},

    // ---- datagrams
    {"libmlx5 UD on RoCE", QpService::ud, op(MLX5_OPCODE_SEND),
     [](WqeWriter& w) {
       w.put(roce_address(uint64_t{0x11111111} << 32, 0x77)).data(1000, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 1000), roce_peer(e, uint64_t{0x11111111} << 32, 0x77); }},
    {"libmlx5 UD on InfiniBand with a GRH", QpService::ud,
     op(MLX5_OPCODE_SEND_IMM, kSignaled, kImm),
     [](WqeWriter& w) { w.put(ib_address(9, 0x77, true)).inline_data(100); },
     [](Wqe& e) {
       inlined(e, 100), ib_peer(e, 9, 0x77, true);
       e.has_imm = true;
       e.imm = 0xcafe0001;
     }},
    {"UCX UD on InfiniBand without a GRH, over stale bytes", QpService::ud, op(MLX5_OPCODE_SEND),
     [](WqeWriter& w) {
       w.put(ib_address(9, 0x77, false)).inline_data(20).data(50, kLkey, kLocal);
     },
     [](Wqe& e) {
       local(e, 70);
       e.is_inline = true;
       ib_peer(e, 9, 0x77, false);
     }},
    {"UCX UD, compact address", QpService::ud, op(MLX5_OPCODE_SEND),
     [](WqeWriter& w) {
       w.quads({9}).words({0x77, 0x04000011}).inline_data(20);
     },
     [](Wqe& e) { inlined(e, 20), ib_peer(e, 9, 0x77, false); }},
    {"UCX DC, RDMA_WRITE on RoCE", QpService::dci, op(MLX5_OPCODE_RDMA_WRITE),
     [](WqeWriter& w) {
       w.put(roce_address(0x1ee7a330, 0x88)).remote(kRemote, kRkey).data(77, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 77), remote(e), roce_peer(e, 0x1ee7a330, 0x88); }},
    {"NVSHMEM DCI, FETCH_ADD, half address vector", QpService::dci, op(MLX5_OPCODE_ATOMIC_FA),
     [](WqeWriter& w) {
       w.quads({0x1ee7a330}).words({0x88, 0x04000011}).remote(kRemote, kRkey).quads({1, 0});
       w.data(8, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 8), remote(e), ib_peer(e, 0x1ee7a330, 0x88, false); }},
    {"UCX DC, NOP with its address", QpService::dci, op(MLX5_OPCODE_NOP),
     [](WqeWriter& w) { w.put(roce_address(0x1ee7a330, 0x88)); }, [](Wqe& e) { local(e, 0, 0); }},
    {"libmlx5 XRC, RDMA_READ", QpService::xrc, op(MLX5_OPCODE_RDMA_READ),
     [](WqeWriter& w) {
       w.words({0x99, 0, 0, 0}).remote(kRemote, kRkey).data(5, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 5), remote(e); }},

    // ---- UCX, NVSHMEM, DOCA
    {"UCX am_short", QpService::rc, op(MLX5_OPCODE_SEND, 0), [](WqeWriter& w) { w.inline_data(9); },
     [](Wqe& e) { inlined(e, 9); }},
    {"UCX am_zcopy: inline header, then pointers", QpService::rc, op(MLX5_OPCODE_SEND),
     [](WqeWriter& w) { w.inline_data(30).data(8192, kLkey, kLocal).data(8, 1, 2); },
     [](Wqe& e) {
       local(e, 8230, 2);
       e.is_inline = true;
     }},
    {"UCX flush: an empty RDMA_WRITE", QpService::rc, op(MLX5_OPCODE_RDMA_WRITE),
     [](WqeWriter& w) { w.remote(kRemote, kRkey); }, [](Wqe& e) { local(e, 0, 0), remote(e); }},
    {"UCX cswap32: masked, 4 bytes", QpService::rc,
     op(MLX5_OPCODE_ATOMIC_MASKED_CS, kSignaled, 0, 0x08),
     [](WqeWriter& w) {
       w.remote(kRemote, kRkey).words({1, 2, 3, 4}).data(4, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 4), remote(e); }},
    {"UCX cswap64: masked, 8 bytes", QpService::rc,
     op(MLX5_OPCODE_ATOMIC_MASKED_CS, kSignaled, 0, 0x09),
     [](WqeWriter& w) {
       w.remote(kRemote, kRkey).quads({1, 2, 3, 4}).data(8, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 8), remote(e); }},
    {"NVSHMEM fetch_add: masked, 4 bytes", QpService::rc,
     op(MLX5_OPCODE_ATOMIC_MASKED_FA, kSignaled, 0, 0x08),
     [](WqeWriter& w) {
       w.remote(kRemote, kRkey).words({1, 0, 0, 0}).data(4, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 4), remote(e); }},
    {"NVSHMEM swap: masked, 8 bytes", QpService::rc,
     op(MLX5_OPCODE_ATOMIC_MASKED_FA, kSignaled, 0, 0x09),
     [](WqeWriter& w) {
       w.remote(kRemote, kRkey).quads({1, 0}).data(8, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 8), remote(e); }},
    {"NVSHMEM NOP", QpService::rc, op(MLX5_OPCODE_NOP), [](WqeWriter&) {},
     [](Wqe& e) { local(e, 0, 0); }},
    {"DOCA DUMP", QpService::rc, op(0x23), [](WqeWriter& w) { w.data(8, kLkey, kLocal); },
     [](Wqe& e) {
       local(e, 8);
       e.wr_opcode = SIGMA_WR_DUMP;
     }},
    {"DOCA WAIT", QpService::rc, op(0x0f),
     [](WqeWriter& w) {
       w.words({0, 0, 17, 0x55});
     },
     [](Wqe& e) {
       local(e, 0, 0);
       e.wr_opcode = SIGMA_WR_WAIT;
     }},

    // ---- raw packets
    {"libmlx5 raw packet, 18 bytes in the Ethernet segment", QpService::raw, op(MLX5_OPCODE_SEND),
     [](WqeWriter& w) { w.put(ethernet(18)).data(82, kLkey, kLocal); },
     [](Wqe& e) { local(e, 100); }},
    {"libmlx5 raw packet, nothing in the Ethernet segment", QpService::raw, op(MLX5_OPCODE_SEND),
     [](WqeWriter& w) {
       auto segment = ethernet(0);
       w.raw(&segment, 16).data(100, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 100); }},
    {"libmlx5 TSO, a header of 54 bytes", QpService::raw, op(MLX5_OPCODE_TSO),
     [](WqeWriter& w) {
       w.put(ethernet(54)).zeros(80 - sizeof(mlx5_wqe_eth_seg)).data(9000, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 9000); }},
    {"libmlx5 IPoIB by source QPN", QpService::ud_underlay, op(MLX5_OPCODE_SEND),
     [](WqeWriter& w) {
       w.put(ib_address(9, 0x77, true)).zeros(16).put(ethernet(4)).data(96, kLkey, kLocal);
     },
     [](Wqe& e) { local(e, 100), ib_peer(e, 9, 0x77, true); }},

    // ---- what is not known, or not right
    {"an opcode that nobody knows", QpService::rc, op(0x77), [](WqeWriter& w) { w.zeros(48); },
     [](Wqe& e) { e.wr_opcode = SIGMA_WR_OTHER; }},
    {"a queue of unknown service", QpService::unknown, op(MLX5_OPCODE_RDMA_WRITE),
     [](WqeWriter& w) { w.remote(kRemote, kRkey).data(5, kLkey, kLocal); }, [](Wqe&) {}},
    {"inline data that are longer than the WQE", QpService::rc, op(MLX5_OPCODE_SEND),
     [](WqeWriter& w) {
       w.words({MLX5_INLINE_SEG | 13, 0, 0, 0});
     },
     [](Wqe& e) { e.malformed = true; }},
    {"inline data of 2 GiB less one", QpService::rc, op(MLX5_OPCODE_SEND),
     [](WqeWriter& w) {
       w.words({0xffffffff, 0, 0, 0});
     },
     [](Wqe& e) { e.malformed = true; }},
    {"no room for the remote address", QpService::rc, op(MLX5_OPCODE_RDMA_WRITE), [](WqeWriter&) {},
     [](Wqe& e) { e.malformed = true; }},
    {"no room for the second half of the operands", QpService::rc,
     op(MLX5_OPCODE_ATOMIC_MASKED_CS, kSignaled, 0, 0x09),
     [](WqeWriter& w) {
       w.remote(kRemote, kRkey).quads({1, 2});
     },
     [](Wqe& e) {
       remote(e);
       e.malformed = true;
     }},
    {"half an address vector with the extended bit", QpService::ud, op(MLX5_OPCODE_SEND),
     [](WqeWriter& w) {
       w.quads({9}).words({0x80000077, 0x04000011});
     },
     [](Wqe& e) {
       e.has_peer = e.malformed = true;
       e.peer.qp_num = 0x77;
       e.peer.key = 9;
       e.peer.service_level = 4;
       e.peer.lid = 0x11;
     }},
};

// The verbs opcode of each, written down once more: not by the decoder's table.
uint8_t usual_wr_opcode(uint8_t raw) {
  switch (raw) {
    case MLX5_OPCODE_SEND:
      return IBV_WR_SEND;
    case MLX5_OPCODE_SEND_IMM:
      return IBV_WR_SEND_WITH_IMM;
    case MLX5_OPCODE_SEND_INVAL:
      return IBV_WR_SEND_WITH_INV;
    case MLX5_OPCODE_RDMA_WRITE:
      return IBV_WR_RDMA_WRITE;
    case MLX5_OPCODE_RDMA_WRITE_IMM:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case MLX5_OPCODE_RDMA_READ:
      return IBV_WR_RDMA_READ;
    case MLX5_OPCODE_ATOMIC_CS:
    case MLX5_OPCODE_ATOMIC_MASKED_CS:
      return IBV_WR_ATOMIC_CMP_AND_SWP;
    case MLX5_OPCODE_ATOMIC_FA:
    case MLX5_OPCODE_ATOMIC_MASKED_FA:
      return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case MLX5_OPCODE_TSO:
      return IBV_WR_TSO;
    default:
      return SIGMA_WR_NOP;
  }
}

}  // namespace

TEST_CASE("WQEs of every stack, at every place of the ring") {
  constexpr uint32_t kBlocks = 16;
  for (const Case& c : kCases) {
    for (uint64_t position = 65'536 - kBlocks; position < 65'536 + kBlocks; ++position) {
      INFO(c.name << " at " << position);
      WqeWriter writer(kBlocks);
      writer.begin(position, c.control);
      c.segments(writer);
      const uint8_t blocks = c.ds != 0 ? writer.end(c.ds) : writer.end();

      Wqe expected;
      expected.index = static_cast<uint16_t>(position);
      expected.raw_opcode = c.control.opcode;
      expected.opmod = c.control.opmod;
      expected.qp_num = kQpNum;
      expected.signaled = c.control.fm_ce_se & kSignaled;
      expected.wr_opcode = usual_wr_opcode(c.control.opcode);
      expected.blocks = blocks;
      c.expected(expected);

      Wqe wqe;
      REQUIRE(decode_wqe(writer.view(position, position + blocks), 0, c.service, wqe));
      expected.ds = wqe.ds;
      CHECK((wqe.ds + 3) / 4 == blocks);
      if (expected.malformed) expected.bytes = wqe.bytes, expected.is_inline = wqe.is_inline;
      CHECK(wqe == expected);

      // The same, seen from a copy of the whole ring, and cut off by one block.
      Wqe again;
      REQUIRE(decode_wqe(writer.view(position - 3, position - 3 + kBlocks), 3 * 64, c.service,
                         again) == (blocks + 3u <= kBlocks));
      if (blocks + 3u <= kBlocks) CHECK(again == wqe);
      CHECK_FALSE(decode_wqe(writer.view(position, position + blocks - 1), 0, c.service, again));
    }
  }
}

TEST_CASE("no WQE: no room, no size") {
  Wqe wqe;
  CHECK_FALSE(decode_wqe(RingBytes(), 0, QpService::rc, wqe));
  WqeWriter writer(4);
  writer.begin(2, op(MLX5_OPCODE_NOP)).end(0);
  CHECK_FALSE(decode_wqe(writer.view(2, 3), 0, QpService::rc, wqe));
  CHECK(wqe.index == 2);
  writer.begin(2, op(MLX5_OPCODE_NOP)).end(1);
  CHECK(decode_wqe(writer.view(2, 3), 0, QpService::rc, wqe));
  CHECK_FALSE(decode_wqe(writer.view(2, 3), 64, QpService::rc, wqe));
  CHECK_FALSE(decode_wqe(writer.view(2, 3), ~size_t{0} - 7, QpService::rc, wqe));
}

TEST_CASE("which segments a queue's WQEs have") {
  CHECK(service_of_qp(IBV_QPT_RC, 0) == QpService::rc);
  CHECK(service_of_qp(IBV_QPT_UD, 0) == QpService::ud);
  CHECK(service_of_qp(IBV_QPT_XRC_SEND, 0) == QpService::xrc);
  CHECK(service_of_qp(IBV_QPT_RAW_PACKET, 0) == QpService::raw);
  CHECK(service_of_qp(IBV_QPT_DRIVER, MLX5_QP_FLAG_TYPE_DCI) == QpService::dci);
  CHECK(service_of_qp(IBV_QPT_DRIVER, MLX5_QP_FLAG_TYPE_DCT) == QpService::unknown);
  CHECK(qp_type_of(QpService::dci) == kQpTypeDci);
  for (const QpService service : {QpService::rc, QpService::uc, QpService::ud, QpService::dci})
    CHECK(service_of_qp(qp_type_of(service), 0) == service);
  CHECK(type_of_driver_qp(MLX5_QP_FLAG_TYPE_DCI) == kQpTypeDci);
  CHECK(type_of_driver_qp(MLX5_QP_FLAG_TYPE_DCT) == kQpTypeDct);
  CHECK(type_of_driver_qp(0) == IBV_QPT_DRIVER);
  CHECK(service_of_qp(IBV_QPT_XRC_RECV, 0) == QpService::unknown);
  CHECK(service_of_prm(0) == QpService::rc);
  CHECK(service_of_prm(2) == QpService::ud);
  CHECK(service_of_prm(5) == QpService::dci);
  CHECK(service_of_prm(9) == QpService::unknown);
}

TEST_CASE("opcodes have names") {
  CHECK(std::string(wqe_opcode_name(MLX5_OPCODE_RDMA_WRITE)) == "RDMA_WRITE");
  CHECK(std::string(wqe_opcode_name(0xee)) == "opcode");
}
