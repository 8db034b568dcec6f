/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The maps, and what every program does with them: filter, count, emit.
 *
 * Uprobe programs run with preemption enabled: another task's hit may come in the middle of one, on
 * the same CPU. So nothing is kept in per-CPU scratch, counters are added to atomically, and state
 * between two hits is keyed by thread. Weak definitions: each .bpf.c brings them, the linker keeps
 * one.
 */
#ifndef SIGMA_MAPS_H
#define SIGMA_MAPS_H

#include "bpf/config.h"
#include "bpf/kernel.h"
#include "bpf/records.h"
#include "bpf/verbs.h"

const volatile struct sigma_config config __weak;

/* Size set at the load. */
struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 1 << 20);
} records __weak SEC(".maps");

/*
 * What happens to a process when `records` is full. Lost, a whole trace would take it for what it was:
 * a process that has ended keeps its queues, and one that runs another program its old ones. Has room
 * for the ends of as many processes as are traced at once.
 */
struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 512 << 10);
} spare_events __weak SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
  __uint(max_entries, 4096);
  __type(key, __u32); /* tgid */
  __type(value, struct sigma_target);
} targets __weak SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
  __uint(max_entries, 1);
  __uint(key_size, sizeof(__u32));
  __uint(value_size, sizeof(__u32));
} selected_cgroup __weak SEC(".maps");

struct sigma_totals {
  __u64 count[SIGMA_COUNTERS]; /* enum sigma_counter */
};

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct sigma_totals);
} counters __weak SEC(".maps");

/*
 * What a return needs to know of its entry. One slot a thread and function, written in place at
 * each entry: cheaper than inserting and deleting, and LRU forgets threads that are gone. No
 * library calls one of these functions from within itself.
 */
struct sigma_call_key {
  __u64 id; /* pid_tgid */
  __u64 function;
};

struct sigma_call {
  __u64 call_ns; /* 0: the slot is not in use */
  __u64 object;  /* QP, SRQ, CQ, context, or struct file */
  __u64 context;
  __u64 argument; /* wr, wc, or the command */
  __u64 bad_wr;
  __u32 number; /* QP number, or the device node's number */
  __u32 target_flags;
};

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 16384);
  __type(key, struct sigma_call_key);
  __type(value, struct sigma_call);
} calls __weak SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 32768);
  __type(key, struct sigma_queue_pair_key);
  __type(value, struct sigma_queue_pair);
} queue_pairs __weak SEC(".maps");

struct sigma_context_key {
  __u32 tgid;
  __u32 reserved;
  __u64 context;
};

struct sigma_known_context {
  __u32 epoch;  /* at which it was reported */
  __u32 hooked; /* its commands pass our probe on execute_ioctl */
};

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 4096);
  __type(key, struct sigma_context_key);
  __type(value, struct sigma_known_context);
} contexts __weak SEC(".maps");

/*
 * When what is known may be stale. `epoch` counts events that give addresses a new meaning (a
 * closed context, an exec, an exit): queue pairs and contexts are then reported again when next
 * used. `generation` counts these and all that may change a queue pair or the filter (a destroyed
 * queue pair, a target paused or removed): queue pairs are then read again. Never 0. User space
 * adds to both, too.
 */
__u32 epoch __weak = 1;
__u32 generation __weak = 1;
/* Every uverbs command is seen in the kernel, so no queue pair can go unnoticed. Set by user space.
 */
__u32 kernel_control __weak = 0;

static __always_inline void new_generation(void) {
  __sync_fetch_and_add(&generation, 1);
}
static __always_inline void new_epoch(void) {
  __sync_fetch_and_add(&epoch, 1);
  new_generation();
}

static __always_inline __u32 tgid_of(__u64 id) {
  return id >> 32;
}

/* ---- counting ---------------------------------------------------------------------------------
 */

static __always_inline struct sigma_totals* totals_of_cpu(void) {
  __u32 zero = 0;
  return bpf_map_lookup_elem(&counters, &zero);
}

static __always_inline void count(struct sigma_totals* totals, enum sigma_counter counter,
                                  __u64 n) {
  __sync_fetch_and_add(&totals->count[counter], n);
}

/* ---- reading the job --------------------------------------------------------------------------
 */

