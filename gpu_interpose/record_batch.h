// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Records on their way out, packed one behind the other as sigmatrace_gpu_emit takes them. One
// thread.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bpf/records.h"

namespace sigma::gpu {

class RecordBatch {
 public:
  // Of one call: what the tracer's probe copies at most.
  static constexpr uint32_t kMaxBytes = 8192, kMaxRecords = 64;
  using Emit = void (*)(const void* records, uint32_t bytes);

  explicit RecordBatch(Emit emit) : emit_(emit) {}

  // The header's other fields are the probe's to fill.
  template <typename Record>
  void add(Record& record, sigma_record_type type) {
    static_assert(sizeof(Record) % 8 == 0 && sizeof(Record) <= kMaxBytes);
    if (used_ + sizeof(Record) > kMaxBytes || records_ == kMaxRecords) flush();
    record.h.type = static_cast<uint16_t>(type);
    record.h.size = sizeof(Record);
    memcpy(bytes_ + used_, &record, sizeof(Record));
    used_ += sizeof(Record);
    ++records_;
  }
  void flush() {
    if (records_ > 0) emit_(bytes_, used_);
    used_ = records_ = 0;
  }

 private:
  Emit emit_;
  uint32_t used_ = 0, records_ = 0;
  alignas(8) uint8_t bytes_[kMaxBytes] = {};
};

}  // namespace sigma::gpu
