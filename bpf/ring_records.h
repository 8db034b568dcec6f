/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The records of rings read from memory (records.h has the others): what the queue observer reads
 * from outside (user space), and what the preloaded GPU library reads from within (by the ring
 * buffer).
 *
 * h.time_ns is when an entry was read, or, of a ring that is gone, when it was last there: records
 * stand in order of time with the commands that end it. h.pid is the owner of the queue; h.tid is 0,
 * for nobody knows the poster.
 *
 * A queue is named by (h.pid, context, number); `life` counts the lives of its ring from 0, in the
 * counting of who reads it: the SIGMA_RING that begins a life comes before the life's other
 * records. Indices count WQEBBs of 64 bytes (send rings) or entries (completion rings) from the
 * begin of the life: bits 15..0 are those that the queue itself has.
 */
#ifndef SIGMA_RING_RECORDS_H
#define SIGMA_RING_RECORDS_H

#include "bpf/records.h"

enum sigma_ring_kind { SIGMA_RING_SEND = 1, SIGMA_RING_CQ };
enum sigma_ring_event {
  SIGMA_RING_BEGIN = 1, /* observed from `first` on */
  SIGMA_RING_STATE,     /* tier, mode or reason have changed; the totals so far */
  SIGMA_RING_END,       /* the life has ended, or is no longer observed; the totals */
};
/* Who told where the ring is. */
enum sigma_ring_origin {
  SIGMA_RING_BY_COMMAND = 1, /* the create command, uverbs or DevX */
  SIGMA_RING_BY_SCAN,        /* the owner's heap, certified by the ring's own content */
  SIGMA_RING_BY_CONTENT,     /* a search of memory for the ring itself */
  SIGMA_RING_BY_LIBRARY,     /* the preloaded library */
};
enum sigma_ring_mode {
  SIGMA_RING_READ = 1, /* every new entry is read */
  SIGMA_RING_COUNTED,  /* the doorbell record only: `posted` is exact, entries are not read */
  SIGMA_RING_SNAPSHOT, /* read once, at the end or at a hang */
  SIGMA_RING_SETUP,    /* not read at all: only its attributes are known */
};
/* What `reason` says of the ring itself; all else is why it is read in this mode or tier. */
#define SIGMA_RING_END_UNSEEN "its end was not seen" /* END: `posted` may be short */
#define SIGMA_RING_HUNG "hung" /* posted, not completed, and unmoved; until another record says more */
#define SIGMA_RING_MOVES "moving again"
enum sigma_initiator { SIGMA_INITIATOR_UNKNOWN, SIGMA_INITIATOR_CPU, SIGMA_INITIATOR_GPU };
/* How a GPU-initiated queue is read. 0: not, only its set-up is known. 1: in host memory, from outside.
 * 2: its GPU's memory is mapped. 3: by copies to the host. 5: by snapshots, as it ends, hangs, or when
 * asked for. (4 is no way of reading: the stack was made to post by the CPU.) */
#define SIGMA_TIER_NONE 0xff /* no GPU-initiated queue */

enum sigma_ring_flags {
  SIGMA_RING_BY_FILE =
      1 << 0, /* `context` is sigma_uverbs' struct file *, not a struct ibv_context * */
  SIGMA_RING_MODULO = 1 << 1,    /* the index, or the count, is known modulo 65,536 only; of a completion ring: how
                                    many it missed, modulo twice its entries */
  SIGMA_RING_MARGIN = 1 << 2,    /* certified by the distance to the doorbell read after the copy */
  SIGMA_RING_POSTERIOR = 1 << 3, /* certified by a later doorbell */
  SIGMA_RING_TRUNCATED = 1 << 4, /* segments left out: bytes is a lower bound */
  SIGMA_RING_SIGNALED = 1 << 5,  /* post: asks for a completion */
  SIGMA_RING_POLLED = 1 << 5,    /* completion ring: polls are probed as well, and tell when each was picked up */
  SIGMA_RING_INLINE = 1 << 6,
  SIGMA_RING_HAS_GID = 1 << 7,  /* post: the GID is valid */
  SIGMA_RING_HAS_QPN = 1 << 8,  /* post: remote_qpn is of this request (UD, DC) */
  SIGMA_RING_NIC_STAMP = 1 << 9, /* completion: `nic_stamp` is valid */
  SIGMA_RING_NO_BYTES = 1 << 10, /* post, completion: `bytes` is unknown */
  SIGMA_RING_NO_REMOTE =
      1 << 11, /* post: remote_addr and rkey are unknown (unreadable or foreign segments) */
  SIGMA_RING_NO_COUNTER = 1 << 12, /* completion: wqe_counter is unknown (overwritten by payload) */
  SIGMA_RING_COLLAPSED = 1 << 13,  /* ring: all completions stand in one entry */
  SIGMA_RING_OVERRUN = 1 << 14, /* ring: the consumer's index is not kept, laps cannot be counted */
  SIGMA_RING_REAL_TIME = 1 << 15, /* completion: `nic_stamp` is the device's real time, no ticks */
};

