// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the stacks on CUDA share: the heap, the kernel's stream, and one queue's host side.
#pragma once

#include "run.h"

namespace models {

struct CudaStack {
  Host host;
  CUstream stream = nullptr;

  Buffer heap(size_t bytes) { return host.device_memory(bytes, 65535, 65536, true); }
  bool heap_by_dma_buf() const { return true; }

  void launch(unsigned blocks, FakeKernel kernel, void* argument) {
    require(
        host.cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -5) == CUDA_SUCCESS &&
            host.cuda.launch(stream, blocks, kernel, argument) == CUDA_SUCCESS,
        "cannot launch the kernel");
  }
  void join() {
    require(host.cuda.cuStreamSynchronize(stream) == CUDA_SUCCESS &&
                host.cuda.cuStreamDestroy(stream) == CUDA_SUCCESS,
            "the kernel did not end");
  }
};

// The host's handles of one queue pair with its send CQ.
struct QueueObjects {
  mlx5dv_devx_umem *cq_umem = nullptr, *ring_umem = nullptr, *record_umem = nullptr;
  mlx5dv_devx_obj *cq = nullptr, *qp = nullptr;
  uint32_t cqn = 0, qpn = 0;
  Buffer cq_memory, ring_memory, record_memory;

  void destroy(Host& host) {
    host.mlx5.mlx5dv_devx_obj_destroy(qp);
    host.mlx5.mlx5dv_devx_obj_destroy(cq);
    for (mlx5dv_devx_umem* umem : {ring_umem, record_umem, cq_umem})
      if (umem) host.mlx5.mlx5dv_devx_umem_dereg(umem);
    for (Buffer* buffer : {&ring_memory, &record_memory, &cq_memory}) host.release(*buffer);
  }
};

inline void describe_queue(unsigned number, uint32_t qpn, uint32_t cqn, uint64_t ring,
                           uint32_t blocks, uint64_t record, uint64_t cq) {
  printf("queue %u qpn %u cqn %u ring %#llx blocks %u record %#llx cq %#llx\n", number, qpn, cqn,
         static_cast<unsigned long long>(ring), blocks, static_cast<unsigned long long>(record),
         static_cast<unsigned long long>(cq));
}

inline unsigned log2_of(uint32_t value) {
  return static_cast<unsigned>(31 - __builtin_clz(value));
}

}  // namespace models
