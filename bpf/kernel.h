/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The few kernel structures that the programs look into, reduced to the fields they use. CO-RE
 * finds the real offsets at load, so neither the order nor the completeness of these matters, and
 * the build machine needs no BTF.
 */
#ifndef SIGMA_KERNEL_H
#define SIGMA_KERNEL_H

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/*
 * A function that the verifier checks once, by itself, and not anew in each state of each of its
 * callers ("global": since 5.6, with pointers to memory of a known size, which it must take for
 * NULL, since 5.12). Weak: each of the linked objects brings it along.
 */
#define SIGMA_VERIFIED_ONCE __weak __noinline

#define SIGMA_KERNEL_TYPE __attribute__((preserve_access_index))

struct inode {
  __u32 i_rdev; /* dev_t: major << 20 | minor */
} SIGMA_KERNEL_TYPE;

struct file {
  struct inode* f_inode;
} SIGMA_KERNEL_TYPE;

struct sigma_atomic {
  int counter;
} SIGMA_KERNEL_TYPE;

struct signal_struct {
  struct sigma_atomic live; /* threads that have not exited */
} SIGMA_KERNEL_TYPE;

struct task_struct {
  int pid;
  int tgid;
  int exit_code;
  struct signal_struct* signal;
} SIGMA_KERNEL_TYPE;

/* What an iterator over open files is given. */
struct seq_file;
struct bpf_iter_meta {
  struct seq_file* seq;
} SIGMA_KERNEL_TYPE;

struct bpf_iter__task_file {
  struct bpf_iter_meta* meta;
  struct task_struct* task;
  __u32 fd;
  struct file* file;
} SIGMA_KERNEL_TYPE;

#endif
