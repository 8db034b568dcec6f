// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A WQE is a control segment, then segments of 16 bytes (or multiples) that the queue's service and
// the opcode name, then data: pointers, inline pieces, or both. One row an opcode, one loop over
// the data.
#include "decode/wqe.h"

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <rdma/mlx5-abi.h>

#include <optional>

#include "base/be.h"
#include "bpf/records.h"

namespace sigma {
namespace {

// ---- segments -----------------------------------------------------------------------------------

struct ControlSegment {
  Be32 opmod_index_opcode;
  Be32 qpn_ds;
  uint8_t signature;
  Be16 dci_stream;
  uint8_t fm_ce_se;
  Be32 imm;
};
static_assert(sizeof(ControlSegment) == sizeof(mlx5_wqe_ctrl_seg));
static_assert(offsetof(ControlSegment, fm_ce_se) == offsetof(mlx5_wqe_ctrl_seg, fm_ce_se));

// ce: 0 a completion only of an error, 1 of the first error, 2 always, 3 always and an event.
constexpr uint8_t kCompletionAlways = MLX5_WQE_CTRL_CQ_UPDATE, kFenceModes = 7 << 5;

// The first 16 bytes stand alone (compact) unless the extended bit of dqp_dct is set.
struct AddressBase {
  Be64 key;
  Be32 dqp_dct;
  uint8_t rate_sl;
  uint8_t fl_mlid;
  Be16 rlid;
};
struct AddressGrh {
  uint8_t reserved[4];
  uint8_t rmac[6];
  uint8_t traffic_class;
  uint8_t hop_limit;
  Be32 grh_gid_flow;
  uint8_t rgid[16];
};
static_assert(sizeof(AddressBase) + sizeof(AddressGrh) == sizeof(mlx5_wqe_av));
static_assert(sizeof(AddressBase) + offsetof(AddressGrh, rgid) == offsetof(mlx5_wqe_av, rgid));

struct RemoteSegment {
  Be64 addr;
  Be32 rkey;
  Be32 reserved;
};
static_assert(sizeof(RemoteSegment) == sizeof(mlx5_wqe_raddr_seg));

struct DataSegment {
  Be32 byte_count;
  Be32 lkey;
  Be64 addr;
};
static_assert(sizeof(DataSegment) == sizeof(mlx5_wqe_data_seg));

struct EthSegment {
  uint8_t reserved[12];
  Be16 inline_header_bytes;
  uint8_t inline_header_start[2];
};
static_assert(offsetof(EthSegment, inline_header_start) ==
              offsetof(mlx5_wqe_eth_seg, inline_hdr_start));

// Of struct mlx5_wqe_umr_ctrl_seg; the rest of its 48 bytes tells nothing here.
struct UmrSegment {
  uint8_t flags;
  uint8_t reserved[3];
  Be16 klm_octowords;
  Be16 translation_offset;
  Be64 mkey_mask;
};

// ---- opcodes ------------------------------------------------------------------------------------

// What stands between the transport's segment and the data.
enum class Body : uint8_t {
  none,  // no data that the opcode moves for the program
  data,
  remote,     // remote address
  atomic,     // remote address, operands of 8 bytes
  masked_cs,  // remote address, operands and masks; sizes by opmod
  masked_fa,
  memory_key,
  copy,     // MMO: metadata of 16 bytes, then source and destination
  unknown,  // nothing is known of its segments
};

// WQE opcodes that mlx5dv.h (44) does not name. Linux, include/linux/mlx5/device.h and qp.h,
// enum MLX5_OPCODE_*; MMO and the ASO access as in mlx5_ifc.h.
enum : uint8_t {
  kWait = 0x0f,
  kReceiveEnable = 0x16,
  kSendEnable = 0x17,
  kBindMw = 0x18,
  kGetPsv = 0x21,
  kCheckPsv = 0x22,
  kDump = 0x23,
  kRgetPsv = 0x26,
  kRcheckPsv = 0x27,
  kMultiPacket = 0x29,
  kAccessAso = 0x2d,
};

struct OpcodeRow {
  uint8_t raw;
  const char* name;
  uint8_t wr;
  Body body;
  bool transport = false;  // has the service's segment
  bool imm = false;
  bool invalidate = false;
};

constexpr OpcodeRow kOpcodes[] = {
    {MLX5_OPCODE_NOP, "NOP", SIGMA_WR_NOP, Body::none},
    {MLX5_OPCODE_SEND_INVAL, "SEND_INVAL", IBV_WR_SEND_WITH_INV, Body::data, true, false, true},
    {MLX5_OPCODE_RDMA_WRITE, "RDMA_WRITE", IBV_WR_RDMA_WRITE, Body::remote, true},
    {MLX5_OPCODE_RDMA_WRITE_IMM, "RDMA_WRITE_IMM", IBV_WR_RDMA_WRITE_WITH_IMM, Body::remote, true,
     true},
    {MLX5_OPCODE_SEND, "SEND", IBV_WR_SEND, Body::data, true},
    {MLX5_OPCODE_SEND_IMM, "SEND_IMM", IBV_WR_SEND_WITH_IMM, Body::data, true, true},
    {MLX5_OPCODE_TSO, "TSO", IBV_WR_TSO, Body::data, true},
    {kWait, "WAIT", SIGMA_WR_WAIT, Body::none},
    {MLX5_OPCODE_RDMA_READ, "RDMA_READ", IBV_WR_RDMA_READ, Body::remote, true},
    {MLX5_OPCODE_ATOMIC_CS, "ATOMIC_CS", IBV_WR_ATOMIC_CMP_AND_SWP, Body::atomic, true},
    {MLX5_OPCODE_ATOMIC_FA, "ATOMIC_FA", IBV_WR_ATOMIC_FETCH_AND_ADD, Body::atomic, true},
    {MLX5_OPCODE_ATOMIC_MASKED_CS, "ATOMIC_MASKED_CS", IBV_WR_ATOMIC_CMP_AND_SWP, Body::masked_cs,
     true},
    {MLX5_OPCODE_ATOMIC_MASKED_FA, "ATOMIC_MASKED_FA", IBV_WR_ATOMIC_FETCH_AND_ADD, Body::masked_fa,
     true},
    {kReceiveEnable, "RECEIVE_ENABLE", SIGMA_WR_OTHER, Body::none},
    {kSendEnable, "SEND_ENABLE", SIGMA_WR_OTHER, Body::none},
    {kBindMw, "BIND_MW", IBV_WR_BIND_MW, Body::unknown},
    {MLX5_OPCODE_FMR, "FMR", SIGMA_WR_UMR, Body::unknown},
    {MLX5_OPCODE_LOCAL_INVAL, "LOCAL_INVAL", IBV_WR_LOCAL_INV, Body::none, false, false, true},
    {MLX5_OPCODE_CONFIG_CMD, "CONFIG_CMD", SIGMA_WR_OTHER, Body::unknown},
    {MLX5_OPCODE_SET_PSV, "SET_PSV", SIGMA_WR_OTHER, Body::none},
    {kGetPsv, "GET_PSV", SIGMA_WR_OTHER, Body::none},
    {kCheckPsv, "CHECK_PSV", SIGMA_WR_OTHER, Body::none},
    {kDump, "DUMP", SIGMA_WR_DUMP, Body::data},
    {MLX5_OPCODE_UMR, "UMR", SIGMA_WR_UMR, Body::memory_key, false, false, true},
    {kRgetPsv, "RGET_PSV", SIGMA_WR_OTHER, Body::unknown},
    {kRcheckPsv, "RCHECK_PSV", SIGMA_WR_OTHER, Body::unknown},
    {MLX5_OPCODE_TAG_MATCHING, "TAG_MATCHING", SIGMA_WR_OTHER, Body::none},
    {kMultiPacket, "MULTI_PACKET", SIGMA_WR_OTHER, Body::data, true},
    {MLX5_OPCODE_FLOW_TBL_ACCESS, "FLOW_TBL_ACCESS", SIGMA_WR_OTHER, Body::none},
    {kAccessAso, "ACCESS_ASO", SIGMA_WR_OTHER, Body::none},
    {MLX5_OPCODE_MMO, "MMO", SIGMA_WR_OTHER, Body::copy},
};
constexpr OpcodeRow kUnknown{0xff, "opcode", SIGMA_WR_OTHER, Body::unknown};

constexpr auto kRowOf = [] {
  std::array<uint8_t, 256> index{};
  for (auto& entry : index) entry = 0xff;
  for (uint8_t row = 0; row < std::size(kOpcodes); ++row) index[kOpcodes[row].raw] = row;
  return index;
}();

const OpcodeRow& row_of(uint8_t raw_opcode) {
  const uint8_t row = kRowOf[raw_opcode];
  return row == 0xff ? kUnknown : kOpcodes[row];
}

// ---- reading ------------------------------------------------------------------------------------

// The WQE's units, in order; what does not fit ends the reading.
class Segments {
 public:
  Segments(const RingBytes& bytes, size_t begin, size_t end)
      : bytes_(bytes), at_(begin), end_(end) {}

