/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Who gives out the slots of rings (config.h), and how the command that ends a ring finds its slot:
 * BPF those of rings that it sees being made, user space the last ones, to rings that it finds.
 */
#ifndef SIGMA_RING_SLOTS_H
#define SIGMA_RING_SLOTS_H

#include "bpf/config.h"

/* In sigma_uverbs.flags, beside enum sigma_uverbs_flags: `ring_slot` is the one of a ring that this command
 * has ended. To be given back: everything that BPF has said of the ring comes before. */
#define SIGMA_UVERBS_RING_GONE (1u << 15)

#define SIGMA_RING_FOUND_SLOTS 4096 /* of SIGMA_RING_SLOTS */

/* A file of a process (files.bpf.c). */
struct sigma_open_file {
  __u64 file; /* struct file *, as in sigma_uverbs.ucontext */
  __u32 fd;
  __u32 reserved;
};

/* uverbs handles are unique in their file, whatever the kind of object. */
struct sigma_ring_key {
  __u32 tgid;
  __u32 handle;
  __u64 ucontext; /* as in sigma_uverbs */
};

#endif
