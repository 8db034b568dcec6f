// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Torn reads, in earnest: a process writes WQEs (in libmlx5's order: addresses first, the index
// last) and completions as fast as it can into rings that it laps on purpose; this one reads them
// by process_vm_readv and certifies them. Everything in an entry follows from its position, so what
// was certified can be checked. Any false one fails.
//
//   torn_reads [SLOTS [ENTRIES]]   until so many slots have been inspected (default 1,000,000), in
//                                  rings of so many entries (default 256, at most 32,768)
#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <vector>

#include "decode/completion_ring.h"
#include "decode/send_ring.h"

using namespace sigma;

namespace {

constexpr uint32_t kQpNum = 0x1234;
constexpr uint32_t kMaxEntries = 32'768;
uint32_t ring_entries = 256;  // WQEBBs, and completions; set once, before anything starts

// What both processes see. The wide counters stand for what tells laps beyond the 16 and 24 bits
// (cur_post of libmlx5, the producer index of GPU queues).
struct Shared {
  alignas(64) std::byte sq[kMaxEntries * kWqeBlockBytes];
  alignas(64) std::byte cq[kMaxEntries * kCqeBytes];
  struct Doorbells {
    uint32_t unused, send;  // be32
    uint64_t posted;
    uint32_t consumer;  // be32
    uint32_t reserved;
    uint64_t consumed;
  };
  alignas(64) Doorbells doorbells;
};

uint64_t mix(uint64_t value) {
  value *= 0x9e3779b97f4a7c15;
  return value ^ value >> 29;
}
unsigned pointers_of(uint64_t position) {
  return mix(position) % 8;
}
unsigned blocks_of(uint64_t position) {
  return (2 + pointers_of(position) + 3) / 4;
}
uint64_t address_of(uint64_t position) {
  return position << 8 | 0x5a;
}

// ---- the writer
// -----------------------------------------------------------------------------------

// Stores that the compiler keeps in order and in place; the machine (x86-64) does.
template <typename T>
void put(std::byte* to, const T& value) {
  std::memcpy(to, &value, sizeof(value));
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void write_wqe(Shared& shared, uint64_t position) {
  const auto at = [&](unsigned unit) {
    return shared.sq + (position * kWqeBlockBytes + unit * 16) % (ring_entries * kWqeBlockBytes);
  };
  const unsigned pointers = pointers_of(position);
  put(at(1), mlx5_wqe_raddr_seg{htobe64(address_of(position)),
                                htobe32(static_cast<uint32_t>(position)), 0});
  for (unsigned i = 0; i < pointers; ++i) {
    mlx5_wqe_data_seg data;
    mlx5dv_set_data_seg(&data, 64, static_cast<uint32_t>(position), address_of(position));
    put(at(2 + i), data);
  }
  mlx5_wqe_ctrl_seg control{};
  mlx5dv_set_ctrl_seg(&control, static_cast<uint16_t>(position), MLX5_OPCODE_RDMA_WRITE, 0, kQpNum,
                      MLX5_WQE_CTRL_CQ_UPDATE, static_cast<uint8_t>(2 + pointers), 0, 0);
  put(at(0) + 8, reinterpret_cast<const std::array<std::byte, 8>*>(&control)[1]);
  put(at(0), reinterpret_cast<const std::array<std::byte, 8>*>(&control)[0]);
}

void write_cqe(Shared& shared, uint64_t position) {
  mlx5_cqe64 cqe{};
  cqe.byte_cnt = htobe32(static_cast<uint32_t>(mix(position)));
  cqe.timestamp = htobe64(position + 1);
  cqe.sop_drop_qpn = htobe32(MLX5_OPCODE_RDMA_READ << 24 | kQpNum);
  cqe.wqe_counter = htobe16(static_cast<uint16_t>(position));
  cqe.op_own = position / ring_entries & 1;
  std::byte* to = shared.cq + position % ring_entries * kCqeBytes;
  const auto* from = reinterpret_cast<const std::byte*>(&cqe);
  std::memcpy(to, from, 63);  // an emulated device's way; a NIC writes all at once
  std::atomic_signal_fence(std::memory_order_seq_cst);
  put(to + 63, from[63]);
}

[[noreturn]] void write_for_ever(Shared& shared, uint32_t seed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::minstd_rand random(seed);
  uint64_t position = 0, produced = 0, round = 0;
  for (;;) {
    for (unsigned batch = 1 + random() % 16; batch > 0; --batch) {
      write_wqe(shared, position);
      position += blocks_of(position);
    }
    std::atomic_thread_fence(std::memory_order_release);
    shared.doorbells.posted = position;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    shared.doorbells.send = htobe32(static_cast<uint32_t>(position & 0xffff));

    for (unsigned batch = 1 + random() % 16; batch > 0; --batch) write_cqe(shared, produced++);
    std::atomic_thread_fence(std::memory_order_release);
    shared.doorbells.consumed = produced;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    shared.doorbells.consumer = htobe32(static_cast<uint32_t>(produced & 0xffffff));

    // At times slower than the reader, at times laps ahead of it.
    constexpr unsigned kRests[] = {1, 256, 8'192};
    for (volatile unsigned rest = random() % kRests[round++ / 1'024 % 3]; rest > 0;)
      rest = rest - 1;
  }
}

// ---- the reader
// -----------------------------------------------------------------------------------

struct Totals {
  uint64_t samples = 0, inspected = 0, index_only_false = 0;
  uint64_t margin = 0, margin_refused = 0, margin_false = 0;
  uint64_t posterior = 0, posterior_refused = 0, posterior_false = 0;
  uint64_t lost_blocks = 0, seen_blocks = 0;
  uint64_t completions = 0, completions_false = 0, completions_lost = 0, unstable = 0;
};

class Reader {
 public:
  Reader(pid_t pid, Shared& remote) : pid_(pid), remote_(remote) {}

  bool sample(Totals& totals) {
    ++totals.samples;
    Shared::Doorbells before, soon, after;
    if (!read({{&before, sizeof(before)}, {&soon, sizeof(soon)}},
              {{&remote_.doorbells, sizeof(before)}, {&remote_.doorbells, sizeof(soon)}}))
      return false;
    // Laps beyond the doorbell's 16 bits: by the wide counter, if both were read at about one time.
    if (soon.posted - before.posted > 8'192) return true;
    const uint16_t doorbell = be32toh(before.send) & 0xffff;
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

  void walk_posts(const SendStep& step, const Shared::Doorbells& after, Totals& totals) {
    const RingBytes slots{slots_};
    // The wide counter is published first: a lap of 16 bits more than the doorbell shows is seen.
    uint64_t posted_after = extend16(cursor_.posted, be32toh(after.send) & 0xffff);
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

  void walk_completions(uint64_t from, const Shared::Doorbells& after, Totals& totals) {
    uint32_t index = be32toh(after.consumer);
    if (after.consumed - completions_.consumed >= 1u << 23) {  // laps beyond its 24 bits
      completions_.consumed = after.consumed;
      index = after.consumed & 0xffffff;
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
          cqe.timestamp != position + 1 || cqe.bytes != static_cast<uint32_t>(mix(position)) ||
          cqe.wqe_counter != static_cast<uint16_t>(position) || cqe.qp_num != kQpNum;
    }
  }

  pid_t pid_;
  Shared& remote_;
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
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return std::perror("mmap"), 2;
  auto& shared = *static_cast<Shared*>(memory);
  for (uint32_t slot = 0; slot < ring_entries; ++slot)
    shared.cq[slot * kCqeBytes + 63] = std::byte{0xf1};

  const pid_t writer = fork();
  if (writer < 0) return std::perror("fork"), 2;
  if (writer == 0) write_for_ever(shared, 1);

  Reader reader(writer, shared);
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
