// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A lock for short sections in the job's threads: no allocation, no libpthread, usable before any
// constructor has run and after a fork (a child resets it). Nothing that waits is done under it.
#pragma once

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace sigma::gpu {

class SpinLock {
 public:
  void lock() {
    for (int spins = 0; taken_.exchange(true, std::memory_order_acquire);) {
      if (++spins < 100) continue;
      // Whoever holds it may be waiting for this CPU behind a thread of higher priority: ours.
      const timespec pause{0, 50'000};
      if (spins > 1'000)
        syscall(SYS_nanosleep, &pause, nullptr);
      else
        syscall(SYS_sched_yield);
    }
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

class Locked {
 public:
  explicit Locked(SpinLock& lock) : lock_(lock) { lock_.lock(); }
  ~Locked() { lock_.unlock(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  SpinLock& lock_;
};

}  // namespace sigma::gpu
