// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Stage: a thread that works on items in the order in which another one pushes them.
//
//   Stage<Sample> stage([&](std::span<const Sample> samples) { ... });
//   stage.push(sample); ...
//   stage.finish();      // all of it is done; what the work wrote may be read
//
// Items travel in batches; at most kWaiting of them wait, then push() does. One thread pushes. The
// work must not throw.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace sigma {

template <typename Item>
class Stage {
 public:
  using Work = std::function<void(std::span<const Item>)>;

  explicit Stage(Work work) : work_(std::move(work)), thread_([this] { run(); }) {
    batch_.reserve(kBatch);
  }
  ~Stage() { finish(); }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  void push(const Item& item) {
    batch_.push_back(item);
    if (batch_.size() == kBatch) hand_over();
  }

  // The items so far are done. The stage goes on.
  void drain() {
    hand_over();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.empty() && !busy_; });
  }

  void finish() {
    if (!thread_.joinable()) return;
    hand_over();
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  static constexpr size_t kBatch = 512;
  static constexpr size_t kWaiting = 8;

  void hand_over() {
    if (batch_.empty()) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.size() < kWaiting; });
    waiting_.push_back(std::move(batch_));
    if (free_.empty()) {
      batch_ = {};
    } else {
      batch_ = std::move(free_.back());
      free_.pop_back();
    }
    lock.unlock();
    changed_.notify_all();
    batch_.reserve(kBatch);
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ended_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      std::vector<Item> batch = std::move(waiting_.front());
      waiting_.pop_front();
      busy_ = true;
      lock.unlock();
      changed_.notify_all();
      work_(batch);
      batch.clear();
      lock.lock();
      busy_ = false;
      free_.push_back(std::move(batch));
      if (waiting_.empty()) changed_.notify_all();
    }
  }

  Work work_;
  std::vector<Item> batch_;  // the pusher's
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<Item>> waiting_;
  std::vector<std::vector<Item>> free_;
  bool busy_ = false, ended_ = false;
  std::thread thread_;  // last: it begins at once
};

}  // namespace sigma
