// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "send.h"

#include <infiniband/mlx5dv.h>

#include <cstring>

namespace connectx {
namespace {

uint32_t needed_access(uint8_t opcode) {
  const bool writes_here =
      opcode == MLX5_OPCODE_RDMA_READ ||
      (opcode >= MLX5_OPCODE_ATOMIC_CS && opcode <= MLX5_OPCODE_ATOMIC_MASKED_FA);
  return writes_here ? IBV_ACCESS_LOCAL_WRITE : 0;
}

bool carries_data_out(uint8_t opcode) {
  return needed_access(opcode) == 0;
}

uint64_t random_bits() {
  static uint64_t state = config().faults.seed * 0x9e3779b97f4a7c15;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

// On request, or because a link on the way is down.
bool lose_request(const Qp& qp, const Destination& destination) {
  const Fabric& fabric = *nic().fabric;
  if (fabric.devices[qp.device->index].link_down || fabric.devices[destination.device].link_down)
    return true;
  const double drop = config().faults.drop;
  return drop > 0 && static_cast<double>(random_bits() >> 11) * 0x1p-53 < drop;
}

// The local side's addresses; false: a key, range or access is wrong.
bool local_addresses(Device& device, const Wqe& wqe, SgeList& list) {
  for (unsigned i = 0; i < wqe.segments; ++i) {
    const DataSegment& data = wqe.data[i];
    if (wqe.is_inline && data.lkey == MLX5_INVALID_LKEY) {
      if (list.count == kMaxSges) return false;
      list.sges[list.count++] = {data.address, data.length, 0};
    } else if (!translate(device, data.lkey, data.address, data.length, needed_access(wqe.opcode),
                          list)) {
      return false;
    }
  }
  return true;
}

void gather(const SgeList& list, uint8_t* out) {
  for (unsigned i = 0; i < list.count; ++i) {
    memcpy(out, reinterpret_cast<const void*>(list.sges[i].address), list.sges[i].length);
    out += list.sges[i].length;
  }
}

void fill_header(const Qp& qp, const Wqe& wqe, Destination destination, uint32_t psn,
                 RequestHeader& header) {
  memset(&header, 0, sizeof header);
  header.source_process = nic().process;
  header.source_qpn = qp.qpn;
  header.source_device = static_cast<uint8_t>(qp.device->index);
  header.destination_device = static_cast<uint8_t>(destination.device);
  header.destination_qpn = qp.addressed() ? wqe.address.qpn : qp.peer_qpn;
  header.opcode = wqe.opcode;
  header.solicited = wqe.solicited();
  header.psn = psn;
  header.source_life = qp.entry->life.load(std::memory_order_relaxed);
  header.immediate = wqe.immediate;
  header.rkey = wqe.rkey;
  header.remote_address = wqe.remote_address;
  header.length = wqe.bytes;
  header.operand = wqe.operand;
  header.compare = wqe.compare;
  header.operand_mask = wqe.operand_mask;
  header.compare_mask = wqe.compare_mask;
  header.atomic_bytes = wqe.atomic_bytes;
  header.source_lid = qp.device->config->lid;
  header.service_level = qp.addressed() ? wqe.address.service_level : qp.service_level;
  header.traffic_class = qp.addressed() ? wqe.address.traffic_class : qp.traffic_class;
  header.global_route =
      qp.addressed() ? (wqe.address.global_route || qp.device->config->ethernet) : qp.peer_global;
  // A Q_Key with its top bit set stands for the queue pair's own.
  header.dc_key = wqe.address.dc_key;
  header.qkey = wqe.address.qkey & 0x80000000u ? qp.qkey : wqe.address.qkey;
  if (!qp.device->config->gids.empty())
    memcpy(header.source_gid, qp.device->config->gids[0].bytes.data(), sizeof header.source_gid);
  memcpy(header.destination_gid, wqe.address.rgid, sizeof header.destination_gid);
}

}  // namespace

Destination destination_of(const Qp& qp, const Wqe& wqe) {
  int device = qp.peer_device;
  uint32_t qpn = qp.peer_qpn;
  if (qp.addressed()) {
    GidBytes gid;
    memcpy(gid.data(), wqe.address.rgid, gid.size());
    device =
        find_device(wqe.address.rlid, gid, wqe.address.global_route || qp.device->config->ethernet);
    qpn = wqe.address.qpn;
  }
  if (device < 0) return {device, -1};
  const QpEntry& entry = qp_entry(*nic().fabric, device, qpn);
  return {device, static_cast<int>(entry.owner.load(std::memory_order_acquire)) - 1};
}

void count_sent(Qp& qp, const Wqe& wqe) {
  uint64_t* counters = qp.device->counters;
  const uint64_t bytes = carries_data_out(wqe.opcode) ? wqe.bytes : 0;
  const uint64_t mtu = 128u << qp.path_mtu;
  const uint64_t packets = bytes <= mtu ? 1 : (bytes + mtu - 1) / mtu;
  counters[port_xmit_data] += (bytes + 3) / 4;
  counters[port_xmit_packets] += packets;
  counters[unicast_xmit_packets] += packets;
}

Sent send_datagram(Qp& qp, const Wqe& wqe) {
  static Datagram datagram;
  SgeList list;
  if (!local_addresses(*qp.device, wqe, list)) return Sent::bad_local_address;
  const Destination destination = destination_of(qp, wqe);
  if (destination.process < 0 || lose_request(qp, destination)) {
    if (destination.process >= 0) log_wire(qp, WireEvent::lost, 0, 0);
    return Sent::yes;  // unreliable: it leaves, and nobody hears
  }
  Fabric& fabric = *nic().fabric;
  const bool here = destination.process == static_cast<int>(nic().process);
  if (!here && fabric.processes[destination.process].datagrams.full()) return Sent::later;
  fill_header(qp, wqe, destination, 0, datagram.header);
  gather(list, datagram.payload);
  if (here) {
    serve_datagram(datagram);
    return Sent::yes;
  }
  if (!fabric.processes[destination.process].datagrams.push(datagram)) return Sent::later;
  wake_process(fabric, destination.process);
  return Sent::yes;
}

bool scatters_response(const Qp& qp, const Wqe& wqe) {
  return wqe.signaled() && !carries_data_out(wqe.opcode) && wqe.bytes > 0 &&
         wqe.bytes <= qp.response_scatter_bytes;
}

Sent send_reliable(Qp& qp, const Wqe& wqe, const Inflight& item) {
  static Request request;
  SgeList list;
  if (!local_addresses(*qp.device, wqe, list)) return Sent::bad_local_address;
  const Destination destination = destination_of(qp, wqe);
  if (destination.process < 0) return Sent::yes;  // into the void: the time-out will tell
  if (lose_request(qp, destination)) {
    log_wire(qp, WireEvent::lost, item.psn, 0);
    return Sent::yes;
  }
  if (item.scattered) {
    list.count = 1;
    list.sges[0] = {reinterpret_cast<uint64_t>(response_place(qp, item.index)),
                    static_cast<uint32_t>(wqe.bytes), 0};
  }
  Fabric& fabric = *nic().fabric;
  const bool here = destination.process == static_cast<int>(nic().process);
  if (!here && fabric.processes[destination.process].requests.full()) return Sent::later;
  fill_header(qp, wqe, destination, item.psn, request.header);
  request.header.connects = item.connects;
  if (!here && carries_data_out(wqe.opcode) && wqe.bytes <= kInlineBytes) {
    request.header.carries_payload = 1;
    gather(list, request.payload);
  } else {
    request.header.sge_count = list.count;
    memcpy(request.sges, list.sges, list.count * sizeof(Sge));
  }
  if (here) {
    serve_request(request);
    return Sent::yes;
  }
  if (!fabric.processes[destination.process].requests.push(request)) return Sent::later;
  wake_process(fabric, destination.process);
  return Sent::yes;
}

void log_wqe(const Qp& qp, const Wqe& wqe, const Inflight& item, uint64_t now_ns) {
  if (!oracle_on()) return;
  OracleSendWqe record{};
  record.header = oracle_header(*qp.device, now_ns);
  record.qpn = qp.qpn;
  record.life = qp.entry->life.load(std::memory_order_relaxed);
  record.position = item.position;
  record.opcode = wqe.opcode;
  record.opmod = wqe.opmod;
  record.fm_ce_se = wqe.fm_ce_se;
  record.ds = wqe.ds;
  record.basic_blocks = wqe.basic_blocks;
  record.segments = static_cast<uint8_t>(wqe.is_inline ? 0 : wqe.segments);
  record.is_inline = wqe.is_inline;
  record.syndrome = item.syndrome;
  record.bytes = wqe.bytes;
  record.local_address = wqe.is_inline || wqe.segments == 0 ? 0 : wqe.data[0].address;
  record.lkey = wqe.is_inline || wqe.segments == 0 ? 0 : wqe.data[0].lkey;
  record.rkey = wqe.rkey;
  record.remote_address = wqe.remote_address;
  record.immediate = be32toh(wqe.immediate);
  record.destination_qpn = qp.addressed() ? wqe.address.qpn : qp.peer_qpn;
  record.destination_device = static_cast<uint32_t>(destination_of(qp, wqe).device);
  record.psn = item.psn;
  record.operand = wqe.operand;
  record.compare = wqe.compare;
  oracle_log(OracleType::send_wqe, record);
}

}  // namespace connectx
