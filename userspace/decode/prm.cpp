// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One row a field, one row a command.
#include "decode/prm.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <iterator>

#include "bpf/prm.h"

namespace sigma {
namespace {

// ---- bits ---------------------------------------------------------------------------------------

struct Field {
  uint16_t bit;   // from the start of what holds it, most significant first
  uint8_t width;  // at most 64
};
constexpr Field at_byte(uint16_t byte, uint8_t width) {
  return {static_cast<uint16_t>(byte * 8), width};
}
constexpr Field shifted(Field field, uint16_t bytes) {
  return {static_cast<uint16_t>(field.bit + bytes * 8), field.width};
}

std::optional<uint64_t> read(std::span<const std::byte> blob, Field field) {
  if (size_t{field.bit} + field.width > blob.size() * 8) return std::nullopt;
  uint64_t value = 0;
  for (size_t bit = field.bit, left = field.width; left > 0;) {
    const size_t in_byte = std::min<size_t>(8 - bit % 8, left);
    const auto byte = static_cast<uint8_t>(blob[bit / 8]);
    const auto piece =
        static_cast<uint8_t>(byte >> (8 - bit % 8 - in_byte)) & ((1u << in_byte) - 1);
    value = value << in_byte | piece;
    bit += in_byte;
    left -= in_byte;
  }
  return value;
}

// ---- rows ---------------------------------------------------------------------------------------

using F = PrmFacts;
using Store = void (*)(F&, uint64_t);
struct Row {
  Field field;
  Store store;
};

template <typename T>
T value_type(std::optional<T> F::*);

template <auto Member>
void store(F& facts, uint64_t value) {
  facts.*Member = static_cast<decltype(value_type(Member))>(value);
}
// Address fields of which 0 says that there is none (LIDs, UDP ports of InfiniBand).
template <auto Member>
void store_if(F& facts, uint64_t value) {
  if (value != 0) store<Member>(facts, value);
}
template <auto Member, unsigned Shift = 0>
void store_log(F& facts, uint64_t log) {
  store<Member>(facts, uint64_t{1} << (log + Shift));
}

void store_mtu(F& facts, uint64_t mtu) {  // enum ibv_mtu
  if (mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096) facts.mtu_bytes = 128u << mtu;
}
void store_gid_high(F& facts, uint64_t half) {
  auto& gid = facts.peer_gid.emplace();
  for (size_t i = 0; i < 8; ++i) gid[i] = static_cast<uint8_t>(half >> (56 - 8 * i));
}
void store_gid_low(F& facts, uint64_t half) {
  if (!facts.peer_gid) return;
  auto& gid = *facts.peer_gid;
  for (size_t i = 0; i < 8; ++i) gid[8 + i] = static_cast<uint8_t>(half >> (56 - 8 * i));
  if (std::ranges::all_of(gid, [](uint8_t byte) { return byte == 0; })) facts.peer_gid.reset();
}
void store_cqe_size(F& facts, uint64_t code) {  // 0: 64, 1: 128, 2: 64, padded to 128
  facts.cqe_bytes = code == 0 ? 64 : 128;
}
void store_compressed(F& facts, uint64_t enabled) {
  facts.cq_layout = enabled != 0 ? CqLayout::compressed_basic : CqLayout::plain;
}
void store_layout(F& facts, uint64_t layout) {
  if (layout != 0 && facts.cq_layout == CqLayout::compressed_basic)
    facts.cq_layout = CqLayout::compressed_enhanced;
}
void store_service(F& facts, uint64_t st) {
  facts.prm_service = static_cast<uint8_t>(st);
  facts.service = service_of_prm(static_cast<uint32_t>(st));
}
void store_state(F& facts, uint64_t state) {
  constexpr uint8_t kStates[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
                                 IBV_QPS_SQE,   IBV_QPS_SQD,  IBV_QPS_ERR, IBV_QPS_SQD};
  if (state < std::size(kStates)) facts.to_state = kStates[state];
}
void store_no_sq(F& facts, uint64_t no_sq) {
  if (no_sq != 0) facts.sq_blocks.reset();
}

// Ids and offsets of user memory: a command may also give physical pages instead, and says so by a
// valid bit; senders that leave the bit out have an id (openucx/ucx, ib_mlx5_dv.c).
template <auto Member>
void place_id(F& facts, uint64_t id) {
  if (id == 0) return;
  if (!(facts.*Member)) (facts.*Member).emplace();
  (facts.*Member)->umem_id = static_cast<uint32_t>(id);
}
template <auto Member>
void place_valid(F& facts, uint64_t valid) {
  if (valid != 0 && !(facts.*Member)) (facts.*Member).emplace();
}
template <auto Member>
void place_offset(F& facts, uint64_t offset) {
  if (facts.*Member) (facts.*Member)->offset = offset;
}

// Contexts begin in a command at:
constexpr uint16_t kCqContext = SIGMA_PRM_CQC, kQpContext = SIGMA_PRM_QPC, kDctContext = 0x10,
                   kRmpWq = 0x20 + 0x30;
constexpr uint16_t kPath = kQpContext + 0x18;  // primary address path

constexpr Field cqc(Field field) {
  return shifted(field, kCqContext);
}
constexpr Field qpc(Field field) {
  return shifted(field, kQpContext);
}
constexpr Field path(Field field) {
  return shifted(field, kPath);
}
constexpr Field dctc(Field field) {
  return shifted(field, kDctContext);
}
constexpr Field wq(Field field) {
  return shifted(field, kRmpWq);
}

constexpr Row kCreateCq[] = {
    {{SIGMA_PRM_CQ_UMEM_ID}, place_id<&F::ring>},
    {{0x5c * 8, 1}, place_valid<&F::ring>},
    {{SIGMA_PRM_CQ_UMEM_OFFSET}, place_offset<&F::ring>},
    {{SIGMA_PRM_CQ_DOORBELL_UMEM_ID}, place_id<&F::doorbell>},
    {cqc({6, 1}), place_valid<&F::doorbell>},
    {{SIGMA_PRM_CQ_DOORBELL_OFFSET}, place_offset<&F::doorbell>},
    {{SIGMA_PRM_CQ_ENTRY_SIZE}, store_cqe_size},
    {{SIGMA_PRM_CQ_COLLAPSED}, store<&F::collapsed>},
    {cqc({14, 1}), store<&F::overrun_ignore>},
    {cqc({17, 1}), store_compressed},
    {cqc({18, 2}), store<&F::mini_format>},
    {cqc({25, 7}), store_layout},
    {cqc({94, 2}), store<&F::timestamp_format>},
    {{SIGMA_PRM_CQ_LOG_ENTRIES}, store_log<&F::cq_entries>},
    {cqc(at_byte(0xd, 24)), store<&F::uar_page>},
    {cqc(at_byte(0x17, 8)), store<&F::eqn>},
};

constexpr Row kCreateQp[] = {
    {{SIGMA_PRM_QP_UMEM_ID}, place_id<&F::ring>},
    {{0x10c * 8, 1}, place_valid<&F::ring>},
    {{SIGMA_PRM_QP_UMEM_OFFSET}, place_offset<&F::ring>},
    {{SIGMA_PRM_QP_DOORBELL_UMEM_ID}, place_id<&F::doorbell>},
    {qpc({1667, 1}), place_valid<&F::doorbell>},
    {{SIGMA_PRM_QP_DOORBELL_OFFSET}, place_offset<&F::doorbell>},
    {qpc(at_byte(1, 8)), store_service},
    {qpc(at_byte(5, 24)), store<&F::pd>},
    {{SIGMA_PRM_QP_LOG_BLOCKS}, store_log<&F::sq_blocks>},
    {{SIGMA_PRM_QP_NO_SEND_RING}, store_no_sq},
    {qpc({88, 2}), store<&F::timestamp_format>},
    {qpc(at_byte(0xd, 24)), store<&F::uar_page>},
    {qpc(at_byte(0x11, 24)), store<&F::user_index>},
    {{SIGMA_PRM_QP_SEND_CQN}, store<&F::send_cqn>},
    {{SIGMA_PRM_QP_RECV_CQN}, store<&F::recv_cqn>},
    {qpc(at_byte(0xad, 24)), store_if<&F::srqn>},
};

constexpr Row kRst2Init[] = {
    {path({16, 16}), store<&F::pkey_index>},
    {path(at_byte(0x25, 8)), store_if<&F::port>},
    {qpc(at_byte(0xa8, 32)), store_if<&F::qkey>},
};

constexpr Row kInit2Rtr[] = {
    {qpc({64, 3}), store_mtu},
    {qpc(at_byte(0x15, 24)), store<&F::peer_qp_num>},
    {qpc(at_byte(0x95, 24)), store<&F::rq_psn>},
    {qpc({0x4a3, 5}), store<&F::min_rnr_timer>},
    {path(at_byte(6, 16)), store_if<&F::peer_lid>},
    {path(at_byte(9, 8)), store<&F::source_gid_index>},
    {path(at_byte(0xb, 8)), store<&F::hop_limit>},
    {path({100, 8}), store<&F::traffic_class>},
    {path(at_byte(0x10, 64)), store_gid_high},
    {path(at_byte(0x18, 64)), store_gid_low},
    {path({266, 6}), store<&F::dscp>},
    {path(at_byte(0x22, 16)), store_if<&F::udp_source_port>},
    {path({292, 4}), store<&F::service_level>},
    {path(at_byte(0x25, 8)), store_if<&F::port>},
};

constexpr Row kRtr2Rts[] = {
    {qpc(at_byte(0x79, 24)), store<&F::sq_psn>},
    {qpc({909, 3}), store<&F::retry_count>},
    {qpc({912, 3}), store<&F::rnr_retry>},
    {path({64, 5}), store<&F::ack_timeout>},
};

// Of a QUERY_QP's answer, beside what the transitions set.
constexpr Row kQueryQp[] = {
    {qpc({0, 4}), store_state},
    {qpc(at_byte(1, 8)), store_service},
};

constexpr Row kCreateRmp[] = {
    {wq(at_byte(0x2c, 32)), place_id<&F::ring>},
    {wq({0x121, 1}), place_valid<&F::ring>},
    {wq(at_byte(0x30, 64)), place_offset<&F::ring>},
    {wq(at_byte(0x28, 32)), place_id<&F::doorbell>},
    {wq({0x120, 1}), place_valid<&F::doorbell>},
    {wq(at_byte(0x10, 64)), place_offset<&F::doorbell>},
    {wq(at_byte(9, 24)), store<&F::pd>},
    {wq({0x10c, 4}), store_log<&F::rmp_stride_bytes>},
    {wq({0x11b, 5}), store_log<&F::rmp_entries>},
    {wq({0x134, 4}), store_log<&F::strides_per_wqe>},
};

constexpr Row kCreateDct[] = {
    {dctc(at_byte(5, 24)), store<&F::user_index>},
    {dctc(at_byte(9, 24)), store<&F::recv_cqn>},
    {dctc(at_byte(0x15, 24)), store_if<&F::srqn>},
    {dctc(at_byte(0x19, 24)), store<&F::pd>},
    {dctc(at_byte(0x1c, 8)), store<&F::traffic_class>},
    {dctc(at_byte(0x20, 64)), store<&F::dc_access_key>},
    {dctc({0x145, 3}), store_mtu},
    {dctc(at_byte(0x29, 8)), store_if<&F::port>},
    {dctc(at_byte(0x2f, 8)), store<&F::hop_limit>},
};

struct Command {
  uint16_t opcode;
  PrmObject object;
  PrmAction action;
  std::span<const Row> rows = {};
  int to_state = -1;
};
constexpr Command kCommands[] = {
    {SIGMA_PRM_CREATE_CQ, PrmObject::cq, PrmAction::create, kCreateCq},
    {SIGMA_PRM_CREATE_QP, PrmObject::qp, PrmAction::create, kCreateQp},
    {SIGMA_PRM_RST2INIT_QP, PrmObject::qp, PrmAction::modify, kRst2Init, IBV_QPS_INIT},
    {0x503, PrmObject::qp, PrmAction::modify, kInit2Rtr, IBV_QPS_RTR},
    {0x504, PrmObject::qp, PrmAction::modify, kRtr2Rts, IBV_QPS_RTS},
    {0x507, PrmObject::qp, PrmAction::modify, {}, IBV_QPS_ERR},
    {SIGMA_PRM_2RST_QP, PrmObject::qp, PrmAction::modify, {}, IBV_QPS_RESET},
    {0x710, PrmObject::dct, PrmAction::create, kCreateDct},
    {0x90c, PrmObject::rmp, PrmAction::create, kCreateRmp},
};

constexpr Field kOpcode{SIGMA_PRM_OPCODE}, kNumber{SIGMA_PRM_NUMBER};
constexpr Field kStatus = at_byte(0, 8), kSyndrome = at_byte(4, 32);

// The send queue stands behind the receive queue, if the queue pair has one of its own.
void place_send_queue(std::span<const std::byte> command, F& facts) {
  enum : uint8_t { kRegular = 0 };  // qpc.rq_type: 1 shared, 3 none
  facts.sq_offset = 0;
  const auto log_entries = read(command, {SIGMA_PRM_QP_LOG_RECEIVES});
  const auto log_stride = read(command, {SIGMA_PRM_QP_LOG_RECEIVE_SIZE});
  const auto type = read(command, {SIGMA_PRM_QP_RECEIVES_BY});
  if (!log_entries || !log_stride || !type || *type != kRegular || *log_entries == 0) return;
  facts.rq_entries = 1u << *log_entries;
  facts.rq_stride_bytes = 16u << *log_stride;
  facts.sq_offset = *facts.rq_entries * *facts.rq_stride_bytes;
}

}  // namespace

std::optional<PrmFacts> decode_prm(std::span<const std::byte> command,
                                   std::span<const std::byte> answer) {
  const auto opcode = read(command, kOpcode);
  if (!opcode) return std::nullopt;
  const auto* known =
      std::ranges::find(kCommands, static_cast<uint16_t>(*opcode), &Command::opcode);
  if (known == std::end(kCommands)) return std::nullopt;

  PrmFacts facts;
  facts.object = known->object;
  facts.action = known->action;
  facts.opcode = known->opcode;
  if (known->to_state >= 0) facts.to_state = static_cast<uint8_t>(known->to_state);
  for (const Row& row : known->rows)
    if (const auto value = read(command, row.field)) row.store(facts, *value);
  if (facts.object == PrmObject::qp && facts.action == PrmAction::create)
    place_send_queue(command, facts);

  facts.status = static_cast<uint8_t>(read(answer, kStatus).value_or(0));
  facts.syndrome = static_cast<uint32_t>(read(answer, kSyndrome).value_or(0));
  const auto number = read(facts.action == PrmAction::modify ? command : answer, kNumber);
  if (number && facts.status == 0) facts.number = static_cast<uint32_t>(*number);
  return facts;
}

std::optional<PrmFacts> decode_qp_dump(std::span<const std::byte> dump) {
  // A segment: its length in words of four bytes, its type, the object's number, then the payload.
  // Types differ between devices; the other kinds are shorter than a queue pair's context.
  constexpr size_t kWord = 4, kPayload = 16, kContextBytes = 0xe8;
  constexpr Field kLength = at_byte(0, 16), kIndex = at_byte(8, 32);
  while (true) {
    const auto words = read(dump, kLength);
    if (!words || *words == 0 || *words * kWord > dump.size()) return std::nullopt;
    const auto segment = dump.first(*words * kWord);
    dump = dump.subspan(segment.size());
    if (segment.size() < kPayload + kQpContext + kContextBytes) continue;
    const auto answer = segment.subspan(kPayload);
    if (read(answer, kStatus) != uint64_t{0}) continue;

    PrmFacts facts;
    facts.object = PrmObject::qp;
    facts.number = static_cast<uint32_t>(*read(segment, kIndex));
    for (const std::span<const Row> rows :
         {std::span<const Row>(kQueryQp), std::span<const Row>(kRst2Init),
          std::span<const Row>(kInit2Rtr), std::span<const Row>(kRtr2Rts)})
      for (const Row& row : rows)
        if (const auto value = read(answer, row.field)) row.store(facts, *value);
    return facts;
  }
}

}  // namespace sigma
