// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Records that the readers make, back to back, each at a multiple of 8 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/huge_pages.h"
#include "bpf/records.h"

namespace sigma {

class RecordBuffer {
 public:
  // Records of one lane. `last_ns`: of the last of them, if they are in order of time; else 0.
  struct Run {
    RecordBytes bytes;
    uint64_t last_ns = 0;
  };

  template <typename Record>
  void add(Record& record, sigma_record_type type, uint32_t pid, uint64_t time_ns) {
    static_assert(sizeof(Record) % 8 == 0);
    record.h.time_ns = time_ns;
    record.h.type = static_cast<uint16_t>(type);
    record.h.size = sizeof(Record);
    record.h.cpu = cpu_;
    record.h.pid = pid;
    record.h.tid = 0;
    if (runs_.empty() || runs_.back().bytes.size() + sizeof(Record) > kRunBytes) begin_run();
    Run& run = runs_.back();
    in_order_ &= time_ns >= newest_ns_;
    newest_ns_ = time_ns;
    run.last_ns = in_order_ ? time_ns : 0;
    const auto* begin = reinterpret_cast<const std::byte*>(&record);
    run.bytes.insert(run.bytes.end(), begin, begin + sizeof(Record));
    bytes_ += sizeof(Record);
  }
  // A lane of its own among those of the CPUs.
  void set_lane(uint32_t cpu) { cpu_ = cpu; }
  size_t bytes() const { return bytes_; }
  // All of it, in place of what is in `runs`, whose room is used again.
  void take(std::vector<Run>& runs) {
    for (Run& used : runs) {
      used.bytes.clear();
      if (used.bytes.capacity() >= kRunBytes && rooms_.size() < kMaxRooms) rooms_.push_back(std::move(used.bytes));
    }
    runs.clear();
    runs.swap(runs_);
    bytes_ = 0;
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
  // Never moved to grow.
  static constexpr size_t kRunBytes = kHugePageBytes;
  static constexpr size_t kMaxRooms = 16;

  void begin_run() {
    Run& run = runs_.emplace_back();
    if (!rooms_.empty()) {
      run.bytes = std::move(rooms_.back());
      rooms_.pop_back();
    }
    run.bytes.reserve(kRunBytes);
    in_order_ = true;
    newest_ns_ = 0;
  }

  std::vector<Run> runs_;
  std::vector<RecordBytes> rooms_;  // empty
  size_t bytes_ = 0;
  uint64_t newest_ns_ = 0;
  bool in_order_ = true;
  uint32_t cpu_ = 0;
};

}  // namespace sigma
