// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Names: of the InfiniBand PortCounters in sysfs (Documentation/ABI/stable/sysfs-class-infiniband),
// of mlx5 (drivers/infiniband/hw/mlx5/counters.c; meanings: NVIDIA, "Understanding mlx5 Linux
// Counters and Status Parameters"), of soft-RoCE (drivers/infiniband/sw/rxe/rxe_hw_counters.c).
#include "analysis/port_counters.h"

#include <array>

namespace sigma {
namespace {

struct Row {
  std::string_view counter;
  CounterSense sense;
  std::string_view text;
  uint64_t unit_bytes = 0;
};

using enum CounterSense;

constexpr auto kRows = std::to_array<Row>({
    {"out_of_sequence", trouble, "packets came out of order: the network lost or reordered some"},
    {"packet_seq_err", trouble, "a receiver asked for lost packets again"},
    {"implied_nak_seq_err", trouble, "an answer was lost and the request sent again"},
    {"local_ack_timeout_err", trouble,
     "no acknowledgement came in time, and requests were sent again"},
    {"duplicate_request", trouble, "requests came twice: a peer sent them again"},
    {"rnr_nak_retry_err", trouble, "a peer had no receive posted, and requests were sent again"},
    {"out_of_buffer", trouble, "packets were dropped as no receive was posted"},
    {"rx_icrc_encapsulated", trouble, "packets came with a wrong checksum"},
    {"roce_adp_retrans", trouble, "packets were sent again (adaptive retransmission)"},
    {"roce_adp_retrans_to", trouble, "time-outs of adaptive retransmission"},
    {"roce_slow_restart", trouble, "slow restarts after loss"},
    {"roce_slow_restart_trans", trouble, "changes to slow restart after loss"},
    {"symbol_error", trouble, "errors on the cable or its transceivers"},
    {"link_error_recovery", trouble, "the link had to recover"},
    {"link_downed", trouble, "the link went down"},
    {"port_rcv_errors", trouble, "packets were received with errors"},
    {"port_rcv_remote_physical_errors", trouble,
     "packets came marked bad: an earlier link has errors"},
    {"port_rcv_switch_relay_errors", trouble, "a switch could not forward packets"},
    {"port_xmit_discards", trouble, "packets were dropped: the port was down or congested"},
    {"port_xmit_constraint_errors", trouble, "packets were refused at sending (partition)"},
    {"port_rcv_constraint_errors", trouble, "packets were refused at receiving (partition)"},
    {"local_link_integrity_errors", trouble, "the link's error threshold was passed"},
    {"excessive_buffer_overrun_errors", trouble, "buffers overran: flow control does not hold"},
    {"port_xmit_wait", congestion, "data waited for credits or after a pause"},
    {"np_ecn_marked_roce_packets", congestion, "packets came marked by a congested switch (ECN)"},
    {"np_cnp_sent", congestion, "senders were told to slow down (CNP)"},
    {"rp_cnp_handled", congestion, "slowed down, as told by receivers (CNP)"},
    {"rp_cnp_ignored", congestion, "CNPs came and were ignored: congestion control is off"},
    // soft-RoCE
    {"out_of_seq_request", trouble,
     "packets came out of order: the network lost or reordered some"},
    {"rcvd_seq_err", trouble, "a receiver asked for lost packets again"},
    {"rcvd_rnr_err", trouble, "a peer had no receive posted, and requests were sent again"},
    {"send_rnr_err", trouble, "no receive was posted, and the peer was told so"},
    {"retry_exceeded_err", trouble, "requests were given up after all retries"},
    {"retry_rnr_exceeded_err", trouble, "requests were given up: the peer never posted a receive"},
    {"completer_retry_err", trouble, "requests were sent again"},
    {"send_err", trouble, "packets could not be sent"},
    // "divided by 4" (sysfs-class-infiniband)
    {"port_xmit_data", traffic, "", 4},
    {"port_rcv_data", traffic, "", 4},
});

}  // namespace

CounterMeaning meaning_of_counter(std::string_view counter) {
  for (const Row& row : kRows)
    if (row.counter == counter) return {row.sense, row.text, row.unit_bytes};
  return {};
}

void PortCounterTotals::add(uint32_t node, std::string_view device, uint32_t port,
                            std::string_view counter, uint64_t time_ns, uint64_t value) {
  const std::tuple key{node, std::string(device), port, std::string(counter)};
  const auto known = totals_.find(key);
  if (known == totals_.end()) {
    if (totals_.size() < kMaxCounters) totals_[key] = {value, 0, time_ns, time_ns};
    return;
  }
  Total& total = known->second;
  // One that goes back was reset.
  total.increase += value >= total.last ? value - total.last : value;
  total.last = value;
  total.last_ns = time_ns;
}

std::vector<PortCounterChange> PortCounterTotals::changes() const {
  std::vector<PortCounterChange> changes;
  for (const auto& [key, total] : totals_) {
    const auto& [node, device, port, counter] = key;
    changes.push_back({node, device, port, counter, total.increase, total.first_ns, total.last_ns});
  }
  return changes;
}

}  // namespace sigma
