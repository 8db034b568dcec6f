// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * The open files of a process, by descriptor. The hook on uverbs commands knows a file by its struct
 * file; what user space finds of a context that is older than the trace is its descriptor.
 *
 * A program of an iterator (since 5.8): runs when user space reads, and hooks nothing.
 */
#include "bpf/kernel.h"
#include "bpf/ring_slots.h"

__u32 files_of = 0; /* tgid, set before each reading */

SEC("iter/task_file") int open_files(struct bpf_iter__task_file* ctx) {
  struct task_struct* task = ctx->task;
  struct file* file = ctx->file;
  if (!task || !file || (__u32)task->tgid != files_of) return 0;
  struct sigma_open_file row = {.file = (__u64)file, .fd = ctx->fd};
  bpf_seq_write(ctx->meta->seq, &row, sizeof(row));
  return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
