// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SpareEvents: what happened to processes while the ring was full (bpf/maps.h, spare_events), each to be told in its
// place among the ring's records:
//
//   spare->read();                                              // before the ring is drained
//   while (const auto event = spare->take(ring->position()))    // before each of its records, and at the end
//
// Single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "base/result.h"
#include "bpf/config.h"

struct ring_buffer;

namespace sigma {

class SpareEvents {
 public:
  // `map_fd` stays the caller's.
  static Result<std::unique_ptr<SpareEvents>> open(int map_fd);
  ~SpareEvents();
  SpareEvents(const SpareEvents&) = delete;
  SpareEvents& operator=(const SpareEvents&) = delete;

  Status read();
  bool empty() const { return events_.empty(); }
  // The oldest, if all that came before it in the ring is before `position`.
  std::optional<sigma_process> take(uint64_t position);

  uint64_t consumed() const { return consumed_; }

 private:
  SpareEvents() = default;
  static int on_sample(void* self, void* data, size_t size);

  ring_buffer* ring_ = nullptr;
  std::deque<sigma_spare_event> events_;
  uint64_t consumed_ = 0;
};

}  // namespace sigma
