// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reorder: records of many CPUs, passed on in order of time.
//
// A BPF program takes its time stamp before it reserves ring space, so records of different CPUs (and,
// when a program is preempted between the two, of one CPU) stand out of order in the ring: 0.12% of
// them, by up to 3.4 ms, in measurements on a busy machine; a virtual CPU that is not run between the
// two makes it tens of milliseconds. Each record is held for `window_ns`; what
// arrives later than that is passed on at once and counted as late.
//
// Copies single records, and keeps whole runs as they are. Single-threaded. Memory: the records of one
// window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <span>
#include <vector>

#include "base/huge_pages.h"
#include "bpf/records.h"

namespace sigma {

inline constexpr uint64_t kReorderWindowNs = 100'000'000;

class Reorder {
 public:
  using Deliver = std::function<void(std::span<const std::byte>)>;

  explicit Reorder(Deliver deliver, uint64_t window_ns = kReorderWindowNs);

  // `record` begins with a sigma_header whose size is record.size(); the caller has checked that.
  void push(std::span<const std::byte> record);

  // A run of one CPU's records, back to back. `last_ns`: of the last of them, if they are in order of time; else
  // 0. A long run is taken as it is; `records` comes back empty, with room that was used before.
  void push_run(RecordBytes& records, uint64_t last_ns);
  static constexpr size_t kLongRunBytes = 64 * 1024;

  // Passes on every record that is older than the window. `now_ns` is CLOCK_MONOTONIC, read *before*
  // the ring was drained: a record stamped earlier than that may otherwise still be in the ring.
  void release(uint64_t now_ns);

  // Passes on everything.
  void flush();

  uint64_t late() const { return late_; }
  size_t held_bytes() const;

 private:
  struct Chunk {
    RecordBytes bytes;
    bool is_run = false;
    size_t begin = 0;  // what has been passed on is before it
    bool empty() const { return begin == bytes.size(); }
  };
  // Records of one CPU, oldest first; no chunk is empty.
  struct Lane {
    std::deque<Chunk> chunks;
    uint64_t last_ns = 0;

    bool empty() const { return chunks.empty(); }
    // As its youngest.
    bool takes(uint64_t time_ns) const { return empty() || time_ns >= last_ns; }
    const sigma_header& front() const {
      return *reinterpret_cast<const sigma_header*>(chunks.front().bytes.data() + chunks.front().begin);
    }
  };
  struct Head {
    uint64_t time_ns;
    size_t number;  // of the lane: of one time, what came first stands in the first
    Lane* lane;
    bool operator>(const Head& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : number > other.number;
    }
  };

  Lane& lane_for(uint32_t cpu, uint64_t time_ns);
  void append(Lane& lane, std::span<const std::byte> record);
  void insert_by_time(Lane& lane, std::span<const std::byte> record);
  void pass_on(Lane& lane, uint64_t before_ns);
  // Empty bytes with room, to be used again: those of runs, and those of our own chunks.
  struct Rooms {
    std::vector<RecordBytes> all;
    size_t bytes = 0;

    RecordBytes take();
    void keep(RecordBytes&& room);
  };
  void release_until(uint64_t limit_ns);

  Deliver deliver_;
  uint64_t window_ns_;
  uint64_t released_ns_ = 0;
  uint64_t late_ = 0;
  std::vector<std::vector<Lane>> cpus_;
  Rooms rooms_, run_rooms_;
};

}  // namespace sigma
