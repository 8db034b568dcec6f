// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Functions for the choice of probe sites. NAME is the entry; NAME.site and NAME.paired, where they exist,
// are where the probe of the entry alone, and that of entry and return, must stand. Without one the
// entry itself must be taken.
	.text
	.macro function name
	.p2align 4
	.globl \name
	.type \name, @function
\name:
	.cfi_startproc
	.endm
	.macro done name
	.cfi_endproc
	.size \name, . - \name
	.endm

	// The classic prologue: push first.
	function push_first
push_first.site:
push_first.paired:
	push %rbp
	mov %rsp, %rbp
	pop %rbp
	ret
	done push_first

	// REX push.
	function rex_push
rex_push.site:
rex_push.paired:
	push %r15
	pop %r15
	ret
	done rex_push

	// push %rbx with a needless REX.W: the kernel does not know that form.
	function odd_push
	.byte 0x48, 0x53
	pop %rbx
	ret
	done odd_push

	// endbr64 is stepped over.
	function endbr_push
	endbr64
endbr_push.site:
endbr_push.paired:
	push %r14
	pop %r14
	ret
	done endbr_push

	// Arguments intact until a push that the compiler put late, rsp untouched before it.
	function late_push
	mov 8(%rdi), %rax
	mov (%rsi), %r8
late_push.site:
late_push.paired:
	push %rbx
	lea 1(%rax, %r8), %rbx
	mov %rbx, %rax
	pop %rbx
	ret
	done late_push

	// rsp moved before the push: good for an entry probe, not for a return probe.
	function push_after_sub
	sub $24, %rsp
push_after_sub.site:
	push %rbx
	pop %rbx
	add $24, %rsp
	ret
	done push_after_sub

	// An argument is overwritten before the first emulated instruction.
	function clobbered
	mov 8(%rdi), %rdi
	push %rbx
	pop %rbx
	ret
	done clobbered

	// The same, but only the third argument: fine for a function of two.
	function clobbered_third
	xor %edx, %edx
clobbered_third.site:
clobbered_third.paired:
	push %rbx
	pop %rbx
	ret
	done clobbered_third

	// A write to half of an argument register counts.
	function clobbered_low_byte
	mov $1, %sil
	push %rbx
	pop %rbx
	ret
	done clobbered_low_byte

	// Implicit writes: rep movs moves rdi, rsi and rcx.
	function clobbered_implicitly
	mov $2, %ecx
	rep movsb
	push %rbx
	pop %rbx
	ret
	done clobbered_implicitly

	// cpuid, which writes edx and ecx without naming them.
	function clobbered_by_cpuid
	xor %eax, %eax
	cpuid
	push %rbx
	pop %rbx
	ret
	done clobbered_by_cpuid

	function exchanged
	xchg %rax, %rsi
	push %rbx
	pop %rbx
	ret
	done exchanged

	// A tail call at the very entry.
	function jump_first
jump_first.site:
jump_first.paired:
	jmp late_push
	done jump_first

	// A conditional branch, short and near.
	function branch
	test %rsi, %rsi
branch.site:
branch.paired:
	je 1f
	mov $1, %eax
1:	ret
	done branch

	function near_branch
	cmpl $3, (%rdi)
near_branch.site:
near_branch.paired:
	{disp32} jne 1f
	mov $1, %eax
1:	ret
	done near_branch

	// jcxz and loop are branches that the kernel does not emulate, and end the straight line.
	function jcxz
	jrcxz 1f
	push %rbx
	pop %rbx
1:	ret
	done jcxz

	// A direct call.
	function direct_call
	sub $8, %rsp
direct_call.site:
	call push_first
	add $8, %rsp
	ret
	done direct_call

	// An indirect call is not emulated, and what follows sees other registers.
	function indirect_call
	sub $8, %rsp
	call *(%rdi)
	push %rbx
	pop %rbx
	add $8, %rsp
	ret
	done indirect_call

	// A loop comes back to the jump: it runs more than once in a call.
	function loop_at_site
	mov %rsi, %rax
1:	dec %rax
	jne 1b
	ret
	done loop_at_site

	// A loop comes back before the site.
	function loop_before_site
	mov %rdx, %rax
1:	add %rsi, %rax
	test %rax, %rax
	je 2f
	cmp $100, %rax
	jb 1b
2:	ret
	done loop_before_site

	// The loop is behind the site: no matter.
	function loop_behind_site
loop_behind_site.site:
loop_behind_site.paired:
	push %rbx
1:	dec %rsi
	jne 1b
	pop %rbx
	ret
	done loop_behind_site

	// A part that was moved away jumps back to before the site.
	function retried
	mov (%rdi), %rax
retried.again:
	test %rax, %rax
	je retried.cold
	ret
	done retried
	function retried.cold
	mov 8(%rsi), %rax
	jmp retried.again
	done retried.cold

	// The function loops over its entry: no place counts calls.
	function loops_over_entry
	dec %rsi
	jne loops_over_entry
	ret
	done loops_over_entry

	// A nop5 in the middle may not be used: kernels turn it into a call that writes below rsp.
	function middle_nop5
	mov %rdi, -8(%rsp)
	.byte 0x0f, 0x1f, 0x44, 0x00, 0x00
	mov -8(%rsp), %rax
	ret
	done middle_nop5

	// At the start it may, and after endbr64.
	function entry_nop5
entry_nop5.site:
entry_nop5.paired:
	.byte 0x0f, 0x1f, 0x44, 0x00, 0x00
	mov %rdi, %rax
	ret
	done entry_nop5
	function endbr_nop5
	endbr64
endbr_nop5.site:
endbr_nop5.paired:
	.byte 0x0f, 0x1f, 0x44, 0x00, 0x00
	mov %rdi, %rax
	ret
	done endbr_nop5

	// Older kernels step over long nops: a push behind one is better.
	function nop5_then_push
	.byte 0x0f, 0x1f, 0x44, 0x00, 0x00
nop5_then_push.site:
nop5_then_push.paired:
	push %rbx
	pop %rbx
	ret
	done nop5_then_push

	function short_nop
	mov %rdi, %rax
short_nop.site:
short_nop.paired:
	nop
	ret
	done short_nop

	// A switch: a jump through a table may come back anywhere, but not to a push.
	function switched
	mov %rsi, %rax
	cmp $3, %rax
	ja 1f
	lea switch_table(%rip), %r8
	movslq (%r8, %rax, 4), %rax
	add %r8, %rax
	jmp *%rax
1:	ret
	done switched
	function switched_push
	mov %rsi, %rax
switched_push.site:
switched_push.paired:
	push %rbx
	lea switch_table(%rip), %rbx
	movslq (%rbx, %rax, 4), %rax
	add %rbx, %rax
	pop %rbx
	jmp *%rax
	done switched_push

	// Nothing emulated at all.
	function nothing
	lea (%rdi, %rsi), %rax
	ret
	done nothing

	.section .rodata
switch_table:
	.long 0, 0, 0, 0
	.section .note.GNU-stack, "", @progbits
