/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The last look at a ring. A queue observer that polls comes too late to a queue that is destroyed
 * or reset: its memory is given back as soon as the command returns. So the command's entry marks
 * the ring as dead, and copies what the observer has not seen of it, bounded.
 *
 * A ring's slot is given out here when it is created, so that even a queue which lives for less
 * than the observer's interval is copied whole.
 */
#ifndef SIGMA_RINGS_H
#define SIGMA_RINGS_H

#include "bpf/maps.h"
#include "bpf/ring_slots.h"

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, SIGMA_RING_SLOTS);
  __type(key, __u32);
  __type(value, struct sigma_ring_slot);
} ring_slots __weak SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 32768);
  __type(key, struct sigma_ring_key);
  __type(value, __u32); /* slot */
} ring_objects __weak SEC(".maps");

/* Slots given out so far. */
__u32 ring_slots_used __weak = 0;

/* The number of a slot that nobody uses, or 0. */
SIGMA_VERIFIED_ONCE __u32 new_ring_slot(__u32 kind, __u32 tgid) {
  for (int i = 0; i < 16; i++) {
    __u32 number = __sync_fetch_and_add(&ring_slots_used, 1) %
                       (SIGMA_RING_SLOTS - SIGMA_RING_FOUND_SLOTS - 1) +
                   1;
    struct sigma_ring_slot* slot = bpf_map_lookup_elem(&ring_slots, &number);
    if (!slot || slot->kind) continue;
    slot->ring_addr = 0;
    slot->doorbell_addr = 0;
    slot->next = 0;
    slot->posted = 0;
    slot->copied = 0;
    slot->entries = 0;
    slot->stride = 0;
    slot->dead = 0;
    slot->looks = 0;
    slot->life = 0;
    slot->cq[0] = 0;
    slot->cq[1] = 0;
    slot->ucontext = 0;
    slot->handle = 0;
    slot->number = 0;
    slot->tgid = tgid;
    slot->generation++;
    slot->kind = kind;
    return number;
  }
  return 0;
}

static __always_inline __u32 ring_slot_of(__u32 tgid, __u64 ucontext, __u32 handle) {
  struct sigma_ring_key key = {.tgid = tgid, .handle = handle, .ucontext = ucontext};
  __u32* slot = bpf_map_lookup_elem(&ring_objects, &key);
  return slot ? *slot : 0;
}

/* A slot that was given to another ring meanwhile is not this one's. */
static __always_inline bool is_ring_of(const struct sigma_ring_slot* slot, __u32 tgid, __u64 ucontext,
                                       __u32 handle) {
  return slot && slot->kind && slot->tgid == tgid && slot->ucontext == ucontext && slot->handle == handle;
}

/* Whom a command is for: the process, and the context or file. */
struct ring_command {
  __u32 tgid;
  __u64 ucontext;
};

/* Completion rings by their number, in `handle`. */
struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 16384);
  __type(key, struct sigma_ring_key);
  __type(value, __u32); /* slot */
} ring_cqs __weak SEC(".maps");

static __always_inline __u32 cq_slot_of(__u32 tgid, __u64 ucontext, __u32 cqn) {
  struct sigma_ring_key key = {.tgid = tgid, .handle = cqn & 0xffffff, .ucontext = ucontext};
  __u32* slot = bpf_map_lookup_elem(&ring_cqs, &key);
  return slot ? *slot : 0;
}

/* The object is gone: its handle and number may be given to another one. The slot that it had, or 0. */
SIGMA_VERIFIED_ONCE int forget_ring(__u32 tgid, __u64 ucontext, __u32 handle) {
  struct sigma_ring_key key = {.tgid = tgid, .handle = handle, .ucontext = ucontext};
  __u32* known = bpf_map_lookup_elem(&ring_objects, &key);
  if (!known) return 0;
  __u32 number = *known;
  struct sigma_ring_slot* slot = bpf_map_lookup_elem(&ring_slots, &number);
  bpf_map_delete_elem(&ring_objects, &key);
  if (!slot || !slot->number) return number;
  key.handle = slot->number;
  bpf_map_delete_elem(&ring_cqs, &key);
  return number;
}

