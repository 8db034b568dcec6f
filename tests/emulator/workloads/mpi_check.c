// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An MPI program that knows what it must receive: all-to-all exchanges of sizes from 1 byte to
// beyond the rendezvous threshold, a ring of non-blocking messages, a reduction, and one-sided
// puts and atomics. Prints "ok RANKS" on rank 0; any wrong byte aborts the job.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;

static void check(int good, const char* what, size_t at) {
  if (good) return;
  fprintf(stderr, "rank %d: %s is wrong at %zu\n", rank, what, at);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static uint8_t pattern(int from, int to, size_t at, int round) {
  return (uint8_t)(from * 131 + to * 17 + at * 7 + (at >> 8) + round);
}

static void all_to_all(size_t bytes, int round) {
  uint8_t* out = malloc(bytes * ranks);
  uint8_t* in = calloc(ranks, bytes);
  for (int to = 0; to < ranks; ++to)
    for (size_t i = 0; i < bytes; ++i) out[to * bytes + i] = pattern(rank, to, i, round);
  MPI_Alltoall(out, (int)bytes, MPI_BYTE, in, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
  for (int from = 0; from < ranks; ++from)
    for (size_t i = 0; i < bytes; ++i)
      check(in[from * bytes + i] == pattern(from, rank, i, round), "the all-to-all", i);
  free(out);
  free(in);
}

static void ring(int messages, size_t bytes) {
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  uint8_t* out = malloc(bytes);
  uint8_t* in = malloc(bytes);
  for (int round = 0; round < messages; ++round) {
    for (size_t i = 0; i < bytes; ++i) out[i] = pattern(rank, next, i, round);
    MPI_Request requests[2];
    MPI_Irecv(in, (int)bytes, MPI_BYTE, before, round, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(out, (int)bytes, MPI_BYTE, next, round, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    for (size_t i = 0; i < bytes; ++i)
      check(in[i] == pattern(before, rank, i, round), "the ring", i);
  }
  free(out);
  free(in);
}

static void one_sided(void) {
  uint64_t* memory;
  MPI_Win window;
  MPI_Win_allocate((MPI_Aint)((ranks + 1) * sizeof *memory), sizeof *memory, MPI_INFO_NULL,
                   MPI_COMM_WORLD, &memory, &window);
  for (int i = 0; i <= ranks; ++i) memory[i] = 0;
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_lock_all(0, window);
  for (int to = 0; to < ranks; ++to) {
    const uint64_t value = (uint64_t)rank * 1000 + to + 1, one = 1;
    uint64_t before;
    MPI_Put(&value, 1, MPI_UINT64_T, to, rank, 1, MPI_UINT64_T, window);
    MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, to, ranks, MPI_SUM, window);
    MPI_Win_flush(to, window);
    check(before < (uint64_t)ranks, "the counter", before);
  }
  MPI_Win_unlock_all(window);
  MPI_Barrier(MPI_COMM_WORLD);
  for (int from = 0; from < ranks; ++from)
    check(memory[from] == (uint64_t)from * 1000 + rank + 1, "a put", from);
  check(memory[ranks] == (uint64_t)ranks, "the sum of the counters", memory[ranks]);
  MPI_Win_free(&window);
}

// Atomics of 4 bytes: every rank adds to rank 0's counter, and takes its turn by compare-and-swap.
static void small_atomics(void) {
  uint32_t* memory;
  MPI_Win window;
  MPI_Win_allocate(2 * sizeof *memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &memory,
                   &window);
  memory[0] = 0x01020304;
  memory[1] = 0;
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_lock_all(0, window);
  const uint32_t one = 1, own = (uint32_t)rank, next = own + 1;
  uint32_t before;
  MPI_Fetch_and_op(&one, &before, MPI_UINT32_T, 0, 0, MPI_SUM, window);
  MPI_Win_flush(0, window);
  check(before - 0x01020304u < (uint32_t)ranks, "the small counter", before);
  do {
    MPI_Compare_and_swap(&next, &own, &before, MPI_UINT32_T, 0, 1, window);
    MPI_Win_flush(0, window);
    check(before <= own, "the turn", before);
  } while (before != own);
  MPI_Win_unlock_all(window);
  MPI_Barrier(MPI_COMM_WORLD);
  check(rank || (memory[0] == 0x01020304u + (uint32_t)ranks && memory[1] == (uint32_t)ranks),
        "the small counters", memory[1]);
  MPI_Win_free(&window);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const size_t sizes[] = {1, 8, 100, 4096, 9000, 300000};
  for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; ++i) all_to_all(sizes[i], (int)i);
  ring(20, 2000);
  long sum = 0, mine = rank + 1;
  MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  check(sum == (long)ranks * (ranks + 1) / 2, "the reduction", (size_t)sum);
  one_sided();
  small_atomics();
  if (rank == 0) printf("ok %d\n", ranks);
  MPI_Finalize();
  return 0;
}
