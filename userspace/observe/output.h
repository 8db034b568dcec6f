// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Records that the readers make, back to back, each at a multiple of 8 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "bpf/records.h"

namespace sigma {

class RecordBuffer {
 public:
  template <typename Record>
  void add(Record& record, sigma_record_type type, uint32_t pid, uint64_t time_ns) {
    static_assert(sizeof(Record) % 8 == 0);
    record.h.time_ns = time_ns;
    record.h.type = static_cast<uint16_t>(type);
    record.h.size = sizeof(Record);
    record.h.cpu = cpu_;
    record.h.pid = pid;
    record.h.tid = 0;
    in_order_ &= time_ns >= last_ns_;
    last_ns_ = time_ns;
    const auto* begin = reinterpret_cast<const std::byte*>(&record);
    bytes_.insert(bytes_.end(), begin, begin + sizeof(Record));
  }
  // A lane of its own among those of the CPUs.
  void set_lane(uint32_t cpu) { cpu_ = cpu; }
  size_t bytes() const { return bytes_.size(); }
  // All of it, for the empty `bytes` with its room. Returns the time of the last record, if they are in
  // order of time; else 0.
  uint64_t take(std::vector<std::byte>& bytes) {
    bytes_.swap(bytes);
    const uint64_t last_ns = in_order_ ? last_ns_ : 0;
    in_order_ = true;
    last_ns_ = 0;
    return last_ns;
  }

  template <typename F>
  static void for_each(std::span<const std::byte> bytes, F&& f) {
    while (!bytes.empty()) {
      const auto* header = reinterpret_cast<const sigma_header*>(bytes.data());
      f(bytes.first(header->size));
      bytes = bytes.subspan(header->size);
    }
  }

 private:
  std::vector<std::byte> bytes_;
  uint64_t last_ns_ = 0;
  bool in_order_ = true;
  uint32_t cpu_ = 0;
};

}  // namespace sigma
