// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/emit.h"

// In the file, not in .bss, and not in what is read-only after relocation: the kernel finds the
// counter by its place in the file, in a mapping of it that can be written.
__attribute__((section(".probes"), used)) volatile uint16_t sigmatrace_gpu_tracers = 0;

// The arguments are in their registers at the first instruction, one that the kernel emulates
// rather than single-steps. The compiler must neither put another before it nor inline the call.
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl sigmatrace_gpu_emit
.type sigmatrace_gpu_emit, @function
sigmatrace_gpu_emit:
  .cfi_startproc
  .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
  ret
  .cfi_endproc
.size sigmatrace_gpu_emit, . - sigmatrace_gpu_emit
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl sigmatrace_gpu_emit
.type sigmatrace_gpu_emit, %function
sigmatrace_gpu_emit:
  .cfi_startproc
  nop
  ret
  .cfi_endproc
.size sigmatrace_gpu_emit, . - sigmatrace_gpu_emit
)");
#endif