  size_t left() const { return end_ - at_; }

  template <typename T>
  bool peek(T& to) const {
    return sizeof(to) <= left() && bytes_.load(at_, to);
  }
  bool skip(size_t bytes) {
    if (bytes > left()) return false;
    at_ += bytes;
    return true;
  }
  // A segment that is a whole number of units.
  template <typename T>
  bool take(T& to) {
    static_assert(sizeof(T) % kWqeUnitBytes == 0);
    return peek(to) && skip(sizeof(to));
  }

 private:
  const RingBytes& bytes_;
  size_t at_, end_;
};

constexpr size_t whole_units(size_t bytes) {
  return (bytes + kWqeUnitBytes - 1) / kWqeUnitBytes * kWqeUnitBytes;
}

// RoCE's address vectors have a MAC address, and the UDP source port (from 0xc000 on, 0 with RoCE
// v1) where InfiniBand's have the LID, which is below (IBA 4.1.3: unicast up to 0xbfff); the GRH
// bit is InfiniBand's alone. (rdma-core, providers/mlx5/verbs.c, mlx5_create_ah.) The MAC and the
// GID are no evidence: UCX leaves them as they were where it sends without a GRH.
constexpr uint16_t kFirstUdpPort = 0xc000;
constexpr uint32_t kGrhBit = 1u << 30;

bool take_address(Segments& segments, Wqe& wqe) {
  AddressBase base;
  if (!segments.take(base)) return false;
  WqePeer& peer = wqe.peer;
  wqe.has_peer = true;
  peer.qp_num = base.dqp_dct & 0xffffff;
  peer.key = base.key;
  peer.service_level = base.rate_sl & 0xf;
  peer.lid = base.rlid;
  if (!(base.dqp_dct & MLX5_EXTENDED_UD_AV)) {
    peer.has_lid = peer.lid != 0;
    return true;
  }

  AddressGrh grh;
  if (!segments.take(grh)) return false;
  const uint32_t gid_flow = grh.grh_gid_flow;
  const bool ethernet = !(gid_flow & kGrhBit) && (peer.lid == 0 || peer.lid >= kFirstUdpPort);
  peer.has_lid = !ethernet && peer.lid != 0;
  peer.has_gid = ethernet || (gid_flow & kGrhBit);
  if (ethernet) {
    peer.service_level = base.rate_sl >> 1 & 7;
    peer.lid = 0;
  }
  if (peer.has_gid) {
    std::memcpy(peer.gid.data(), grh.rgid, peer.gid.size());
    peer.traffic_class = grh.traffic_class;
    peer.hop_limit = grh.hop_limit;
    peer.source_gid_index = gid_flow >> 20 & 0xff;
    peer.flow_label = gid_flow & 0xfffff;
  }
  return true;
}

// The header that stands in the segment belongs to the packet, and comes from the program's list
// but for TSO, whose list has the payload only.
bool take_ethernet(Segments& segments, Wqe& wqe) {
  EthSegment eth;
  if (!segments.peek(eth)) return false;
  const uint16_t header = eth.inline_header_bytes;
  if (wqe.raw_opcode != MLX5_OPCODE_TSO) wqe.bytes += header;
  return segments.skip(whole_units(offsetof(EthSegment, inline_header_start) + header));
}

bool take_transport(Segments& segments, QpService service, Wqe& wqe) {
  constexpr size_t kXrcSegment = 16, kEthPad = 16;  // rdma-core, providers/mlx5/wqe.h
  switch (service) {
    case QpService::ud:
    case QpService::dci:
      return take_address(segments, wqe);
    case QpService::ud_underlay:
      return take_address(segments, wqe) && segments.skip(kEthPad) && take_ethernet(segments, wqe);
    case QpService::xrc:
      return segments.skip(kXrcSegment);
    case QpService::raw:
      return take_ethernet(segments, wqe);
    default:
      return true;
  }
}

// Operands of masked atomics: opmod 0x8 + log2(bytes) - 2 (openucx/ucx, src/uct/ib/mlx5/ib_mlx5.h,
// UCT_IB_MLX5_OPMOD_EXT_ATOMIC). A masked compare-and-swap of 8 bytes has two segments, all else
// one.
size_t operand_bytes(Body body, uint8_t opmod) {
  const bool wide = (opmod & 7) != 0;
  return body == Body::masked_cs && wide ? 2 * kWqeUnitBytes : kWqeUnitBytes;
}

bool take_remote(Segments& segments, Wqe& wqe) {
  RemoteSegment remote;
  if (!segments.take(remote)) return false;
  wqe.has_remote = true;
  wqe.remote_addr = remote.addr;
  wqe.rkey = remote.rkey;
  return true;
}

// A UMR WQE is what the program asked for: a window's binding, an invalidation, or a registration.
// libmlx5 sets the translation offset's flag for the first two only, and checks the QP number of
// what it invalidates (providers/mlx5/qp.c, set_umr_control_seg).
void take_memory_key(Segments& segments, Wqe& wqe) {
  UmrSegment umr;
  if (!segments.take(umr) || !(umr.flags & MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET)) return;
  const bool binds = umr.klm_octowords != 0 || !(umr.flags & MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN);
  wqe.wr_opcode = binds ? IBV_WR_BIND_MW : IBV_WR_LOCAL_INV;
}

void note_pointer(const DataSegment& data, Wqe& wqe) {
  constexpr uint64_t kLargest = uint64_t{1} << 31;  // stands as 0 (mlx5_wr_memcpy in qp.c)
  if (!wqe.has_local) {
    wqe.has_local = true;
    wqe.local_addr = data.addr;
    wqe.lkey = data.lkey;
  }
  ++wqe.num_sge;
  wqe.bytes += data.byte_count == 0 ? kLargest : uint64_t{data.byte_count};
}

// Pointers and inline pieces, in any order, to the WQE's end.
bool take_data(Segments& segments, Wqe& wqe) {
  while (segments.left() > 0) {
    Be32 word;
    if (!segments.peek(word)) return false;
    if (word & MLX5_INLINE_SEG) {
      const uint32_t length = word & ~uint32_t{MLX5_INLINE_SEG};
      if (!segments.skip(whole_units(sizeof(word) + size_t{length}))) return false;
      wqe.is_inline = true;
      wqe.bytes += length;
      continue;
    }
    DataSegment data;
    if (!segments.take(data)) return false;
    if (data.byte_count != 0 || data.lkey != uint32_t{MLX5_INVALID_LKEY}) note_pointer(data, wqe);
  }
  return true;
}

bool take_body(Segments& segments, const OpcodeRow& row, Wqe& wqe) {
  switch (row.body) {
    case Body::unknown:
      return true;
    case Body::memory_key:
      take_memory_key(segments, wqe);
      [[fallthrough]];
    case Body::none:
      wqe.has_bytes = true;
      return true;
    case Body::copy: {
      DataSegment source;
      wqe.has_bytes = segments.skip(kWqeUnitBytes) && segments.take(source);
      if (wqe.has_bytes) note_pointer(source, wqe);
      return wqe.has_bytes;
    }
    case Body::data:
      break;
    case Body::remote:
      if (!take_remote(segments, wqe)) return false;
      break;
    case Body::atomic:
    case Body::masked_cs:
    case Body::masked_fa:
      if (!take_remote(segments, wqe) || !segments.skip(operand_bytes(row.body, wqe.opmod)))
        return false;
      break;
  }
  wqe.has_bytes = take_data(segments, wqe);
  return wqe.has_bytes;
}

}  // namespace

QpService service_of_qp(uint32_t qp_type, uint32_t driver_flags) {
  switch (qp_type) {
    case IBV_QPT_RC:
      return QpService::rc;
    case IBV_QPT_UC:
      return QpService::uc;
    case IBV_QPT_UD:
      return QpService::ud;
    case IBV_QPT_XRC_SEND:
      return QpService::xrc;
    case IBV_QPT_RAW_PACKET:
      return QpService::raw;
    case kQpTypeDci:
      return QpService::dci;
    case IBV_QPT_DRIVER:
      return driver_flags & MLX5_QP_FLAG_TYPE_DCI ? QpService::dci : QpService::unknown;
    default:
      return QpService::unknown;
  }
}

uint8_t qp_type_of(QpService service) {
  switch (service) {
    case QpService::rc:
      return IBV_QPT_RC;
    case QpService::uc:
      return IBV_QPT_UC;
    case QpService::ud:
      return IBV_QPT_UD;
    case QpService::dci:
      return kQpTypeDci;
    default:
      return IBV_QPT_DRIVER;
  }
}

uint8_t type_of_driver_qp(uint32_t driver_flags) {
  if (driver_flags & MLX5_QP_FLAG_TYPE_DCI) return kQpTypeDci;
  return driver_flags & MLX5_QP_FLAG_TYPE_DCT ? kQpTypeDct : uint8_t{IBV_QPT_DRIVER};
}

// Linux, include/linux/mlx5/qp.h, enum MLX5_QP_ST_*.
QpService service_of_prm(uint32_t st) {
  constexpr QpService kServices[] = {QpService::rc,  QpService::uc,      QpService::ud,
                                     QpService::xrc, QpService::unknown, QpService::dci};
  return st < std::size(kServices) ? kServices[st] : QpService::unknown;
}

bool decode_wqe(const RingBytes& bytes, size_t offset, QpService service, Wqe& out) {
  out = Wqe{};
  ControlSegment control;
  if (!bytes.load(offset, control)) return false;
  const uint32_t word = control.opmod_index_opcode;
  out.opmod = word >> 24;
  out.index = word >> 8 & 0xffff;
  out.raw_opcode = word & 0xff;
  out.qp_num = control.qpn_ds >> 8;
  out.ds = control.qpn_ds & 0x3f;
  out.blocks = (out.ds + 3) / 4;
  out.signaled = control.fm_ce_se & kCompletionAlways;
  out.solicited = control.fm_ce_se & MLX5_WQE_CTRL_SOLICITED;
  out.fenced = control.fm_ce_se & kFenceModes;

  const OpcodeRow& row = row_of(out.raw_opcode);
  out.wr_opcode = row.wr;
  out.has_imm = row.imm;
  if (row.imm) out.imm = control.imm;
  out.has_invalidate = row.invalidate;
  if (row.invalidate) out.rkey = control.imm;

  const size_t size = size_t{out.ds} * kWqeUnitBytes;
  if (out.ds == 0 || size > bytes.size() - offset) return false;
  if (row.transport && service == QpService::unknown) return true;

  Segments segments(bytes, offset + sizeof(control), offset + size);
  if (row.transport && !take_transport(segments, service, out))
    out.malformed = true;
  else
    out.malformed = !take_body(segments, row, out);
  return true;
}

const char* wqe_opcode_name(uint8_t raw_opcode) {
  return row_of(raw_opcode).name;
}

uint8_t wr_opcode_of(uint8_t raw_opcode) {
  return row_of(raw_opcode).wr;
}

}  // namespace sigma
