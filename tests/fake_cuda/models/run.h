// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Runs a model: makes its queues, each connected to itself, launches the kernel that posts through
// them, verifies every operation's data, and says what was posted.
//
// A Stack has: kName, kSignalsAll, kTrailingNop; kinds() and inline_limit(); create(), connect(),
// publish(), destroy(); and for each queue a Device with what the device code does: reserve(),
// submit(), flush(), done(). Of those that can: reset(), to RESET and all indices to 0.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <initializer_list>
#include <vector>

#include "kernel.h"
#include "measured.h"

namespace models {

inline constexpr unsigned kSlots = 16;  // operations of one poster in flight
inline constexpr uint32_t kHalf = 256;  // a slot: where from, where to
inline constexpr uint64_t kNoRoom = ~uint64_t{0};

struct Slot {
  Operation operation;
  uint64_t before = 0, seed = 0;
  uint8_t *from = nullptr, *to = nullptr;
};

inline void fill(uint8_t* at, uint32_t bytes, uint64_t seed) {
  Random random(seed);
  for (uint32_t i = 0; i < bytes; ++i) at[i] = static_cast<uint8_t>(random.next());
}
inline bool filled(const uint8_t* at, uint32_t bytes, uint64_t seed) {
  Random random(seed);
  for (uint32_t i = 0; i < bytes; ++i)
    if (at[i] != static_cast<uint8_t>(random.next())) return false;
  return true;
}
inline uint64_t load64(const uint8_t* at) {
  uint64_t value;
  memcpy(&value, at, 8);
  return value;
}

template <typename Stack>
class Run {
 public:
  Run(Stack& stack, const Options& options)
      : stack_(stack), options_(options), queues_(options.queues) {}

  int operator()() {
    Host& host = stack_.host;
    heap_ = stack_.heap(size_t{options_.queues} * options_.posters * kSlots * 2 * kHalf);
    heap_region_ = host.memory_region(heap_, stack_.heap_by_dma_buf());
    stack_.create(options_);
    connect();
    stack_.publish();
    for (unsigned i = 0; i < options_.queues; ++i) stack_.describe(i);
    fflush(stdout);
    run_kernel();
    while (life_ < options_.resets && !given_up_) run_again();
    const bool hung = given_up_;
    uint64_t verified = 0;
    for (unsigned i = 0; i < options_.queues; ++i) {
      auto& device = stack_.device(i);
      verified += queues_[i].verified;
      printf("queue %u posted %llu operations %llu verified %llu\n", i,
             static_cast<unsigned long long>(device.reserved()),
             static_cast<unsigned long long>(queues_[i].posted.load()),
             static_cast<unsigned long long>(queues_[i].verified.load()));
      if (device.fate.syndrome) printf("queue %u syndrome %#x\n", i, device.fate.syndrome.load());
    }
    if (hung) {
      printf("hung\n");
      fflush(stdout);
      _Exit(0);  // as a job that is killed: nothing is taken down
    }
    stack_.destroy();
    require(ibv_dereg_mr(heap_region_) == 0, "cannot deregister the heap");
    host.release(heap_);
    host.close();
    printf("verified %llu\nok\n", static_cast<unsigned long long>(verified));
    return 0;
  }

 private:
  struct Queue {
    std::atomic<uint64_t> posted{0}, verified{0};
    std::atomic<bool> at_start{false};
  };

  void connect() {
    for (unsigned i = 0; i < options_.queues; ++i) {
      Peer peer = stack_.local(i);
      peer.lid = stack_.host.port.lid;
      memcpy(peer.gid, stack_.host.gid.raw, 16);
      stack_.connect(i, peer);
    }
  }

  void run_again() {
    if constexpr (requires { stack_.reset(0u); }) {
      for (unsigned i = 0; i < options_.queues; ++i) {
        stack_.reset(i);
        queues_[i].at_start = false;
      }
      connect();
      ++life_;
      ended_ = 0;
      run_kernel();
    } else {
      require(false, "%s does not reset its queues", Stack::kName);
    }
  }

  static void kernel(void* argument, unsigned block) {
    Run& self = *static_cast<Run*>(argument);
    self.post(block / self.options_.posters, block % self.options_.posters);
    ++self.ended_;
  }

