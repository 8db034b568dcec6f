/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What user space tells the BPF programs, and how it names the probed functions to them.
 * One read-only struct, assigned whole before the load.
 */
#ifndef SIGMA_CONFIG_H
#define SIGMA_CONFIG_H

#include <linux/types.h>

#include "bpf/records.h"

/* The most work requests and SGEs that one call is walked for: a walk of 4,096 would hold up the
 * job for 0.6-0.8 ms (measured: bench post). What is beyond is counted (SIGMA_POST_LIST_TRUNCATED).
 */
#define SIGMA_MAX_WR 256
#define SIGMA_MAX_SGE 32
#define SIGMA_MAX_WC 256

/* What one call of sigmatrace_gpu_emit may carry, and one process in a window: 2 M records/s. */
#define SIGMA_GPU_BATCH_RECORDS 64
#define SIGMA_GPU_BATCH_BYTES 8192
#define SIGMA_GPU_WINDOW_NS 100000000
#define SIGMA_GPU_WINDOW_RECORDS 200000

/*
 * Every probed function. The number is the BPF cookie's low byte: programs that serve several
 * functions (the builders) tell them apart by it. userspace/attach/probe_table.cpp has one row
 * each.
 */
enum sigma_function {
  SIGMA_FN_POST_SEND = 1,
  SIGMA_FN_POST_RECV,
  SIGMA_FN_POST_SRQ_RECV,
  SIGMA_FN_POLL_CQ,
  SIGMA_FN_START_POLL,
  SIGMA_FN_NEXT_POLL,
  SIGMA_FN_WR_START,
  SIGMA_FN_WR_COMPLETE,
  SIGMA_FN_WR_ABORT,
  SIGMA_FN_WR_ATOMIC_CMP_SWP,
  SIGMA_FN_WR_ATOMIC_FETCH_ADD,
  SIGMA_FN_WR_BIND_MW,
  SIGMA_FN_WR_LOCAL_INV,
  SIGMA_FN_WR_RDMA_READ,
  SIGMA_FN_WR_RDMA_WRITE,
  SIGMA_FN_WR_RDMA_WRITE_IMM,
  SIGMA_FN_WR_SEND,
  SIGMA_FN_WR_SEND_IMM,
  SIGMA_FN_WR_SEND_INV,
  SIGMA_FN_WR_SEND_TSO,
  SIGMA_FN_WR_SET_UD_ADDR,
  SIGMA_FN_WR_SET_XRC_SRQN,
  SIGMA_FN_WR_SET_INLINE_DATA,
  SIGMA_FN_WR_SET_INLINE_DATA_LIST,
  SIGMA_FN_WR_SET_SGE,
  SIGMA_FN_WR_SET_SGE_LIST,
  SIGMA_FN_EXECUTE_IOCTL, /* libibverbs */
  SIGMA_FN_CLOSE_DEVICE,  /* libibverbs */
  SIGMA_FN_GPU_EMIT,      /* libsigmatrace_gpu */
  SIGMA_FUNCTIONS
};

/* The cookie's other bits. */
#define SIGMA_COOKIE_FUNCTION 0xff
#define SIGMA_COOKIE_CHECKED \
  0x100 /* the return of this call is probed as well: refusals will be told */

/* Of start_poll and next_poll: which entry of `cq_layouts` says how the provider keeps the completion
 * at which the CQ stands; 0: none does, only the public fields are read. */
#define SIGMA_COOKIE_LAYOUT_SHIFT 16
#define SIGMA_COOKIE_LAYOUT 0xff
#define SIGMA_MAX_CQ_LAYOUTS (SIGMA_COOKIE_LAYOUT + 1)

/* The process that a perf return link was made for, 0: all. The kernel (6.1 to 6.18:
 * uretprobe_perf_func) does not apply the link's pid to returns: with two targets each return runs the
 * programs of both links. */
#define SIGMA_COOKIE_PID_SHIFT 32

/* Value of the per-CPU hash map `targets` (key: tgid). Only `flags` is written by user space, the
 * same on every CPU; only `hits` by BPF. */
struct sigma_target {
  __u32 flags; /* SIGMA_TARGET_PAUSED; the bits above count the changes, so that a call that began
                * before one is not taken for a call that began after it */
  __u32 reserved;
  __u64 hits;
};
#define SIGMA_TARGET_PAUSED 1
#define SIGMA_TARGET_CHANGE 2

