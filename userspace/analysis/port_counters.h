// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What ports' counters did while a trace ran: how far each went on, and what that means.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace sigma {

// What it tells when a counter goes on.
enum class CounterSense : uint8_t {
  traffic,     // that data went, or nothing that we know of
  congestion,  // marks and notifications: the network slows senders down, as it is meant to
  trouble,     // loss, retransmission, errors: not to be seen in health
};
struct CounterMeaning {
  CounterSense sense = CounterSense::traffic;
  std::string_view text;
  uint64_t unit_bytes = 0;  // each count stands for so many; 0: it counts no bytes
};
CounterMeaning meaning_of_counter(std::string_view counter);

struct PortCounterChange {
  uint32_t node = 0;
  std::string device;
  uint32_t port = 0;
  std::string counter;
  uint64_t increase = 0;
  uint64_t first_ns = 0, last_ns = 0;  // of the samples
};

// Adds samples up; of each counter in order of time. At most kMaxCounters different ones.
class PortCounterTotals {
 public:
  static constexpr size_t kMaxCounters = 1 << 16;

  void add(uint32_t node, std::string_view device, uint32_t port, std::string_view counter,
           uint64_t time_ns, uint64_t value);
  // By node, device, port, counter; those that did not move as well.
  std::vector<PortCounterChange> changes() const;

 private:
  struct Total {
    uint64_t last = 0, increase = 0, first_ns = 0, last_ns = 0;
  };
  std::map<std::tuple<uint32_t, std::string, uint32_t, std::string>, Total> totals_;
};

}  // namespace sigma
