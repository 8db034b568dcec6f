// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Windows: device memory that this process's CPUs can read (tier 2): as it is, on coherent
// platforms, or by a mapping that gdrcopy makes. No call of CUDA's is needed for a look then.
//
// Only ever read, and by a system call: the driver takes a mapping away with the memory behind it
// (gdrdrv's callback on a free), and a load of ours there would be the job's end. The reader's
// thread alone uses this.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <cstddef>

#include "gpu_interpose/copier.h"
#include "gpu_interpose/registry.h"

namespace sigma::gpu {

// gdrapi.h of NVIDIA/gdrcopy 2.x, by its exported names; the struct of handles is one word.
struct GdrHandle {
  unsigned long h;
};
struct GdrInfo {  // gdr_info_v2_t
  uint64_t va, mapped_size;
  uint32_t page_size;
  uint64_t tm_cycles;
  uint32_t cycles_per_ms;
  unsigned mapped : 1, wc_mapping : 1;
  int mapping_type;
};
struct GdrCalls {
  void* (*open)();
  int (*pin)(void* gdr, unsigned long address, size_t bytes, uint64_t token, uint32_t space,
             GdrHandle* handle);
  int (*unpin)(void* gdr, GdrHandle handle);
  int (*info)(void* gdr, GdrHandle handle, GdrInfo* info);
  int (*map)(void* gdr, GdrHandle handle, void** at, size_t bytes);
  int (*unmap)(void* gdr, GdrHandle handle, void* at, size_t bytes);
};
// Loads libgdrapi.so.2, the first time that it is asked for. False: it is not there.
using FindGdr = bool (*)(GdrCalls& calls);
// By `find(symbol)`; false when one is missing.
bool find_gdr_calls(GdrCalls& calls, void* (*find)(void* library, const char* symbol),
                    void* library);

struct Window {
  uint64_t begin, end;  // device addresses
  int64_t offset;       // from there to where the host reads
  uint32_t users;       // 0: free
  void* mapping;        // null: coherent
  size_t mapped_bytes;
  GdrHandle handle;
};

class Windows {
 public:
  // 64 KiB of the GPU's BAR at least for each: as much as the smallest BARs have.
  static constexpr uint32_t kMost = 4096;

  // `table`: kMost, zeroed. `calls` null: no driver. `find` null: no gdrcopy.
  Windows(Window* table, const CudaCalls* calls, FindGdr find)
      : table_(table), calls_(calls), find_(find) {}

  // A window on all of it, to be released; null, and why there is none.
  Window* open(int device, uint64_t address, uint64_t bytes, sigma_gpu_reason& why);
  // The last user's takes the mapping away.
  void release(Window*& window);
  // It shows nothing any more: nobody else shall have it. Its pages may hold what is still there.
  static void retire(Window& window) { window.begin = window.end = 0; }

 private:
  bool is_coherent(int device);
  bool map(Window& window, uint64_t address, uint64_t bytes, sigma_gpu_reason& why);
  void unmap(Window& window);

  Window* table_;
  const CudaCalls* calls_;
  FindGdr find_;
  GdrCalls gdr_calls_{};
  void* gdr_ = nullptr;  // never closed: its descriptor's number may be the job's by then
  bool tried_ = false;
  sigma_gpu_reason no_gdr_ = SIGMA_GPU_REASON_NO_GDRCOPY;
  uint32_t used_ = 0;
};

// Reads memory of this process that may go at any time. False: it was not all there.
bool read_window(const Window& window, uint64_t address, void* to, size_t bytes);

}  // namespace sigma::gpu