static __always_inline bool read_user(struct sigma_totals* totals, void* to, __u32 size,
                                      __u64 from) {
  if (bpf_probe_read_user(to, size, (const void*)from) == 0) return true;
  count(totals, SIGMA_COUNT_UNREADABLE, 1);
  return false;
}

/* Adds the lengths of a request's SGEs from the second on; the first is in the record already. */
static __always_inline void add_sges(struct sigma_totals* totals, struct sigma_post* record,
                                     __u64 list, __u64 n) {
  for (__u32 i = 1; i < SIGMA_MAX_SGE; i++) {
    struct sigma_ibv_sge sge;
    if (i >= n) return;
    if (!read_user(totals, &sge, sizeof(sge), list + i * sizeof(sge))) {
      record->flags |= SIGMA_POST_UNREADABLE;
      return;
    }
    record->bytes += sge.length;
  }
  if (n > SIGMA_MAX_SGE) record->flags |= SIGMA_POST_SGE_TRUNCATED;
}

/* ---- emitting ---------------------------------------------------------------------------------
 */

/* Room for one record, or NULL; counted either way. `size` must be a constant. */
static __always_inline void* reserve(struct sigma_totals* totals, __u64 size) {
  count(totals, SIGMA_COUNT_ATTEMPTS, 1);
  void* record = bpf_ringbuf_reserve(&records, size, 0);
  if (!record) count(totals, SIGMA_COUNT_DROPPED, 1);
  return record;
}

static __always_inline void fill_header(struct sigma_header* h, __u16 type, __u16 size, __u64 id,
                                        __u64 now) {
  h->time_ns = now;
  h->type = type;
  h->size = size;
  h->cpu = bpf_get_smp_processor_id();
  h->pid = tgid_of(id);
  h->tid = (__u32)id;
}

/* Never wakes the reader: a wake-up costs the job 6-15 us; the reader polls on a timer. */
static __always_inline void submit(void* record) {
  bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/* ---- filter -----------------------------------------------------------------------------------
 */

/* What every program knows of its hit once the filter has let it pass. */
struct sigma_hit {
  __u64 id; /* pid_tgid */
  struct sigma_totals* totals;
  __u32 target_flags;
};

/* Does the current process meet what user space selects by? */
SIGMA_VERIFIED_ONCE int is_selected(void) {
  const volatile struct sigma_selection* selection = &config.selection;
  if (tgid_of(bpf_get_current_pid_tgid()) == selection->except_tgid) return 0;
  if (selection->by_uid && (__u32)bpf_get_current_uid_gid() != selection->uid) return 0;
  if (selection->by_cgroup && bpf_current_task_under_cgroup(&selected_cgroup, 0) != 1) return 0;
  if (!selection->by_comm) return 1;
  char comm[16] = {};
  __u64 task = bpf_get_current_task(), leader = 0;
  if (selection->leader_at) {
    if (bpf_probe_read_kernel(&leader, sizeof(leader), (void*)(task + selection->leader_at)) ||
        bpf_probe_read_kernel_str(comm, sizeof(comm), (void*)(leader + selection->comm_at)) < 0)
      return 0;
  } else {
    bpf_get_current_comm(comm, sizeof(comm));
  }
  for (__u32 i = 0; i < sizeof(comm); i++) {
    if (comm[i] != selection->comm[i]) return 0;
    if (!comm[i]) break; /* what follows is left over from a longer name */
  }
  return 1;
}

static __always_inline void fill_process(struct sigma_process* record, __u32 kind, __u32 child,
                                         __s32 exit_code) {
  fill_header(&record->h, SIGMA_PROCESS, sizeof(*record), bpf_get_current_pid_tgid(),
              bpf_ktime_get_ns());
  record->kind = kind;
  record->child_pid = child;
  record->exit_code = exit_code;
  record->reserved = 0;
  bpf_get_current_comm(record->comm, sizeof(record->comm));
}

SIGMA_VERIFIED_ONCE int emit_process(__u32 kind, __u32 child, __s32 exit_code) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals) return 0;
  count(totals, SIGMA_COUNT_ATTEMPTS, 1);
  struct sigma_process* record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
  if (record) {
    fill_process(record, kind, child, exit_code);
    submit(record);
    return 0;
  }
  struct sigma_spare_event* spare = bpf_ringbuf_reserve(&spare_events, sizeof(*spare), 0);
  if (!spare) {
    count(totals, SIGMA_COUNT_DROPPED, 1);
    return 0;
  }
  fill_process(&spare->process, kind, child, exit_code);
  spare->position = bpf_ringbuf_query(&records, BPF_RB_PROD_POS);
  submit(spare);
  return 0;
}

