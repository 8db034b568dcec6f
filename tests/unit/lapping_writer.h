// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A process that posts and completes requests in shared memory and laps whoever reads them on purpose: what
// torn_reads and torn_looks judge their readers by. It stores in libmlx5's order (addresses first, the index
// last) and in the device's (the owner bit last). Everything in an entry follows from its position, so what
// is read of it can be judged.
#pragma once

#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <new>
#include <random>
#include <thread>

#include "base/clock.h"
#include "decode/cqe.h"
#include "decode/send_ring.h"
#include "decode/wqe.h"

namespace lapping {

inline constexpr uint32_t kQpNum = 0x1234;
inline constexpr uint32_t kMaxEntries = 32'768;

struct Sizes {
  uint32_t blocks;   // of 64 bytes, of the send ring: a power of two, 128 to kMaxEntries
  uint32_t entries;  // completions
};

// The rings, their doorbell records, and the truth beside them, in memory that both processes have.
struct Rings {
  alignas(64) std::byte sq[kMaxEntries * sigma::kWqeBlockBytes];
  alignas(64) std::byte cq[kMaxEntries * sigma::kCqeBytes];
  // Wide counters, each stored before the record that has its low bits: they stand for what tells laps beyond
  // these (cur_post of libmlx5, the producer index of GPU queues).
  struct Doorbells {
    uint32_t receives, sends;  // be32
    uint64_t posted;           // blocks
    uint32_t consumer, arm;    // be32
    uint64_t completed;
  };
  alignas(64) Doorbells doorbells;
  std::atomic<bool> go;
};

inline uint64_t posted_by(const Rings& rings) { return __atomic_load_n(&rings.doorbells.posted, __ATOMIC_ACQUIRE); }
inline uint64_t completed_by(const Rings& rings) {
  return __atomic_load_n(&rings.doorbells.completed, __ATOMIC_ACQUIRE);
}

// Null: no memory.
inline Rings* make_rings(const Sizes& sizes) {
  void* memory = mmap(nullptr, sizeof(Rings), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* rings = new (memory) Rings;
  for (uint32_t slot = 0; slot < sizes.entries; ++slot) rings->cq[slot * sigma::kCqeBytes + 63] = std::byte{0xf1};
  return rings;
}

// ---- what an entry says -------------------------------------------------------------------------

inline uint64_t mix(uint64_t value) {
  value *= 0x9e3779b97f4a7c15;
  return value ^ value >> 29;
}
inline unsigned pointers_of(uint64_t position) { return mix(position) % 8; }
inline unsigned blocks_of(uint64_t position) { return (2 + pointers_of(position) + 3) / 4; }
inline uint64_t address_of(uint64_t position) { return position << 8 | 0x5a; }
// Of the completion `index`, of a request whose index has these bits.
inline uint32_t bytes_of_completion(uint64_t index, uint16_t request) {
  return static_cast<uint32_t>(mix(index << 16 | request));
}

// ---- the writer ---------------------------------------------------------------------------------

// Stores that the compiler keeps in order and in place; the machine (x86-64) does.
template <typename T>
void put(std::byte* to, const T& value) {
  std::memcpy(to, &value, sizeof(value));
  std::atomic_signal_fence(std::memory_order_seq_cst);
}
template <typename T>
void put(T& to, const T& value) {
  put(reinterpret_cast<std::byte*>(&to), value);
}

inline void write_wqe(Rings& rings, const Sizes& sizes, uint64_t position) {
  const auto at = [&](unsigned unit) {
    return rings.sq + (position * sigma::kWqeBlockBytes + unit * 16) % (sizes.blocks * sigma::kWqeBlockBytes);
  };
  const unsigned pointers = pointers_of(position);
  put(at(1), mlx5_wqe_raddr_seg{htobe64(address_of(position)), htobe32(static_cast<uint32_t>(position)), 0});
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

// The completion `index`, of the request at `position`.
inline void write_cqe(Rings& rings, const Sizes& sizes, uint64_t index, uint64_t position) {
  mlx5_cqe64 cqe{};
  cqe.byte_cnt = htobe32(bytes_of_completion(index, static_cast<uint16_t>(position)));
  cqe.timestamp = htobe64(index + 1);
  cqe.sop_drop_qpn = htobe32(MLX5_OPCODE_RDMA_READ << 24 | kQpNum);
  cqe.wqe_counter = htobe16(static_cast<uint16_t>(position));
  cqe.op_own = index / sizes.entries & 1;
  std::byte* to = rings.cq + index % sizes.entries * sigma::kCqeBytes;
  const auto* from = reinterpret_cast<const std::byte*>(&cqe);
  std::memcpy(to, from, 63);  // an emulated device's way; a NIC writes all at once
  std::atomic_signal_fence(std::memory_order_seq_cst);
  put(to + 63, from[63]);
}

// Requests in batches of up to 16, each completed at once. No device holds it up, and a fast core would pass what
// one executes of one queue (observe/posted_bounds.h): so it keeps below that, at no more than 20 M requests/s.
[[noreturn]] inline void write_for_ever(Rings& rings, const Sizes& sizes, uint32_t seed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  constexpr uint64_t kRequestNs = 50;
  std::minstd_rand random(seed);
  uint64_t position = 0, completed = 0, round = 0, due_ns = 0;
  std::array<uint64_t, 16> batch;
  while (!rings.go) std::this_thread::yield();
  for (;;) {
    uint64_t now_ns = sigma::monotonic_now_ns();
    while (now_ns < due_ns) now_ns = sigma::monotonic_now_ns();
    const unsigned count = 1 + random() % batch.size();
    due_ns = now_ns + count * kRequestNs;
    for (unsigned i = 0; i < count; ++i) {
      batch[i] = position;
      write_wqe(rings, sizes, position);
      position += blocks_of(position);
    }
    put(rings.doorbells.posted, position);
    put(rings.doorbells.sends, htobe32(static_cast<uint32_t>(position & 0xffff)));
    for (unsigned i = 0; i < count; ++i) write_cqe(rings, sizes, completed++, batch[i]);
    put(rings.doorbells.completed, completed);
    put(rings.doorbells.consumer, htobe32(static_cast<uint32_t>(completed & 0xffffff)));
    // At times slower than the reader, at times laps ahead of it.
    constexpr unsigned kRests[] = {1, 256, 8'192};
    for (volatile unsigned rest = random() % kRests[round++ / 1'024 % 3]; rest > 0;) rest = rest - 1;
  }
}

}  // namespace lapping
