/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Where the rings of queues made by DevX are: CREATE_QP and CREATE_CQ name them as places in memory
 * that was registered before (umems). Noted as the command returns, so that a queue which lives for
 * less than it takes user space to hear of it has its last look as well.
 *
 * Offsets in the firmware's commands: userspace/decode/prm.cpp, whose rows they repeat for BPF. User
 * space does what needs more.
 */
#ifndef SIGMA_DEVX_RINGS_H
#define SIGMA_DEVX_RINGS_H

#include "bpf/rings.h"

struct umem {
  __u64 addr; /* 0: no user memory */
  __u64 length;
};

/* By umem id, in `handle`. A number that is used again is written over; the oldest make room. */
struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 8192);
  __type(key, struct sigma_ring_key);
  __type(value, struct umem);
} ring_umems SEC(".maps");

/* DEVX_UMEM REG has returned. */
static __noinline int note_umem(__u32 tgid, __u64 ucontext, __u64 id_at, const struct umem* umem) {
  struct sigma_totals* totals = totals_of_cpu();
  struct sigma_ring_key key = {.tgid = tgid, .ucontext = ucontext};
  if (!totals || !umem || !read_user(totals, &key.handle, sizeof(key.handle), id_at)) return 0;
  bpf_map_update_elem(&ring_umems, &key, umem, BPF_ANY);
  return 0;
}

static __always_inline __u32 prm_word(struct sigma_totals* totals, __u64 command, __u32 at) {
  __be32 word = 0;
  if (!read_user(totals, &word, sizeof(word), command + at)) return 0;
  return __builtin_bswap32(word);
}

/* The address of `bytes` at an offset (64 bits at `offset_at`) in a umem (32 bits at `id_at`); 0: not
 * in memory that was seen being registered. */
static __noinline __u64 umem_place(const struct sigma_ring_key* object, __u64 command, __u32 id_at,
                                   __u32 offset_at, __u64 bytes) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !object) return 0;
  struct sigma_ring_key key = {.tgid = object->tgid, .ucontext = object->ucontext};
  key.handle = prm_word(totals, command, id_at);
  struct umem* umem = bpf_map_lookup_elem(&ring_umems, &key);
  if (!umem || !umem->addr) return 0;
  __u64 offset = (__u64)prm_word(totals, command, offset_at) << 32;
  offset |= prm_word(totals, command, offset_at + 4);
  if (offset > umem->length || bytes > umem->length - offset) return 0;
  return umem->addr + offset;
}

enum {
  kCqContext = 0x10,
  kQpContext = 0x18,
};

/* What kind of ring a firmware command makes; 0: none. */
static __always_inline __u32 devx_ring_kind(struct sigma_totals* totals, __u64 command) {
  __u32 opcode = prm_word(totals, command, 0) >> 16;
  if (opcode == SIGMA_PRM_CREATE_CQ) return SIGMA_RING_CQ;
  return opcode == SIGMA_PRM_CREATE_QP ? SIGMA_RING_SEND : 0;
}

/* Fills in the slot of a ring that `command` has made. */
static __noinline int place_devx_ring(const struct sigma_ring_key* object, __u64 command,
                                      struct sigma_ring_slot* slot) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !object || !slot) return 0;
  __u64 ring = 0, doorbell = 0;
  if (slot->kind == SIGMA_RING_CQ) {
    __u32 flags = prm_word(totals, command, kCqContext);
    __u32 entries = 1u << (prm_word(totals, command, kCqContext + 0xc) >> 24 & 0x1f);
    slot->stride = flags >> 21 & 7 ? 128 : 64;
    ring = umem_place(object, command, 0x58, 0x50, (__u64)entries * slot->stride);
    doorbell = umem_place(object, command, kCqContext + 4, kCqContext + 0x38, 8);
    slot->entries = flags >> 20 & 1 ? 1 : entries; /* collapsed: all stand in the first */
  } else {
    __u32 sizes = prm_word(totals, command, kQpContext + 8);
    __u32 type = prm_word(totals, command, kQpContext + 0xac) >> 24 & 7;
    __u32 log_receives = sizes >> 19 & 0xf;
    /* The send ring stands behind the receive ring, if the queue pair has one of its own. */
    __u64 before = type == 0 && log_receives ? 16ull << (log_receives + (sizes >> 16 & 7)) : 0;
    slot->cq[0] = cq_slot_of(object->tgid, object->ucontext,
                             prm_word(totals, command, kQpContext + 0x7c));
    slot->cq[1] = cq_slot_of(object->tgid, object->ucontext,
                             prm_word(totals, command, kQpContext + 0x9c));
    slot->stride = 64;
    slot->entries = sizes >> 15 & 1 ? 0 : 1u << (sizes >> 11 & 0xf);
    ring = umem_place(object, command, 0x108, 0x100, before + (__u64)slot->entries * 64);
    if (ring) ring += before;
    doorbell = umem_place(object, command, kQpContext + 0xe4, kQpContext + 0xa0, 8);
  }
  slot->doorbell_addr = doorbell;
  /* Without a doorbell record user space has to find a way. */
  if (doorbell) slot->ring_addr = ring;
  return 0;
}

#endif
