/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Where the rings of queues made by DevX are: CREATE_QP and CREATE_CQ name them as places in memory
 * that was registered before (umems). Noted as the command returns, so that a queue which lives for
 * less than it takes user space to hear of it has its last look as well.
 *
 * Places in the firmware's commands: prm.h. User space does what needs more.
 */
#ifndef SIGMA_DEVX_RINGS_H
#define SIGMA_DEVX_RINGS_H

#include "bpf/prm.h"
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

/* DEVX_UMEM REG has returned. The pair by value: 6.1 takes a map's new value from the stack or a map only. */
SIGMA_VERIFIED_ONCE int note_umem(__u32 tgid, __u64 ucontext, __u64 id_at, __u64 addr, __u64 length) {
  struct sigma_totals* totals = totals_of_cpu();
  struct sigma_ring_key key = {.tgid = tgid, .ucontext = ucontext};
  struct umem umem = {.addr = addr, .length = length};
  if (!totals || !read_user(totals, &key.handle, sizeof(key.handle), id_at)) return 0;
  bpf_map_update_elem(&ring_umems, &key, &umem, BPF_ANY);
  return 0;
}

static __always_inline __u32 prm_word(struct sigma_totals* totals, __u64 command, __u32 at) {
  __be32 word = 0;
  if (!read_user(totals, &word, sizeof(word), command + at)) return 0;
  return __builtin_bswap32(word);
}

/* A field within one word of 32 bits. */
static __always_inline __u32 prm_bits(struct sigma_totals* totals, __u64 command, __u32 bit, __u32 width) {
  __u32 word = prm_word(totals, command, bit / 32 * 4) >> (32 - bit % 32 - width);
  return width == 32 ? word : word & ((1u << width) - 1);
}
#define PRM(totals, command, place) prm_bits(totals, command, place)
#define PRM_BYTE_(bit, width) ((bit) / 8)
#define PRM_BYTE(place) PRM_BYTE_(place)

/* The address of `bytes` at an offset (64 bits at `offset_at`) in a umem (32 bits at `id_at`); 0: not
 * in memory that was seen being registered. */
SIGMA_VERIFIED_ONCE __u64 umem_place(const struct sigma_ring_key* object, __u64 command, __u32 id_at,
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

/* What kind of ring a firmware command makes; 0: none. */
static __always_inline __u32 devx_ring_kind(struct sigma_totals* totals, __u64 command) {
  __u32 opcode = PRM(totals, command, SIGMA_PRM_OPCODE);
  if (opcode == SIGMA_PRM_CREATE_CQ) return SIGMA_RING_CQ;
  return opcode == SIGMA_PRM_CREATE_QP ? SIGMA_RING_SEND : 0;
}

/* Fills in the slot of a ring that `command` has made. */
SIGMA_VERIFIED_ONCE int place_devx_ring(const struct sigma_ring_key* object, __u64 command,
                                      struct sigma_ring_slot* slot) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !object || !slot) return 0;
  __u64 ring = 0, doorbell = 0;
  if (slot->kind == SIGMA_RING_CQ) {
    __u32 entries = 1u << PRM(totals, command, SIGMA_PRM_CQ_LOG_ENTRIES);
    slot->stride = PRM(totals, command, SIGMA_PRM_CQ_ENTRY_SIZE) ? 128 : 64;
    ring = umem_place(object, command, PRM_BYTE(SIGMA_PRM_CQ_UMEM_ID), PRM_BYTE(SIGMA_PRM_CQ_UMEM_OFFSET),
                      (__u64)entries * slot->stride);
    doorbell = umem_place(object, command, PRM_BYTE(SIGMA_PRM_CQ_DOORBELL_UMEM_ID),
                          PRM_BYTE(SIGMA_PRM_CQ_DOORBELL_OFFSET), 8);
    /* Collapsed: all stand in the first. */
    slot->entries = PRM(totals, command, SIGMA_PRM_CQ_COLLAPSED) ? 1 : entries;
  } else {
    __u32 log_receives = PRM(totals, command, SIGMA_PRM_QP_LOG_RECEIVES);
    /* The send ring stands behind the receive ring, if the queue pair has one of its own. */
    __u64 before = 0;
    if (log_receives && !PRM(totals, command, SIGMA_PRM_QP_RECEIVES_BY))
      before = 16ull << (log_receives + PRM(totals, command, SIGMA_PRM_QP_LOG_RECEIVE_SIZE));
    slot->cq[0] = cq_slot_of(object->tgid, object->ucontext, PRM(totals, command, SIGMA_PRM_QP_SEND_CQN));
    slot->cq[1] = cq_slot_of(object->tgid, object->ucontext, PRM(totals, command, SIGMA_PRM_QP_RECV_CQN));
    slot->stride = 64;
    slot->entries = 0;
    if (!PRM(totals, command, SIGMA_PRM_QP_NO_SEND_RING))
      slot->entries = 1u << PRM(totals, command, SIGMA_PRM_QP_LOG_BLOCKS);
    ring = umem_place(object, command, PRM_BYTE(SIGMA_PRM_QP_UMEM_ID), PRM_BYTE(SIGMA_PRM_QP_UMEM_OFFSET),
                      before + (__u64)slot->entries * 64);
    if (ring) ring += before;
    doorbell = umem_place(object, command, PRM_BYTE(SIGMA_PRM_QP_DOORBELL_UMEM_ID),
                          PRM_BYTE(SIGMA_PRM_QP_DOORBELL_OFFSET), 8);
  }
  slot->doorbell_addr = doorbell;
  /* Without a doorbell record user space has to find a way. */
  if (doorbell) slot->ring_addr = ring;
  return 0;
}

#endif
