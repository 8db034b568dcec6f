// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// DeepEP V1 on NVSHMEM's queues, with device code of its own: no guard of slots (callers stay below
// half the depth), the doorbell every fourth message of a warp, 4-byte inline writes, 32-bit masked
// fetch-and-add, every WQE signaled.
#include "nvshmem_host.h"

namespace models {
namespace {

struct DeepEpPoster : NvshmemDevice {
  static constexpr unsigned kMessagesPerDoorbell = 4;

  uint64_t reserve(unsigned blocks) { return at64(state->mvars.resv_head).fetch_add(blocks); }

  void ring_now(uint64_t end) {
    lock(state->mvars.lock);
    if (max64(state->mvars.prod_idx, end) < end) {
      store_record(record, end);
      ring_doorbell(bf, doorbell_value(ring.qpn, end));
    }
    unlock(state->mvars.lock);
  }

  void submit(uint64_t base, unsigned blocks, unsigned message, bool last) {
    const uint64_t end = base + blocks;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    Spin spin;
    uint64_t expected = base;
    while (!at64(state->mvars.ready_head).compare_exchange_weak(expected, end)) {
      if (fate.over()) return;
      expected = base;
      spin.once();
    }
    if (last || (message + 1) % kMessagesPerDoorbell == 0) ring_now(end);
  }
  void flush(uint64_t) {}
};

struct DeepEp : NvshmemHost<DeepEpPoster> {
  static constexpr const char* kName = "deepep";
  static constexpr bool kSignalsAll = true, kTrailingNop = false;
  bool signals(uint64_t, bool) const { return true; }
  static std::initializer_list<Kind> kinds() {
    static constexpr std::initializer_list<Kind> kAll = {Kind::write, Kind::write, Kind::write,
                                                         Kind::write_inline, Kind::masked_add32};
    return kAll;
  }
  static uint32_t inline_limit() { return 4; }
  static bool fixed_inline() { return true; }
  void open(const Options& options) {
    require(options.posters * (kSlots + 1) * 2 <= options.depth,
            "without a guard of slots the depth must be twice what the posters may have in flight");
    NvshmemHost::open(options);
  }
};

}  // namespace
}  // namespace models

int main(int argc, char** argv) {
  return models::run_model<models::DeepEp>(argc, argv);
}
