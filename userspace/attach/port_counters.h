// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ports' counters in sysfs, read again and again by a thread of its own: a device may ask its
// firmware for each, and the reader of records must not wait for that.
//
//   PortCounters counters(1s);      // the first samples are taken at once
//   for (auto& sample : counters.take()) ...   // those since the last call, in order of time
//   counters.stop();                // takes the last samples
//
// Values are as they read, cumulative. Of a counter the first value is given, then those that
// differ from the one before, and the last. Bounded: what is not taken in time is left out, and the
// next value tells it all the same.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sigma {

struct CounterSample {
  uint64_t time_ns = 0;  // CLOCK_MONOTONIC
  std::string device;
  uint32_t port = 0;
  std::string counter;
  uint64_t value = 0;
};

// The counters of all ports now, by device, port and name. What is no number is left out.
std::vector<CounterSample> read_port_counters();

class PortCounters {
 public:
  explicit PortCounters(std::chrono::milliseconds interval);
  ~PortCounters();
  PortCounters(const PortCounters&) = delete;
  PortCounters& operator=(const PortCounters&) = delete;

  std::vector<CounterSample> take();
  void stop();

 private:
  void run(std::chrono::milliseconds interval);
  void sample(bool last);

  static constexpr size_t kMaxWaiting = 1 << 16;

  std::mutex mutex_;
  std::condition_variable woken_;
  bool stopping_ = false;
  std::vector<CounterSample> waiting_;
  std::vector<CounterSample> newest_;  // the thread's own
  std::thread thread_;
};

}  // namespace sigma
