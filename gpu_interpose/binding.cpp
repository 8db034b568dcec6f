// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ways by which a program comes to a function, and how each leads to our wrapper:
//
//   procedure linkage table   the wrapper is exported, and we are first in the global scope
//   dlsym, dlvsym             interposed below; a handle, RTLD_DEFAULT
//   dlsym(RTLD_NEXT)          passed on by a jump, for the real one looks at its caller's address:
//                             a program finds us next, an interposer behind us what it wants
//   cuGetProcAddress          its wrapper asks here (answer_proc_address)
//
// A wrapper stands for one real function. A second copy of a library (another path, another version
// node) is handed out as it is, and counted: calls must not change from one copy to another.
#include <dlfcn.h>

#include <atomic>

#include "gpu_interpose/cuda.h"
#include "gpu_interpose/guard.h"
#include "gpu_interpose/hooks.h"
#include "gpu_interpose/ioctl_hook.h"
#include "gpu_interpose/loaded_symbol.h"
#include "gpu_interpose/queues.h"
#include "gpu_interpose/text.h"
#include "gpu_interpose/wrappers.h"

namespace sigma::gpu {

__thread uint32_t guard_depth = 0;

namespace {

// Not constexpr: a function's address as void* is none to the language. To the linker it is.
const HookRow kRows[] = {
#define SIGMA_CUDA(symbol, base, since, until, stream)                                            \
  {#symbol,       reinterpret_cast<void*>(&::symbol), Library::cuda, nullptr, base, since, until, \
   Stream::stream},
#define SIGMA_MLX5DV(symbol, node) \
  {#symbol, reinterpret_cast<void*>(&::symbol), Library::mlx5, node, nullptr, 0, 0, Stream::any},
#define SIGMA_LIBC(symbol) \
  {#symbol, reinterpret_cast<void*>(&::symbol), Library::libc, nullptr, nullptr, 0, 0, Stream::any},
#include "gpu_interpose/hooks.def"
};

constexpr const char* kSonames[] = {"libcuda.so.1", "libmlx5.so.1", "libc.so.6"};
static_assert(sizeof(kSonames) / sizeof(*kSonames) == static_cast<size_t>(Library::count));

std::atomic<void*> real_functions[static_cast<size_t>(Hook::count)];
std::atomic<bool> cuda_loaded{false};

// The dynamic linker's own functions, past our wrappers.
struct Dl {
  decltype(&::dlsym) dlsym;
  decltype(&::dlvsym) dlvsym;
  decltype(&::dlopen) dlopen;
  decltype(&::dlmopen) dlmopen;
  decltype(&::dlerror) dlerror;
  decltype(&::dladdr) dladdr;
};

template <typename F>
void find(F& function, const char* name) {
  std::atomic_ref<F> slot(function);
  if (!slot.load(std::memory_order_acquire))
    slot.store(reinterpret_cast<F>(next_definition(name)), std::memory_order_release);
}

// Needs no lock: every thread finds the same.
Dl& dl() {
  static Dl found;
  static std::atomic<bool> complete{false};
  if (complete.load(std::memory_order_acquire)) return found;
  find(found.dlsym, "dlsym");
  find(found.dlvsym, "dlvsym");
  find(found.dlopen, "dlopen");
  find(found.dlmopen, "dlmopen");
  find(found.dlerror, "dlerror");
  find(found.dladdr, "dladdr");
  complete.store(true, std::memory_order_release);
  return found;
}

// A look-up of ours that failed must not be found by the job's next dlerror().
void forget_error() {
  if (dl().dlerror) dl().dlerror();
}

const HookRow* find_row(const char* name) {
  for (const HookRow& row : kRows)
    if (same_text(row.symbol, name)) return &row;
  return nullptr;
}

std::atomic<void*>& slot_of(const HookRow& row) {
  return real_functions[&row - kRows];
}

// Whoever calls a wrapper later must find the library still there. The path is the one that it was
// loaded by, so this loads nothing.
void keep_loaded(void* function) {
  Dl_info info{};
  if (!dl().dladdr || !dl().dladdr(function, &info) || !info.dli_fname) return;
  if (!dl().dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE)) forget_error();
}

// `found` is now what the wrapper calls, unless another was there before. Returns which one.
// Never the wrapper itself: a driver that takes the addresses of its own exported functions comes
// to those that are first in the global scope, ours.
void* adopt(const HookRow& row, void* found) {
  if (found == row.wrapper) return found;
  void* known = nullptr;
  if (!slot_of(row).compare_exchange_strong(known, found, std::memory_order_acq_rel)) return known;
  if (row.library != Library::libc) keep_loaded(found);
  if (row.library == Library::cuda) cuda_loaded.store(true, std::memory_order_release);
  return found;
}

void* look_up(void* handle, const char* name, const char* node) {
  if (!dl().dlsym || !dl().dlvsym) return nullptr;
  return node ? dl().dlvsym(handle, name, node) : dl().dlsym(handle, name);
}

// Behind us in the global scope, or in the library wherever it was loaded: a plug-in's local scope
// hides it from dlsym(RTLD_NEXT). Leaves the error of the last attempt.
void* look_up_loaded(Library library, const char* name, const char* node) {
  if (void* next = look_up(RTLD_NEXT, name, node)) return next;
  if (library == Library::libc || !dl().dlopen) return nullptr;
  void* handle = dl().dlopen(kSonames[static_cast<size_t>(library)], RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) return look_up(RTLD_NEXT, name, node);  // for its message: it names the symbol
  void* found = look_up(handle, name, node);
  // One more reference to a library that we then keep anyway; without a find it goes back.
  if (!found && dl().dlsym)
    if (auto close = reinterpret_cast<decltype(&::dlclose)>(dl().dlsym(RTLD_NEXT, "dlclose")))
      close(handle);
  return found;
}

// What the stubs do next: jump to `function`, or return `value`.
struct Next {
  void* function;
  void* value;
};

Next answer(void* handle, const char* name, const char* version, void* pass_on) {
  const Next passed{pass_on, nullptr};
  if (!name || handle == RTLD_NEXT) return passed;
  const HookRow* row = find_row(name);
  if (!row || row->library == Library::libc) return passed;
  const Guard guard;
  if (!guard.outermost()) return passed;

  void* found = handle == RTLD_DEFAULT ? nullptr : look_up(handle, name, version);
  if (handle != RTLD_DEFAULT && !found) return {nullptr, nullptr};
  // In the global scope we are found before the real one, also where there is none.
  if (handle == RTLD_DEFAULT || found == row->wrapper)
    found = look_up_loaded(row->library, name, version);
  if (!found) return {nullptr, nullptr};

  // An older version of the function may have another signature.
  const bool is_ours = !version || !row->node || same_text(version, row->node) ||
                       found == look_up_loaded(row->library, name, row->node);
  if (is_ours && adopt(*row, found) == found) {
    forget_error();
    return {nullptr, row->wrapper};
  }
  forget_error();
  count(SIGMA_GPU_OTHER_COPIES);
  return {nullptr, found};
}

}  // namespace

const HookRow& row_of(Hook hook) {
  return kRows[static_cast<size_t>(hook)];
}

void* real_function(Hook hook) {
  const HookRow& row = row_of(hook);
  if (void* known = slot_of(row).load(std::memory_order_acquire)) return known;
  const Guard guard;
  void* found = look_up_loaded(row.library, row.symbol, row.node);
  if (found && found != row.wrapper) return adopt(row, found);
  forget_error();
  return nullptr;
}

void* loaded_function(Library library, const char* name) {
  const Guard guard;
  void* found = look_up_loaded(library, name, nullptr);
  if (!found) forget_error();
  return found;
}

void* open_library(const char* name) {
  const Guard guard;
  void* library = dl().dlopen ? dl().dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!library) forget_error();
  return library;
}

void* function_of(void* library, const char* name) {
  const Guard guard;
  void* found = look_up(library, name, nullptr);
  if (!found) forget_error();
  return found;
}

void* answer_proc_address(const char* base, int version, uint64_t flags, void* found) {
  bool hooked = false;
  for (const HookRow& row : kRows) {
    if (!row.base || !same_text(row.base, base)) continue;
    hooked = true;
    if (version < row.since || (row.until && version >= row.until)) continue;
    const bool per_thread = flags & cuda::kProcPerThreadStream;
    if (row.stream != Stream::any && per_thread != (row.stream == Stream::per_thread)) continue;
    // A version beyond the table's may have given the name another signature.
    if (version > cuda::kNewestVersion && found != loaded_function(Library::cuda, row.symbol))
      break;
    adopt(row, found);
    count_wrapped();
    return row.wrapper;
  }
  if (hooked) count(SIGMA_GPU_OTHER_SIGNATURES);
  return found;
}

const char* object_of(const void* address) {
  Dl_info info{};
  return dl().dladdr && dl().dladdr(const_cast<void*>(address), &info) ? info.dli_fname : nullptr;
}

bool cuda_is_loaded() {
  if (cuda_loaded.load(std::memory_order_acquire)) return true;
  if (!loaded_function(Library::cuda, "cuInit")) return false;
  cuda_loaded.store(true, std::memory_order_release);
  return true;
}

extern "C" {

__attribute__((visibility("hidden"))) Next sigma_dlsym_called(void* handle, const char* name) {
  return answer(handle, name, nullptr, reinterpret_cast<void*>(dl().dlsym));
}

__attribute__((visibility("hidden"))) Next sigma_dlvsym_called(void* handle, const char* name,
                                                               const char* version) {
  return answer(handle, name, version, reinterpret_cast<void*>(dl().dlvsym));
}

// Libraries loaded so bind past us: what they then do is seen by the cross-check at best.
__attribute__((visibility("hidden"))) Next sigma_dlopen_called(const char*, int flags) {
  if (flags & RTLD_DEEPBIND) count(SIGMA_GPU_DEEPBIND_LOADS);
  return {reinterpret_cast<void*>(dl().dlopen), nullptr};
}

__attribute__((visibility("hidden"))) Next sigma_dlmopen_called(long name_space, const char*, int) {
  if (name_space != LM_ID_BASE) count(SIGMA_GPU_NAMESPACE_LOADS);
  return {reinterpret_cast<void*>(dl().dlmopen), nullptr};
}
}

// The stubs: ask, then return or jump. A jump, because dlsym(RTLD_NEXT), and dlopen with the
// caller's RUNPATH, go by the return address. Up to three arguments, in registers.
#if defined(__x86_64__)
asm(R"(
.macro SIGMA_STUB name
.text
.p2align 4
.globl \name
.type \name, @function
\name:
  .cfi_startproc
  endbr64
  push %rdi
  .cfi_adjust_cfa_offset 8
  push %rsi
  .cfi_adjust_cfa_offset 8
  push %rdx
  .cfi_adjust_cfa_offset 8
  call sigma_\name\()_called
  mov %rdx, %rcx
  pop %rdx
  .cfi_adjust_cfa_offset -8
  pop %rsi
  .cfi_adjust_cfa_offset -8
  pop %rdi
  .cfi_adjust_cfa_offset -8
  test %rax, %rax
  je 1f
  jmp *%rax
1:
  mov %rcx, %rax
  ret
  .cfi_endproc
.size \name, . - \name
.endm
SIGMA_STUB dlsym
SIGMA_STUB dlvsym
SIGMA_STUB dlopen
SIGMA_STUB dlmopen
)");
#else
#error "gpu_interpose: the stubs of dlsym and dlopen are written for x86-64"
#endif

}  // namespace sigma::gpu