/*
 * How a provider keeps the current completion of an ibv_cq_ex, as its own read_* functions show
 * (userspace/resolve/cq_ex.h). Either in mlx5's completion entries, whose format is public, or field
 * by field.
 */
enum sigma_cq_kind { SIGMA_CQ_NONE, SIGMA_CQ_MLX5, SIGMA_CQ_FIELDS };

enum sigma_cq_field_name {
  SIGMA_CQ_QP_NUM,
  SIGMA_CQ_OPCODE,
  SIGMA_CQ_BYTE_LEN,
  SIGMA_CQ_VENDOR_ERR,
  SIGMA_CQ_IMM,
  SIGMA_CQ_WC_FLAGS,
  SIGMA_CQ_SRC_QP,
  SIGMA_CQ_FIELD_NAMES
};

struct sigma_cq_field {
  __u32 pointer; /* where in the CQ the pointer to the field's structure is; SIGMA_CQ_EMBEDDED: the
                  * structure is the CQ itself */
  __u32 offset;  /* in that structure */
  __u32 mask;    /* of the value, after `swapped` and `shift` */
  __u8 size;     /* 1, 2 or 4; 0: not known */
  __u8 swapped;  /* big-endian */
  __u8 shift;
  __u8 reserved;
};
#define SIGMA_CQ_EMBEDDED 0xffffffff

/* Value of the array map `cq_layouts`. */
struct sigma_cq_layout {
  __u32 kind;    /* enum sigma_cq_kind */
  __u32 pointer; /* SIGMA_CQ_MLX5: where in the CQ the pointer to the completion entry is */
  struct sigma_cq_field fields[SIGMA_CQ_FIELD_NAMES];
};

/* Map `queue_pairs`: what BPF knows of a queue pair. User space may add the doorbell's address. */
struct sigma_queue_pair_key {
  __u32 tgid;
  __u32 reserved;
  __u64 qp_ptr;
};

struct sigma_queue_pair {
  __u64 context;
  __u64 doorbell; /* mlx5: address of the doorbell record (two be32: receive, send); 0: unknown */
  __u32 qp_num;
  __u32 handle;
  __u32 qp_type;
  __u32 generation; /* at which the above was read from the job; 0: to be read again at each post */
  __u32 epoch;      /* at which it was reported */
  __u32 target_flags; /* of its process, at that generation */
  __u32 hits;         /* posts since; every SIGMA_HITS_BATCH of them are added to the target's */
  __u32 reserved;
};
#define SIGMA_HITS_BATCH 64

/*
 * Which processes become targets by themselves, at their first hit: those for which all conditions that
 * are set hold. Without conditions: every one.
 */
struct sigma_selection {
  __u8 by_uid;
  __u8 by_comm;
  __u8 by_cgroup; /* below the cgroup in map `selected_cgroup` */
  __u8 reserved;
  __u32 uid;      /* the real one */
  char comm[16];  /* of the process, that is of its first thread; padded with 0 */
  /* Where struct task_struct has its leader and its name; 0: unknown, and the thread's own name counts.
   * Not by CO-RE, for kernels without BTF take the programs that it would be in as well. */
  __u32 leader_at;
  __u32 comm_at;
  __u32 except_tgid; /* the tracer itself */
};

/* Map `ring_slots`: what BPF and the queue observer tell each other of a ring. User space maps the
 * array; slot 0 stands for none. */
#define SIGMA_RING_SLOTS 16384
struct sigma_ring_slot {
  __u64 ring_addr; /* 0: not known */
  __u64 doorbell_addr;
  /* By user space, as SIGMA_RING_PLACE of a life and a position. One that it learns of too late is of a
   * life that has ended. */
  __u64 next;   /* all before has been read */
  __u64 posted; /* SEND: the doorbell's count so far */
  __u64 copied; /* CQ: all before is in copies that BPF has made */
  __u32 entries;
  __u32 stride; /* bytes */
  __u32 tgid;
  __u32 generation; /* counts the uses of the slot */
  __u16 kind;       /* enum sigma_ring_kind; 0: the slot is free. Freed by user space */
  __u16 dead;       /* enum sigma_drain_reason: do not read the ring any more */
  __u16 cq[2];      /* SEND: slots of its completion rings, for sends and for receives */
  __u32 looks;      /* copies that BPF has made; the observer goes on when it has taken them in */
  __u32 life;       /* from 0. SEND: counts what RESET to INIT began; CQ: buffers, by resizes */
  __u64 ucontext;   /* by which, with the handle, ring_objects knows it */
  __u32 handle;
  __u32 number; /* CQ: by which queue pairs that DevX makes name it */
};
#define SIGMA_RING_PLACE_BITS 48
#define SIGMA_RING_PLACE(life, position) \
  ((__u64)(life) << SIGMA_RING_PLACE_BITS | ((position) & ((1ull << SIGMA_RING_PLACE_BITS) - 1)))

