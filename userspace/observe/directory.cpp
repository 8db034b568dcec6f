// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/directory.h"

#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <bit>

namespace sigma {
namespace {

bool plausible(const SendSpec& spec) {
  if (spec.blocks == 0) return spec.owner.number != 0;  // receives only
  return valid(SendRing{spec.owner.number, spec.blocks}) && spec.ring_addr != 0 &&
         spec.doorbell_addr != 0;
}

bool plausible(const CqSpec& spec) {
  return valid(spec.ring) && spec.ring_addr != 0;
}

}  // namespace

RingOwner Directory::owner_of(const File& file, const sigma_uverbs& header, uint32_t number) {
  return {.pid = file.pid,
          .context = file.ucontext,
          .by_file = (header.flags & SIGMA_UVERBS_KERNEL) != 0,
          .number = number};
}

void Directory::on_uverbs(std::span<const std::byte> record) {
  const auto command = UverbsCommand::parse(record);
  if (!command || command->header().driver_id != RDMA_DRIVER_MLX5) return;
  const sigma_uverbs& header = command->header();
  const File file{header.h.pid, header.ucontext};
  note_file(file, header);
  if (const auto devx = decode_devx(*command)) return on_devx(file, header, *devx);
  const auto facts = decode_uverbs(*command);
  if (!facts || !facts->handle) return;
  if (facts->object == UverbsObject::qp) on_qp(file, header, *facts);
  if (facts->object == UverbsObject::cq) on_cq(file, header, *facts);
}

uint32_t Directory::cqn_of(const File& file, std::optional<uint32_t> handle) const {
  if (!handle) return 0;
  const auto it = cqs_.find(key_of(file, *handle));
  return it == cqs_.end() ? 0 : it->second.owner.number;
}

// ---- queue pairs --------------------------------------------------------------------------------

void Directory::add_qp(const Handle& key, Qp qp) {
  if (!plausible(qp.spec)) return add_unplaced(qp.spec.owner, SIGMA_RING_SEND);
  if (const auto old = qps_.find(key); old != qps_.end()) remove_qp(old, qp.spec.since_ns);
  if (qp.qp_ptr != 0) by_pointer_[{key.file.pid, qp.qp_ptr}] = key;
  events_.on_send(qp.spec);
  qps_[key] = std::move(qp);
}

void Directory::add_unplaced(const RingOwner& owner, uint8_t kind) {
  Unplaced& of_process = unplaced_[owner.pid];
  if (of_process.size() < kMostUnplaced)
    of_process.emplace(kind, owner.number);
  else
    ++unplaced_beyond_;
}

void Directory::on_told_inside(uint32_t pid, uint8_t kind, uint32_t number) {
  const auto of_process = unplaced_.find(pid);
  if (of_process == unplaced_.end()) return;
  const auto it = of_process->second.find({kind, number});
  if (it != of_process->second.end()) of_process->second.erase(it);
}

uint64_t Directory::unplaced() const {
  uint64_t sum = unplaced_beyond_;
  for (const auto& [pid, of_process] : unplaced_) sum += of_process.size();
  return sum;
}

void Directory::remove_qp(std::map<Handle, Qp>::iterator it, uint64_t now_ns) {
  events_.on_end_send(it->second.spec.owner, now_ns);
  by_pointer_.erase({it->first.file.pid, it->second.qp_ptr});
  qps_.erase(it);
}

void Directory::on_qp(const File& file, const sigma_uverbs& header, const UverbsFacts& facts) {
  const Handle key = key_of(file, *facts.handle);
  const auto it = qps_.find(key);
  const uint64_t now_ns = header.h.time_ns;
  if (facts.failed) return on_failed(key, facts.action, facts.qp_state, now_ns);
  if (facts.action == UverbsAction::create) {
    Qp qp;
    qp.qp_ptr = facts.user_handle.value_or(0);
    SendSpec& spec = qp.spec;
    spec.owner = owner_of(file, header, facts.qp_num.value_or(0));
    spec.blocks = facts.sq_wqe_count.value_or(0);
    spec.doorbell_addr = facts.doorbell_addr.value_or(0);
    const uint32_t type = facts.qp_type.value_or(0xff);
    const bool raw = type == IBV_QPT_RAW_PACKET;
    if (raw)
      spec.ring_addr = facts.sq_ring_addr.value_or(0);
    else if (facts.ring_addr)
      spec.ring_addr =
          *facts.ring_addr +
          (uint64_t{facts.rq_wqe_count.value_or(0)} << (facts.rq_wqe_shift.value_or(0) & 31));
    spec.qp_type = static_cast<uint8_t>(type);
    spec.service = service_of_qp(type, facts.driver_flags.value_or(0));
    spec.send_cqn = cqn_of(file, facts.send_cq);
    spec.slot = header.ring_slot;
    spec.initiator = SIGMA_INITIATOR_CPU;
    spec.since_ns = now_ns + 1;  // behind the command
    add_qp(key, std::move(qp));
    return events_.on_made(owner_of(file, header, facts.qp_num.value_or(0)), now_ns);
  }
  if (it == qps_.end()) {
    if (facts.action == UverbsAction::destroy)
      events_.on_unknown_gone(file.pid, file.ucontext, ObjectKind::qp, *facts.handle);
    return;
  }
  if (facts.action == UverbsAction::modify && facts.qp_state)
    on_state(it->second, *facts.qp_state, now_ns);
  else if (facts.action == UverbsAction::destroy)
    remove_qp(it, now_ns);
}

// What a command ends BPF has copied at its begin. Where it has failed, the ring goes on.
void Directory::on_failed(const Handle& key, UverbsAction action, std::optional<uint8_t> state, uint64_t now_ns) {
  const auto qp = qps_.find(key);
  const bool ends = action == UverbsAction::destroy || (action == UverbsAction::modify && state == IBV_QPS_RESET);
  if (qp != qps_.end() && ends && !qp->second.reset) events_.on_resume_send(qp->second.spec.owner, now_ns + 1);
  const auto cq = cqs_.find(key);
  if (cq != cqs_.end() && action != UverbsAction::create) events_.on_resume_cq(cq->second.owner, now_ns + 1);
}

// A RESET ends the ring's life (at its entry: BPF has copied it). libmlx5 zeroes the doorbell record
// after the command has returned; when it goes on to INIT that is done.
void Directory::on_state(Qp& qp, uint8_t state, uint64_t now_ns) {
  if (state == IBV_QPS_RESET) {
    if (!qp.reset) events_.on_end_send(qp.spec.owner, now_ns);
    qp.reset = true;
  } else if (state == IBV_QPS_INIT && qp.reset) {
    qp.reset = false;
    ++qp.spec.slot_life;
    qp.spec.since_ns = now_ns + 1;
    qp.spec.first = qp.spec.unread_since_ns = 0;
    events_.on_send(qp.spec);
  }
}

void Directory::on_gpu_ring(uint32_t pid, uint64_t ring_addr, uint32_t number) {
  for (auto& [key, qp] : qps_) {
    if (key.file.pid != pid || qp.spec.owner.number != number || qp.spec.ring_addr != ring_addr) continue;
    qp.spec.initiator = SIGMA_INITIATOR_GPU;
    qp.spec.tier = 1;
  }
}

// ---- queues that were there before --------------------------------------------------------------

bool Directory::has_heard_of(uint32_t pid, uint64_t context, uint32_t qp_num) const {
  for (auto it = qps_.lower_bound({{pid, context}, 0}); it != qps_.end() && it->first.file == File{pid, context}; ++it)
    if (it->second.spec.owner.number == qp_num && it->second.spec.origin == SIGMA_RING_BY_COMMAND) return true;
  for (auto it = targets_.lower_bound({{pid, context}, 0});
       it != targets_.end() && it->first.file == File{pid, context}; ++it)
    if (it->second == qp_num) return true;
  const auto unplaced = unplaced_.find(pid);
  return unplaced != unplaced_.end() && unplaced->second.contains({SIGMA_RING_SEND, qp_num});
}

void Directory::add_context(uint32_t pid, uint64_t context, const std::string& device) {
  older_contexts_[{pid, context}] = device;
}

std::string Directory::device_of(uint32_t pid, uint64_t context) const {
  const auto older = older_contexts_.find({pid, context});
  return older == older_contexts_.end() ? std::string() : older->second;
}

void Directory::add_file(uint32_t pid, uint64_t file, uint64_t context) {
  files_[{pid, file}] = {pid, context};
}

// A new file at an old one's address.
void Directory::note_file(const File& file, const sigma_uverbs& header) {
  if (header.object_id == UVERBS_OBJECT_DEVICE && header.method_id == UVERBS_METHOD_GET_CONTEXT) files_.erase(file);
}

Directory::Handle Directory::key_of(const File& file, uint32_t handle) const {
  const Handle key{file, handle};
  if (qps_.contains(key) || cqs_.contains(key)) return key;
  const auto older = files_.find(file);
  if (older == files_.end()) return key;
  const Handle found{older->second, handle};
  return qps_.contains(found) || cqs_.contains(found) ? found : key;
}

void Directory::add_found(const SendSpec& spec, uint32_t handle, uint64_t qp_ptr) {
  const Handle key{{spec.owner.pid, spec.owner.context}, handle};
  // A command has told of its end, or of another one with this handle, while it was sought.
  if (qps_.contains(key)) return;
  Qp qp;
  qp.spec = spec;
  qp.qp_ptr = qp_ptr;
  add_qp(key, std::move(qp));
}

void Directory::add_found(const CqSpec& spec, uint32_t handle) {
  const Handle key{{spec.owner.pid, spec.owner.context}, handle};
  if (cqs_.contains(key) || !plausible(spec)) return;
  events_.on_cq(spec);
  cqs_[key] = spec;
}

const RingOwner* Directory::find(uint32_t pid, uint64_t qp_ptr, uint32_t qp_num) const {
  const auto key = by_pointer_.find({pid, qp_ptr});
  if (key == by_pointer_.end()) return nullptr;
  const auto it = qps_.find(key->second);
  if (it == qps_.end() || it->second.spec.owner.number != qp_num) return nullptr;
  return &it->second.spec.owner;
}

// ---- completion queues --------------------------------------------------------------------------

void Directory::on_cq(const File& file, const sigma_uverbs& header, const UverbsFacts& facts) {
  const Handle key = key_of(file, *facts.handle);
  const auto it = cqs_.find(key);
  const uint64_t now_ns = header.h.time_ns;
  if (facts.failed) return on_failed(key, facts.action, std::nullopt, now_ns);
  if (facts.action == UverbsAction::modify && it != cqs_.end()) {
    CqSpec& spec = it->second;
    spec.ring_addr = facts.ring_addr.value_or(0);
    spec.ring.entries = facts.cqe.value_or(0);
    spec.ring.entry_bytes = facts.cqe_size.value_or(spec.ring.entry_bytes);
    ++spec.slot_life;
    if (plausible(spec)) return events_.on_resize(spec.owner, spec);
    add_unplaced(spec.owner, SIGMA_RING_CQ);
    return events_.on_end_cq(spec.owner, now_ns);
  }
  if (facts.action == UverbsAction::create) {
    CqSpec spec;
    spec.owner = owner_of(file, header, facts.cqn.value_or(0));
    spec.ring_addr = facts.ring_addr.value_or(0);
    spec.doorbell_addr = facts.doorbell_addr.value_or(0);
    spec.ring.entries = facts.cqe.value_or(0);
    spec.ring.entry_bytes = facts.cqe_size.value_or(0);
    if (facts.cqes_compressed) spec.ring.layout = CqLayout::compressed_basic;
    spec.real_time = facts.driver_flags.value_or(0) & MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS;
    spec.slot = header.ring_slot;
    spec.since_ns = now_ns + 1;  // behind the command
    if (!plausible(spec)) return add_unplaced(spec.owner, SIGMA_RING_CQ);
    events_.on_cq(spec);
    cqs_[key] = spec;
  } else if (facts.action == UverbsAction::destroy) {
    if (it == cqs_.end()) return events_.on_unknown_gone(file.pid, file.ucontext, ObjectKind::cq, *facts.handle);
    events_.on_end_cq(it->second.owner, now_ns);
    cqs_.erase(it);
  }
}

// ---- DevX ---------------------------------------------------------------------------------------

// 0: not in memory that the process can read, or outside of what was registered.
uint64_t Directory::address_of(const File& file, const std::optional<UmemPlace>& place,
                               uint64_t bytes) const {
  if (!place) return 0;
  for (const auto& [key, umem] : umems_) {
    if (key.file != file || umem.id != place->umem_id || umem.addr == 0) continue;
    if (place->offset > umem.length || bytes > umem.length - place->offset) return 0;
    return umem.addr + place->offset;
  }
  return 0;
}

void Directory::on_devx(const File& file, const sigma_uverbs& header, const DevxFacts& facts) {
  if (!facts.handle) return;
  const Handle key = key_of(file, *facts.handle);
  const uint64_t now_ns = header.h.time_ns;
  if (facts.failed)
    return on_failed(key, facts.action, facts.prm ? facts.prm->to_state : std::nullopt, now_ns);
  if (facts.is_umem) {
    if (facts.action == UverbsAction::create && facts.umem_id)
      umems_[key] = {*facts.umem_id, facts.umem_addr.value_or(0), facts.umem_length.value_or(0)};
    else if (facts.action == UverbsAction::destroy)
      umems_.erase(key);
    return;
  }
  if (facts.action == UverbsAction::destroy) {
    const auto qp = qps_.find(key);
    const auto cq = cqs_.find(key);
    if (targets_.erase(key) != 0) return;
    if (qp == qps_.end() && cq == cqs_.end())
      events_.on_unknown_gone(file.pid, file.ucontext, ObjectKind::devx, *facts.handle);
    if (qp != qps_.end()) remove_qp(qp, now_ns);
    if (cq != cqs_.end()) {
      events_.on_end_cq(cq->second.owner, now_ns);
      cqs_.erase(cq);
    }
    return;
  }
  if (facts.action == UverbsAction::modify) {
    const auto it = qps_.find(key);
    if (it != qps_.end() && facts.prm->to_state) on_state(it->second, *facts.prm->to_state, now_ns);
    return;
  }
  if (facts.prm->object == PrmObject::qp) create_devx_qp(key, header, *facts.prm);
  if (facts.prm->object == PrmObject::cq) create_devx_cq(key, header, *facts.prm);
  if (facts.prm->object == PrmObject::dct && facts.prm->number) {
    targets_[key] = *facts.prm->number;
    events_.on_made(owner_of(file, header, *facts.prm->number), now_ns);
  }
}

void Directory::create_devx_qp(const Handle& key, const sigma_uverbs& header,
                               const PrmFacts& prm) {
  Qp qp;
  SendSpec& spec = qp.spec;
  spec.owner = owner_of(key.file, header, prm.number.value_or(0));
  spec.blocks = prm.sq_blocks.value_or(0);
  const uint64_t bytes = uint64_t{spec.blocks} * kWqeBlockBytes + prm.sq_offset.value_or(0);
  if (const uint64_t ring = address_of(key.file, prm.ring, bytes); ring != 0)
    spec.ring_addr = ring + prm.sq_offset.value_or(0);
  spec.doorbell_addr = address_of(key.file, prm.doorbell, 8);
  spec.service = prm.service;
  spec.send_cqn = prm.send_cqn.value_or(0);
  spec.slot = header.ring_slot;
  spec.since_ns = header.h.time_ns + 1;
  const RingOwner owner = spec.owner;
  add_qp(key, std::move(qp));
  events_.on_made(owner, header.h.time_ns);
}

void Directory::create_devx_cq(const Handle& key, const sigma_uverbs& header,
                               const PrmFacts& prm) {
  CqSpec spec;
  spec.owner = owner_of(key.file, header, prm.number.value_or(0));
  spec.ring.entries = prm.cq_entries.value_or(0);
  spec.ring.entry_bytes = prm.cqe_bytes.value_or(0);
  spec.ring.layout = prm.cq_layout.value_or(CqLayout::plain);
  spec.ring.collapsed = prm.collapsed.value_or(false);
  spec.ring_addr = address_of(key.file, prm.ring,
                              uint64_t{spec.ring.entries} * spec.ring.entry_bytes);
  spec.doorbell_addr = address_of(key.file, prm.doorbell, 8);
  spec.real_time = prm.timestamp_format == uint8_t{2};
  spec.slot = header.ring_slot;
  spec.since_ns = header.h.time_ns + 1;
  if (!plausible(spec)) return add_unplaced(spec.owner, SIGMA_RING_CQ);
  events_.on_cq(spec);
  cqs_[key] = spec;
}

// The files of the process are closed: nothing of it can be read any more.
void Directory::on_process_end(uint32_t pid) {
  if (const auto unplaced = unplaced_.find(pid); unplaced != unplaced_.end()) {
    unplaced_beyond_ += unplaced->second.size();
    unplaced_.erase(unplaced);
  }
  const auto of = [&](const Handle& key) { return key.file.pid == pid; };
  std::erase_if(qps_, [&](const auto& entry) { return of(entry.first); });
  std::erase_if(cqs_, [&](const auto& entry) { return of(entry.first); });
  std::erase_if(umems_, [&](const auto& entry) { return of(entry.first); });
  std::erase_if(targets_, [&](const auto& entry) { return of(entry.first); });
  std::erase_if(by_pointer_, [&](const auto& entry) { return entry.first.first == pid; });
  std::erase_if(older_contexts_, [&](const auto& entry) { return entry.first.pid == pid; });
  std::erase_if(files_, [&](const auto& entry) { return entry.first.pid == pid; });
}

}  // namespace sigma
