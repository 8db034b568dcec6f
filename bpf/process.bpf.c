// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* exec, fork and exit of traced processes. A process ends when its last thread does. */
#include <linux/errno.h>

#include "bpf/maps.h"
#include "bpf/rings.h"

static __always_inline bool is_target(__u32 tgid) {
  return bpf_map_lookup_elem(&targets, &tgid) != NULL;
}

struct bpf_map;
static long end_ring_of(struct bpf_map* map, const __u32* number, struct sigma_ring_slot* slot,
                        void* data) {
  const __u32* tgid = data;
  if (!slot->kind || slot->tgid != *tgid) return 0;
  if (!slot->dead) drain_ring(*number, SIGMA_DRAIN_EXIT);
  forget_ring(*tgid, slot->ucontext, slot->handle);
  return 0;
}

/* Its memory is another one by now: what was to be read has been, at the begin of the exec. */
static long forget_ring_of(struct bpf_map* map, const __u32* number, struct sigma_ring_slot* slot,
                           void* data) {
  const __u32* tgid = data;
  if (!slot->kind || slot->tgid != *tgid) return 0;
  if (!slot->dead) slot->dead = SIGMA_DRAIN_EXIT;
  forget_ring(*tgid, slot->ucontext, slot->handle);
  return 0;
}

SEC("tp_btf/sched_process_exec") int BPF_PROG(process_exec, struct task_struct* task) {
  __u32 tgid = task->tgid;
  if (!is_target(tgid)) return 0;
  new_epoch(); /* every address has a new meaning */
  bpf_for_each_map_elem(&ring_slots, forget_ring_of, &tgid, 0);
  /* Children that are followed stay, whatever they become. */
  if (config.selects && !config.follow_forks && !is_selected()) {
    emit_process(SIGMA_PROCESS_LEFT, 0, 0);
    bpf_map_delete_elem(&targets, &tgid);
    return 0;
  }
  emit_process(SIGMA_PROCESS_EXEC, 0, 0);
  return 0;
}

/* In the parent, before the child runs: no hit of the child is missed. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_fork, struct task_struct* parent, struct task_struct* child) {
  __u32 tgid = child->tgid;
  if (tgid == (__u32)parent->tgid || !is_target(parent->tgid)) return 0; /* a thread; a stranger */
  if (config.follow_forks) {
    struct sigma_target fresh = {};
    bpf_map_update_elem(&targets, &tgid, &fresh, BPF_NOEXIST);
  }
  emit_process(SIGMA_PROCESS_FORK, tgid, 0);
  return 0;
}

/* A process that destroys nothing takes its queues along: here its memory is still there. */
static __always_inline void end_rings(__u32 tgid) {
  bpf_for_each_map_elem(&ring_slots, end_ring_of, &tgid, 0);
}

SEC("kprobe/do_exit") int BPF_KPROBE(rings_exit) {
  __u32 tgid = bpf_get_current_pid_tgid() >> 32;
  if (!is_target(tgid)) return 0;
  struct task_struct* task = (struct task_struct*)bpf_get_current_task();
  if (BPF_CORE_READ(task, signal, live.counter) <= 1) end_rings(tgid);
  return 0;
}

/* Where a program's loader takes over, in its old memory yet (fs/exec.c; exported since 5.8). */
SEC("kprobe/begin_new_exec") int BPF_KPROBE(rings_exec) {
  __u32 tgid = bpf_get_current_pid_tgid() >> 32;
  if (is_target(tgid)) end_rings(tgid);
  return 0;
}

SEC("tp_btf/sched_process_exit") int BPF_PROG(process_exit, struct task_struct* task) {
  __u32 tgid = task->tgid;
  if (task->signal->live.counter != 0 || !is_target(tgid)) return 0;
  /* Two last threads that exit at once both find no other alive: whoever takes it out tells of it. */
  if (bpf_map_delete_elem(&targets, &tgid) == -ENOENT) return 0;
  new_epoch();
  emit_process(SIGMA_PROCESS_EXIT, 0, task->exit_code);
  return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
