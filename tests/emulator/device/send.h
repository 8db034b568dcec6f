// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One WQE onto the wire: local keys checked, the destination found, the request put into the inbox
// of the process that owns it, or served on the spot when that is this process.
#pragma once

#include "nic.h"

namespace connectx {

enum class Sent { yes, later, bad_local_address };  // later: the inbox is full; nothing was sent

struct Destination {
  int device;
  int process;  // -1: no such queue pair
};
Destination destination_of(const Qp& qp, const Wqe& wqe);

// The place of a response that goes into the CQE.
inline uint8_t* response_place(Qp& qp, uint16_t index) {
  return qp.responses.data() + (index & (qp.send_blocks - 1)) * kResponseBytes;
}

Sent send_datagram(Qp& qp, const Wqe& wqe);
// What cannot be delivered (no such queue pair, a loss on request) counts as sent: it is the
// time-out that tells.
Sent send_reliable(Qp& qp, const Wqe& wqe, const Inflight& item);

// Whether the answer to this WQE goes into its CQE.
bool scatters_response(const Qp& qp, const Wqe& wqe);

void count_sent(Qp& qp, const Wqe& wqe);
void log_wqe(const Qp& qp, const Wqe& wqe, const Inflight& item, uint64_t now_ns);

}  // namespace connectx
