/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The records that BPF programs and user space share: the only description of them.
 *
 * Every record begins with struct sigma_header. Times are CLOCK_MONOTONIC nanoseconds
 * (bpf_ktime_get_ns). Integers are host-endian unless a field says otherwise. Pointers of the traced
 * process are __u64 and are never followed by user space. Sizes and offsets are asserted here, so
 * that C, C++ and BPF agree; SIGMA_RECORD_VERSION changes when any of them does.
 *
 * Records with a "user space" source are made by the tracer itself (heap scan, netlink, governor) and
 * go through the same door as those from the ring buffer, so that a replay sees what live saw.
 */
#ifndef SIGMA_RECORDS_H
#define SIGMA_RECORDS_H

#include <linux/types.h>

#define SIGMA_RECORD_VERSION 2

#if defined(__cplusplus)
#include <cstddef>
#define SIGMA_ASSERT(cond) static_assert(cond, #cond)
#else
#include <stddef.h>
#define SIGMA_ASSERT(cond) _Static_assert(cond, #cond)
#endif
#define SIGMA_SIZE(type, bytes) SIGMA_ASSERT(sizeof(type) == (bytes))
#define SIGMA_AT(type, field, bytes) SIGMA_ASSERT(offsetof(type, field) == (bytes))

enum sigma_record_type {
  SIGMA_POST = 1,        /* one work request handed to a post function or builder */
  SIGMA_POST_RESULT,     /* a post call failed, or a builder batch ended */
  SIGMA_COMPLETION,      /* one work completion that a poll returned */
  SIGMA_UVERBS,          /* one uverbs command, with its attributes */
  SIGMA_QP_SEEN,         /* struct ibv_qp as first seen at a post, or by the heap scan */
  SIGMA_CONTEXT,         /* an ibv_context: which device it stands for; or its end */
  SIGMA_PROCESS,         /* exec, fork, exit */
  SIGMA_MR_SEEN,         /* user space: a memory region found by the heap scan */
  SIGMA_QP_PEER,         /* user space: what RDMA netlink says of a QP older than the attach */
  SIGMA_WINDOW,          /* user space: tracing of a process paused or resumed (governor) */
  SIGMA_CLOCK_SAMPLE,    /* user space: a reading of a device's clock */
  SIGMA_RING,            /* an observed ring: its life begins, changes or ends; who reads it, how */
  SIGMA_RING_POST,       /* one work request, read from a send ring */
  SIGMA_RING_COMPLETION, /* one completion, read from a completion ring */
  SIGMA_RING_GAP,        /* entries of a ring that were passed unseen */
  SIGMA_RECORD_TYPES
};

struct sigma_header {
  __u64 time_ns;
  __u16 type; /* enum sigma_record_type */
  __u16 size; /* of the whole record, bytes */
  __u32 cpu;
  __u32 pid; /* tgid in the initial pid namespace */
  __u32 tid;
};
SIGMA_SIZE(struct sigma_header, 24);
SIGMA_AT(struct sigma_header, pid, 16);

/* ---- data path ------------------------------------------------------------------------------ */

enum sigma_queue { SIGMA_QUEUE_SEND, SIGMA_QUEUE_RECV, SIGMA_QUEUE_SRQ };

enum sigma_post_flags {
  SIGMA_POST_STAGED = 1 << 0,        /* by an ibv_wr_* builder: counts only once its batch is committed */
  SIGMA_POST_SGE_TRUNCATED = 1 << 1, /* more SGEs than were read: bytes is a lower bound */
  SIGMA_POST_LIST_TRUNCATED = 1 << 2, /* last record of a list longer than was walked; see `omitted` */
  SIGMA_POST_UNVERIFIED = 1 << 3,    /* nobody will say whether the provider accepted it */
  SIGMA_POST_HAS_INDEX = 1 << 4,     /* `index` is valid */
  SIGMA_POST_UNREADABLE = 1 << 5,    /* some memory of the request could not be read: fields are 0 */
  SIGMA_POST_HAS_AH = 1 << 6,        /* ah_handle and remote_qpn are valid (UD) */
  SIGMA_POST_HAS_LID = 1 << 7,       /* remote_lid is valid: no command tells of this address handle */
};

