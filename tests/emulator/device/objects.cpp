// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The life of queue pairs, queues and keys.
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstring>

#include "clock.h"
#include "nic.h"

namespace connectx {
namespace {

// Number spaces belong to the device, not to the process, as on hardware.
uint32_t next_number(std::atomic<uint32_t>& counter, uint32_t first, uint32_t count) {
  return first + counter.fetch_add(1) % count;
}

DeviceEntry& shared(const Device& device) {
  return nic().fabric->devices[device.index];
}

}  // namespace

OracleHeader oracle_header(const Device& device, uint64_t time_ns) {
  return {0, 0, device.index, time_ns};
}

void log_wire(const Qp& qp, WireEvent event, uint32_t psn, uint32_t detail) {
  OracleWire record{};
  record.header = oracle_header(*qp.device, monotonic_ns());
  record.qpn = qp.qpn;
  record.life = qp.entry->life.load(std::memory_order_relaxed);
  record.event = static_cast<uint32_t>(event);
  record.psn = psn;
  record.detail = detail;
  oracle_log(OracleType::wire, record);
}

void log_qp(const Qp& qp, uint8_t event) {
  OracleQp record{};
  record.header = oracle_header(*qp.device, monotonic_ns());
  record.qpn = qp.qpn;
  record.life = qp.entry->life.load(std::memory_order_relaxed);
  record.event = event;
  record.type = static_cast<uint8_t>(qp.service);
  record.state = static_cast<uint8_t>(qp.state);
  record.devx = qp.devx;
  record.send_cqn = qp.send_cq ? qp.send_cq->cqn : 0;
  record.receive_cqn = qp.receive_cq ? qp.receive_cq->cqn : 0;
  record.srqn = qp.srq ? qp.srq->srqn : 0;
  record.peer_qpn = qp.peer_qpn;
  record.peer_device = static_cast<uint32_t>(qp.peer_device);
  record.peer_lid = qp.peer_lid;
  record.send_ring = reinterpret_cast<uint64_t>(qp.send_ring);
  record.receive_ring = reinterpret_cast<uint64_t>(qp.receive_ring);
  record.doorbell = reinterpret_cast<uint64_t>(qp.doorbell);
  record.send_blocks = qp.send_blocks;
  record.receive_entries = qp.receive_entries;
  memcpy(record.peer_gid, qp.peer_gid.data(), sizeof record.peer_gid);
  oracle_log(OracleType::qp, record);
}

Qp* create_qp(Device& device) {
  const uint32_t qpn = claim_qpn(*nic().fabric, device.index, nic().process);
  if (qpn == 0) return nullptr;
  auto owned = std::make_unique<Qp>();
  Qp* qp = owned.get();
  qp->device = &device;
  qp->qpn = qpn;
  qp->handle = device.next_handle++;
  qp->entry = &qp_entry(*nic().fabric, device.index, qpn);
  device.by_number[(qpn - kFirstQpn) % kQpsPerDevice] = qp;
  device.qps[qp->handle] = std::move(owned);
  return qp;
}

void destroy_qp(Qp& qp) {
  Device& device = *qp.device;
  log_qp(qp, 2);
  if (qp.send_cq) --qp.send_cq->users;
  if (qp.receive_cq) --qp.receive_cq->users;
  if (qp.srq) --qp.srq->users;
  if (qp.async_channel) --qp.async_channel->users;
  uint32_t ours = nic().process + 1;  // not any more if the process is past its exit handlers
  if (qp.entry->owner == ours) qp.entry->receiving = 0;
  qp.entry->owner.compare_exchange_strong(ours, 0);
  std::erase(nic().active, &qp);
  if (!qp.responses.empty()) nic().old_responses.push_back(std::move(qp.responses));
  device.by_number[(qp.qpn - kFirstQpn) % kQpsPerDevice] = nullptr;
  device.qps.erase(qp.handle);
}

bool set_qp_state(Qp& qp, QpState to) {
  // Rows: from; bits: to (reset, init, rtr, rts, sqd, sqe, err).
  static constexpr uint8_t kLegal[7] = {0b1000011, 0b1000111, 0b1001001, 0b1011001,
                                        0b1011001, 0b1001001, 0b1000001};
  const QpState from = qp.state;
  if (!(kLegal[static_cast<int>(from)] >> static_cast<int>(to) & 1)) return false;
  qp.state = to;
  if (to == QpState::reset && from != QpState::reset) {
    qp.entry->receiving = 0;
    qp.entry->life.fetch_add(1);
    qp.entry->ack = 0;
    rewind_send_queue(qp);
    qp.receives = 0;
    qp.stream = {};
    qp.initiators.clear();
    qp.last_wqe_reported = false;
    qp.peer_qpn = 0;
    qp.peer_device = -1;
  }
  if (to == QpState::rtr && from == QpState::init) {
    qp.stream.expected_psn = qp.receive_psn_start;
    if (qp.service == Service::rc || qp.service == Service::uc)
      qp.peer_device = find_device(qp.peer_lid, qp.peer_gid, qp.peer_global);
    qp.entry->peer = qp.service == Service::dct
                         ? kAnyPeer
                         : static_cast<uint32_t>(qp.peer_device) << 24 | qp.peer_qpn;
  }
  if (to == QpState::rts && from == QpState::rtr) qp.next_psn = qp.send_psn_start;
  const bool receives =
      to == QpState::rtr || to == QpState::rts || to == QpState::sqd || to == QpState::sqe;
  qp.entry->receiving = receives;
  auto& active = nic().active;
  const bool busy = receives || to == QpState::err;
  const auto found = std::find(active.begin(), active.end(), &qp);
  if (busy && found == active.end()) active.push_back(&qp);
  if (!busy && found != active.end()) active.erase(found);
  if (from != to) log_qp(qp, 1);
  return true;
}

void fail_qp(Qp& qp) {
  if (qp.state == QpState::err) return;
  qp.state = QpState::err;
  qp.entry->receiving = 0;
  log_qp(qp, 1);
}

Cq* create_cq(Device& device) {
  const uint32_t cqn = next_number(shared(device).next_cqn, 0x400, 0xfff000);
  auto& slot = device.cqs[cqn];
  slot = std::make_unique<Cq>();
  slot->device = &device;
  slot->cqn = cqn;
  return slot.get();
}

void destroy_cq(Cq& cq) {
  OracleCq record{};
  record.header = oracle_header(*cq.device, monotonic_ns());
  record.cqn = cq.cqn;
  record.event = 2;
  oracle_log(OracleType::cq, record);
  for (EventChannel* channel : {cq.channel, cq.async_channel}) {
    if (channel) --channel->users;
  }
  cq.device->cqs.erase(cq.cqn);
}

void grant_scatter_to_cqe(Qp& qp, bool receives, bool responses) {
  if (!config().scatter_to_cqe) return;
  const auto room = [](const Cq* cq) { return cq && cq->cqe_bytes == 128 ? 64u : 32u; };
  if (receives && qp.receive_cq) qp.receive_scatter_bytes = room(qp.receive_cq);
  if (!responses || !qp.send_cq || qp.send_blocks == 0) return;
  qp.response_scatter_bytes = room(qp.send_cq);
  const size_t bytes = qp.send_blocks * kResponseBytes;
  auto& old = nic().old_responses;
  const auto fits = std::find_if(old.begin(), old.end(),
                                 [&](const auto& memory) { return memory.size() >= bytes; });
  if (fits == old.end()) {
    qp.responses.resize(bytes);
  } else {
    qp.responses = std::move(*fits);
    old.erase(fits);
  }
}

Srq* create_srq(Device& device) {
  const uint32_t srqn = next_number(shared(device).next_srqn, 0x100, 0xfff000);
  auto& slot = device.srqs[srqn];
  slot = std::make_unique<Srq>();
  slot->srqn = srqn;
  return slot.get();
}

MemoryKey* create_key(Device& device) {
  // The low byte varies, so that a key used after its end is caught.
  const uint32_t index = next_number(shared(device).next_mkey, 0x1800, 0xfe0000);
  MemoryKey& key = device.keys[index];
  key = {};
  key.key = index << 8 | ((index * 37) & 0xff);
  return &key;
}

void log_mr(const Device& device, const MemoryKey& key) {
  OracleMr record{};
  record.header = oracle_header(device, monotonic_ns());
  record.key = key.key;
  record.access = key.access;
  record.address = key.address;
  record.length = key.length;
  record.iova = key.iova;
  oracle_log(OracleType::mr, record);
}

void destroy_key(Device& device, uint32_t key) {
  const auto found = device.keys.find(key >> 8);
  if (found == device.keys.end()) return;
  OracleMr record{};
  record.header = oracle_header(device, monotonic_ns());
  record.key = found->second.key;
  record.event = 2;
  oracle_log(OracleType::mr, record);
  device.keys.erase(found);
}

int find_device(uint16_t lid, const GidBytes& gid, bool by_gid) {
  const auto& devices = config().devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!by_gid) {
      if (!devices[i].ethernet && devices[i].lid == lid) return static_cast<int>(i);
      continue;
    }
    for (const GidConfig& own : devices[i].gids) {
      if (own.bytes == gid) return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace connectx