/* Why a ring was copied by BPF. */
enum sigma_drain_reason {
  SIGMA_DRAIN_DESTROY = 1,
  SIGMA_DRAIN_RESET,
  SIGMA_DRAIN_RESIZE,
  SIGMA_DRAIN_EXIT,
  SIGMA_DRAIN_LOOK, /* the ring goes on: a queue pair that uses it ends */
};

/* The copy, in pieces: between BPF and user space only, not a record of a trace. Each piece is a
 * sigma_ring_piece; the last record of one copy is a sigma_ring_drain alone, with `last` set. */
#define SIGMA_RING_DRAIN 0x2000   /* in sigma_header.type */
#define SIGMA_DRAIN_BYTES 4096
/* At most; of a send ring the newest ones, of a completion ring the oldest that are not copied yet.
 * 0.1-0.2 ms, once: what has been copied is not copied again. */
#define SIGMA_DRAIN_ENTRIES 8192
#define SIGMA_DRAIN_BEHIND 7     /* completions before the new ones */
#define SIGMA_DRAIN_WHOLE_BYTES 65536 /* up to here, a completion ring without a consumer's index is copied whole */
struct sigma_ring_drain {
  struct sigma_header h;
  __u64 first;  /* of the piece */
  __u64 posted; /* SEND: by the doorbell */
  __u32 slot;
  __u32 generation;
  __u32 consumer; /* of the CQ, or of the send queue's: the owner's index, 24 bits; 0: not known */
  __u16 count;    /* entries in the piece */
  __u8 reason;    /* enum sigma_drain_reason */
  __u8 kind;
  __u32 last;
  __u32 counted; /* 1: the doorbell record was read, `posted` and `consumer` are known */
};
SIGMA_SIZE(struct sigma_ring_drain, 64);
struct sigma_ring_piece {
  struct sigma_ring_drain drain;
  __u8 bytes[SIGMA_DRAIN_BYTES];
};

/* In the ring `spare_events`: a process event that found `records` full. Between BPF and user space only. */
struct sigma_spare_event {
  struct sigma_process process;
  __u64 position; /* in `records`: what stands before it there came before this */
};
SIGMA_SIZE(struct sigma_spare_event, 64);

struct sigma_config {
  __u8 selects;      /* 1: processes become targets by `selection`; 0: only those in map `targets` are */
  __u8 follow_forks; /* 1: children of targets become targets */
  __u8 check_posts;  /* 1: return probes tell refused posts; 0: posts are marked unverified */
  __u8 has_loop;     /* 1: bpf_loop exists (5.17) */
  __u8 has_sessions; /* 1: session programs see returns; the plain entry programs never do */
  __u8 reserved[3];
  struct sigma_selection selection;
};

/* Values of the per-CPU array map `counters`; exact: attempts == consumed + dropped. */
enum sigma_counter {
  SIGMA_COUNT_ATTEMPTS,   /* records that a program wanted to emit */
  SIGMA_COUNT_DROPPED,    /* of these, for which the ring had no room */
  SIGMA_COUNT_HITS,       /* probe hits in traced processes */
  SIGMA_COUNT_FILTERED,   /* probe hits in other processes */
  SIGMA_COUNT_UNREADABLE, /* reads of user memory that failed */
  SIGMA_COUNT_NO_ENTRY,   /* return probes without a matching entry */
  SIGMA_COUNT_ENTRY_FULL, /* entries that found the pending-call map full */
  SIGMA_COUNT_WR_OMITTED, /* work requests beyond SIGMA_MAX_WR */
  SIGMA_COUNT_WC_OMITTED, /* completions beyond SIGMA_MAX_WC */
  SIGMA_COUNT_GPU_REFUSED,   /* batches of sigmatrace_gpu_emit of which a part was no record */
  SIGMA_COUNT_GPU_OVER_RATE, /* records of such batches beyond SIGMA_GPU_WINDOW_RECORDS */
  SIGMA_COUNTERS
};

#endif
