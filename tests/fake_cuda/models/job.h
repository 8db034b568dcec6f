// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A job of several processing elements, each a process with a persistent kernel that posts through
// NVSHMEM's queues: one to each peer. What the job did goes to a truth file that whoever analyses
// the trace does not read.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include <csignal>

#include "nvshmem_device.h"

namespace models {

inline constexpr unsigned kMaxRanks = 16;
inline constexpr size_t kJobHeap = size_t{1} << 20;

struct JobOptions {
  unsigned ranks = 8, devices = 1, rounds = 20, depth = 256;
  uint64_t seed = 1;
  const char* truth = nullptr;
  bool even = false;  // the negative case: no late element, no skew
  double skew = 0;    // given instead of drawn
};

inline JobOptions parse_job_options(int argc, char** argv, unsigned ranks) {
  JobOptions options;
  options.ranks = ranks;
  for (int i = 1; i + 1 < argc; i += 2) {
    const char *name = argv[i], *value = argv[i + 1];
    const auto number = static_cast<unsigned>(strtoul(value, nullptr, 0));
    if (!strcmp(name, "--ranks"))
      options.ranks = number;
    else if (!strcmp(name, "--devices"))
      options.devices = number;
    else if (!strcmp(name, "--rounds"))
      options.rounds = number;
    else if (!strcmp(name, "--depth"))
      options.depth = number;
    else if (!strcmp(name, "--seed"))
      options.seed = strtoull(value, nullptr, 0);
    else if (!strcmp(name, "--truth"))
      options.truth = value;
    else if (!strcmp(name, "--even"))
      options.even = number != 0;
    else if (!strcmp(name, "--skew"))
      options.skew = strtod(value, nullptr);
    else
      require(false, "unknown option %s", name);
  }
  require(argc % 2 == 1 && options.truth, "usage: --truth FILE and pairs of options");
  require(options.ranks >= 2 && options.ranks <= kMaxRanks && options.devices > 0, "2 to 16 ranks");
  return options;
}

inline uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Shared by the job's processes: what a launcher's out-of-band exchange would carry.
struct JobShared {
  std::atomic<unsigned> arrived[4];
  Peer peers[kMaxRanks][kMaxRanks];  // [whose][towards whom]
  int32_t pids[kMaxRanks];
  uint64_t bytes[kMaxRanks][kMaxRanks];
  uint64_t arrivals_ns[256][kMaxRanks];
};

struct JobStack : NvshmemHost<NvshmemPoster> {};

class Rank {
 public:
  Rank(const JobOptions& options, JobShared& shared, unsigned rank)
      : options_(options), shared_(shared), rank_(rank) {}

  void set_up() {
    Options stack_options;
    char device[16];
    snprintf(device, sizeof device, "mlx5_%u", rank_ % options_.devices);
    stack_options.device = device;
    stack_options.queues = options_.ranks - 1;
    stack_options.depth = options_.depth;
    stack_.open(stack_options);
    heap_ = stack_.heap(kJobHeap);
    region_ = stack_.host.memory_region(heap_, true);
    stack_.create(stack_options);
    shared_.pids[rank_] = getpid();
    for (unsigned peer = 0; peer < options_.ranks; ++peer) {
      if (peer == rank_) continue;
      Peer& own = shared_.peers[rank_][peer];
      own = stack_.local(queue_to(peer));
      own.lid = stack_.host.port.lid;
      memcpy(own.gid, stack_.host.gid.raw, 16);
      own.heap = heap_.address;
      own.rkey = region_->rkey;
    }
    meet(0);
    for (unsigned peer = 0; peer < options_.ranks; ++peer)
      if (peer != rank_) stack_.connect(queue_to(peer), shared_.peers[peer][rank_]);
    stack_.publish();
    meet(1);
  }

  void run(FakeKernel kernel, void* argument) {
    stack_.launch(1, kernel, argument);
    stack_.join();
    meet(2);  // nobody leaves while a peer may still write here
  }

  void tear_down() {
    stack_.destroy();
    require(ibv_dereg_mr(region_) == 0, "cannot deregister the heap");
    stack_.host.release(heap_);
    stack_.host.close();
  }

  // ---- Device code

  uint8_t* heap() { return heap_.gpu; }
  unsigned number() const { return rank_; }
  const JobOptions& options() const { return options_; }
  JobShared& shared() { return shared_; }