/* What user space has said of this life of the ring, else its begin. */
static __always_inline __u64 place_of(const struct sigma_ring_slot* slot, __u64 place) {
  __u64 position = place & ((1ull << SIGMA_RING_PLACE_BITS) - 1);
  return place == SIGMA_RING_PLACE(slot->life, position) ? position : 0;
}

/* A copy of a ring in pieces. Of its slot what they need: all programs' stacks together have 512 bytes. */
struct drain {
  __u64 ring_addr;
  __u32 entries;
  __u32 stride;
  __u32 generation;
  __u32 kind;
  __u64 id;
  __u64 now;
  __u64 first; /* of the next piece */
  __u64 copied; /* all before is in pieces */
  __u64 end;
  __u64 posted;
  __u64 consumed; /* CQ: by its owner */
  __u32 number;
  __u32 consumer;
  __u16 reason;
  __u16 done; /* nothing more to copy */
  __u32 counted; /* the doorbell record was read */
  __u32 old;     /* CQ: what is copied is of the lap before */
};

static __always_inline void fill_drain(struct sigma_ring_drain* record, const struct drain* drain,
                                       __u16 size) {
  fill_header(&record->h, SIGMA_RING_DRAIN, size, drain->id, drain->now);
  record->slot = drain->number;
  record->generation = drain->generation;
  record->first = drain->first;
  record->posted = drain->posted;
  record->consumer = drain->consumer;
  record->count = 0;
  record->reason = drain->reason;
  record->kind = drain->kind;
  record->last = 0;
  record->counted = drain->counted;
}

/* 1: there is no more. */
SIGMA_VERIFIED_ONCE int drain_piece(struct drain* drain) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!drain || drain->done || drain->first >= drain->end) return 1;
  __u32 stride = drain->stride, entries = drain->entries;
  if (!totals || (stride != 64 && stride != 128) || !entries) return 1;
  __u32 at = drain->first & (entries - 1);
  __u64 count = drain->end - drain->first;
  if (count > SIGMA_DRAIN_BYTES / stride) count = SIGMA_DRAIN_BYTES / stride;
  if (count > entries - at) count = entries - at;

  struct sigma_ring_piece* record = reserve(totals, sizeof(*record));
  if (!record) {
    drain->done = 1;
    return 1;
  }
  fill_drain(&record->drain, drain, sizeof(*record));
  /* 64 bits wide: of a narrower one the verifier tests a copy and does not bound the original. */
  __u64 bytes = count * stride;
  barrier_var(bytes);
  if (bytes > SIGMA_DRAIN_BYTES) bytes = SIGMA_DRAIN_BYTES;
  bool whole = read_user(totals, record->bytes, bytes, drain->ring_addr + (__u64)at * stride);
  record->drain.count = whole ? count : 0;
  if (!whole) drain->done = 1;
  /* A completion ring goes on as long as its entries are new: the last byte has the opcode and the
   * lap's parity. Where its owner keeps no index, laps may have passed: a small one is copied whole. */
  bool counted = drain->consumer || (__u64)entries * stride > SIGMA_DRAIN_WHOLE_BYTES;
  if (whole && drain->kind == SIGMA_RING_CQ) {
    __u64 last = bytes - 1;
    barrier_var(last);
    __u64 position = drain->first + count - 1;
    if (last < SIGMA_DRAIN_BYTES && position >= drain->consumed) {
      __u8 own = record->bytes[last];
      __u64 lap = position / entries;
      if (own >> 4 == 15 || (own & 1) != (lap & 1)) {
        drain->old = 1;
        drain->done = counted;
      }
    }
  }
  drain->first += count;
  if (!drain->done && !drain->old) drain->copied = drain->first;
  submit(record);
  return 0;
}

static long drain_step(__u64 i, void* data) {
  return drain_piece(data) != 0;
}