/*
 * One work request. The requests of one call share (tid, call_ns); `position` counts them from 0.
 * On a call that fails, a SIGMA_POST_RESULT with the same (tid, call_ns) says how many were accepted.
 */
struct sigma_post {
  struct sigma_header h;
  __u64 context;     /* struct ibv_context * */
  __u64 call_ns;     /* entry of the post call, or of wr_start */
  __u64 queue_ptr;   /* struct ibv_qp *, or struct ibv_srq * for SIGMA_QUEUE_SRQ */
  __u64 wr_id;
  __u64 local_addr;  /* of the first SGE; 0 without */
  __u64 remote_addr; /* RDMA and atomics */
  __u64 bytes;       /* sum over the SGEs */
  __u32 qp_num;      /* 0 for SIGMA_QUEUE_SRQ */
  __u32 lkey;        /* of the first SGE */
  __u32 rkey;        /* RDMA and atomics; of SEND_WITH_INV and LOCAL_INV the key to invalidate */
  __be32 imm;        /* network order, as ibv_send_wr has it */
  __u32 remote_qpn;  /* UD */
  __u32 ah_handle;   /* UD: ibv_ah.handle */
  __u32 index;       /* mlx5: first index of the call, of its queue (from the doorbell record) */
  __u16 position;
  __u16 num_sge;
  __u16 flags;       /* enum sigma_post_flags */
  __u8 queue;        /* enum sigma_queue */
  __u8 opcode;       /* enum ibv_wr_opcode; 0 for receives */
  __u8 send_flags;   /* enum ibv_send_flags, low 8 bits */
  __u8 qp_type;      /* enum ibv_qp_type; 0xff when unknown */
  __u16 omitted;     /* SIGMA_POST_LIST_TRUNCATED: requests not walked, saturating at 65535 */
  __u16 remote_lid;  /* UD over InfiniBand, SIGMA_POST_HAS_LID */
  __u16 reserved[3];
};
SIGMA_SIZE(struct sigma_post, 128);
SIGMA_AT(struct sigma_post, qp_num, 80);
SIGMA_AT(struct sigma_post, position, 108);

enum sigma_post_outcome {
  SIGMA_OUTCOME_REFUSED = 1, /* the call failed; `accepted` requests before bad_wr stand */
  SIGMA_OUTCOME_COMMITTED,   /* wr_complete was entered: the staged batch counts as posted from h.time_ns on */
  SIGMA_OUTCOME_ABORTED,     /* wr_abort: the staged batch was not posted */
};

struct sigma_post_result {
  struct sigma_header h;
  __u64 context;
  __u64 call_ns;
  __u64 queue_ptr;
  __u32 qp_num;
  __s32 error;    /* errno value the call returned, positive; 0 with COMMITTED and ABORTED */
  __u32 accepted; /* REFUSED: requests of the call that were accepted */
  __u16 outcome;  /* enum sigma_post_outcome */
  __u16 queue;    /* enum sigma_queue */
};
SIGMA_SIZE(struct sigma_post_result, 64);

/* Fields of a completion that nobody told: they are 0 and mean nothing. */
enum sigma_completion_unknown {
  SIGMA_WC_NO_QP_NUM = 1 << 0,
  SIGMA_WC_NO_OPCODE = 1 << 1,
  SIGMA_WC_NO_BYTES = 1 << 2,
  SIGMA_WC_NO_VENDOR_ERR = 1 << 3,
  SIGMA_WC_NO_SOURCE = 1 << 4, /* src_qp, slid, sl, pkey_index, dlid_path_bits, IBV_WC_GRH of wc_flags */
  SIGMA_WC_NO_IMM = 1 << 5,    /* imm, and its flags in wc_flags */
};

enum sigma_completion_flags {
  SIGMA_WC_NIC_STAMP = 1 << 0, /* `nic_stamp` is the completion's time stamp, as the device wrote it */
};

