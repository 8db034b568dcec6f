/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Who gives out the slots of rings (config.h), and how the command that ends a ring finds its slot:
 * BPF those of rings that it sees being made, user space the last ones, to rings that it finds.
 */
#ifndef SIGMA_RING_SLOTS_H
#define SIGMA_RING_SLOTS_H

#include "bpf/config.h"

#define SIGMA_RING_FOUND_SLOTS 4096 /* of SIGMA_RING_SLOTS */

/* uverbs handles are unique in their file, whatever the kind of object. */
struct sigma_ring_key {
  __u32 tgid;
  __u32 handle;
  __u64 ucontext; /* as in sigma_uverbs; of rings that were found: rdev, where files are named */
};

#endif
