// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Layouts: infiniband/mlx5dv.h, written out by byte offsets.
#include "reader/device_queue.h"

#include <infiniband/verbs.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cuda_driver.h"
#include "driver/device_side.h"

namespace rig {
namespace {

constexpr size_t kIndexAt = 32;  // behind the doorbell record

void put32(uint8_t* at, uint32_t value) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
}
void put64(uint8_t* at, uint64_t value) {
  put32(at, static_cast<uint32_t>(value >> 32));
  put32(at + 4, static_cast<uint32_t>(value));
}
uint8_t* device_memory(CUdeviceptr& pointer, size_t bytes) {
  if (cuMemAlloc_v2(&pointer, bytes) != CUDA_SUCCESS) abort();
  auto* at = static_cast<uint8_t*>(fake_gpu_address(pointer, bytes));
  if (!at) abort();
  memset(at, 0, bytes);
  return at;
}

}  // namespace

uint64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

DeviceQueue::DeviceQueue(const Shape& shape) : shape_(shape) {
  ring_at_ = device_memory(ring_, shape.blocks * 64);
  doorbell_at_ = device_memory(doorbell_, 64);
  const size_t cq_bytes = (shape.cq_entries ? shape.cq_entries : 1) * 64;
  cq_at_ = device_memory(cq_, cq_bytes);
  for (size_t at = 0; at < cq_bytes; at += 64) {
    memset(cq_at_ + at, 0xff, 64);
    cq_at_[at + 63] = 0xf1;
  }
  posted = completed = shape.first_index;
  put32(doorbell_at_ + 4, static_cast<uint32_t>(shape.first_index & 0xffff));
}

DeviceQueue::~DeviceQueue() {
  cuMemFree_v2(ring_);
  cuMemFree_v2(doorbell_);
  cuMemFree_v2(cq_);
}

sigma_gpu_queue DeviceQueue::entry() const {
  sigma_gpu_queue queue{};
  queue.state = SIGMA_GPU_QUEUE_LIVE;
  queue.flags = SIGMA_GPU_INITIATED;
  if (!shape_.cq_entries) queue.flags |= SIGMA_GPU_COLLAPSED | SIGMA_GPU_OVERRUN;
  queue.context = 0xc0de;
  queue.created_ns = 1 + life_;
  queue.life = life_;
  queue.qp_num = shape_.qp_num;
  queue.cqn = shape_.qp_num + 1;
  queue.ring_addr = ring_;
  queue.ring_entries = shape_.blocks;
  queue.ring_memory = SIGMA_GPU_MEMORY_DEVICE;
  queue.doorbell_addr = shape_.doorbell_record ? doorbell_ : 0;
  queue.doorbell_memory = SIGMA_GPU_MEMORY_DEVICE;
  queue.cq_addr = cq_;
  queue.cq_entries = shape_.cq_entries ? shape_.cq_entries : 1;
  queue.cqe_bytes = 64;
  queue.cq_memory = SIGMA_GPU_MEMORY_DEVICE;
  queue.stack = static_cast<uint8_t>(shape_.stack);
  if (shape_.index != Index::none) {
    queue.index_addr = doorbell_ + kIndexAt;
    queue.index_bytes = 8;
    queue.index_memory = SIGMA_GPU_MEMORY_DEVICE;
    queue.index_state = SIGMA_GPU_INDEX_FOUND;
  }
  queue.qp_type = IBV_QPT_RC;
  queue.qp_state = IBV_QPS_RTS;
  return queue;
}

// An RDMA write; of two blocks with two data segments more than fit in one. The control segment's
// index last, as nobody is obliged to.
void DeviceQueue::post(bool two_blocks) {
  Posted wqe;
  wqe.index = posted;
  wqe.blocks = two_blocks ? 2 : 1;
  wqe.raw_opcode = 0x08;
  const uint32_t segments = two_blocks ? 4 : 1, units = 2 + segments;
  wqe.remote_addr = 0x5000'0000'0000 + wqe.index * 4096;
  wqe.bytes = static_cast<uint32_t>(segments * (64 + wqe.index % 1000));
  const auto at = [&](size_t byte) {
    return ring_at_ + ((wqe.index % shape_.blocks) * 64 + byte) % (shape_.blocks * 64);
  };
  put64(at(16), wqe.remote_addr);
  put32(at(24), 0xabc);
  for (uint32_t i = 0; i < segments; ++i) {
    put32(at(32 + 16 * i), wqe.bytes / segments);
    put32(at(36 + 16 * i), 0xdef);
    put64(at(40 + 16 * i), 0x6000'0000'0000 + wqe.index * 8 + i);
  }
  put32(at(4), shape_.qp_num << 8 | units);
  at(0)[11] = 0x08;  // asks for a completion
  put32(at(0), static_cast<uint32_t>(wqe.index & 0xffff) << 8 | wqe.raw_opcode);
  wqe.written_ns = now_ns();
  const std::lock_guard hold(lock_);
  truth_.push_back(wqe);
  posted += wqe.blocks;
}