/* One struct ibv_wc as poll_cq returned it, or the completion at which an ibv_cq_ex stands after
 * start_poll or next_poll. h.time_ns is the poll's return. */
struct sigma_completion {
  struct sigma_header h;
  __u64 context;
  __u64 cq_ptr; /* struct ibv_cq * */
  __u64 wr_id;
  __u32 status; /* enum ibv_wc_status; when not 0 only wr_id, vendor_err and qp_num can be trusted */
  __u32 opcode; /* enum ibv_wc_opcode */
  __u32 vendor_err;
  __u32 byte_len;
  __be32 imm; /* network order; or the invalidated rkey, host order */
  __u32 qp_num;
  __u32 src_qp;
  __u32 wc_flags; /* enum ibv_wc_flags */
  __u16 pkey_index;
  __u16 slid;
  __u8 sl;
  __u8 dlid_path_bits;
  __u16 batch; /* completions that this poll returned */
  __u64 nic_stamp; /* host-endian; ticks of the device's clock, or its real time: the CQ's format */
  __u16 unknown;   /* enum sigma_completion_unknown */
  __u16 flags;     /* enum sigma_completion_flags */
  __u32 reserved;
};
SIGMA_SIZE(struct sigma_completion, 104);
SIGMA_AT(struct sigma_completion, wr_id, 40);

enum sigma_qp_source { SIGMA_QP_AT_POST = 1, SIGMA_QP_BY_SCAN };

/* struct ibv_qp, by its public fields. Emitted at the first post to it, and when they change. */
struct sigma_qp_seen {
  struct sigma_header h;
  __u64 context;
  __u64 qp_ptr;
  __u64 send_cq_ptr;
  __u64 recv_cq_ptr;
  __u64 srq_ptr;
  __u32 qp_num;
  __u32 handle;  /* uverbs handle */
  __u32 qp_type; /* enum ibv_qp_type */
  __u32 state;   /* enum ibv_qp_state */
  __u32 source;  /* enum sigma_qp_source */
  __u32 reserved;
};
SIGMA_SIZE(struct sigma_qp_seen, 88);

/* ---- contexts, processes ---------------------------------------------------------------------- */

enum sigma_context_kind { SIGMA_CONTEXT_SEEN = 1, SIGMA_CONTEXT_CLOSED };

struct sigma_context {
  struct sigma_header h;
  __u64 context; /* struct ibv_context * */
  __s32 cmd_fd;
  __u32 kind;      /* enum sigma_context_kind */
  char device[64]; /* ibv_device.name, NUL-terminated */
};
SIGMA_SIZE(struct sigma_context, 104);

enum sigma_process_kind {
  SIGMA_PROCESS_EXEC = 1,
  SIGMA_PROCESS_EXIT,
  SIGMA_PROCESS_FORK,
  SIGMA_PROCESS_FOUND, /* is one of those selected, and was met at its first probe */
  SIGMA_PROCESS_LEFT,  /* exec, after which it is none of those selected: no longer traced */
};

#define SIGMA_EXIT_UNKNOWN -1 /* it is gone, and nobody saw how */

struct sigma_process {
  struct sigma_header h; /* pid: who did it; for FORK the parent */
  __u32 kind;            /* enum sigma_process_kind */
  __u32 child_pid;       /* FORK */
  __s32 exit_code;       /* EXIT: as in task_struct (status << 8 | signal), or SIGMA_EXIT_UNKNOWN */
  __u32 reserved;
  char comm[16];
};
SIGMA_SIZE(struct sigma_process, 56);

/* ---- control plane ---------------------------------------------------------------------------- */

#define SIGMA_UVERBS_MAX_ATTRS 24
#define SIGMA_UVERBS_ATTR_BYTES 640 /* at most of one attribute's payload */

enum sigma_uverbs_flags {
  SIGMA_UVERBS_KERNEL = 1 << 0,          /* from ib_uverbs_ioctl; else from libibverbs' execute_ioctl */
  SIGMA_UVERBS_TRUNCATED = 1 << 1,       /* attributes or payload left out */
};

#define SIGMA_UVERBS_NO_PAYLOAD 0xffff

