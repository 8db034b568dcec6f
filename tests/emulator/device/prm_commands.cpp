// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// DevX: device commands that a program sends itself, as UCX and GPU-initiated stacks do.
#include <infiniband/verbs.h>

#include <cerrno>

#include "clock.h"
#include "prm.h"
#include "uverbs.h"

namespace connectx {
namespace {

using namespace prm;
using In = std::span<const uint8_t>;
using Out = std::span<uint8_t>;

uint32_t get32(In in, uint32_t base, Field field) {
  return static_cast<uint32_t>(get(in, base, field));
}

// The process address behind a umem's offset; null when there is none.
uint8_t* umem_at(const Device& device, uint32_t id, uint64_t offset, uint64_t bytes) {
  const auto found = device.umems.find(id);
  if (found == device.umems.end() || offset > found->second.length ||
      bytes > found->second.length - offset)
    return nullptr;
  return reinterpret_cast<uint8_t*>(found->second.address + offset);
}

Status query_hca_cap(Device& device, In in, Out out, CreatedObject*) {
  constexpr unsigned kGeneral = 0, kAtomic = 3;
  const auto put = [&](Field field, uint64_t value) { set(out, kCapability, field, value); };
  switch (get32(in, 0, kOpMod) >> 1) {
    case kGeneral:
      put(cap::log_max_qp_sz, 15);
      put(cap::log_max_qp, 14);
      put(cap::log_max_srq_sz, 15);
      put(cap::log_max_srq, 20);
      put(cap::log_max_cq_sz, 22);
      put(cap::log_max_cq, 20);
      put(cap::log_max_mkey, 20);
      put(cap::log_max_rmp, 16);
      put(cap::log_max_msg, 30);
      put(cap::cqe_version, 1);
      put(cap::compact_address_vector, 1);
      put(cap::fixed_buffer_size, 1);  // KSM keys: UCX's atomic keys rely on them
      put(cap::dct, 1);
      put(cap::log_max_ra_req_dc, 4);
      put(cap::log_max_ra_res_dc, 4);
      put(cap::atomic, 1);
      put(cap::roce, device.config->ethernet);
      put(cap::port_type, device.config->ethernet ? 1 : 0);
      put(cap::num_ports, 1);
      put(cap::bf, 1);
      put(cap::log_bf_reg_size, 9);
      if (!config().compress_cqe) break;
      put(cap::cqe_compression, 1);
      put(cap::cqe_compression_128b, 1);
      put(cap::cqe_compression_timeout, 1);
      put(cap::cqe_compression_max_num, kLongestSession);
      break;
    case kAtomic:
      put(atomic_cap::endianness_mode, 1);  // results in the host's byte order
      put(atomic_cap::operations, 0xf);     // compare-and-swap, fetch-and-add, these masked
      put(atomic_cap::size_qp, 4 | 8);
      put(atomic_cap::size_dc, 4 | 8);
      break;
    default:
      break;  // none of the others' capabilities
  }
  return kOk;
}

Status create_cq(Device& device, In in, Out out, CreatedObject* created) {
  const uint32_t entries = 1u << get32(in, cq::kContext, cq::log_entries);
  const uint32_t bytes = get32(in, cq::kContext, cq::size_code) ? 128 : 64;
  const uint32_t dbr_umem = get32(in, cq::kContext, cq::dbr_umem_id);
  uint8_t* ring = umem_at(device, get32(in, 0, cq::umem_id), get(in, 0, cq::umem_offset),
                          uint64_t{entries} * bytes);
  uint8_t* doorbell = umem_at(device, dbr_umem, get(in, cq::kContext, cq::dbr_offset), 8);
  if (!ring || !doorbell) return kBadParameter;
  const bool compresses = get(in, cq::kContext, cq::compress);
  // The enhanced layout, which newer UCX asks for, is not advertised.
  if (compresses && (!config().compress_cqe || get(in, cq::kContext, cq::compression_layout)))
    return kBadParameter;
  Cq& queue = *connectx::create_cq(device);
  queue.devx = true;
  queue.entries = entries;
  queue.cqe_bytes = bytes;
  queue.ring = ring;
  queue.doorbell = reinterpret_cast<volatile uint32_t*>(doorbell);
  queue.collapsed = get(in, cq::kContext, cq::collapsed);
  queue.session_limit = compresses && !queue.collapsed ? kLongestSession : 0;
  queue.ignores_overrun = get(in, cq::kContext, cq::overrun_ignore);
  OracleCq record{};
  record.header = oracle_header(device, monotonic_ns());
  record.cqn = queue.cqn;
  record.devx = 1;
  record.collapsed = queue.collapsed;
  record.entries = entries;
  record.cqe_bytes = bytes;
  record.ring = reinterpret_cast<uint64_t>(ring);
  record.doorbell = reinterpret_cast<uint64_t>(doorbell);
  oracle_log(OracleType::cq, record);
  set(out, 0, kObjectNumber, queue.cqn);
  created->id = queue.cqn;
  return kOk;
}

Service service_of(uint64_t code) {
  switch (code) {
    case qp::kServiceUc:
      return Service::uc;
    case qp::kServiceUd:
      return Service::ud;
    case qp::kServiceDci:
      return Service::dci;
    default:
      return Service::rc;
  }
}

Status create_qp(Device& device, In in, Out out, CreatedObject* created) {
  const auto context = [&](Field field) { return get(in, qp::kContext, field); };
  const auto rq_type = static_cast<uint8_t>(context(qp::rq_type));
  const bool own_receives = rq_type == qp::kRegular;
  const uint32_t receive_entries = own_receives ? 1u << context(qp::log_rq_size) : 0;
  const auto receive_shift = static_cast<uint32_t>(context(qp::log_rq_stride) + 4);
  const uint32_t send_blocks = context(qp::no_sq) ? 0 : 1u << context(qp::log_sq_size);
  const uint64_t receive_bytes = uint64_t{receive_entries} << receive_shift;
  uint8_t* ring = umem_at(device, get32(in, 0, qp::umem_id), get(in, 0, qp::umem_offset),
                          receive_bytes + uint64_t{send_blocks} * 64);
  const bool has_record = context(qp::doorbell_mode) == qp::kRecord;
  uint8_t* doorbell = has_record ? umem_at(device, get32(in, qp::kContext, qp::dbr_umem_id),
                                           context(qp::dbr_offset), 8)
                                 : nullptr;
  const auto send_cq = device.cqs.find(static_cast<uint32_t>(context(qp::send_cqn)));
  const auto receive_cq = device.cqs.find(static_cast<uint32_t>(context(qp::receive_cqn)));
  const auto srq = device.srqs.find(static_cast<uint32_t>(context(qp::srqn)));
  if (!ring || (has_record && !doorbell) || (!has_record && own_receives) ||
      send_cq == device.cqs.end() || receive_cq == device.cqs.end())
    return kBadParameter;
  if (rq_type == qp::kShared && srq == device.srqs.end()) return kBadResource;
  Qp* pair = connectx::create_qp(device);
  if (!pair) return kLimitExceeded;
  pair->devx = true;
  pair->service = service_of(context(qp::service));
  pair->user_index = static_cast<uint32_t>(context(qp::user_index));
  pair->receive_ring = ring;
  pair->receive_entries = receive_entries;
  pair->receive_shift = receive_shift;
  pair->send_ring = ring + receive_bytes;
  pair->send_blocks = send_blocks;
  pair->doorbell = reinterpret_cast<volatile uint32_t*>(doorbell);
  pair->uar_page = static_cast<uint32_t>(context(qp::uar_page));
  if (send_blocks > 0) pair->ordinal = nic().devx_senders++;
  pair->send_cq = send_cq->second.get();
  pair->receive_cq = receive_cq->second.get();
  pair->srq = rq_type == qp::kShared ? srq->second.get() : nullptr;
  grant_scatter_to_cqe(*pair, context(qp::scatter_receives), context(qp::scatter_responses));
  ++pair->send_cq->users;
  ++pair->receive_cq->users;
  if (pair->srq) ++pair->srq->users;
  log_qp(*pair, 0);
  set(out, 0, kObjectNumber, pair->qpn);
  created->id = pair->qpn;
  return kOk;
}

void take_access(Qp& pair, In in) {
  pair.access = (get(in, qp::kContext, qp::remote_read) ? IBV_ACCESS_REMOTE_READ : 0) |
                (get(in, qp::kContext, qp::remote_write) ? IBV_ACCESS_REMOTE_WRITE : 0) |
                (get(in, qp::kContext, qp::remote_atomic) ? IBV_ACCESS_REMOTE_ATOMIC : 0);
}

void take_path(Qp& pair, In in) {
  const auto path = [&](Field field) { return get(in, qp::kPath, field); };
  const uint64_t high = htobe64(path(qp::path_rgid_high)), low = htobe64(path(qp::path_rgid_low));
  memcpy(pair.peer_gid.data(), &high, 8);
  memcpy(pair.peer_gid.data() + 8, &low, 8);
  pair.peer_lid = static_cast<uint16_t>(path(qp::path_rlid));
  pair.peer_global = path(qp::path_grh) || pair.device->config->ethernet;
  pair.service_level = static_cast<uint8_t>(path(qp::path_sl));
  pair.traffic_class = static_cast<uint8_t>(path(qp::path_tclass));
}

Status modify_qp(Device& device, In in, Out, CreatedObject*) {
  Qp* pair = device.qp(get32(in, 0, qp::number));
  if (!pair) return kBadResource;
  const auto context = [&](Field field) { return get(in, qp::kContext, field); };
  QpState to = pair->state;
  switch (get32(in, 0, kOpcodeField)) {
    case kRst2Init:
      take_access(*pair, in);
      if (pair->datagram()) pair->qkey = static_cast<uint32_t>(context(qp::q_key));
      to = QpState::init;
      break;
    case kInit2Rtr:
      take_path(*pair, in);
      if (context(qp::remote_read) || context(qp::remote_write) || context(qp::remote_atomic))
        take_access(*pair, in);
      pair->peer_qpn = static_cast<uint32_t>(context(qp::remote_qpn));
      pair->receive_psn_start = static_cast<uint32_t>(context(qp::next_receive_psn));
      pair->min_rnr_timer = static_cast<uint8_t>(context(qp::min_rnr_nak));
      pair->path_mtu = static_cast<uint8_t>(context(qp::mtu));
      to = QpState::rtr;
      break;
    case kRtr2Rts:
      pair->send_psn_start = static_cast<uint32_t>(context(qp::next_send_psn));
      pair->retry_count = static_cast<uint8_t>(context(qp::retry_count));
      pair->rnr_retry = static_cast<uint8_t>(context(qp::rnr_retry));
      pair->timeout = static_cast<uint8_t>(get(in, qp::kPath, qp::path_ack_timeout));
      to = QpState::rts;
      break;
    case k2Err:
      to = QpState::err;
      break;
    case k2Rst:
      to = QpState::reset;
      break;
    default:
      break;  // RTS2RTS, INIT2INIT: attributes that nothing here depends on
  }
  return set_qp_state(*pair, to) ? kOk : kBadParameter;
}

Status query_qp(Device& device, In in, Out out, CreatedObject*) {
  const Qp* pair = device.qp(get32(in, 0, qp::number));
  if (!pair) return kBadResource;
  set(out, qp::kContext, qp::state, static_cast<uint64_t>(pair->state));
  set(out, qp::kContext, qp::remote_qpn, pair->peer_qpn);
  set(out, qp::kContext, qp::next_send_psn, pair->next_psn);
  set(out, qp::kContext, qp::next_receive_psn, pair->stream.expected_psn);
  set(out, qp::kPath, qp::path_rlid, pair->peer_lid);
  return kOk;
}

Status create_dct(Device& device, In in, Out out, CreatedObject* created) {
  const auto context = [&](Field field) { return get(in, dct::kContext, field); };
  const auto cq = device.cqs.find(static_cast<uint32_t>(context(dct::cqn)));
  const auto srq = device.srqs.find(static_cast<uint32_t>(context(dct::srqn)));
  if (cq == device.cqs.end() || srq == device.srqs.end()) return kBadResource;
  Qp* target = connectx::create_qp(device);
  if (!target) return kLimitExceeded;
  target->devx = true;
  target->service = Service::dct;
  target->user_index = static_cast<uint32_t>(context(dct::user_index));
  target->receive_cq = cq->second.get();
  target->srq = srq->second.get();
  ++target->receive_cq->users;
  ++target->srq->users;
  grant_scatter_to_cqe(*target, context(dct::scatter_receives), false);
  target->dc_key = context(dct::access_key);
  target->min_rnr_timer = static_cast<uint8_t>(context(dct::min_rnr_nak));
  target->access = (context(dct::remote_read) ? IBV_ACCESS_REMOTE_READ : 0) |
                   (context(dct::remote_write) ? IBV_ACCESS_REMOTE_WRITE : 0) |
                   (context(dct::remote_atomic) ? IBV_ACCESS_REMOTE_ATOMIC : 0);
  log_qp(*target, 0);
  set_qp_state(*target, QpState::init);
  set_qp_state(*target, QpState::rtr);
  set(out, 0, kObjectNumber, target->qpn);
  created->id = target->qpn;
  return kOk;
}

Status create_rmp(Device& device, In in, Out out, CreatedObject* created) {
  const auto wq = [&](Field field) { return get(in, rmp::kWq, field); };
  const auto entries = 1u << wq(rmp::log_entries);
  const auto shift = static_cast<uint32_t>(wq(rmp::log_stride));
  uint8_t* ring = umem_at(device, static_cast<uint32_t>(wq(rmp::umem_id)), wq(rmp::umem_offset),
                          uint64_t{entries} << shift);
  uint8_t* doorbell =
      umem_at(device, static_cast<uint32_t>(wq(rmp::dbr_umem_id)), wq(rmp::dbr_offset), 8);
  if (!ring || !doorbell || shift < 5) return kBadParameter;
  Srq& srq = *connectx::create_srq(device);
  srq.ring = ring;
  srq.entries = entries;
  srq.stride_shift = shift;
  srq.doorbell = reinterpret_cast<volatile uint32_t*>(doorbell);  // the receive half of the record
  srq.cyclic = wq(rmp::wq_type) == rmp::kCyclic;
  set(out, 0, kObjectNumber, srq.srqn);
  created->id = srq.srqn;
  return kOk;
}

Status create_mkey(Device& device, In in, Out out, CreatedObject* created) {
  const auto entry = [&](Field field) { return get(in, mkey::kEntry, field); };
  MemoryKey& key = *create_key(device);
  key.key = (key.key & ~0xffu) | static_cast<uint32_t>(entry(mkey::variant));
  key.iova = key.address = entry(mkey::start);
  key.length = entry(mkey::length64) ? ~uint64_t{0} : entry(mkey::length);
  key.access = (entry(mkey::local_write) ? IBV_ACCESS_LOCAL_WRITE : 0) |
               (entry(mkey::remote_read) ? IBV_ACCESS_REMOTE_READ : 0) |
               (entry(mkey::remote_write) ? IBV_ACCESS_REMOTE_WRITE : 0) |
               (entry(mkey::remote_atomic) ? IBV_ACCESS_REMOTE_ATOMIC : 0);
  const auto mode = entry(mkey::access_mode);
  if (mode == mkey::kKlm || mode == mkey::kKsm) {
    const uint64_t count = entry(mkey::octwords);
    const uint64_t ksm_bytes = uint64_t{1} << entry(mkey::log_entity_bytes);  // one size for all
    for (uint64_t i = 0; i < count && mkey::kTranslations + 16 * (i + 1) <= in.size(); ++i) {
      const auto base = static_cast<uint32_t>(mkey::kTranslations + 16 * i);
      const uint64_t bytes = mode == mkey::kKsm ? ksm_bytes : get(in, base, mkey::klm_bytes);
      const uint32_t part = get32(in, base, mkey::klm_key);
      if (part) key.indirect.push_back({part, get(in, base, mkey::klm_address), bytes});
    }
  }
  log_mr(device, key);
  set(out, 0, kObjectNumber, key.key >> 8);
  created->id = key.key;
  return kOk;
}

Status alloc_pd(Device& device, In, Out out, CreatedObject* created) {
  created->id = nic().fabric->devices[device.index].next_pdn.fetch_add(1) + 1;
  set(out, 0, kObjectNumber, created->id);
  return kOk;
}

Status answer_zeros(Device&, In, Out, CreatedObject*) {
  return kOk;
}

struct PrmCommand {
  uint16_t opcode;
  bool creates;
  uint32_t least_bytes;
  Status (*handler)(Device&, In, Out, CreatedObject*);
};

constexpr PrmCommand kCommands[] = {
    {kQueryHcaCap, false, 0x10, query_hca_cap},
    {kCreateMkey, true, 0x110, create_mkey},
    {kCreateCq, true, 0x110, create_cq},
    {kModifyCq, false, 0x10, answer_zeros},
    {kCreateQp, true, 0x110, create_qp},
    {kRst2Init, false, 0x100, modify_qp},
    {kInit2Rtr, false, 0x100, modify_qp},
    {kRtr2Rts, false, 0x100, modify_qp},
    {kRts2Rts, false, 0x10, modify_qp},
    {kInit2Init, false, 0x10, modify_qp},
    {k2Err, false, 0x10, modify_qp},
    {k2Rst, false, 0x10, modify_qp},
    {kQueryQp, false, 0x10, query_qp},
    {kQueryHcaVportContext, false, 0x10, answer_zeros},
    {kAllocPd, true, 0x10, alloc_pd},
    {kQueryLag, false, 0x10, answer_zeros},
    {kCreateRmp, true, 0x110, create_rmp},
    {kCreateDct, true, 0x50, create_dct},
    {kDrainDct, false, 0x10, answer_zeros},
};

}  // namespace

int run_prm_command(Device& device, In in, Out out, CreatedObject* created) {
  if (in.size() < 8 || out.size() < 8) return EINVAL;
  memset(out.data(), 0, out.size());
  const auto opcode = static_cast<uint16_t>(get(in, 0, kOpcodeField));
  for (const PrmCommand& command : kCommands) {
    if (command.opcode != opcode) continue;
    if (command.creates != (created != nullptr)) break;
    if (created) created->opcode = opcode;
    const Status status = in.size() < command.least_bytes
                              ? kBadInputLength
                              : command.handler(device, in, out, created);
    if (status == kOk) return 0;
    note("%s: command %#x: status %#x", device.config->name.c_str(), opcode, status);
    set(out, 0, kStatus, status);
    set(out, 0, kSyndrome, 0xc0000000u | opcode);
    return created ? EREMOTEIO : 0;
  }
  complain("%s: command %#x (modifier %#x) is not emulated", device.config->name.c_str(), opcode,
           static_cast<unsigned>(get(in, 0, kOpMod)));
  set(out, 0, kStatus, kBadOpcode);
  return created ? EREMOTEIO : 0;
}

void destroy_prm_object(Device& device, const DevxObject& object) {
  switch (object.create_opcode) {
    case kCreateCq:
      if (const auto found = device.cqs.find(object.id); found != device.cqs.end())
        destroy_cq(*found->second);
      break;
    case kCreateQp:
    case kCreateDct:
      if (Qp* pair = device.qp(object.id)) destroy_qp(*pair);
      break;
    case kCreateRmp:
      device.srqs.erase(object.id);
      break;
    case kCreateMkey:
      destroy_key(device, object.id);
      break;
    default:
      break;
  }
}

}  // namespace connectx
