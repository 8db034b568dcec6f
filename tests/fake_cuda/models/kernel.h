// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What device code has in common: operations, their WQEs, spinning, doorbells.
#pragma once

#include <sched.h>

#include <atomic>

#include "../../emulator/device/peer_memory.h"
#include "host.h"
#include "wqe.h"

namespace models {

enum class Kind : uint8_t {
  nop,
  write,
  write_imm,
  write_inline,
  write_long_inline,
  read,
  add,
  masked_add32,
  masked_add64,
  masked_swap
};

struct Operation {
  Kind kind = Kind::nop;
  uint32_t bytes = 0, lkey = 0, rkey = 0, imm = 0;
  uint64_t local = 0, remote = 0, value = 0, compare = 0;
  uint8_t inline_bytes[192] = {};
};

// Data segments, without control, address and remote segments.
inline unsigned body_segments(const Operation& operation) {
  switch (operation.kind) {
    case Kind::nop:
      return 0;
    case Kind::write:
    case Kind::write_imm:
    case Kind::read:
      return 1;
    case Kind::write_inline:
    case Kind::write_long_inline:
      return WqeWriter::inline_segments(operation.bytes);
    case Kind::masked_swap:
      return 3;
    default:
      return 2;
  }
}

// `address_segments`: of an addressed (DC) queue: 0, 1 or 3.
inline unsigned segments_of(const Operation& operation, unsigned address_segments) {
  return operation.kind == Kind::nop ? 1 : 2 + address_segments + body_segments(operation);
}

struct Ring {
  uint8_t* memory = nullptr;
  uint32_t blocks = 0, qpn = 0;
  unsigned address_segments = 0;
  Target target;
};

inline void write_wqe(const Ring& ring, uint64_t index, const Operation& operation, bool signaled) {
  WqeWriter wqe(ring.memory, ring.blocks, index);
  static constexpr struct {
    uint8_t opcode, opmod;
  } kCodes[] = {{kNop, 0},
                {kWrite, 0},
                {kWriteImm, 0},
                {kWrite, 0},
                {kWrite, 0},
                {kRead, 0},
                {kAtomicFa, 0},
                {kMaskedFa, kAtomicExtended},
                {kMaskedFa, kAtomicExtended | 1},
                {kMaskedCs, kAtomicExtended | 1}};
  const auto code = kCodes[static_cast<size_t>(operation.kind)];
  wqe.control(ring.qpn, code.opcode, code.opmod, signaled ? kSignaled : 0,
              segments_of(operation, ring.address_segments), operation.imm);
  if (operation.kind == Kind::nop) return;
  if (ring.address_segments) wqe.address(ring.target, ring.address_segments == 3);
  wqe.remote(operation.remote, operation.rkey);
  switch (operation.kind) {
    case Kind::write_inline:
    case Kind::write_long_inline:
      wqe.inline_data(operation.inline_bytes, operation.bytes);
      return;
    case Kind::add:
      wqe.atomic_add(operation.value);
      break;
    case Kind::masked_add32:
      wqe.masked_add32(static_cast<uint32_t>(operation.value));
      break;
    case Kind::masked_add64:
      wqe.masked_add64(operation.value);
      break;
    case Kind::masked_swap:
      wqe.masked_swap64(operation.value, operation.compare);
      break;
    default:
      break;
  }
  wqe.data(operation.local, operation.lkey, operation.bytes);
}

// A queue that has failed, or a run that is given up: every loop of device code looks here.
struct Fate {
  std::atomic<uint32_t> syndrome{0};  // the first error seen
  std::atomic<bool> given_up{false};
  bool over() const {
    return given_up.load(std::memory_order_relaxed) || syndrome.load(std::memory_order_relaxed);
  }
  void fail(uint32_t error) {
    uint32_t none = 0;
    syndrome.compare_exchange_strong(none, error);
  }
};

class Spin {
 public:
  void once() {
    if (++turns_ < 200)
      sched_yield();
    else
      pause_us(20);
  }

 private:
  unsigned turns_ = 0;
};

inline std::atomic_ref<uint64_t> at64(uint64_t& word) {
  return std::atomic_ref<uint64_t>(word);
}
inline uint64_t max64(uint64_t& word, uint64_t value) {
  uint64_t old = at64(word).load();
  while (old < value && !at64(word).compare_exchange_weak(old, value)) {
  }
  return old;
}
inline void lock(uint32_t& word) {
  Spin spin;
  for (uint32_t open = 0; !std::atomic_ref<uint32_t>(word).compare_exchange_weak(open, 1); open = 0)
    spin.once();
}
inline void unlock(uint32_t& word) {
  std::atomic_ref<uint32_t>(word).store(0);
}

inline void store_record(uint32_t* record, uint64_t index) {
  __atomic_store_n(record, htobe32(static_cast<uint32_t>(index & 0xffff)), __ATOMIC_RELEASE);
}
// The first 8 bytes of a control segment: index and queue pair.
inline uint64_t doorbell_value(uint32_t qpn, uint64_t index) {
  const uint32_t words[2] = {htobe32(static_cast<uint32_t>(index & 0xffff) << 8),
                             htobe32(qpn << 8)};
  uint64_t value;
  memcpy(&value, words, sizeof value);
  return value;
}
inline void ring_doorbell(uint8_t* where, uint64_t value) {
  __atomic_store_n(reinterpret_cast<uint64_t*>(where), value, __ATOMIC_RELEASE);
  if (connectx_doorbell) connectx_doorbell(where, value);
}

// CQE64 fields, read as device code does.
struct CqeView {
  const uint8_t* cqe;
  uint8_t op_own() const { return __atomic_load_n(cqe + 63, __ATOMIC_ACQUIRE); }
  uint16_t counter() const {
    return be16toh(__atomic_load_n(reinterpret_cast<const uint16_t*>(cqe + 60), __ATOMIC_ACQUIRE));
  }
  uint8_t syndrome() const { return cqe[55]; }
};

enum class Done { no, yes, failed };

// A collapsed CQ: its one entry says how far completion has come. `limit`: an index that completion
// has not passed, less than 65536 ahead.
inline Done collapsed_done(const uint8_t* cqe, uint64_t end, uint64_t limit, Fate& fate) {
  const CqeView view{cqe};
  const uint8_t op_own = view.op_own();
  if (op_own >> 4 == 0xf) return Done::no;
  if (op_own >> 4 == 13) {
    fate.fail(view.syndrome());
    return Done::failed;
  }
  const uint16_t counter = static_cast<uint16_t>(view.counter() + 1);
  const uint64_t completed = limit - static_cast<uint16_t>(limit - counter);
  return completed >= end ? Done::yes : Done::no;
}

}  // namespace models
