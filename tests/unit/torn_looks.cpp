// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Torn reads through the whole observer: a process laps ProcessReader on purpose (lapping_writer.h), and another one
// holds it up wherever it happens to be, for some rounds of the doorbell's 65,536. Each entry tells its own position,
// so that every record can be judged. What fails: a false record; a request with another index than its own that
// is not said to be modulo 65,536; a count that is not exact, seen + missed = posted = the writer's wide counter.
//
//   torn_looks [SLOTS [BLOCKS]]   until so many slots have been told (default 1,000,000), with a send ring
//                                 of so many blocks (default 256); the completion ring has half
//
// A count that is known modulo 65,536 stays so: the queue is taken up anew every kLooksOfALife looks.
// Beside it torn_reads, which judges the decoder and the certificates by themselves.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>

#include "lapping_writer.h"
#include "observe/process_reader.h"

using namespace sigma;
using namespace lapping;

namespace {

constexpr uint32_t kCqNum = 0x77;
constexpr uint64_t kContext = 0x1000;
constexpr uint64_t kLooksOfALife = 256;
constexpr uint64_t kRounds = 8;  // are to pass unseen

// ---- who holds the reader up --------------------------------------------------------------------

void wait_until_posted(const Rings& rings, uint64_t position) {
  while (posted_by(rings) < position) std::this_thread::yield();
}

// By what the writer posts meanwhile, not by time.
[[noreturn]] void hold_up_for_ever(const Rings& rings, pid_t reader, uint32_t seed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::minstd_rand random(seed);
  while (!rings.go) std::this_thread::yield();
  for (;;) {
    wait_until_posted(rings, posted_by(rings) + random() % 1'000'000);
    if (kill(reader, SIGSTOP) != 0) _exit(1);
    wait_until_posted(rings, posted_by(rings) + random() % 150'000);
    if (kill(reader, SIGCONT) != 0) _exit(1);
  }
}

// ---- the judge ----------------------------------------------------------------------------------

struct Totals {
  uint64_t looks = 0, posts = 0, blocks = 0, by_margin = 0, by_posterior = 0, modulo = 0;
  uint64_t completions = 0, gaps = 0, blocks_missed = 0, uncertain = 0, completions_missed = 0;
  uint64_t wrong_posts = 0, unmarked = 0, wrong_completions = 0, out_of_order = 0;
  uint64_t lives = 0, lives_modulo = 0, lives_inexact = 0;
  uint64_t seen = 0, missed = 0;  // as the ends of lives say
};

class Judge {
 public:
  Totals totals;
  sigma_ring end{};  // of the send ring's last life

  void operator()(std::span<const std::byte> record) {
    const auto& header = *reinterpret_cast<const sigma_header*>(record.data());
    if (header.type == SIGMA_RING_POST) return on(*reinterpret_cast<const sigma_ring_post*>(record.data()));
    if (header.type == SIGMA_RING_COMPLETION)
      return on(*reinterpret_cast<const sigma_ring_completion*>(record.data()));
    if (header.type == SIGMA_RING_GAP) return on(*reinterpret_cast<const sigma_ring_gap*>(record.data()));
    const auto& ring = *reinterpret_cast<const sigma_ring*>(record.data());
    if (header.type == SIGMA_RING && ring.event == SIGMA_RING_END && ring.kind == SIGMA_RING_SEND) on_end(ring);
  }

 private:
  // What it says must be one request, the one at its index.
  void on(const sigma_ring_post& post) {
    const uint64_t position = post.remote_addr >> 8;
    const unsigned pointers = pointers_of(position);
    const bool modulo = post.flags & SIGMA_RING_MODULO;
    const bool right = post.remote_addr == address_of(position) &&
                       (post.index & 0xffff) == (position & 0xffff) &&
                       post.rkey == static_cast<uint32_t>(position) && post.num_sge == pointers &&
                       post.bytes == 64 * pointers && post.blocks == blocks_of(position) &&
                       post.number == kQpNum && post.opcode == IBV_WR_RDMA_WRITE &&
                       (pointers == 0 || (post.local_addr == address_of(position) &&
                                          post.lkey == static_cast<uint32_t>(position)));
    if (!right && totals.wrong_posts < 5)
      std::printf("false: index %llu tells of position %llu, flags %x, blocks %u, addresses %llx and %llx\n",
                  static_cast<unsigned long long>(post.index), static_cast<unsigned long long>(position), post.flags,
                  post.blocks, static_cast<unsigned long long>(post.remote_addr),
                  static_cast<unsigned long long>(post.local_addr));
    totals.wrong_posts += !right;
    const bool unmarked = right && !modulo && post.index != position;
    if (unmarked && totals.unmarked < 5)
      std::printf("unmarked: index %llu tells of position %llu\n", static_cast<unsigned long long>(post.index),
                  static_cast<unsigned long long>(position));
    totals.unmarked += unmarked;
    in_order("request", totals.posts > 0, last_position_, position);
    ++totals.posts;
    totals.blocks += post.blocks;
    totals.by_margin += (post.flags & SIGMA_RING_MARGIN) != 0;
    totals.by_posterior += (post.flags & SIGMA_RING_POSTERIOR) != 0;
    totals.modulo += modulo;
  }
  void on(const sigma_ring_completion& cqe) {
    const uint64_t index = cqe.nic_stamp - 1;
    const bool right = cqe.bytes == bytes_of_completion(index, cqe.wqe_counter) && cqe.number == kQpNum &&
                       cqe.status == 0 && cqe.cq_index == index;
    if (!right && totals.wrong_completions < 5)
      std::printf("false: completion %llu tells of %llu, counter %x, status %u\n",
                  static_cast<unsigned long long>(cqe.cq_index), static_cast<unsigned long long>(index),
                  cqe.wqe_counter, cqe.status);
    totals.wrong_completions += !right;
    in_order("completion", totals.completions > 0, last_completion_, index);
    ++totals.completions;
  }
  void in_order(const char* what, bool any, uint64_t& last, uint64_t now) {
    const bool wrong = any && now <= last;
    if (wrong && totals.out_of_order < 5)
      std::printf("out of order: %s %llu after %llu, at look %llu\n", what, static_cast<unsigned long long>(now),
                  static_cast<unsigned long long>(last), static_cast<unsigned long long>(totals.looks));
    totals.out_of_order += wrong;
    last = now;
  }
  void on_end(const sigma_ring& ring) {
    end = ring;
    ++totals.lives;
    totals.lives_modulo += (ring.flags & SIGMA_RING_MODULO) != 0;
    totals.lives_inexact += ring.seen + ring.missed != ring.posted;
    totals.seen += ring.seen;
    totals.missed += ring.missed;
  }
  void on(const sigma_ring_gap& gap) {
    if (gap.kind == SIGMA_RING_CQ) {
      totals.completions_missed += gap.count;
      return;
    }
    ++totals.gaps;
    totals.blocks_missed += gap.count;
    if (gap.reason == SIGMA_GAP_UNCERTAIN) totals.uncertain += gap.count;
  }
  uint64_t last_position_ = 0, last_completion_ = 0;
};

void print(const char* name, uint64_t value) {
  std::printf("%-48s %14llu\n", name, static_cast<unsigned long long>(value));
}

// What the doorbell's record says, wholly: the writer may stand between its counter and the record.
uint64_t rung_for(const Rings& rings) {
  for (;;) {
    const uint64_t posted = posted_by(rings);
    const auto doorbell = static_cast<uint16_t>(be32toh(__atomic_load_n(&rings.doorbells.sends, __ATOMIC_ACQUIRE)));
    if (posted_by(rings) == posted) return posted - static_cast<uint16_t>(static_cast<uint16_t>(posted) - doorbell);
  }
}

// ---- the observed queue -------------------------------------------------------------------------

class Observed {
 public:
  Observed(pid_t writer, Rings& rings, const Sizes& sizes)
      : rings_(rings),
        reader_(static_cast<uint32_t>(writer), {.read_posts = true, .probes_tell = false, .read_completions = true},
                nullptr) {
    const uint64_t now_ns = monotonic_now_ns();
    CqSpec cq;
    cq.owner = {.pid = static_cast<uint32_t>(writer), .context = kContext, .by_file = false, .number = kCqNum};
    cq.ring_addr = reinterpret_cast<uint64_t>(rings.cq);
    cq.doorbell_addr = reinterpret_cast<uint64_t>(&rings.doorbells.consumer);
    cq.ring = {sizes.entries, kCqeBytes};
    cq.since_ns = now_ns;
    reader_.open(cq, records_);
    send_.owner = cq.owner;
    send_.owner.number = kQpNum;
    send_.ring_addr = reinterpret_cast<uint64_t>(rings.sq);
    send_.doorbell_addr = reinterpret_cast<uint64_t>(&rings.doorbells);
    send_.blocks = sizes.blocks;
    send_.service = QpService::rc;
    send_.send_cqn = kCqNum;
    send_.since_ns = now_ns;
    reader_.open(send_, records_);
  }

  bool look() { return reader_.look(records_); }
  // The send queue, from where its writer is.
  void begin_life() {
    send_.since_ns = monotonic_now_ns();
    send_.first = rung_for(rings_);
    reader_.open(send_, records_);
  }
  void end() { reader_.end(monotonic_now_ns(), true, records_); }
  void deliver(Judge& judge) {
    records_.take(runs_);
    for (const RecordBuffer::Run& run : runs_)
      RecordBuffer::for_each(run.bytes, [&](std::span<const std::byte> record) { judge(record); });
  }

 private:
  Rings& rings_;
  ProcessReader reader_;
  SendSpec send_;
  RecordBuffer records_;
  std::vector<RecordBuffer::Run> runs_;
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t wanted = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
  const auto blocks = argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 256;
  if (blocks < 128 || blocks > kMaxEntries || !valid(SendRing{kQpNum, blocks}))
    return std::fprintf(stderr, "torn_looks: blocks must be a power of two, 128 to 32768\n"), 2;
  const Sizes sizes{blocks, blocks / 2};
  Rings* const rings = make_rings(sizes);
  if (rings == nullptr) return std::perror("mmap"), 2;

  const pid_t reader = getpid();
  const pid_t writer = fork();
  if (writer < 0) return std::perror("fork"), 2;
  if (writer == 0) write_for_ever(*rings, sizes, 1);
  const pid_t holder = fork();
  if (holder < 0) return std::perror("fork"), 2;
  if (holder == 0) hold_up_for_ever(*rings, reader, 3);

  Observed observed(writer, *rings, sizes);
  Judge judge;
  const Totals& totals = judge.totals;
  const uint64_t begin_ns = monotonic_now_ns();
  rings->go = true;

  bool readable = true;
  uint64_t posted_before = 0, rounds = 0;
  std::minstd_rand random(2);
  while (readable && (totals.blocks + totals.completions < wanted || rounds < kRounds)) {
    const uint64_t posted = posted_by(*rings);
    rounds += posted - posted_before >= 1u << 16;
    posted_before = posted;
    readable = observed.look();
    if (++judge.totals.looks % kLooksOfALife == 0) observed.begin_life();
    observed.deliver(judge);
    for (volatile unsigned rest = random() % 2 ? random() % 4096 : 0; rest > 0;) rest = rest - 1;
  }
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  // Between two stores, anywhere: what the doorbells say by then is to be accounted for.
  kill(writer, SIGSTOP);
  waitpid(writer, nullptr, WUNTRACED);
  for (int i = 0; readable && i < 8; ++i) readable = observed.look();
  observed.end();
  observed.deliver(judge);
  const uint64_t told = rung_for(*rings);
  kill(writer, SIGKILL);
  waitpid(writer, nullptr, 0);
  if (!readable) return std::fprintf(stderr, "torn_looks: the writer's memory could not be read\n"), 2;

  print("looks", totals.looks);
  print("  with 65,536 blocks or more since the one before", rounds);
  print("lives", totals.lives);
  print("  with counts modulo 65,536", totals.lives_modulo);
  print("slots told and judged", totals.blocks + totals.completions);
  print("requests", totals.posts);
  print("  blocks of 64 bytes", totals.blocks);
  print("  certified by the margin", totals.by_margin);
  print("  certified by a later doorbell or completion", totals.by_posterior);
  print("  with an index modulo 65,536", totals.modulo);
  print("gaps", totals.gaps);
  print("  blocks", totals.blocks_missed);
  print("  of these, refused by the certificates", totals.uncertain);
  print("completions", totals.completions);
  print("  missed", totals.completions_missed);
  print("false requests", totals.wrong_posts);
  print("rounds of 65,536 missed, unmarked", totals.unmarked);
  print("false completions", totals.wrong_completions);
  print("told twice, or out of order", totals.out_of_order);
  print("seconds", (monotonic_now_ns() - begin_ns) / 1'000'000'000);

  int failures = 0;
  const auto require = [&](bool good, const char* what) {
    if (!good) std::printf("FAILED: %s\n", what), ++failures;
  };
  require(totals.wrong_posts + totals.wrong_completions == 0, "false operations");
  require(totals.unmarked == 0, "an index is rounds of 65,536 off and does not say so");
  require(totals.out_of_order == 0, "an entry was told twice");
  require(totals.seen == totals.blocks && totals.missed == totals.blocks_missed,
          "the ring's totals are not those of its records");
  require(totals.lives_inexact == 0, "seen + missed is not posted");
  const bool modulo = judge.end.flags & SIGMA_RING_MODULO;
  const uint64_t counted = judge.end.first + judge.end.posted;
  require(modulo ? (counted & 0xffff) == (told & 0xffff) : counted == told,
          "posted is not what the writer has posted");
  // Without these the run has shown nothing.
  require(totals.by_margin > 0 && totals.by_posterior > 0 && totals.uncertain > 0 && totals.blocks_missed > 0 &&
              totals.completions_missed > 0,
          "the writer did not lap the reader, or nothing was certified");
  require(totals.lives_modulo < totals.lives, "no life's counts were wholly known");
  return failures == 0 ? 0 : 1;
}
