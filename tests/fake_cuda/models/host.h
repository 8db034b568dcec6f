// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the stacks' host sides have in common: a device, memory that NIC and GPU share, umems,
// queues made by DevX commands, connections, UAR pages that the GPU writes.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "../../prm/prm_blobs.h"
#include "bind.h"

namespace models {

struct Options {
  const char* mode = "";  // of the stack: see each model
  const char* device = "mlx5_0";
  unsigned queues = 2, posters = 2, depth = 128, batch = 32;
  uint64_t operations = 1000;  // a queue
  uint64_t start = 0;          // index at which they begin: that many WQEBBs of NOPs before
  uint64_t seed = 1;
  unsigned pace_us = 0;   // between windows
  unsigned hang_s = 0;    // without progress for so long: say where, and end
  unsigned resets = 0;    // so often all queues are reset, and the operations posted once more
  bool measured = false;  // operations without end, in turns: measured.h
};
Options parse_options(int argc, char** argv);

// xorshift: the same on every machine.
struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15 | 1) {}
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 8;
  }
  uint64_t below(uint64_t end) { return next() % end; }
};

// Memory that the NIC reaches under `address` and kernels through `gpu`.
struct Buffer {
  uint64_t address = 0;
  uint8_t* gpu = nullptr;
  size_t bytes = 0;
  uint64_t base = 0;  // of the allocation that it lies in
  bool on_device = false;
};

struct Host {
  Cuda cuda;  // not bound: a process without CUDA
  Mlx5 mlx5;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  uint32_t pdn = 0;
  ibv_port_attr port{};
  union ibv_gid gid {};
  unsigned gid_index = 0;
  bool ethernet = false;

  void open(const char* device);
  void close();
  void start_cuda();

  // cuMemAlloc(bytes + slack), marked SYNC_MEMOPS, zeroed; `alignment` within it.
  Buffer device_memory(size_t bytes, size_t slack, size_t alignment, bool sync_on_aligned);
  // Host memory, registered with CUDA if that is there.
  Buffer host_memory(size_t bytes);
  void release(Buffer& buffer);

  enum class By { dma_buf_only, dma_buf_or_address, address };
  // To RESET, by command: what the stack keeps in memory it must clear by itself.
  void reset(mlx5dv_devx_obj* qp, uint32_t qpn);
  void modify(mlx5dv_devx_obj* qp, const std::vector<uint8_t>& command);
  mlx5dv_devx_umem* umem(const Buffer& buffer, By by, bool offset_form = false);
  ibv_mr* memory_region(const Buffer& buffer, bool by_dma_buf);

  // NC_DEDICATED where libmlx5 knows it, NC, BF: as the stacks try them.
  mlx5dv_devx_uar* uar(bool blue_flame);
  // A page of I/O memory as the GPU sees it; `bytes` at `register_address`.
  // NC pages are one and the same for all who ask: mapped once, as long as anyone uses it.
  uint8_t* map_uar(void* register_address, size_t bytes);
  void unmap_uar(void* register_address);

  uint32_t create(mlx5dv_devx_obj*& object, const prm_blobs::Blob& command, const char* what);
  void connect(mlx5dv_devx_obj* qp, const prm_blobs::Connection& connection);
  uint32_t eqn();

 private:
  struct MappedUar {
    void* address;
    uint8_t* seen;
    unsigned users;
  };
  std::vector<MappedUar> mapped_;
};

// Where a queue pair's peer is and what it may write there.
struct Peer {
  uint32_t qpn = 0;
  uint16_t lid = 0;
  uint8_t gid[16] = {};
  uint64_t heap = 0;
  uint32_t rkey = 0;
  uint32_t dct = 0;
};
prm_blobs::Connection connection_to(const Host& host, uint32_t qpn, const Peer& peer);

void pause_us(unsigned us);

}  // namespace models
