// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// bench reader: how many records a second one core takes from the ring to operations and to CSV rows.
// A BPF producer on another thread emits full-size posts and completions; nothing is assumed of probes.
// Prints one JSON object per row, which scripts/bench gathers.
//
//   paced   the producer keeps to the target rate: are there drops?
//   flat    the producer keeps the ring full: what is the most?
#include <bpf/bpf.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "attach/reorder.h"
#include "attach/ring_reader.h"
#include "base/clock.h"
#include "bench_producer.skel.h"
#include "measure.h"
#include "output/csv.h"
#include "session/session.h"
#include "tests/temporary_folder.h"

using namespace sigma;

namespace {

constexpr uint32_t kQueues = 16;
constexpr uint32_t kPairsPerRun = 256;

struct producer_args {
  uint32_t pairs, queues;
  uint64_t sequence, dropped;
};

struct CountingSink final : OperationSink {
  void on_operation(const Operation&) override { ++operations; }
  uint64_t operations = 0;
};

struct CloseSkeleton {
  void operator()(bench_producer* skeleton) const { bench_producer__destroy(skeleton); }
};
using Producer = std::unique_ptr<bench_producer, CloseSkeleton>;

void pin(unsigned cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu % std::thread::hardware_concurrency(), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

uint64_t thread_cpu_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Emits pairs until `stop`: `pairs_per_second` of them, or as fast as it goes when that is 0.
void produce(int program, double pairs_per_second, const std::atomic<bool>& stop, uint64_t* dropped) {
  pin(1);
  producer_args args{kPairsPerRun, kQueues, 0, 0};
  const uint64_t start_ns = monotonic_now_ns();
  while (!stop.load(std::memory_order_relaxed)) {
    if (pairs_per_second > 0) {
      const double due = static_cast<double>(monotonic_now_ns() - start_ns) * 1e-9 * pairs_per_second;
      if (static_cast<double>(args.sequence) > due) continue;
    }
    // A syscall program writes its answer back to ctx_in.
    LIBBPF_OPTS(bpf_test_run_opts, options, .ctx_in = &args, .ctx_size_in = sizeof args);
    if (bpf_prog_test_run_opts(program, &options) != 0) {
      std::perror("bench reader: test run");
      std::exit(1);
    }
  }
  *dropped = args.dropped;
}

void announce_queues(Session& session) {
  sigma_context context{};
  context.h = {1, SIGMA_CONTEXT, sizeof context, 0, 4242, 4242};
  context.context = 0x1000;
  context.kind = SIGMA_CONTEXT_SEEN;
  std::strcpy(context.device, "mlx5_0");
  session.on_record(std::as_bytes(std::span(&context, 1)));
  for (uint32_t i = 1; i <= kQueues; ++i) {
    sigma_qp_seen qp{};
    qp.h = {1, SIGMA_QP_SEEN, sizeof qp, 0, 4242, 4242};
    qp.context = 0x1000;
    qp.qp_ptr = 0x10000 + i * 0x100;
    qp.send_cq_ptr = qp.recv_cq_ptr = 0x2000;
    qp.qp_num = i;
    qp.handle = i;
    qp.qp_type = 2;
    qp.state = 3;
    qp.source = SIGMA_QP_AT_POST;
    session.on_record(std::as_bytes(std::span(&qp, 1)));
  }
}

struct Outcome {
  uint64_t records = 0;
  double seconds = 0;      // of wall time
  double cpu_seconds = 0;  // of the reader
  uint64_t dropped = 0;
  double longest_wait = 0;  // seconds between two drains: with a free core, a few ms
};

// The reader's way of attach: ring, reorder, session, sink.
Outcome run(OperationSink& sink, double pairs_per_second, double seconds) {
  Producer producer(bench_producer__open_and_load());
  if (!producer) {
    std::fprintf(stderr, "bench reader: cannot load the producer (needs CAP_BPF)\n");
    std::exit(1);
  }
  Session session(sink, {});
  announce_queues(session);
  Reorder reorder([&](std::span<const std::byte> record) { session.on_record(record); });
  auto ring = RingReader::open(bpf_map__fd(producer->maps.records),
                               [&](std::span<const std::byte> record) { reorder.push(record); });
  if (!ring.ok()) {
    std::fprintf(stderr, "bench reader: %s\n", ring.error().what.c_str());
    std::exit(1);
  }
  std::atomic<bool> stop{false};
  Outcome outcome;
  pin(0);
  std::thread thread(produce, bpf_program__fd(producer->progs.produce), pairs_per_second, std::cref(stop),
                     &outcome.dropped);
  const uint64_t start_ns = monotonic_now_ns();
  const uint64_t start_cpu_ns = thread_cpu_ns();
  const auto end_ns = start_ns + static_cast<uint64_t>(seconds * 1e9);
  uint64_t last_ns = start_ns;
  for (uint64_t now_ns = start_ns; now_ns < end_ns; now_ns = monotonic_now_ns()) {
    outcome.longest_wait = std::max(outcome.longest_wait, static_cast<double>(now_ns - last_ns) * 1e-9);
    last_ns = now_ns;
    if (auto drained = (*ring)->drain(); !drained.ok()) std::exit(1);
    reorder.release(now_ns);
    if (pairs_per_second > 0) usleep(1000);
  }
  stop = true;
  thread.join();
  if (auto drained = (*ring)->drain(); !drained.ok()) std::exit(1);
  reorder.flush();
  session.finish(monotonic_now_ns());
  outcome.records = (*ring)->consumed();
  outcome.seconds = static_cast<double>(monotonic_now_ns() - start_ns) * 1e-9;
  outcome.cpu_seconds = static_cast<double>(thread_cpu_ns() - start_cpu_ns) * 1e-9;
  return outcome;
}

std::unique_ptr<CsvSink> csv_into(const char* path) {
  RowFile file(Fd(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)), path);
  return std::make_unique<CsvSink>(std::move(file), CsvOptions{"bench", UtcClock(sample_clocks())});
}

}  // namespace

int main() {
  CountingSink counted;
  const Outcome flat = run(counted, 0, 3);
  const double records = static_cast<double>(flat.records) / flat.cpu_seconds / 1e6;
  bench::row("reader.records_flat", records, "M records/s of a core", 1.0, records >= 1.0);
  const double operations = static_cast<double>(counted.operations) / flat.cpu_seconds / 1e6;
  bench::row("reader.operations_flat", operations, "M operations/s of a core", -1, true);

  const test::TemporaryFolder folder;
  const std::string path = folder / "ops.csv";
  auto flat_csv = csv_into(path.c_str());
  const Outcome csv = run(*flat_csv, 0, 3);
  flat_csv->finish();
  const double rows = static_cast<double>(flat_csv->rows_written()) / csv.cpu_seconds / 1e6;
  bench::row("reader.csv_flat", rows, "M rows/s of a core", 0.5, rows >= 0.5);

  auto paced_csv = csv_into(path.c_str());
  const Outcome paced = run(*paced_csv, 500'000, 5);
  paced_csv->finish();
  bench::row("reader.csv_paced", static_cast<double>(paced_csv->rows_written()) / paced.seconds / 1e6, "M rows/s", -1,
             true);
  // 8 MiB hold 30 ms of a million records a second: a reader that waits longer for its core must lose.
  const bool starved = paced.dropped > 0 && paced.longest_wait > 0.025;
  bench::row("reader.csv_paced_drops", static_cast<double>(paced.dropped), "dropped at 1 M records/s", 0,
             paced.dropped == 0, starved ? "other processes kept the reader from its core" : "");
  return 0;
}
