// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "session/control.h"

#include <infiniband/verbs.h>
#include <rdma/mlx5-abi.h>

#include <bit>

namespace sigma {
namespace {

template <typename T, typename U>
void update(std::optional<T>& field, const std::optional<U>& fact) {
  if (fact) field = *fact;
}

void update_address(QueuePair& info, const AddressVector& address) {
  info.peer = {.gid = address.dgid, .lid = address.dlid};
  update(info.sgid_index, address.sgid_index);
  update(info.sl, address.sl);
  update(info.traffic_class, address.traffic_class);
  update(info.hop_limit, address.hop_limit);
  update(info.static_rate, address.static_rate);
  update(info.flow_label, address.flow_label);
  if (!info.port) info.port = address.port;
}

void update_attributes(QueuePair& info, const UverbsFacts& facts) {
  update(info.type, facts.qp_type);
  update(info.state, facts.qp_state);
  update(info.sq_sig_all, facts.sq_sig_all);
  update(info.max_send_wr, facts.max_send_wr);
  update(info.max_recv_wr, facts.max_recv_wr);
  update(info.max_send_sge, facts.max_send_sge);
  update(info.max_recv_sge, facts.max_recv_sge);
  update(info.max_inline_data, facts.max_inline_data);
  update(info.port, facts.port);
  update(info.peer_qp_num, facts.peer_qp_num);
  update(info.path_mtu, facts.path_mtu_bytes);
  update(info.sq_psn, facts.sq_psn);
  update(info.rq_psn, facts.rq_psn);
  update(info.qkey, facts.qkey);
  update(info.timeout, facts.timeout);
  update(info.retry_cnt, facts.retry_cnt);
  update(info.rnr_retry, facts.rnr_retry);
  update(info.min_rnr_timer, facts.min_rnr_timer);
  update(info.max_rd_atomic, facts.max_rd_atomic);
  update(info.max_dest_rd_atomic, facts.max_dest_rd_atomic);
  update(info.pkey_index, facts.pkey_index);
  update(info.send_cq, facts.send_cq);
  update(info.recv_cq, facts.recv_cq);
  if (facts.srq) info.has_srq = true;
  if (facts.address) update_address(info, *facts.address);
}

}  // namespace

void Control::on_uverbs(std::span<const std::byte> record) {
  const auto command = UverbsCommand::parse(record);
  if (!command) {
    ++counters_.records_malformed;
    return;
  }
  bool undecoded = false;
  const auto facts = decode_uverbs(*command, &undecoded);
  if (undecoded) ++counters_.uverbs_undecoded;
  if (!facts) {
    if (const auto devx = decode_devx(*command); devx && !devx->failed && devx->handle)
      on_devx(objects_.space_of(command->header(), false), *devx, command->header().h.time_ns);
    return;
  }
  if (command->header().flags & SIGMA_UVERBS_TRUNCATED) ++counters_.uverbs_truncated;
  if (facts->failed) {
    objects_.registrations().failed +=
        facts->object == UverbsObject::mr && facts->action == UverbsAction::create;
    return;
  }

  const bool opens = facts->object == UverbsObject::context;
  HandleSpace& space = objects_.space_of(command->header(), opens);
  if (!facts->handle) return;
  const uint64_t now_ns = command->header().h.time_ns;
  switch (facts->object) {
    case UverbsObject::qp:
      return on_qp(space, *facts, now_ns);
    case UverbsObject::cq:
      return on_cq(space, *facts, now_ns);
    case UverbsObject::srq:
      return on_srq(space, *facts, now_ns);
    case UverbsObject::mr:
      return on_mr(space, *facts, now_ns, command->header().enter_ns);
    case UverbsObject::ah:
      return on_ah(space, *facts);
    default:
      return;
  }
}

// ---- queue pairs --------------------------------------------------------------------------------

void Control::on_qp(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns) {
  switch (facts.action) {
    case UverbsAction::create:
      return create_qp(space, facts, now_ns);
    case UverbsAction::modify:
      return modify_qp(space, facts, now_ns);
    case UverbsAction::destroy:
      if (Qp* qp = objects_.find_qp_by_handle(space, *facts.handle))
        objects_.destroy_qp(*qp, now_ns);
      return;
    case UverbsAction::none:
      return;
  }
}

void Control::create_qp(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns) {
  if (!facts.qp_num) return;  // counted as undecoded
  Qp& qp = objects_.create_qp(space, *facts.handle, *facts.qp_num, now_ns);
  qp.info->qp_ptr = facts.user_handle.value_or(0);
  update_attributes(*qp.info, facts);
  if (facts.qp_type == uint8_t{IBV_QPT_DRIVER}) qp.info->type = type_of_driver_qp(facts.driver_flags.value_or(0));
  if (facts.sq_sig_all) qp.send.set_sq_sig_all(*facts.sq_sig_all);
  if (facts.any_order) {
    qp.send.set_any_order();
    qp.recv.set_any_order();
  }
  qp.rq_entries = facts.rq_wqe_count.value_or(0);
  qp.srq_handle = facts.srq;
  qp.send_cq_ptr = objects_.cq_ptr(&space, facts.send_cq);
  qp.recv_cq_ptr = objects_.cq_ptr(&space, facts.recv_cq);
}

void Control::modify_qp(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns) {
  Qp* qp = objects_.find_qp_by_handle(space, *facts.handle);
  if (qp == nullptr) return;  // older than the attach, and nothing else has named it yet
  if (facts.qp_state == IBV_QPS_RESET && qp->newest().state != IBV_QPS_RESET)
    objects_.reset_qp(*qp, now_ns);
  update_attributes(qp->newest(), facts);
  if (qp->next) return;

  // RESET to INIT needs a port, RTR to RTS a PSN (IBA 11.2.5.2): before the one nothing can have
  // been posted, before the other nothing sent.
  const bool initialised = facts.qp_state == IBV_QPS_INIT && facts.port;
  const bool ready_to_send = facts.qp_state == IBV_QPS_RTS && facts.sq_psn;
  if ((initialised || ready_to_send) && !qp->send.in_step() && qp->send.empty())
    qp->send.set_in_step();
  if (initialised && !qp->recv.in_step() && qp->recv.empty()) qp->recv.set_in_step();
  if (facts.qp_state == IBV_QPS_RTS) qp->send.clear_error();
}

// ---- queues made by DevX ------------------------------------------------------------------------

namespace {

void update_attributes(QueuePair& info, const PrmFacts& prm) {
  update(info.state, prm.to_state);
  update(info.port, prm.port);
  if (prm.peer_qp_num.value_or(0) != 0) info.peer_qp_num = prm.peer_qp_num;
  update(info.path_mtu, prm.mtu_bytes);
  update(info.sq_psn, prm.sq_psn);
  update(info.rq_psn, prm.rq_psn);
  update(info.qkey, prm.qkey);
  update(info.timeout, prm.ack_timeout);
  update(info.retry_cnt, prm.retry_count);
  update(info.rnr_retry, prm.rnr_retry);
  update(info.min_rnr_timer, prm.min_rnr_timer);
  update(info.pkey_index, prm.pkey_index);
  update(info.sl, prm.service_level);
  update(info.traffic_class, prm.traffic_class);
  update(info.hop_limit, prm.hop_limit);
  update(info.sgid_index, prm.source_gid_index);
  if (prm.peer_gid) info.peer.gid = prm.peer_gid;
  if (prm.peer_lid.value_or(0) != 0) info.peer.lid = prm.peer_lid;
}

}  // namespace

void Control::on_devx(HandleSpace& space, const DevxFacts& facts, uint64_t now_ns) {
  if (facts.action == UverbsAction::destroy) {
    if (Qp* qp = objects_.find_qp_by_handle(space, *facts.handle))
      objects_.destroy_qp(*qp, now_ns);
    else
      objects_.end_cq(space, *facts.handle, now_ns);
    return;
  }
  if (!facts.prm) return;
  const PrmFacts& prm = *facts.prm;
  if (prm.object == PrmObject::cq && prm.number && facts.action == UverbsAction::create) {
    objects_.end_cq(space, *facts.handle, now_ns);
    auto cq = std::make_unique<Cq>();
    cq->info = {.device = space.device->name,
                .pid = space.pid,
                .handle = *facts.handle,
                .cqn = prm.number,
                .entries = prm.cq_entries,
                .created_ns = now_ns};
    space.cqs[*facts.handle] = std::move(cq);
  } else if (prm.object == PrmObject::qp && prm.number && facts.action == UverbsAction::create) {
    Qp& qp = objects_.create_qp(space, *facts.handle, *prm.number, now_ns);
    qp.info->type = qp_type_of(prm.service);
    // Each request says for itself whether it asks for a completion.
    qp.info->sq_sig_all = false;
    qp.send.set_sq_sig_all(false);
    qp.rq_entries = prm.rq_entries.value_or(0);
    qp.info->has_srq = prm.srqn.value_or(0) != 0;
    update_attributes(*qp.info, prm);
  } else if (prm.object == PrmObject::dct && prm.number && facts.action == UverbsAction::create) {
    // It receives only, from the moment that it is there; who sends to it, each message says.
    Qp& qp = objects_.create_qp(space, *facts.handle, *prm.number, now_ns);
    qp.info->type = kQpTypeDct;
    qp.info->has_srq = prm.srqn.value_or(0) != 0;
    update_attributes(*qp.info, prm);
    qp.info->state = IBV_QPS_RTR;
  } else if (facts.action == UverbsAction::modify) {
    Qp* qp = objects_.find_qp_by_handle(space, *facts.handle);
    if (qp == nullptr) return;
    if (prm.to_state == uint8_t{IBV_QPS_RESET} && qp->newest().state != IBV_QPS_RESET)
      objects_.reset_qp(*qp, now_ns);
    update_attributes(qp->newest(), prm);
  }
}

// ---- other objects ------------------------------------------------------------------------------

void Control::on_cq(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns) {
  const uint32_t handle = *facts.handle;
  if (facts.action == UverbsAction::destroy) return objects_.end_cq(space, handle, now_ns);
  if (facts.action == UverbsAction::create) {
    objects_.end_cq(space, handle, now_ns);
    auto cq = std::make_unique<Cq>();
    cq->ptr = facts.user_handle.value_or(0);
    cq->info = {.device = space.device->name,
                .pid = space.pid,
                .handle = handle,
                .cqn = facts.cqn,
                .entries = facts.cqe,
                .created_ns = now_ns};
    cq->real_time = facts.driver_flags.value_or(0) & MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS;
    space.cqs[handle] = std::move(cq);
  } else if (const auto it = space.cqs.find(handle); it != space.cqs.end()) {
    update(it->second->info.entries, facts.cqe);
  }
}

void Control::on_srq(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns) {
  if (facts.action == UverbsAction::create)
    add_srq(space, facts, now_ns);
  else if (facts.action == UverbsAction::destroy)
    if (const auto it = space.srqs.find(*facts.handle); it != space.srqs.end())
      objects_.end_srq(*it->second, now_ns);
}

void Control::add_srq(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns) {
  objects_.add_srq(space, *facts.handle, facts.user_handle.value_or(0), now_ns);
  // libmlx5 makes the ring of a power of two, one more than asked for at least (its ring's driver
  // part tells that it is mlx5).
  const auto it = space.srqs.find(*facts.handle);
  if (it != space.srqs.end() && facts.ring_addr && facts.max_wr && *facts.max_wr < 1u << 16)
    it->second->queue.set_slots(std::bit_ceil(*facts.max_wr + 1));
}

void Control::on_mr(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns,
                    uint64_t enter_ns) {
  const uint32_t handle = *facts.handle;
  if (facts.action == UverbsAction::destroy) return objects_.end_mr(space, handle, now_ns);
  if (facts.action == UverbsAction::create) objects_.end_mr(space, handle, now_ns);
  MemoryRegion& mr = space.mrs[handle];
  mr.device = space.device->name;
  mr.pid = space.pid;
  mr.handle = handle;
  if (facts.action == UverbsAction::create) mr.created_ns = now_ns;
  mr.addr = facts.mr_addr.value_or(mr.addr);
  const uint64_t length = facts.mr_length.value_or(mr.length);
  if (mr.register_ns) objects_.registrations().resized(mr.length, length);
  mr.length = length;
  update(mr.lkey, facts.lkey);
  update(mr.rkey, facts.rkey);
  if (facts.action != UverbsAction::create) return;
  mr.register_ns = now_ns > enter_ns ? now_ns - enter_ns : 0;
  objects_.registrations().registered(mr.length, *mr.register_ns);
}

void Control::on_ah(HandleSpace& space, const UverbsFacts& facts) {
  if (facts.action == UverbsAction::create && facts.address)
    space.ahs[*facts.handle].peer = std::make_shared<const Address>(
        Address{.gid = facts.address->dgid, .lid = facts.address->dlid});
  else if (facts.action == UverbsAction::destroy)
    space.ahs.erase(*facts.handle);
}

}  // namespace sigma