/* A completion ring's consumer index, by the ring's slot; 0 where it is not known. */
static __always_inline __u32 consumer_of(struct sigma_totals* totals, __u32 number) {
  __be32 index = 0;
  struct sigma_ring_slot* cq = bpf_map_lookup_elem(&ring_slots, &number);
  if (number && cq && cq->kind == SIGMA_RING_CQ && cq->doorbell_addr)
    read_user(totals, &index, sizeof(index), cq->doorbell_addr);
  return __builtin_bswap32(index) & 0xffffff;
}

/* Copies what is new in the ring, and says that this was the last of it. */
SIGMA_VERIFIED_ONCE int drain_ring(__u32 number, __u32 reason) {
  struct sigma_totals* totals = totals_of_cpu();
  struct sigma_ring_slot* slot = bpf_map_lookup_elem(&ring_slots, &number);
  if (!totals || !slot || !number || !slot->kind) return 0;
  __u64 id = bpf_get_current_pid_tgid();
  if (slot->tgid != tgid_of(id)) return 0; /* a forked child's copy of the handle */
  bool ends = reason != SIGMA_DRAIN_LOOK;
  if (ends && slot->dead) return 0;
  if (ends) slot->dead = reason;
  __sync_fetch_and_add(&slot->looks, 1);
  barrier();
  struct drain drain = {
      .ring_addr = slot->ring_addr, .entries = slot->entries, .stride = slot->stride,
      .generation = slot->generation, .kind = slot->kind, .id = id, .now = bpf_ktime_get_ns(),
      .number = number, .reason = reason};
  __be32 words[2] = {};
  if (slot->ring_addr && slot->entries &&
      read_user(totals, words, sizeof(words), slot->doorbell_addr)) {
    drain.counted = 1;
    __u64 posted = place_of(slot, slot->posted);
    drain.first = place_of(slot, slot->next);
    if (slot->kind == SIGMA_RING_SEND) {
      drain.posted =
          posted + (__u16)((__u16)__builtin_bswap32(words[1]) - (__u16)posted);
      drain.end = drain.posted;
      drain.consumer = consumer_of(totals, slot->cq[0]);
      __u64 most = slot->entries < SIGMA_DRAIN_ENTRIES ? slot->entries : SIGMA_DRAIN_ENTRIES;
      if (drain.end - drain.first > most) drain.first = drain.end - most;
    } else {
      drain.consumer = __builtin_bswap32(words[0]) & 0xffffff;
      /* Those before the new ones show whether these stand. */
      if (slot->copied > drain.first) drain.first = slot->copied;
      drain.first -= drain.first < SIGMA_DRAIN_BEHIND ? drain.first : SIGMA_DRAIN_BEHIND;
      drain.copied = drain.first;
      __u64 entries = slot->entries, ahead = (drain.consumer - drain.first) & 0xffffff;
      if (ahead < 1 << 23) drain.consumed = drain.first + ahead;
      drain.end = drain.first + entries;
      /* Laps behind: what the owner has consumed is there in part, what it has not is new. */
      if (drain.consumed > drain.end) {
        drain.first = drain.consumed - entries;
        drain.first -= drain.first < SIGMA_DRAIN_BEHIND ? drain.first : SIGMA_DRAIN_BEHIND;
        drain.end = drain.consumed + entries;
      }
      if (drain.end - drain.first > SIGMA_DRAIN_ENTRIES)
        drain.end = drain.first + SIGMA_DRAIN_ENTRIES;
    }
    if (config.has_loop)
      bpf_loop(SIGMA_DRAIN_ENTRIES * 128 / SIGMA_DRAIN_BYTES + 2, drain_step, &drain, 0);
    else
      drain_step(0, &drain);
    if (slot->kind == SIGMA_RING_CQ) slot->copied = drain.copied;
  }
  struct sigma_ring_drain* record = reserve(totals, sizeof(*record));
  if (!record) return 0;
  drain.now = bpf_ktime_get_ns(); /* what was copied was there by now, not before */
  fill_drain(record, &drain, sizeof(*record));
  record->last = 1;
  submit(record);
  return 0;
}

#endif