uint64_t DeviceQueue::index_value() const {
  constexpr uint64_t kRound = 65'536;
  switch (shape_.index) {
    case Index::none:
    case Index::right:
      return posted;
    case Index::narrow:
      return posted % kRound;
    case Index::shifted:
      return posted + kRound;
    case Index::stopped:
      return std::min<uint64_t>(posted, shape_.index_until);
    case Index::leaping:
      break;
  }
  return posted < shape_.index_until ? uint64_t{posted} : posted + 10 * kRound;
}

void DeviceQueue::ring_doorbell() {
  std::atomic_thread_fence(std::memory_order_release);
  __atomic_store_n(reinterpret_cast<uint64_t*>(doorbell_at_ + kIndexAt), index_value(),
                   __ATOMIC_RELEASE);
  if (shape_.doorbell_record) {
    uint8_t value[4];
    put32(value, static_cast<uint32_t>(posted & 0xffff));
    uint32_t word;
    memcpy(&word, value, 4);
    __atomic_store_n(reinterpret_cast<uint32_t*>(doorbell_at_ + 4), word, __ATOMIC_RELEASE);
  }
}

void DeviceQueue::write_cqe(const Posted& of, uint8_t op_own, uint8_t syndrome, uint8_t vendor) {
  const size_t n = cqes_++;
  const uint32_t entries = shape_.cq_entries;
  uint8_t* at = cq_at_ + (entries ? n % entries * 64 : 0);
  if (entries && (n / entries & 1)) op_own |= 1;
  uint8_t cqe[64] = {};
  put64(cqe + 48, 1'000'000 + n);
  cqe[54] = vendor;
  cqe[55] = syndrome;
  put32(cqe + 56, static_cast<uint32_t>(of.raw_opcode) << 24 | shape_.qp_num);
  cqe[60] = static_cast<uint8_t>(of.index >> 8);
  cqe[61] = static_cast<uint8_t>(of.index);
  if (!syndrome) put64(cqe + 48, 1'000'000 + n);
  memcpy(at, cqe, 63);
  __atomic_store_n(at + 63, op_own, __ATOMIC_RELEASE);
}

void DeviceQueue::complete_next() {
  Posted wqe;
  {
    const std::lock_guard hold(lock_);
    if (completed_wqes_ == truth_.size()) return;
    wqe = truth_[completed_wqes_];
  }
  write_cqe(wqe, 0x00, 0, 0);
  ++completed_wqes_;
  completed += wqe.blocks;
}

void DeviceQueue::complete_unsignaled() {
  const std::lock_guard hold(lock_);
  completed += truth_[completed_wqes_++].blocks;
}

void DeviceQueue::complete_all() {
  while (completed < posted) complete_next();
}

void DeviceQueue::fail_next(uint8_t syndrome, uint8_t vendor) {
  const Posted wqe = [&] {
    const std::lock_guard hold(lock_);
    return truth_[completed_wqes_];
  }();
  write_cqe(wqe, 0xd0, syndrome, vendor);
  ++completed_wqes_;
  completed += wqe.blocks;
}

void DeviceQueue::reset() {
  const std::lock_guard hold(lock_);
  life_begin_ = completed_wqes_ = truth_.size();
  posted = completed = 0;
  shape_.first_index = 0;
  ++life_;
}

std::vector<Posted> DeviceQueue::truth() const {
  const std::lock_guard hold(lock_);
  return {truth_.begin() + static_cast<ptrdiff_t>(life_begin_), truth_.end()};
}

}  // namespace rig
