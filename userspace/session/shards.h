// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Shards: threads that work on records which belong together: all of one queue pair go to one of them,
// in their order. Records travel in rounds: a round takes the next records of all shards, and ends when
// each has done its part.
//
//   Shards shards(4, work, settle);
//   shards.push(shard, {.qp = &qp, .number = n}, record);   // copies the record
//   shards.sync();                 // all of it is done; what the threads read may be changed
//
// Pushed to by one thread, which also calls `settle` after each round, in their order: it may take what
// the threads left of the round. At most kRounds are under way, then push() waits: memory is bounded.
// sync() does a short round itself rather than wake others for it: where what is shared changes all the
// time, the work falls to the caller, without a switch of threads for each record.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "bpf/records.h"

namespace sigma {

struct Qp;
struct Srq;

class Shards {
 public:
  struct Item {
    Qp* qp = nullptr;    // whose record it is; or the shared receive queue's
    Srq* srq = nullptr;
    uint64_t number = 0;
    const sigma_header* record = nullptr;  // whole, aligned to 8 bytes; valid during the work
    bool is_pick_up = false;               // a poll's, of a completion that its ring tells of
  };
  // A shard's part of a round, maybe empty. By one thread at a time; must not throw.
  using Work = std::function<void(uint32_t shard, std::span<const Item> items)>;

  Shards(uint32_t count, Work work, std::function<void()> settle);
  ~Shards();
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;

  void push(uint32_t shard, Item item, std::span<const std::byte> record) {
    Part& part = current().parts[shard];
    const size_t words = (record.size() + 7) / 8;
    if (part.used + words > part.storage.size()) return push_into_next(shard, item, record);
    uint64_t* const at = part.storage.data() + part.used;
    std::memcpy(at, record.data(), record.size());
    part.used += words;
    item.record = reinterpret_cast<const sigma_header*>(at);
    part.items.push_back(item);
    if (++current().records == kRecords) publish();
  }
  void sync();

 private:
  static constexpr size_t kRounds = 6, kRecords = 1024;
  static constexpr size_t kShort = 256;  // records that are sooner done than handed over
  // Records of the data path have at most 128 bytes (bpf/records.h); a part that is full ends the round.
  static constexpr size_t kWords = kRecords * 128 / 8;

  struct Part {
    std::vector<uint64_t> storage;
    size_t used = 0;
    std::vector<Item> items;
  };
  struct Round {
    std::vector<Part> parts;
    size_t records = 0;
    uint32_t left = 0;  // shards that are not done; under the mutex
  };

  Round& current() { return rounds_[published_ % kRounds]; }
  void push_into_next(uint32_t shard, Item item, std::span<const std::byte> record);
  void publish();
  void settle_done();
  void run(uint32_t shard);
  static void clear(Round& round);

  Work work_;
  std::function<void()> settle_;
  std::array<Round, kRounds> rounds_;
  uint64_t published_ = 0;  // rounds; written under the mutex, by the pusher
  uint64_t settled_ = 0;    // the pusher's
  std::mutex mutex_;
  std::condition_variable published_one_, done_one_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sigma
