// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "session/shards.h"

#include <algorithm>
#include <utility>

namespace sigma {

Shards::Shards(uint32_t count, Work work, std::function<void()> settle)
    : work_(std::move(work)), settle_(std::move(settle)) {
  for (Round& round : rounds_) {
    round.parts.resize(count);
    // Shared out evenly, and some to spare: a part that is full ends the round early.
    for (Part& part : round.parts)
      part.storage.resize(std::min(kWords, 2 * kWords / count + kWords / kRecords));
  }
  for (uint32_t i = 0; i < count; ++i) threads_.emplace_back([this, i] { run(i); });
}

Shards::~Shards() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  published_one_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Shards::push_into_next(uint32_t shard, Item item, std::span<const std::byte> record) {
  publish();
  Part& part = current().parts[shard];
  const size_t words = (record.size() + 7) / 8;
  if (words > part.storage.size()) part.storage.resize(words);
  push(shard, item, record);
}

void Shards::publish() {
  std::unique_lock lock(mutex_);
  current().left = static_cast<uint32_t>(threads_.size());
  ++published_;
  published_one_.notify_all();
  // The next one is free when its records of before are done.
  done_one_.wait(lock, [&] { return current().left == 0; });
  lock.unlock();
  settle_done();
}

// In the order of the rounds: those of which no shard has anything left.
void Shards::settle_done() {
  for (; settled_ < published_; ++settled_) {
    Round& round = rounds_[settled_ % kRounds];
    {
      const std::lock_guard lock(mutex_);
      if (round.left != 0) return;
    }
    clear(round);
    settle_();
  }
}

void Shards::clear(Round& round) {
  for (Part& part : round.parts) {
    part.used = 0;
    part.items.clear();
  }
  round.records = 0;
}

void Shards::sync() {
  if (current().records >= kShort) publish();
  if (settled_ < published_) {
    std::unique_lock lock(mutex_);
    done_one_.wait(lock, [&] {
      return std::all_of(rounds_.begin(), rounds_.end(), [](const Round& round) { return round.left == 0; });
    });
    lock.unlock();
    settle_done();
  }
  Round& round = current();
  if (round.records == 0) return;
  for (uint32_t i = 0; i < round.parts.size(); ++i) work_(i, round.parts[i].items);
  clear(round);
  settle_();
}

void Shards::run(uint32_t shard) {
  uint64_t next = 0;
  std::unique_lock lock(mutex_);
  for (;; ++next) {
    published_one_.wait(lock, [&] { return stopping_ || published_ > next; });
    if (published_ <= next) return;
    Round& round = rounds_[next % kRounds];
    lock.unlock();
    work_(shard, round.parts[shard].items);
    lock.lock();
    if (--round.left == 0) done_one_.notify_all();
  }
}

}  // namespace sigma
