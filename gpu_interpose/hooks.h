// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The hook table in code: identities, the real functions behind the wrappers, and what look-ups by
// name are answered. hooks.def is the list; wrappers are in cuda_hooks.cpp, mlx5_hooks.cpp and
// ioctl_hook.cpp.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sigma::gpu {

enum class Hook : uint16_t {
#define SIGMA_CUDA(symbol, base, since, until, stream) symbol,
#define SIGMA_MLX5DV(symbol, node) symbol,
#define SIGMA_LIBC(symbol) symbol,
#include "gpu_interpose/hooks.def"
  count
};

enum class Library : uint8_t { cuda, mlx5, libc, count };
enum class Stream : uint8_t { any, legacy, per_thread };

struct HookRow {
  const char* symbol;
  void* wrapper;
  Library library;
  const char* node;  // null: unversioned
  const char* base;  // for cuGetProcAddress; null: not asked by it
  int since;
  int until;
  Stream stream;
};

const HookRow& row_of(Hook hook);

// The function that the wrapper stands for, or null: the library is not loaded, or has it not.
// Found once; the library is then kept loaded. Thread-safe, takes no lock of ours.
void* real_function(Hook hook);

// The real function with the wrapper's own signature.
#define SIGMA_REAL(symbol) \
  reinterpret_cast<decltype(&::symbol)>(::sigma::gpu::real_function(::sigma::gpu::Hook::symbol))

// A function of a loaded library by name, past all hooks; null if there is none.
void* loaded_function(Library library, const char* name);

// A library that is not there yet, past all hooks; null if it cannot be loaded. Takes the loader's
// lock: for the reader's thread, not for the job's.
void* open_library(const char* name);
void* function_of(void* library, const char* name);

// What a caller of cuGetProcAddress gets instead of `found`; `found` where nothing is hooked.
void* answer_proc_address(const char* base, int version, uint64_t flags, void* found);

// The path of the object that holds `address`; null if unknown.
const char* object_of(const void* address);

// The driver has been found: this process is one that uses CUDA.
bool cuda_is_loaded();

}  // namespace sigma::gpu
