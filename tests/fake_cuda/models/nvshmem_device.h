// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// NVSHMEM's device code: reserve, wait for the slot, write, mark ready in order; the doorbell is
// rung when nobody else has reserved since, or a batch is full.
#pragma once

#include "nvshmem_host.h"

namespace models {

struct NvshmemPoster : NvshmemDevice {
  // In order with other posters: wait until all WQEs before these are ready.
  bool mark_ready(uint64_t base, uint64_t end) {
    Spin spin;
    uint64_t expected = base;
    while (!at64(state->mvars.ready_head).compare_exchange_weak(expected, end)) {
      if (fate.over()) return false;
      expected = base;
      spin.once();
    }
    return true;
  }

  uint64_t reserve(unsigned blocks) {
    const uint64_t base = at64(state->mvars.resv_head).fetch_add(blocks);
    const uint64_t end = base + blocks;
    if (end <= ring.blocks) return base;
    Spin spin;
    while (done(end - ring.blocks) != Done::yes) {
      if (fate.over()) return ~uint64_t{0};
      spin.once();
    }
    max64(state->mvars.cons_idx, end - ring.blocks);
    return base;
  }

  void ring_now(uint64_t end) {
    lock(state->mvars.lock);
    if (max64(state->mvars.prod_idx, end) < end) {
      std::atomic_thread_fence(std::memory_order_seq_cst);
      store_record(record, end);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      ring_doorbell(bf, doorbell_value(ring.qpn, end));
    }
    unlock(state->mvars.lock);
  }

  void submit(uint64_t base, unsigned blocks, unsigned, bool) {
    const uint64_t end = base + blocks;
    if (!mark_ready(base, end)) return;
    const bool alone = at64(state->mvars.resv_head).load() == end;
    const bool crossed = base / batch != end / batch;
    if (alone || crossed || blocks >= batch) ring_now(end);
  }

  // As its quiet operation: whatever is ready is rung.
  void flush(uint64_t) { ring_now(at64(state->mvars.ready_head).load()); }
};

}  // namespace models
