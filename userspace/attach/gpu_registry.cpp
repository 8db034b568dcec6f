// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/gpu_registry.h"

#include <algorithm>
#include <cstring>

namespace sigma {
namespace {

bool is_terminated(const char* text, size_t size) {
  return memchr(text, 0, size) != nullptr;
}

}  // namespace

Result<std::vector<sigma_gpu_queue>> read_gpu_registry(const RemoteMemory& memory,
                                                       uint64_t address, bool with_ended) {
  const auto head = memory.read_object<sigma_gpu_registry>(address);
  if (!head) return Error{"the GPU library's registry cannot be read"};
  if (head->magic != SIGMA_GPU_REGISTRY_MAGIC || head->version != SIGMA_GPU_REGISTRY_VERSION ||
      head->head_bytes != sizeof(sigma_gpu_registry) ||
      head->queue_bytes != sizeof(sigma_gpu_queue))
    return Error{"the GPU library in this process is of another version",
                 "preload the libsigmatrace_gpu.so that came with this sigmatrace"};
  const uint32_t used = std::min<uint32_t>(head->used, SIGMA_GPU_MAX_QUEUES);
  const auto base = reinterpret_cast<uint64_t>(head->queues);
  std::vector<sigma_gpu_queue> queues;
  for (uint32_t i = 0; i < used; ++i) {
    const uint64_t at = base + uint64_t{i} * sizeof(sigma_gpu_queue);
    const auto queue = memory.read_object<sigma_gpu_queue>(at);
    const auto again = memory.read_object<uint32_t>(at + offsetof(sigma_gpu_queue, sequence));
    if (!queue || !again || queue->sequence != *again || *again % 2 != 0) continue;
    const bool wanted = queue->state == SIGMA_GPU_QUEUE_LIVE ||
                        (with_ended && queue->state == SIGMA_GPU_QUEUE_ENDED);
    if (!wanted || !is_terminated(queue->device, sizeof queue->device))
      continue;
    queues.push_back(*queue);
  }
  return queues;
}

std::map<std::pair<std::string, uint32_t>, uint8_t> gpu_tiers(const std::vector<sigma_gpu_queue>& queues) {
  std::map<std::pair<std::string, uint32_t>, uint8_t> tiers;
  for (const sigma_gpu_queue& queue : queues)
    if (queue.tier != SIGMA_GPU_TIER_NONE) tiers[{queue.device, queue.qp_num}] = queue.tier;
  return tiers;
}

std::vector<sigma_qp_peer> to_peer_records(const std::vector<sigma_gpu_queue>& queues,
                                           uint64_t now_ns) {
  std::vector<sigma_qp_peer> records;
  for (const sigma_gpu_queue& queue : queues) {
    if (!(queue.flags & SIGMA_GPU_HAS_PATH) || queue.device[0] == '\0') continue;
    sigma_qp_peer record{};
    record.h.time_ns = now_ns;
    record.h.type = SIGMA_QP_PEER;
    record.h.size = sizeof record;
    static_assert(sizeof queue.device <= sizeof record.device);
    std::memcpy(record.device, queue.device, sizeof queue.device);
    record.qp_num = queue.qp_num;
    record.sq_psn = record.rq_psn = SIGMA_UNKNOWN_PSN;
    record.peer_qp_num = queue.peer_qp_num;
    record.state = queue.qp_state;
    record.qp_type = queue.qp_type;
    records.push_back(record);
  }
  return records;
}

uint64_t address_in_process(const std::vector<Mapping>& maps, const std::string& mapped_as,
                            uint64_t file_offset) {
  for (const Mapping& mapping : maps)
    if (mapping.path == mapped_as && file_offset >= mapping.offset &&
        file_offset - mapping.offset < mapping.end - mapping.start)
      return mapping.start + (file_offset - mapping.offset);
  return 0;
}

}  // namespace sigma
