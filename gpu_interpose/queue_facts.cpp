// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/queue_facts.h"

#include <infiniband/verbs.h>
#include <string.h>

namespace sigma::gpu {
namespace {

bool reachable_by_gpu(uint8_t memory) {
  return memory == SIGMA_GPU_MEMORY_REGISTERED || memory == SIGMA_GPU_MEMORY_DEVICE ||
         memory == SIGMA_GPU_MEMORY_MANAGED;
}

uint8_t mtu_of(uint32_t bytes) {
  uint8_t mtu = 0;
  for (uint32_t each = IBV_MTU_256; each <= IBV_MTU_4096; ++each)
    if (128u << each == bytes) mtu = static_cast<uint8_t>(each);
  return mtu;
}

}  // namespace

void classify(sigma_gpu_queue& queue) {
  const bool initiated = reachable_by_gpu(queue.ring_memory) ||
                         reachable_by_gpu(queue.doorbell_memory) ||
                         (queue.flags & SIGMA_GPU_UAR_MAPPED);
  if (!initiated) return;
  queue.flags |= SIGMA_GPU_INITIATED;
  if (on_host(queue.ring_memory)) {
    queue.tier = 1;
    queue.reason = SIGMA_GPU_REASON_NONE;
  } else if (queue.tier == 1 || queue.tier == SIGMA_GPU_TIER_NONE) {  // else the reader has chosen
    queue.tier = 0;
    queue.reason = queue.ring_memory == SIGMA_GPU_MEMORY_UNKNOWN ? SIGMA_GPU_REASON_UNKNOWN_MEMORY
                                                                 : SIGMA_GPU_REASON_DEVICE_MEMORY;
  }
}

void apply_attributes(sigma_gpu_queue& queue, const PrmFacts& facts) {
  const auto take = [](auto& field, const auto& fact) {
    if (fact) field = static_cast<std::remove_reference_t<decltype(field)>>(*fact);
  };
  take(queue.qp_state, facts.to_state);
  take(queue.peer_qp_num, facts.peer_qp_num);
  take(queue.peer_lid, facts.peer_lid);
  take(queue.udp_sport, facts.udp_source_port);
  take(queue.dscp, facts.dscp);
  take(queue.traffic_class, facts.traffic_class);
  take(queue.sl, facts.service_level);
  take(queue.hop_limit, facts.hop_limit);
  take(queue.gid_index, facts.source_gid_index);
  take(queue.port, facts.port);
  take(queue.ack_timeout, facts.ack_timeout);
  take(queue.retries, facts.retry_count);
  take(queue.rnr_retries, facts.rnr_retry);
  if (facts.mtu_bytes) queue.mtu = mtu_of(*facts.mtu_bytes);
  if (facts.peer_gid) memcpy(queue.peer_gid, facts.peer_gid->data(), sizeof queue.peer_gid);
  if (facts.to_state == IBV_QPS_RTR) queue.flags |= SIGMA_GPU_HAS_PATH;
  if (facts.to_state == IBV_QPS_RTS) queue.flags |= SIGMA_GPU_HAS_RETRIES;
}

bool overlaps(uint64_t address, uint64_t bytes, uint64_t begin, uint64_t length) {
  return address && address < begin + length && begin < address + bytes;
}

bool stands_in(const sigma_gpu_queue& queue, uint64_t begin, uint64_t bytes) {
  return overlaps(queue.ring_addr, queue.ring_entries * uint64_t{64}, begin, bytes) ||
         overlaps(queue.doorbell_addr, 8, begin, bytes) ||
         overlaps(queue.cq_addr, queue.cq_entries * uint64_t{queue.cqe_bytes}, begin, bytes);
}

}  // namespace sigma::gpu
