// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Torn reads, in earnest: a process laps its reader on purpose (lapping_writer.h); this one reads its rings by
// process_vm_readv and certifies what it finds. Any false entry fails.
//
//   torn_reads [SLOTS [ENTRIES]]   until so many slots have been inspected (default 1,000,000), in
//                                  rings of so many entries (default 256, at most 32,768)
#include <sys/uio.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

#include "decode/completion_ring.h"
#include "lapping_writer.h"

using namespace sigma;
using namespace lapping;

namespace {

uint32_t ring_entries = 256;  // WQEBBs, and completions; set once, before anything starts

// ---- the reader ---------------------------------------------------------------------------------

struct Totals {
  uint64_t samples = 0, inspected = 0, index_only_false = 0;
  uint64_t margin = 0, margin_refused = 0, margin_false = 0;
  uint64_t posterior = 0, posterior_refused = 0, posterior_false = 0;
  uint64_t lost_blocks = 0, seen_blocks = 0;
  uint64_t completions = 0, completions_false = 0, completions_lost = 0, unstable = 0;
};

class Reader {
 public:
  Reader(pid_t pid, Rings& remote) : pid_(pid), remote_(remote) {}

  bool sample(Totals& totals) {
    ++totals.samples;
    Rings::Doorbells before, soon, after;
    if (!read({{&before, sizeof(before)}, {&soon, sizeof(soon)}},
              {{&remote_.doorbells, sizeof(before)}, {&remote_.doorbells, sizeof(soon)}}))
      return false;
    // Laps beyond the doorbell's 16 bits: by the wide counter, if both were read at about one time.
    if (soon.posted - before.posted > 8'192) return true;
    const uint16_t doorbell = be32toh(before.sends) & 0xffff;
    const uint64_t near = extend16(cursor_.posted, doorbell);
    if (before.posted > near + 32'768) {
      const uint64_t laps = (before.posted - near + 32'768) >> 16;
      totals.lost_blocks += add_laps(cursor_, laps);
    }
    const SendStep step = advance(send_, cursor_, doorbell, false);
    settle(totals);

    const uint64_t from = copy_from(ring_, completions_);
    const size_t entries = ring_entries / 4 + (completions_.next - from);
    slots_.resize((step.end - step.first) * kWqeBlockBytes);
    first_.resize(entries * kCqeBytes);
    again_.resize(entries * kCqeBytes);
    std::vector<iovec> remote;
    ranges(remote_.sq, ring_entries * kWqeBlockBytes, step.first * kWqeBlockBytes, slots_.size(),
           remote);
    for (int copy = 0; copy < 2; ++copy)
      ranges(remote_.cq, ring_entries * kCqeBytes, from * kCqeBytes, first_.size(), remote);
    remote.push_back({&remote_.doorbells, sizeof(after)});
    if (!read({{slots_.data(), slots_.size()},
               {first_.data(), first_.size()},
               {again_.data(), again_.size()},
               {&after, sizeof(after)}},
              remote))
      return false;

    walk_posts(step, after, totals);
    walk_completions(from, after, totals);
    return true;
  }

 private:
  const SendRing send_{kQpNum, ring_entries};
  const CompletionRing ring_{ring_entries, kCqeBytes};

  struct Pending {
    uint64_t position, posted_after;
    bool right;
  };

  static void ranges(std::byte* ring, size_t ring_bytes, uint64_t at, size_t bytes,
                     std::vector<iovec>& to) {
    while (bytes > 0) {
      const size_t offset = at % ring_bytes, piece = std::min(bytes, ring_bytes - offset);
      to.push_back({ring + offset, piece});
      at += piece;
      bytes -= piece;
    }
  }

  bool read(const std::vector<iovec>& local, const std::vector<iovec>& remote) {
    size_t bytes = 0;
    for (const iovec& piece : local) bytes += piece.iov_len;
    return process_vm_readv(pid_, local.data(), local.size(), remote.data(), remote.size(), 0) ==
           static_cast<ssize_t>(bytes);
  }

  // A later doorbell judges what an earlier sample copied.
  void settle(Totals& totals) {
    while (!pending_.empty()) {
      const Pending& entry = pending_.front();
      const Posterior verdict =
          posterior(send_, entry.position, entry.posted_after, cursor_.posted);
      if (verdict == Posterior::wait) return;
      if (verdict == Posterior::certain) {
        ++totals.posterior;
        totals.posterior_false += !entry.right;
      } else {
        ++totals.posterior_refused;
      }
      pending_.pop_front();
    }
  }

  void walk_posts(const SendStep& step, const Rings::Doorbells& after, Totals& totals) {
    const RingBytes slots{slots_};
    // The wide counter is published first: a lap of 16 bits more than the doorbell shows is seen.
    uint64_t posted_after = extend16(cursor_.posted, be32toh(after.sends) & 0xffff);
    if (after.posted > posted_after + 32'768) posted_after = after.posted;
    const uint64_t start = chain_start(send_, slots, step.first, step.end);
    for (uint64_t at = start; at < step.end;) {
      Wqe wqe;
      if (!decode_wqe(slots, (at - step.first) * kWqeBlockBytes, QpService::rc, wqe)) break;
      const bool right = wqe.has_remote && wqe.has_bytes && wqe.remote_addr == address_of(at) &&
                         wqe.rkey == static_cast<uint32_t>(at) && wqe.num_sge == pointers_of(at) &&
                         wqe.bytes == 64 * pointers_of(at) &&
                         (wqe.num_sge == 0 || (wqe.local_addr == address_of(at) &&
                                               wqe.lkey == static_cast<uint32_t>(at)));
      totals.inspected += wqe.blocks;
      totals.index_only_false += !right;
      if (margin_certain(send_, at, posted_after)) {
        ++totals.margin;
        totals.margin_false += !right;
      } else {
        ++totals.margin_refused;
      }
      pending_.push_back({at, posted_after, right});
      at += wqe.blocks;
    }
    totals.lost_blocks += finish(cursor_, step, start);
    totals.seen_blocks += step.end - start;
  }

  void walk_completions(uint64_t from, const Rings::Doorbells& after, Totals& totals) {
    uint32_t index = be32toh(after.consumer);
    if (after.completed - completions_.consumed >= 1u << 23) {  // laps beyond its 24 bits
      completions_.consumed = after.completed;
      index = after.completed & 0xffffff;
    }
    totals.completions_lost += consumed_to(ring_, completions_, index);
    for (;;) {
      Cqe cqe;
      uint64_t lost = 0;
      const uint64_t position = completions_.next;
      const CqNext what = next_completion(ring_, completions_, from, RingBytes(first_),
                                          RingBytes(again_), cqe, lost);
      totals.completions_lost += lost;
      totals.unstable += what == CqNext::unstable;
      if (what == CqNext::lost) continue;
      if (what != CqNext::completion) return;
      ++totals.inspected;
      ++totals.completions;
      totals.completions_false +=
          cqe.timestamp != position + 1 || cqe.bytes != bytes_of_completion(position, cqe.wqe_counter) ||
          cqe.qp_num != kQpNum;
    }
  }

  pid_t pid_;
  Rings& remote_;
  SendCursor cursor_;
  CompletionCursor completions_;
  std::deque<Pending> pending_;
  std::vector<std::byte> slots_, first_, again_;
};

void print(const char* name, uint64_t value) {
  std::printf("%-44s %14llu\n", name, static_cast<unsigned long long>(value));
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t wanted = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
  if (argc > 2) ring_entries = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  if (ring_entries < 256 || !valid(SendRing{kQpNum, ring_entries}))  // 48 blocks are posted at once
    return std::fprintf(stderr, "torn_reads: entries must be a power of two, 256 to 32768\n"), 2;
  const Sizes sizes{ring_entries, ring_entries};
  Rings* rings = make_rings(sizes);
  if (rings == nullptr) return std::perror("mmap"), 2;

  const pid_t writer = fork();
  if (writer < 0) return std::perror("fork"), 2;
  if (writer == 0) write_for_ever(*rings, sizes, 1);
  rings->go = true;

  Reader reader(writer, *rings);
  Totals totals;
  bool readable = true;
  std::minstd_rand random(2);
  while (readable && totals.inspected < wanted) {
    readable = reader.sample(totals);
    for (volatile unsigned rest = random() % 2 ? random() % 4096 : 0; rest > 0;) rest = rest - 1;
  }
  kill(writer, SIGKILL);
  waitpid(writer, nullptr, 0);
  if (!readable) return std::perror("process_vm_readv"), 2;

  print("samples", totals.samples);
  print("slots inspected", totals.inspected);
  print("WQEs that fit by index, and were false", totals.index_only_false);
  print("WQEs certified by a later doorbell", totals.posterior);
  print("  refused", totals.posterior_refused);
  print("  false", totals.posterior_false);
  print("WQEs certified by the margin", totals.margin);
  print("  refused", totals.margin_refused);
  print("  false", totals.margin_false);
  print("WQEBBs seen", totals.seen_blocks);
  print("WQEBBs in gaps", totals.lost_blocks);
  print("completions certified", totals.completions);
  print("  in gaps", totals.completions_lost);
  print("  seen changing", totals.unstable);
  print("  false", totals.completions_false);
  const uint64_t wrong = totals.posterior_false + totals.margin_false + totals.completions_false;
  // Without these the run has shown nothing.
  const bool shown = totals.posterior > 0 && totals.margin > 0 && totals.completions > 0 &&
                     totals.lost_blocks > 0 && totals.posterior_refused > 0;
  if (wrong != 0)
    std::printf("FAILED: %llu false operations\n", static_cast<unsigned long long>(wrong));
  if (!shown) std::printf("FAILED: the writer did not lap the reader, or nothing was certified\n");
  return wrong == 0 && shown ? 0 : 1;
}