  // Puts `bytes` from the own heap's offset to the peer's, and counts them.
  void put(unsigned peer, size_t from, size_t to, uint32_t bytes) {
    const Peer& remote = shared_.peers[peer][rank_];
    Operation operation;
    operation.kind = Kind::write;
    operation.bytes = bytes;
    operation.local = heap_.address + from;
    operation.lkey = region_->lkey;
    operation.remote = remote.heap + to;
    operation.rkey = remote.rkey;
    post(peer, operation);
    shared_.bytes[rank_][peer] += bytes;
  }
  // An 8-byte value, inline, and the doorbell.
  void signal(unsigned peer, size_t to, uint64_t value) {
    const Peer& remote = shared_.peers[peer][rank_];
    Operation operation;
    operation.kind = Kind::write_inline;
    operation.bytes = 8;
    memcpy(operation.inline_bytes, &value, 8);
    operation.remote = remote.heap + to;
    operation.rkey = remote.rkey;
    const uint64_t end = post(peer, operation);
    device(peer).flush(end);
    shared_.bytes[rank_][peer] += 8;
  }
  void quiet(unsigned peer) {
    NvshmemPoster& queue = device(peer);
    const uint64_t end = queue.reserved();
    queue.flush(end);
    Spin spin;
    while (end > 0 && queue.done(end) != Done::yes) {
      require(!queue.fate.over(), "rank %u: the queue to %u failed: %#x", rank_, peer,
              queue.fate.syndrome.load());
      spin.once();
    }
  }
  void await(size_t at, uint64_t value) {
    Spin spin;
    while (__atomic_load_n(reinterpret_cast<uint64_t*>(heap_.gpu + at), __ATOMIC_ACQUIRE) < value)
      spin.once();
  }

 private:
  unsigned queue_to(unsigned peer) const { return peer < rank_ ? peer : peer - 1; }
  NvshmemPoster& device(unsigned peer) { return stack_.device(queue_to(peer)); }

  uint64_t post(unsigned peer, const Operation& operation) {
    NvshmemPoster& queue = device(peer);
    const unsigned blocks = blocks_of(segments_of(operation, 0));
    const uint64_t base = queue.reserve(blocks);
    require(base != kNoRoom, "rank %u: no room towards %u", rank_, peer);
    write_wqe(queue.ring, base, operation, true);
    queue.submit(base, blocks, 0, true);
    return base + blocks;
  }

  void meet(unsigned point) {
    ++shared_.arrived[point];
    Spin spin;
    while (shared_.arrived[point] < options_.ranks) spin.once();
  }

  const JobOptions& options_;
  JobShared& shared_;
  const unsigned rank_;
  JobStack stack_;
  Buffer heap_;
  ibv_mr* region_ = nullptr;
};

// Forks the ranks, each of which runs `kernel` with its Rank; afterwards `tell` writes the truth.
template <typename Tell>
int run_job(const JobOptions& options, FakeKernel kernel, Tell tell) {
  auto* shared = static_cast<JobShared*>(
      mmap(nullptr, sizeof(JobShared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  require(shared != MAP_FAILED, "no shared memory");
  pid_t children[kMaxRanks];
  for (unsigned rank = 0; rank < options.ranks; ++rank) {
    children[rank] = fork();
    require(children[rank] >= 0, "cannot fork");
    if (children[rank] != 0) continue;
    Rank self(options, *shared, rank);
    self.set_up();
    self.run(kernel, &self);
    self.tear_down();
    exit(0);
  }
  bool good = true;
  for (unsigned rank = 0; rank < options.ranks; ++rank) {
    int status;
    good &= waitpid(-1, &status, 0) > 0 && status == 0;
    if (good) continue;
    for (unsigned other = 0; other < options.ranks; ++other) kill(children[other], SIGKILL);
    require(false, "a rank ended with status %d", status);
  }
  FILE* truth = fopen(options.truth, "we");
  require(truth, "cannot write the truth");
  fprintf(truth, "seed %llu\n", static_cast<unsigned long long>(options.seed));
  for (unsigned rank = 0; rank < options.ranks; ++rank)
    fprintf(truth, "pid %u %d\n", rank, shared->pids[rank]);
  tell(truth, *shared);
  fclose(truth);
  printf("ok\n");
  return 0;
}

}  // namespace models