  void run_kernel() {
    const unsigned blocks = options_.queues * options_.posters;
    stack_.launch(blocks, kernel, this);
    if (options_.measured) {
      turns_.serve(blocks, ended_, [this] {
        uint64_t posted = 0;
        for (const Queue& queue : queues_) posted += queue.posted;
        return posted;
      });
      return stack_.join();
    }
    uint64_t seen = ~uint64_t{0};
    unsigned idle_ms = 0;
    while (ended_ < blocks) {
      pause_us(10'000);
      uint64_t moved = ended_;
      for (unsigned i = 0; i < options_.queues; ++i)
        moved += queues_[i].verified + stack_.device(i).reserved();
      idle_ms = moved == seen ? idle_ms + 10 : 0;
      seen = moved;
      if (options_.hang_s == 0 || idle_ms < options_.hang_s * 1000 || given_up_) continue;
      given_up_ = true;
      for (unsigned i = 0; i < options_.queues; ++i) stack_.device(i).fate.given_up = true;
    }
    stack_.join();
  }

  Slot make_slot(unsigned queue, unsigned poster, unsigned slot, Random& random) {
    const size_t offset = ((size_t{queue} * options_.posters + poster) * kSlots + slot) * 2 * kHalf;
    Slot made;
    Operation& operation = made.operation;
    made.from = heap_.gpu + offset;
    made.to = made.from + kHalf;
    made.seed = random.next();
    operation.local = heap_.address + offset;
    operation.remote = operation.local + kHalf;
    operation.lkey = heap_region_->lkey;
    operation.rkey = heap_region_->rkey;
    const auto kinds = stack_.kinds();
    operation.kind = kinds.begin()[random.below(kinds.size())];
    switch (operation.kind) {
      case Kind::write:
      case Kind::write_imm:
        operation.bytes = static_cast<uint32_t>(1 + random.below(kHalf - 1));
        fill(made.from, operation.bytes, made.seed);
        break;
      case Kind::read:
        operation.bytes = static_cast<uint32_t>(1 + random.below(kHalf - 1));
        fill(made.to, operation.bytes, made.seed);
        break;
      case Kind::write_inline:
        operation.bytes = stack_.fixed_inline()
                              ? stack_.inline_limit()
                              : static_cast<uint32_t>(1 + random.below(stack_.inline_limit()));
        fill(operation.inline_bytes, operation.bytes, made.seed);
        break;
      case Kind::write_long_inline:
        operation.bytes = static_cast<uint32_t>(32 + random.below(120));
        fill(operation.inline_bytes, operation.bytes, made.seed);
        break;
      case Kind::nop:
        break;
      default:
        operation.bytes = operation.kind == Kind::masked_add32 ? 4 : 8;
        made.before = random.next();
        operation.value = random.next() & 0xffff;
        operation.compare = made.before;
        memcpy(made.to, &made.before, 8);
        memset(made.from, 0, 8);
        break;
    }
    return made;
  }

  static void verify(const Slot& slot, unsigned queue) {
    const Operation& operation = slot.operation;
    bool good = true;
    uint64_t after = 0;
    switch (operation.kind) {
      case Kind::nop:
        break;
      case Kind::write:
      case Kind::write_imm:
      case Kind::write_inline:
      case Kind::write_long_inline:
        good = filled(slot.to, operation.bytes, slot.seed);
        break;
      case Kind::read:
        good = filled(slot.from, operation.bytes, slot.seed);
        break;
      case Kind::masked_add32:
        after = (slot.before & ~uint64_t{0xffffffff}) |
                static_cast<uint32_t>(slot.before + operation.value);
        // Results of 4 bytes are big-endian.
        good = load64(slot.to) == after &&
               load64(slot.from) == htobe32(static_cast<uint32_t>(slot.before));
        break;
      case Kind::masked_swap:
        good = load64(slot.to) == operation.value && load64(slot.from) == slot.before;
        break;
      default:
        after = slot.before + operation.value;
        good = load64(slot.to) == after && load64(slot.from) == slot.before;
        break;
    }
    require(good, "queue %u: an operation of kind %d, %u bytes: wrong data", queue,
            static_cast<int>(operation.kind), operation.bytes);
  }

  // Waits until everything before `end` is complete. False: it never will be.
  template <typename Device>
  static bool await(Device& device, uint64_t end) {
    Spin spin;
    for (;;) {
      const Done done = device.done(end);
      if (done == Done::yes) return true;
      if (done == Done::failed || device.fate.over()) return false;
      spin.once();
    }
  }

  template <typename Device>
  static uint64_t reserve(Device& device, unsigned blocks) {
    Spin spin;
    for (;;) {
      const uint64_t base = device.reserve(blocks);
      if (base != kNoRoom || device.fate.over()) return base;
      spin.once();
    }
  }

  void post(unsigned number, unsigned poster) {
    auto& device = stack_.device(number);
    Queue& queue = queues_[number];
    if (poster == 0) {
      advance_to_start(device, queue);
      queue.at_start = true;
    }
    for (Spin spin; !queue.at_start && !device.fate.over();) spin.once();
    Random random(options_.seed * 1000003 + life_ * 10007 + number * 1009 + poster);
    const uint64_t share = options_.operations / options_.posters +
                           (poster < options_.operations % options_.posters ? 1 : 0);
    unsigned message = 0;
    Slot slots[kSlots];
    for (uint64_t left = options_.measured ? ~uint64_t{0} : share;
         left > 0 && !device.fate.over();) {
      if (options_.measured && !turns_.wait()) return;
      const auto count = static_cast<unsigned>(std::min<uint64_t>(left, 1 + random.below(kSlots)));
      uint64_t end = 0;
      for (unsigned i = 0; i < count; ++i) {
        slots[i] = make_slot(number, poster, i, random);
        end = post_one(device, slots[i].operation, message++, i + 1 == count);
        if (end == kNoRoom) return;
        ++queue.posted;
      }
      device.flush(end);
      if (!await(device, end)) return;
      for (unsigned i = 0; i < count; ++i) verify(slots[i], number);
      queue.verified += count;
      left -= count;
      if (options_.pace_us) pause_us(options_.pace_us);
    }
  }

  // The WQE, and what the stack puts behind it to keep completion indices true. Where it ends.
  template <typename Device>
  uint64_t post_one(Device& device, const Operation& operation, unsigned message, bool last) {
    const unsigned blocks = blocks_of(segments_of(operation, device.ring.address_segments));
    const bool trailing = Stack::kTrailingNop && blocks > 1;
    const unsigned all = blocks + trailing;
    const uint64_t base = reserve(device, all);
    if (base == kNoRoom) return kNoRoom;
    const bool signaled = Stack::kSignalsAll || stack_.signals(base, last);
    write_wqe(device.ring, base, operation, signaled && !trailing);
    if (trailing) write_wqe(device.ring, base + blocks, Operation{}, signaled);
    device.submit(base, all, message, last);
    return base + all;
  }

  template <typename Device>
  void advance_to_start(Device& device, Queue& queue) {
    for (uint64_t at = 0; at < options_.start && !device.fate.over();) {
      const auto count =
          static_cast<unsigned>(std::min<uint64_t>(options_.start - at, device.ring.blocks / 4));
      const uint64_t base = reserve(device, count);
      if (base == kNoRoom) return;
      for (unsigned i = 0; i < count; ++i)
        write_wqe(device.ring, base + i, Operation{}, Stack::kSignalsAll || i + 1 == count);
      device.submit(base, count, 0, true);
      at += count;
      queue.posted += count;
      if (!await(device, base + count)) return;
    }
  }

  Stack& stack_;
  const Options& options_;
  std::vector<Queue> queues_;
  unsigned life_ = 0;  // of the queues: so often they were reset
  std::atomic<unsigned> ended_{0};
  std::atomic<bool> given_up_{false};
  Turns turns_;
  Buffer heap_;
  ibv_mr* heap_region_ = nullptr;
};

template <typename Stack>
int run_model(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  if (options.measured) wait_to_set_up();
  Stack stack;
  stack.open(options);
  printf("stack %s\nmode %s\nseed %llu\n", Stack::kName, options.mode,
         static_cast<unsigned long long>(options.seed));
  return Run<Stack>(stack, options)();
}

}  // namespace models