struct sigma_ring {
  struct sigma_header h;
  __u64 context;
  __u64 ring_addr; /* in the owner; 0: unknown */
  __u64 doorbell_addr;
  __u64 first;  /* BEGIN: the index from which on it is observed */
  __u64 posted; /* of these: counted by the doorbell record (SEND), or by entries and laps (CQ) */
  __u64 seen;   /* read, and reported */
  __u64 missed; /* in gaps */
  __u32 number; /* QP or CQ number */
  __u32 life;
  __u32 entries;  /* WQEBBs or CQEs */
  __u32 cqn;      /* SEND: where its completions go, CQ: its own number; 0: unknown */
  __u16 flags;    /* enum sigma_ring_flags */
  __u8 kind;      /* enum sigma_ring_kind */
  __u8 event;     /* enum sigma_ring_event */
  __u8 origin;    /* enum sigma_ring_origin */
  __u8 mode;      /* enum sigma_ring_mode */
  __u8 initiator; /* enum sigma_initiator */
  __u8 tier;
  char reason[24]; /* why not a better mode or tier; NUL-terminated */
};
SIGMA_SIZE(struct sigma_ring, 128);
SIGMA_AT(struct sigma_ring, flags, 96);

/* Opcodes of WQEs beyond enum ibv_wr_opcode. Masked atomics are what they are without their masks.
 */
enum sigma_wr_opcode {
  SIGMA_WR_NOP = 0xe0, /* moves no data: not an operation */
  SIGMA_WR_DUMP,       /* likewise */
  SIGMA_WR_WAIT,       /* likewise */
  SIGMA_WR_UMR,        /* registers memory */
  SIGMA_WR_OTHER,
};

struct sigma_ring_post {
  struct sigma_header h;
  __u64 context;
  __u64 post_ns; /* middle of the interval in which it was posted; 0: unknown */
  __u64 index;
  __u64 local_addr; /* of the first data segment; 0 without */
  __u64 remote_addr;
  __u32 post_error_ns; /* half the interval's width, saturating */
  __u32 bytes;         /* sum over the segments, saturating */
  __u32 number;        /* QP */
  __u32 life;
  __u32 lkey;
  __u32 rkey; /* RDMA and atomics; of SEND_WITH_INV and LOCAL_INV the key to invalidate */
  __be32 imm;
  __u32 remote_qpn;
  __be64 gid_prefix; /* UD, DC with a global route: the peer's GID */
  __be64 gid_interface;
  __u16 lid;    /* UD, DC: 0 on RoCE */
  __u16 blocks; /* WQEBBs that it takes */
  __u16 flags;  /* enum sigma_ring_flags */
  __u8 num_sge; /* saturating */
  __u8 opcode;  /* enum ibv_wr_opcode or sigma_wr_opcode */
  __u8 qp_type; /* enum ibv_qp_type; 0xff when unknown */
  __u8 initiator;
  __u8 tier;
  __u8 raw_opcode; /* as the ring has it */
  __u32 reserved;
};
SIGMA_SIZE(struct sigma_ring_post, 128);
SIGMA_AT(struct sigma_ring_post, gid_prefix, 96);

struct sigma_ring_completion {
  struct sigma_header h;
  __u64 context;
  __u64 complete_ns; /* middle of the interval in which it was written */
  __u64 cq_index;
  __u64 nic_stamp;   /* the NIC's clock, as the entry has it, host order */
  __u32 complete_error_ns; /* half the interval's width, saturating */
  __u32 number;            /* QP */
  __u32 life; /* of that queue pair's send ring, as in its SIGMA_RING; ~0: not observed */
  __u32 cqn;
  __u32 cq_life;
  __u32 srqn; /* receives: the SRQ's number, or the QP's user index where there is none */
  __u32 bytes;
  __be32 imm; /* or the invalidated rkey, host order */
  __u32 src_qp;
  __u32 wc_flags;    /* enum ibv_wc_flags */
  __u32 wc_opcode;   /* enum ibv_wc_opcode; of an error unknown: 0xffffffff */
  __u16 wqe_counter; /* bits 15..0 of the send index, or the receive queue's index */
  __u16 slid;
  __u16 flags; /* enum sigma_ring_flags */
  __u8 status; /* enum ibv_wc_status; when not 0 opcode and bytes are the post's */
  __u8 vendor_err;
  __u8 queue; /* enum sigma_queue; SIGMA_QUEUE_SRQ: a receive from an SRQ */
  __u8 initiator;
  __u8 tier;
  __u8 raw_opcode; /* as the ring has it */
  __u32 reserved[2];
};
SIGMA_SIZE(struct sigma_ring_completion, 120);
SIGMA_AT(struct sigma_ring_completion, wqe_counter, 100);

enum sigma_gap_reason {
  SIGMA_GAP_LAPPED = 1, /* overwritten before they were read */
  SIGMA_GAP_UNCERTAIN,  /* read, and not certified: they may have been half written */
  SIGMA_GAP_UNREADABLE, /* the owner's memory could not be read, or holds no such entry */
  SIGMA_GAP_COUNTED,    /* not read, to spare the job: the doorbell record only */
  SIGMA_GAP_ENDED,      /* the ring was gone before they were read */
};

struct sigma_ring_gap {
  struct sigma_header h;
  __u64 context;
  __u64 first;
  __u64 count;    /* WQEBBs or CQEs */
  __u64 begin_ns; /* they were posted, or written, between these */
  __u64 end_ns;
  __u32 number; /* QP or CQ */
  __u32 life;
  __u16 flags;
  __u8 kind;   /* enum sigma_ring_kind */
  __u8 reason; /* enum sigma_gap_reason */
  __u8 initiator;
  __u8 tier;
  __u16 reserved;
};
SIGMA_SIZE(struct sigma_ring_gap, 80);

#endif
