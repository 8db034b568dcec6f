// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where a ring is, and whose: what discovery tells the readers.
#pragma once

#include <cstdint>

#include "bpf/config.h"
#include "bpf/records.h"
#include "decode/completion_ring.h"
#include "decode/send_ring.h"
#include "decode/wqe.h"

namespace sigma {

// A queue as its records name it.
struct RingOwner {
  uint32_t pid = 0;
  uint64_t context = 0;
  bool by_file = false;  // `context` is a struct file *
  uint32_t number = 0;   // QP or CQ

  auto operator<=>(const RingOwner&) const = default;
};

// What a handle is of; those of DevX do not say more.
enum class ObjectKind : uint8_t { qp, cq, devx };

struct SendSpec {
  RingOwner owner;
  uint64_t ring_addr = 0, doorbell_addr = 0;  // of the record's first word, as for receives
  uint32_t blocks = 0;
  QpService service = QpService::unknown;
  uint8_t qp_type = 0xff;  // enum ibv_qp_type
  uint32_t send_cqn = 0;   // 0: unknown
  uint32_t slot = 0;       // of sigma_ring_slot; 0: none
  uint32_t slot_life = 0;  // as sigma_ring_slot.life
  uint8_t origin = SIGMA_RING_BY_COMMAND;
  uint8_t initiator = SIGMA_INITIATOR_UNKNOWN;
  uint8_t tier = SIGMA_TIER_NONE;  // of a queue that a GPU posts to: 1
  uint64_t since_ns = 0;  // when the life began, or was found
  // Found in use: the position from which on it is observed, and when nothing stood beyond it yet
  // (0: at since_ns).
  uint64_t first = 0, unread_since_ns = 0;
};

struct CqSpec {
  RingOwner owner;
  uint64_t ring_addr = 0, doorbell_addr = 0;
  CompletionRing ring;
  bool real_time = false;  // its stamps are no cycles
  bool polls_probed = false;
  uint32_t slot = 0;
  uint32_t slot_life = 0;
  uint8_t origin = SIGMA_RING_BY_COMMAND;
  uint64_t since_ns = 0;
  // Likewise: the entry that is read first, and the owner's index.
  uint64_t first = 0, consumed = 0, unread_since_ns = 0;
};

}  // namespace sigma
