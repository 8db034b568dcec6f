// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Receive WQEs: of a queue pair's own ring, an SRQ or an RMP.
#pragma once

#include "nic.h"

namespace connectx {

struct Receive {
  uint16_t index = 0;
  uint32_t srqn = 0;
  SgeList list;
  uint64_t first_address = 0;
  uint32_t first_lkey = 0, segments = 0;
  bool bad_address = false;
  bool scatter = false;  // the list leads to a buffer for the CQE instead of memory
};

bool receive_posted(const Qp& qp);
// Takes the next receive WQE; false: none is posted.
bool take_receive(Qp& qp, Receive& receive);
// A syndrome other than 0 makes it an error completion.
void complete_receive(Qp& qp, const RequestHeader& header, uint8_t opcode, const Receive& receive,
                      uint64_t bytes, uint8_t syndrome);

}  // namespace connectx
