// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// RingReader: drains the BPF ring buffer. Records are submitted with BPF_RB_NO_WAKEUP (a wake-up costs
// the job 6-15 us), so nobody is told of them: drain() is called on a timer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/result.h"

struct ring_buffer;

namespace sigma {

class RingReader {
 public:
  // Called with each record whose header is sound; valid during the call only.
  using OnRecord = std::function<void(std::span<const std::byte>)>;

  // `ring_map_fd` stays the caller's.
  static Result<std::unique_ptr<RingReader>> open(int ring_map_fd, OnRecord on_record);
  ~RingReader();
  RingReader(const RingReader&) = delete;
  RingReader& operator=(const RingReader&) = delete;

  // At most this many in one drain(): a job that posts faster than they can be read would otherwise
  // hold the caller in it for good, who then neither governs, nor passes on, nor stops.
  static constexpr size_t kMaxRecords = 65'536;

  // Reads what is there, up to `max_records`; what is left, the next call reads. Returns the number
  // of records.
  Result<size_t> drain(size_t max_records = kMaxRecords);

  // In bytes since the ring was made: what is before `position` has been passed on (the record that `on_record` is
  // called with has not), what is before `produced` has been reserved.
  uint64_t position() const { return pages_.at(0); }
  uint64_t produced() const { return pages_.at(1); }

  uint64_t consumed() const { return consumed_; }
  uint64_t malformed() const { return malformed_; }

 private:
  // The first two pages of the map: each begins with a counter of the kernel's.
  class Pages {
   public:
    ~Pages();
    Status map(int ring_map_fd);
    uint64_t at(size_t page) const;

   private:
    std::byte* memory_ = nullptr;
    size_t page_bytes_ = 0;
  };

  explicit RingReader(OnRecord on_record) : on_record_(std::move(on_record)) {}
  static int on_sample(void* self, void* data, size_t size);

  OnRecord on_record_;
  ring_buffer* ring_ = nullptr;
  Pages pages_;
  size_t left_ = 0;  // of the drain() that runs
  uint64_t consumed_ = 0;
  uint64_t malformed_ = 0;
};

}  // namespace sigma
