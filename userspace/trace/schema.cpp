// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "trace/schema.h"

#include <algorithm>

#include "trace/notes.h"

namespace sigma {
namespace {

using enum FieldForm;

// The type is that of the member, the form how it is shown.
#define FIELD(record, member, ...) \
  { #member, offsetof(record, member), sizeof(record::member), __VA_ARGS__ }
#define ENUM(record, member, names) \
  { #member, offsetof(record, member), sizeof(record::member), decimal, names }

constexpr auto kQueues = std::to_array<ValueName>(
    {{"send", SIGMA_QUEUE_SEND}, {"recv", SIGMA_QUEUE_RECV}, {"srq", SIGMA_QUEUE_SRQ}});

// Of a ring's entry: those of verbs, and what posts by verbs never are.
constexpr auto kRingWrOpcodes = [] {
  std::array<ValueName, kWrOpcodes.size() + 5> all{};
  std::copy(kWrOpcodes.begin(), kWrOpcodes.end(), all.begin());
  constexpr auto kOthers = std::to_array<ValueName>({{"nop", SIGMA_WR_NOP},
                                                     {"dump", SIGMA_WR_DUMP},
                                                     {"wait", SIGMA_WR_WAIT},
                                                     {"umr", SIGMA_WR_UMR},
                                                     {"other", SIGMA_WR_OTHER}});
  std::copy(kOthers.begin(), kOthers.end(), all.begin() + kWrOpcodes.size());
  return all;
}();

// A record's 0xff is a type that is not known, or the driver's own.
constexpr auto kRecordQpTypes = [] {
  auto types = kQpTypes;
  for (ValueName& type : types)
    if (type.value == IBV_QPT_DRIVER) type.name = "driver_or_unknown";
  return types;
}();

constexpr auto kOutcomes = std::to_array<ValueName>({{"refused", SIGMA_OUTCOME_REFUSED},
                                                     {"committed", SIGMA_OUTCOME_COMMITTED},
                                                     {"aborted", SIGMA_OUTCOME_ABORTED}});
constexpr auto kQpSources =
    std::to_array<ValueName>({{"post", SIGMA_QP_AT_POST}, {"scan", SIGMA_QP_BY_SCAN}});
constexpr auto kContextKinds =
    std::to_array<ValueName>({{"seen", SIGMA_CONTEXT_SEEN}, {"closed", SIGMA_CONTEXT_CLOSED}});
constexpr auto kProcessKinds = std::to_array<ValueName>(
    {{"exec", SIGMA_PROCESS_EXEC},
     {"exit", SIGMA_PROCESS_EXIT},
     {"fork", SIGMA_PROCESS_FORK},
     {"found", SIGMA_PROCESS_FOUND},
     {"left", SIGMA_PROCESS_LEFT}});
constexpr auto kWindowKinds =
    std::to_array<ValueName>({{"pause", SIGMA_WINDOW_PAUSE}, {"resume", SIGMA_WINDOW_RESUME}});
constexpr auto kMarkReasons =
    std::to_array<ValueName>({{"user", kMarkUser}, {"error", kMarkError}, {"hang", kMarkHang}});

constexpr auto kPost = std::to_array<Field>({
    FIELD(sigma_post, context, hex),
    FIELD(sigma_post, call_ns),
    FIELD(sigma_post, queue_ptr, hex),
    FIELD(sigma_post, wr_id),
    FIELD(sigma_post, local_addr, hex),
    FIELD(sigma_post, remote_addr, hex),
    FIELD(sigma_post, bytes),
    FIELD(sigma_post, qp_num),
    FIELD(sigma_post, lkey, hex),
    FIELD(sigma_post, rkey, hex),
    FIELD(sigma_post, imm, big_endian),
    FIELD(sigma_post, remote_qpn),
    FIELD(sigma_post, ah_handle),
    FIELD(sigma_post, index),
    FIELD(sigma_post, position),
    FIELD(sigma_post, num_sge),
    FIELD(sigma_post, flags, hex),
    ENUM(sigma_post, queue, kQueues),
    ENUM(sigma_post, opcode, kWrOpcodes),
    FIELD(sigma_post, send_flags, hex),
    ENUM(sigma_post, qp_type, kRecordQpTypes),
    FIELD(sigma_post, omitted),
    FIELD(sigma_post, remote_lid),
    FIELD(sigma_post, reserved, padding),
});

constexpr auto kPostResult = std::to_array<Field>({
    FIELD(sigma_post_result, context, hex),
    FIELD(sigma_post_result, call_ns),
    FIELD(sigma_post_result, queue_ptr, hex),
    FIELD(sigma_post_result, qp_num),
    FIELD(sigma_post_result, error, signed_decimal),
    FIELD(sigma_post_result, accepted),
    ENUM(sigma_post_result, outcome, kOutcomes),
    ENUM(sigma_post_result, queue, kQueues),
});

constexpr auto kCompletion = std::to_array<Field>({
    FIELD(sigma_completion, context, hex),
    FIELD(sigma_completion, cq_ptr, hex),
    FIELD(sigma_completion, wr_id),
    ENUM(sigma_completion, status, kWcStatuses),
    ENUM(sigma_completion, opcode, kWcOpcodes),
    FIELD(sigma_completion, vendor_err, hex),
    FIELD(sigma_completion, byte_len),
    FIELD(sigma_completion, imm, big_endian),
    FIELD(sigma_completion, qp_num),
    FIELD(sigma_completion, src_qp),
    FIELD(sigma_completion, wc_flags, hex),
    FIELD(sigma_completion, pkey_index),
    FIELD(sigma_completion, slid),
    FIELD(sigma_completion, sl),
    FIELD(sigma_completion, dlid_path_bits),
    FIELD(sigma_completion, batch),
    FIELD(sigma_completion, nic_stamp),
    FIELD(sigma_completion, unknown, hex),
    FIELD(sigma_completion, flags, hex),
    FIELD(sigma_completion, reserved, padding),
});

constexpr auto kClockSample = std::to_array<Field>({
    FIELD(sigma_clock_sample, ticks),
    FIELD(sigma_clock_sample, error_ns),
    FIELD(sigma_clock_sample, nominal_khz),
    FIELD(sigma_clock_sample, device, text),
});

constexpr auto kUverbs = std::to_array<Field>({
    FIELD(sigma_uverbs, ucontext, hex),
    FIELD(sigma_uverbs, enter_ns),
    FIELD(sigma_uverbs, rdev, hex),
    FIELD(sigma_uverbs, result, signed_decimal),
    FIELD(sigma_uverbs, driver_id),
    FIELD(sigma_uverbs, object_id, hex),
    FIELD(sigma_uverbs, method_id, hex),
    FIELD(sigma_uverbs, num_attrs),
    FIELD(sigma_uverbs, payload_bytes),
    FIELD(sigma_uverbs, flags, hex),
    FIELD(sigma_uverbs, ring_slot),
});

constexpr auto kUverbsAttr = std::to_array<Field>({
    FIELD(sigma_uverbs_attr, attr_id, hex),
    FIELD(sigma_uverbs_attr, len),
    FIELD(sigma_uverbs_attr, flags, hex),
    FIELD(sigma_uverbs_attr, offset),
    FIELD(sigma_uverbs_attr, data, hex),
});

constexpr auto kQpSeen = std::to_array<Field>({
    FIELD(sigma_qp_seen, context, hex),
    FIELD(sigma_qp_seen, qp_ptr, hex),
    FIELD(sigma_qp_seen, send_cq_ptr, hex),
    FIELD(sigma_qp_seen, recv_cq_ptr, hex),
    FIELD(sigma_qp_seen, srq_ptr, hex),
    FIELD(sigma_qp_seen, qp_num),
    FIELD(sigma_qp_seen, handle),
    ENUM(sigma_qp_seen, qp_type, kRecordQpTypes),
    ENUM(sigma_qp_seen, state, kQpStates),
    ENUM(sigma_qp_seen, source, kQpSources),
    FIELD(sigma_qp_seen, reserved, padding),
});

constexpr auto kContext = std::to_array<Field>({
    FIELD(sigma_context, context, hex),
    FIELD(sigma_context, cmd_fd, signed_decimal),
    ENUM(sigma_context, kind, kContextKinds),
    FIELD(sigma_context, device, text),
});

constexpr auto kProcess = std::to_array<Field>({
    ENUM(sigma_process, kind, kProcessKinds),
    FIELD(sigma_process, child_pid),
    FIELD(sigma_process, exit_code, signed_decimal),
    FIELD(sigma_process, reserved, padding),
    FIELD(sigma_process, comm, text),
});

constexpr auto kMrSeen = std::to_array<Field>({
    FIELD(sigma_mr_seen, context, hex),
    FIELD(sigma_mr_seen, mr_ptr, hex),
    FIELD(sigma_mr_seen, addr, hex),
    FIELD(sigma_mr_seen, length),
    FIELD(sigma_mr_seen, handle),
    FIELD(sigma_mr_seen, lkey, hex),
    FIELD(sigma_mr_seen, rkey, hex),
    FIELD(sigma_mr_seen, reserved, padding),
});

constexpr auto kQpPeer = std::to_array<Field>({
    FIELD(sigma_qp_peer, device, text),
    FIELD(sigma_qp_peer, qp_num),
    FIELD(sigma_qp_peer, peer_qp_num),
    FIELD(sigma_qp_peer, sq_psn),
    FIELD(sigma_qp_peer, rq_psn),
    ENUM(sigma_qp_peer, state, kQpStates),
    ENUM(sigma_qp_peer, qp_type, kRecordQpTypes),
    FIELD(sigma_qp_peer, peer_gid_high, hex),
    FIELD(sigma_qp_peer, peer_gid_low, hex),
    FIELD(sigma_qp_peer, path_mtu),
    FIELD(sigma_qp_peer, peer_lid),
    FIELD(sigma_qp_peer, has_path),
    FIELD(sigma_qp_peer, port),
    FIELD(sigma_qp_peer, sgid_index),
    FIELD(sigma_qp_peer, sl),
    FIELD(sigma_qp_peer, traffic_class),
    FIELD(sigma_qp_peer, hop_limit),
    FIELD(sigma_qp_peer, timeout),
    FIELD(sigma_qp_peer, retry_cnt),
    FIELD(sigma_qp_peer, rnr_retry),
    FIELD(sigma_qp_peer, min_rnr_timer),
});

constexpr auto kWindow = std::to_array<Field>({
    ENUM(sigma_window, kind, kWindowKinds),
    FIELD(sigma_window, reserved, padding),
});

constexpr auto kRingKinds = std::to_array<ValueName>({{"send", SIGMA_RING_SEND}, {"cq", SIGMA_RING_CQ}});
constexpr auto kRingEvents = std::to_array<ValueName>(
    {{"begin", SIGMA_RING_BEGIN}, {"state", SIGMA_RING_STATE}, {"end", SIGMA_RING_END}});
constexpr auto kRing = std::to_array<Field>({
    FIELD(sigma_ring, context, hex),
    FIELD(sigma_ring, ring_addr, hex),
    FIELD(sigma_ring, doorbell_addr, hex),
    FIELD(sigma_ring, first),
    FIELD(sigma_ring, posted),
    FIELD(sigma_ring, seen),
    FIELD(sigma_ring, missed),
    FIELD(sigma_ring, number),
    FIELD(sigma_ring, life),
    FIELD(sigma_ring, entries),
    FIELD(sigma_ring, cqn),
    FIELD(sigma_ring, flags, hex),
    ENUM(sigma_ring, kind, kRingKinds),
    ENUM(sigma_ring, event, kRingEvents),
    ENUM(sigma_ring, origin, kRingOrigins),
    ENUM(sigma_ring, mode, kRingModes),
    ENUM(sigma_ring, initiator, kInitiators),
    FIELD(sigma_ring, tier),
    FIELD(sigma_ring, reason, text),
});

constexpr auto kRingPost = std::to_array<Field>({
    FIELD(sigma_ring_post, context, hex),
    FIELD(sigma_ring_post, post_ns),
    FIELD(sigma_ring_post, index),
    FIELD(sigma_ring_post, local_addr, hex),
    FIELD(sigma_ring_post, remote_addr, hex),
    FIELD(sigma_ring_post, post_error_ns),
    FIELD(sigma_ring_post, bytes),
    FIELD(sigma_ring_post, number),
    FIELD(sigma_ring_post, life),
    FIELD(sigma_ring_post, lkey, hex),
    FIELD(sigma_ring_post, rkey, hex),
    FIELD(sigma_ring_post, imm, big_endian),
    FIELD(sigma_ring_post, remote_qpn),
    FIELD(sigma_ring_post, gid_prefix, big_endian),
    FIELD(sigma_ring_post, gid_interface, big_endian),
    FIELD(sigma_ring_post, lid),
    FIELD(sigma_ring_post, blocks),
    FIELD(sigma_ring_post, flags, hex),
    FIELD(sigma_ring_post, num_sge),
    ENUM(sigma_ring_post, opcode, kRingWrOpcodes),
    ENUM(sigma_ring_post, qp_type, kRecordQpTypes),
    ENUM(sigma_ring_post, initiator, kInitiators),
    FIELD(sigma_ring_post, tier),
    FIELD(sigma_ring_post, raw_opcode, hex),
    FIELD(sigma_ring_post, reserved, padding),
});

constexpr auto kRingCompletion = std::to_array<Field>({
    FIELD(sigma_ring_completion, context, hex),
    FIELD(sigma_ring_completion, complete_ns),
    FIELD(sigma_ring_completion, cq_index),
    FIELD(sigma_ring_completion, nic_stamp),
    FIELD(sigma_ring_completion, complete_error_ns),
    FIELD(sigma_ring_completion, number),
    FIELD(sigma_ring_completion, life),
    FIELD(sigma_ring_completion, cqn),
    FIELD(sigma_ring_completion, cq_life),
    FIELD(sigma_ring_completion, srqn),
    FIELD(sigma_ring_completion, bytes),
    FIELD(sigma_ring_completion, imm, big_endian),
    FIELD(sigma_ring_completion, src_qp),
    FIELD(sigma_ring_completion, wc_flags, hex),
    ENUM(sigma_ring_completion, wc_opcode, kWcOpcodes),
    FIELD(sigma_ring_completion, wqe_counter),
    FIELD(sigma_ring_completion, slid),
    FIELD(sigma_ring_completion, flags, hex),
    ENUM(sigma_ring_completion, status, kWcStatuses),
    FIELD(sigma_ring_completion, vendor_err, hex),
    ENUM(sigma_ring_completion, queue, kQueues),
    ENUM(sigma_ring_completion, initiator, kInitiators),
    FIELD(sigma_ring_completion, tier),
    FIELD(sigma_ring_completion, raw_opcode, hex),
    FIELD(sigma_ring_completion, reserved, padding),
});

constexpr auto kRingGap = std::to_array<Field>({
    FIELD(sigma_ring_gap, context, hex),
    FIELD(sigma_ring_gap, first),
    FIELD(sigma_ring_gap, count),
    FIELD(sigma_ring_gap, begin_ns),
    FIELD(sigma_ring_gap, end_ns),
    FIELD(sigma_ring_gap, number),
    FIELD(sigma_ring_gap, life),
    FIELD(sigma_ring_gap, flags, hex),
    ENUM(sigma_ring_gap, kind, kRingKinds),
    ENUM(sigma_ring_gap, reason, kGapReasons),
    ENUM(sigma_ring_gap, initiator, kInitiators),
    FIELD(sigma_ring_gap, tier),
    FIELD(sigma_ring_gap, reserved, padding),
});

constexpr auto kDevice = std::to_array<Field>({
    FIELD(NoteDevice, rdev, hex),
    FIELD(NoteDevice, reserved, padding),
    FIELD(NoteDevice, device, text),
});

constexpr auto kComm = std::to_array<Field>({
    FIELD(NoteComm, of_pid),
    FIELD(NoteComm, reserved, padding),
    FIELD(NoteComm, comm, text),
});

constexpr auto kFact = std::to_array<Field>({
    FIELD(NoteFact, of_pid),
    FIELD(NoteFact, reserved, padding),
    FIELD(NoteFact, key, text),
    FIELD(NoteFact, value, text),
});

constexpr auto kMark = std::to_array<Field>({
    ENUM(NoteMark, reason, kMarkReasons),
    FIELD(NoteMark, reserved, padding),
    FIELD(NoteMark, text, text),
});

constexpr auto kCounter = std::to_array<Field>({
    FIELD(NoteCounter, value),
    FIELD(NoteCounter, port),
    FIELD(NoteCounter, reserved, padding),
    FIELD(NoteCounter, device, text),
    FIELD(NoteCounter, counter, text),
});

constexpr auto kSchemas = std::to_array<RecordSchema>({
    {SIGMA_POST, "post", sizeof(sigma_post), kPost, Tail::none, kStreamCpu},
    {SIGMA_POST_RESULT, "post_result", sizeof(sigma_post_result), kPostResult, Tail::none, kStreamCpu},
    {SIGMA_COMPLETION, "completion", sizeof(sigma_completion), kCompletion, Tail::none, kStreamCpu},
    {SIGMA_UVERBS, "uverbs", sizeof(sigma_uverbs), kUverbs, Tail::uverbs},
    {SIGMA_QP_SEEN, "qp_seen", sizeof(sigma_qp_seen), kQpSeen},
    {SIGMA_CONTEXT, "context", sizeof(sigma_context), kContext},
    {SIGMA_PROCESS, "process", sizeof(sigma_process), kProcess},
    {SIGMA_MR_SEEN, "mr_seen", sizeof(sigma_mr_seen), kMrSeen},
    {SIGMA_QP_PEER, "qp_peer", sizeof(sigma_qp_peer), kQpPeer},
    {SIGMA_WINDOW, "window", sizeof(sigma_window), kWindow},
    {SIGMA_CLOCK_SAMPLE, "clock_sample", sizeof(sigma_clock_sample), kClockSample, Tail::none, kStreamCpu},
    {SIGMA_RING, "ring", sizeof(sigma_ring), kRing},
    {SIGMA_RING_POST, "ring_post", sizeof(sigma_ring_post), kRingPost, Tail::none,
     kStreamRings},
    {SIGMA_RING_COMPLETION, "ring_completion", sizeof(sigma_ring_completion), kRingCompletion, Tail::none,
     kStreamRings},
    {SIGMA_RING_GAP, "ring_gap", sizeof(sigma_ring_gap), kRingGap, Tail::none,
     kStreamRings},
    {kNoteDevice, "note_device", sizeof(NoteDevice), kDevice},
    {kNoteComm, "note_comm", sizeof(NoteComm), kComm},
    {kNoteFact, "note_fact", sizeof(NoteFact), kFact},
    {kNoteMark, "note_mark", sizeof(NoteMark), kMark},
    {kNoteCounter, "note_counter", sizeof(NoteCounter), kCounter, Tail::none, kStreamCpu},
});

constexpr bool tiles(std::span<const Field> fields, size_t begin, size_t end) {
  for (const Field& field : fields) {
    if (field.offset != begin || field.size == 0) return false;
    if (field.form != text && field.form != padding && field.size > 8) return false;
    begin += field.size;
  }
  return begin == end;
}

constexpr bool all_tile() {
  for (const RecordSchema& schema : kSchemas)
    if (!tiles(schema.fields, sizeof(sigma_header), schema.size)) return false;
  return tiles(kUverbsAttr, 0, sizeof(sigma_uverbs_attr));
}
static_assert(all_tile(), "a row of the table does not cover its record");

constexpr size_t kRecordTypes = SIGMA_RECORD_TYPES - 1;
constexpr bool types_are_whole() {
  for (size_t i = 0; i < kSchemas.size(); ++i)
    if (kSchemas[i].type != (i < kRecordTypes ? i + 1 : kNoteDevice + (i - kRecordTypes)))
      return false;
  return kSchemas.size() == kRecordTypes + (kNoteTypesEnd - kNoteDevice);
}
static_assert(types_are_whole(), "every record type has one row, in order of its number");

}  // namespace

std::span<const RecordSchema> record_schemas() {
  return kSchemas;
}

std::span<const Field> uverbs_attr_fields() {
  return kUverbsAttr;
}

std::string_view name_of(MarkReason reason) {
  return name_in(kMarkReasons, reason);
}

const RecordSchema* schema_of(uint16_t type) {
  if (type >= 1 && type <= kRecordTypes) return &kSchemas[type - 1];
  if (type >= kNoteDevice && type < kNoteTypesEnd)
    return &kSchemas[kRecordTypes + (type - kNoteDevice)];
  return nullptr;
}

}  // namespace sigma