/* As struct ib_uverbs_attr (rdma/rdma_user_ioctl_cmds.h), with the payload's place in the record. */
struct sigma_uverbs_attr {
  __u16 attr_id;
  __u16 len;    /* bytes of the attribute, as declared by the caller */
  __u16 flags;  /* UVERBS_ATTR_F_* */
  __u16 offset; /* of its payload in the record's payload area; SIGMA_UVERBS_NO_PAYLOAD: data is inline */
  __u64 data;   /* inline value or handle, or the user pointer */
};
SIGMA_SIZE(struct sigma_uverbs_attr, 16);

/*
 * One uverbs command, at its return. Followed by `num_attrs` sigma_uverbs_attr and then by
 * `payload_bytes` of payload, each attribute's at a multiple of 8 and cut at SIGMA_UVERBS_ATTR_BYTES.
 * h.size is exactly what these need.
 */
struct sigma_uverbs {
  struct sigma_header h;
  __u64 ucontext; /* kernel hook: struct file *; library hook: struct ibv_context * */
  __u64 enter_ns;
  __u32 rdev; /* kernel hook: dev_t of the uverbs node, (major << 20 | minor); library hook: 0 */
  __s32 result; /* what the command returned: 0, or a negative (kernel) or positive (library) errno */
  __u32 driver_id;
  __u16 object_id;
  __u16 method_id;
  __u16 num_attrs;
  __u16 payload_bytes;
  __u16 flags; /* enum sigma_uverbs_flags */
  __u16 ring_slot; /* create: where BPF keeps the place of the new ring; 0: nowhere */
};
SIGMA_SIZE(struct sigma_uverbs, 64);
SIGMA_AT(struct sigma_uverbs, object_id, 52);

/* ---- made by user space ----------------------------------------------------------------------- */

struct sigma_mr_seen {
  struct sigma_header h;
  __u64 context;
  __u64 mr_ptr;
  __u64 addr;
  __u64 length;
  __u32 handle;
  __u32 lkey;
  __u32 rkey;
  __u32 reserved;
};
SIGMA_SIZE(struct sigma_mr_seen, 72);

/* A packet sequence number that nobody told: real ones have 24 bits. */
#define SIGMA_UNKNOWN_PSN 0xffffffffu

struct sigma_qp_peer {
  struct sigma_header h;
  char device[64];
  __u32 qp_num;
  __u32 peer_qp_num;
  __u32 sq_psn;
  __u32 rq_psn;
  __u32 state;   /* enum ibv_qp_state */
  __u32 qp_type; /* kernel's enum ib_qp_type */
  /* The rest is the device's own account (mlx5), and there only with has_path. */
  __u64 peer_gid_high; /* the GID's first and last eight bytes, as big-endian numbers; both 0: none */
  __u64 peer_gid_low;
  __u32 path_mtu; /* bytes; 0: unknown */
  __u16 peer_lid; /* 0: none */
  __u8 has_path;
  __u8 port; /* 0: unknown */
  __u8 sgid_index;
  __u8 sl;
  __u8 traffic_class;
  __u8 hop_limit;
  __u8 timeout;
  __u8 retry_cnt;
  __u8 rnr_retry;
  __u8 min_rnr_timer;
};
SIGMA_SIZE(struct sigma_qp_peer, 144);

enum sigma_window_kind { SIGMA_WINDOW_PAUSE = 1, SIGMA_WINDOW_RESUME };

struct sigma_window {
  struct sigma_header h; /* pid: the process; 0: every traced process */
  __u32 kind;            /* enum sigma_window_kind */
  __u32 reserved;
};
SIGMA_SIZE(struct sigma_window, 32);

/* A device's free-running clock, read between two readings of the host's: it showed `ticks` at some
 * time within h.time_ns +- error_ns. */
struct sigma_clock_sample {
  struct sigma_header h;
  __u64 ticks;
  __u32 error_ns;
  __u32 nominal_khz; /* the clock's rate by its maker; 0: not known */
  char device[64];
};
SIGMA_SIZE(struct sigma_clock_sample, 104);

#include "bpf/ring_records.h"

#endif
