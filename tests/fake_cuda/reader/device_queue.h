// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A send queue and its completions in "device memory", written by the test as GPU threads and a NIC
// would, with a memory of all that was posted: the truth for what the reader says.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "gpu_interpose/registry.h"

namespace rig {

uint64_t now_ns();  // CLOCK_MONOTONIC

struct Posted {
  uint64_t index = 0;
  uint32_t blocks = 1, bytes = 0;
  uint64_t remote_addr = 0;
  uint64_t written_ns = 0;  // it was whole by then: the NIC may have been told any time after
  uint8_t raw_opcode = 0;
};

// A 64-bit word that is stored before the doorbell record, as the stack's producer index is.
enum class Index {
  none,
  right,
  narrow,   // 16 bits of it
  shifted,  // from the start a round of 65,536 ahead
  stopped,  // right, but from `index_until` on it stays what it is
  leaping,  // right, but from there on ten rounds ahead
};

struct Shape {
  uint32_t blocks = 128;     // of the send ring
  uint32_t cq_entries = 0;   // 0: collapsed
  uint64_t first_index = 0;  // where the ring begins to count
  bool doorbell_record = true;
  uint32_t qp_num = 0x4711;
  sigma_gpu_stack stack = SIGMA_GPU_STACK_UNKNOWN;
  Index index = Index::none;
  uint64_t index_until = 0;
};

class DeviceQueue {
 public:
  explicit DeviceQueue(const Shape& shape);
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;

  // As the registry has it.
  sigma_gpu_queue entry() const;
  const Shape& shape() const { return shape_; }

  // One WQE, whole; then the doorbell. Waits for nothing: the caller sees to it that there is room.
  void post(bool two_blocks = false);
  void ring_doorbell();
  bool has_room() const { return posted - completed + 2 <= shape_.blocks; }
  // The NIC has executed all up to here (of the WQEs, not of the blocks).
  void complete_all();
  void complete_next();
  // Executed, and no completion was asked for.
  void complete_unsignaled();
  void fail_next(uint8_t syndrome, uint8_t vendor);

  // The queue pair, not its completion queue, nor the memory, which shows what it was.
  void reset();

  std::atomic<uint64_t> posted{0}, completed{0};  // blocks
  // Of this life.
  std::vector<Posted> truth() const;
  unsigned long long ring_address() const { return ring_; }

 private:
  void write_cqe(const Posted& of, uint8_t op_own, uint8_t syndrome, uint8_t vendor);

  Shape shape_;
  uint64_t index_value() const;

  unsigned long long ring_ = 0, doorbell_ = 0, cq_ = 0;  // device addresses
  uint8_t *ring_at_, *doorbell_at_, *cq_at_;
  mutable std::mutex lock_;
  std::vector<Posted> truth_;
  size_t completed_wqes_ = 0, life_begin_ = 0;
  size_t cqes_ = 0;
  uint32_t life_ = 0;
};

}  // namespace rig