/* Makes the current process a target if it is selected, and tells user space of it. */
SIGMA_VERIFIED_ONCE int admit_selected(void) {
  if (!is_selected()) return 0;
  __u32 tgid = tgid_of(bpf_get_current_pid_tgid());
  struct sigma_target fresh = {};
  if (bpf_map_update_elem(&targets, &tgid, &fresh, BPF_NOEXIST) == 0)
    emit_process(SIGMA_PROCESS_FOUND, 0, 0);
  return 1;
}

/* False: not traced, do nothing more. */
static __always_inline bool sigma_admit(struct sigma_hit* hit) {
  hit->id = bpf_get_current_pid_tgid();
  hit->totals = totals_of_cpu();
  if (!hit->totals) return false;

  __u32 tgid = tgid_of(hit->id);
  struct sigma_target* target = bpf_map_lookup_elem(&targets, &tgid);
  if (!target && config.selects && admit_selected()) {
    target = bpf_map_lookup_elem(&targets, &tgid);
    if (!target) { /* the map is full: trace without counting for the governor */
      hit->target_flags = 0;
      count(hit->totals, SIGMA_COUNT_HITS, 1);
      return true;
    }
  }
  if (!target) {
    count(hit->totals, SIGMA_COUNT_FILTERED, 1);
    return false;
  }
  __sync_fetch_and_add(&target->hits, 1);
  hit->target_flags = target->flags;
  if (target->flags & SIGMA_TARGET_PAUSED) {
    count(hit->totals, SIGMA_COUNT_FILTERED, 1);
    return false;
  }
  count(hit->totals, SIGMA_COUNT_HITS, 1);
  return true;
}

/* ---- calls that have a return ------------------------------------------------------------------
 */

static __always_inline void remember_call(const struct sigma_hit* hit, __u64 function,
                                          const struct sigma_call* call) {
  struct sigma_call_key key = {.id = hit->id, .function = function};
  struct sigma_call* slot = bpf_map_lookup_elem(&calls, &key);
  if (slot)
    *slot = *call;
  else if (bpf_map_update_elem(&calls, &key, call, BPF_ANY))
    count(hit->totals, SIGMA_COUNT_ENTRY_FULL, 1);
}

/*
 * The entry of the call that returns now, or NULL (counted). An entry from before the target was
 * paused or its probes were removed is not this call's: the flags differ. The caller clears call_ns
 * when done.
 */
static __always_inline struct sigma_call* recall(struct sigma_hit* hit, __u64 function) {
  hit->id = bpf_get_current_pid_tgid();
  hit->totals = totals_of_cpu();
  if (!hit->totals) return NULL;
  __u32 tgid = tgid_of(hit->id);
  struct sigma_target* target = bpf_map_lookup_elem(&targets, &tgid);
  if (!target && !config.selects) return NULL;
  hit->target_flags = target ? target->flags : 0;

  struct sigma_call_key key = {.id = hit->id, .function = function};
  struct sigma_call* call = bpf_map_lookup_elem(&calls, &key);
  if (call && call->call_ns && call->target_flags == hit->target_flags) return call;
  count(hit->totals, SIGMA_COUNT_NO_ENTRY, 1);
  return NULL;
}

/* Of a plain return program: the link that runs it was made for another process. */
static __always_inline bool is_strangers(struct pt_regs* ctx) {
  __u32 pid = bpf_get_attach_cookie(ctx) >> SIGMA_COOKIE_PID_SHIFT;
  return pid && pid != tgid_of(bpf_get_current_pid_tgid());
}

/* Session programs run at entry and at return; the return is where the function's address is not.
 */
static __always_inline bool is_return(struct pt_regs* ctx) {
  return PT_REGS_IP(ctx) != bpf_get_func_ip(ctx);
}

/* What a session program's entry returns. */
enum { SIGMA_SESSION_WANT_RETURN = 0, SIGMA_SESSION_NO_RETURN = 1 };

#endif
