// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// core_distance A B: the ns that a cache line takes from one core to another; half of the best of
// some thousand round trips. What reading another core's memory costs the job depends on it.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kTrips = 200, kRounds = 100 };

static _Alignas(128) atomic_int line;
static _Alignas(128) int cores[2];

static void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    perror("core_distance");
    exit(1);
  }
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void* answer(void* unused) {
  pin_to(cores[1]);
  for (int i = 0; i < kTrips * kRounds; ++i) {
    while (atomic_load_explicit(&line, memory_order_acquire) != 2 * i + 1) {
    }
    atomic_store_explicit(&line, 2 * i + 2, memory_order_release);
  }
  return unused;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  cores[0] = atoi(argv[1]);
  cores[1] = atoi(argv[2]);
  pthread_t other;
  if (pthread_create(&other, NULL, answer, NULL) != 0) return 1;
  pin_to(cores[0]);
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t start = now_ns();
    for (int i = round * kTrips; i < (round + 1) * kTrips; ++i) {
      atomic_store_explicit(&line, 2 * i + 1, memory_order_release);
      while (atomic_load_explicit(&line, memory_order_acquire) != 2 * i + 2) {
      }
    }
    const double ns = (double)(now_ns() - start) / (2.0 * kTrips);
    if (ns < best) best = ns;
  }
  pthread_join(other, NULL);
  printf("%.1f\n", best);
  return 0;
}
