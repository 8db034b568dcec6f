// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * sigmatrace_gpu_emit(records, bytes) of the preloaded library: what it read from GPU-initiated
 * queues enters the ring buffer here. The caller is any process that is traced: only records of
 * rings are taken, with the sizes that they have, in bounded number and rate, and who and when is
 * for us to say.
 */
#include "bpf/maps.h"

/* Records of a process in the present window. */
struct gpu_rate {
  __u64 window; /* number of the window */
  __u64 taken;
};

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 4096);
  __type(key, __u32); /* tgid */
  __type(value, struct gpu_rate);
} gpu_rates SEC(".maps");

/* What the records of one call share, and where the walk is. */
struct gpu_batch {
  __u64 id;
  __u64 now;
  __u64 from; /* the next record; `end` and this are opaque to the verifier, and stay so */
  __u64 end;
  __u32 tgid;
};

/* Without bpf_loop. */
#define UNROLLED_RECORDS 4

static __always_inline __u32 size_of(__u16 type) {
  switch (type) {
    case SIGMA_RING:
      return sizeof(struct sigma_ring);
    case SIGMA_RING_POST:
      return sizeof(struct sigma_ring_post);
    case SIGMA_RING_COMPLETION:
      return sizeof(struct sigma_ring_completion);
    case SIGMA_RING_GAP:
      return sizeof(struct sigma_ring_gap);
    default:
      return 0;
  }
}

/* `size` must be a constant. */
static __always_inline void take(struct sigma_totals* totals, const struct gpu_batch* batch,
                                 __u16 type, __u64 size) {
  struct sigma_header* record = reserve(totals, size);
  if (!record) return;
  if (bpf_probe_read_user(record, size, (const void*)batch->from)) {
    /* Its header could be read: the caller unmaps it meanwhile. */
    count(totals, SIGMA_COUNT_UNREADABLE, 1);
    __builtin_memset(record, 0, size);
  }
  fill_header(record, type, size, batch->id, batch->now);
  submit(record);
}
SIGMA_ASSERT(sizeof(struct sigma_ring) == sizeof(struct sigma_ring_post));

/* The next record; 1: no more. */
static long take_next(__u32 index, void* data) {
  struct gpu_batch* batch = data;
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || batch->from == batch->end) return 1;
  struct sigma_header header;
  if (!read_user(totals, &header, sizeof(header), batch->from)) {
    batch->from = batch->end;
    return 1;
  }
  __u32 size = size_of(header.type);
  __u64 next = batch->from + size;
  if (!size || header.size != size || next > batch->end) {
    count(totals, SIGMA_COUNT_GPU_REFUSED, 1);
    batch->from = batch->end;
    return 1;
  }
  struct gpu_rate* rate = bpf_map_lookup_elem(&gpu_rates, &batch->tgid);
  if (rate && __sync_fetch_and_add(&rate->taken, 1) >= SIGMA_GPU_WINDOW_RECORDS)
    count(totals, SIGMA_COUNT_GPU_OVER_RATE, 1);
  else if (header.type == SIGMA_RING_COMPLETION)
    take(totals, batch, header.type, sizeof(struct sigma_ring_completion));
  else if (header.type == SIGMA_RING_GAP)
    take(totals, batch, header.type, sizeof(struct sigma_ring_gap));
  else
    take(totals, batch, header.type, sizeof(struct sigma_ring_post));
  batch->from = next;
  return 0;
}

static __always_inline void begin_window(__u32 tgid, __u64 now) {
  struct gpu_rate fresh = {.window = now / SIGMA_GPU_WINDOW_NS};
  struct gpu_rate* rate = bpf_map_lookup_elem(&gpu_rates, &tgid);
  if (!rate) {
    bpf_map_update_elem(&gpu_rates, &tgid, &fresh, BPF_NOEXIST);
  } else if (rate->window != fresh.window) {
    rate->window = fresh.window;
    rate->taken = 0;
  }
}

SEC("uprobe") int BPF_KPROBE(gpu_emit, __u64 records, __u32 bytes) {
  struct sigma_hit hit;
  if (!sigma_admit(&hit)) return 0;
  struct gpu_batch batch = {.id = hit.id,
                            .now = bpf_ktime_get_ns(),
                            .from = records,
                            .end = records + bytes,
                            .tgid = tgid_of(hit.id)};
  begin_window(batch.tgid, batch.now);
  if (bytes > SIGMA_GPU_BATCH_BYTES) {
    count(hit.totals, SIGMA_COUNT_GPU_REFUSED, 1);
    batch.end = records + SIGMA_GPU_BATCH_BYTES;
  }
  if (config.has_loop) {
    bpf_loop(SIGMA_GPU_BATCH_RECORDS, take_next, &batch, 0);
  } else {
    for (__u32 i = 0; i < UNROLLED_RECORDS; i++)
      if (take_next(i, &batch)) break;
  }
  if (batch.from != batch.end) count(hit.totals, SIGMA_COUNT_GPU_REFUSED, 1);
  return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
