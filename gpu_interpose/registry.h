/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The registry: what the preloaded library knows of the process's GPU-initiated queues, to be read
 * from outside by process_vm_readv, without locks, at any time: also by a tracer that attaches
 * late. The exported object is `sigmatrace_gpu_registry`. C and C++.
 *
 * A reader copies the head, checks magic, version and sizes, then copies the entries; it keeps each
 * whose `sequence` was even and is the same in a second copy. It belongs to another process: all of
 * it is hostile input. Integers are host-endian; pointers are the owner's; 0 is unknown where a
 * field says nothing else.
 *
 * SIGMA_GPU_REGISTRY_VERSION changes when any layout does.
 */
#ifndef SIGMA_GPU_REGISTRY_H
#define SIGMA_GPU_REGISTRY_H

#include <linux/types.h>

#include "bpf/records.h"

#define SIGMA_GPU_REGISTRY_MAGIC 0x5550474154474953ull /* "SIGTAGPU" */
#define SIGMA_GPU_REGISTRY_VERSION 2
#define SIGMA_GPU_REGISTRY_NAME "sigmatrace_gpu_registry"
/* As the dynamic linker knows it. */
#define SIGMA_GPU_LIBRARY "libsigmatrace_gpu.so"

/* Queues at a time; those beyond are counted. 2 queue pairs for each of 1,024 peers, twice. */
#define SIGMA_GPU_MAX_QUEUES 4096

/* What the library could not do, each a number in the registry: name, and what it means. */
#define SIGMA_GPU_COUNTERS(X)                                                                     \
  X(OTHER_COPIES, other_copies, "look-ups that found a second copy of a library: not interposed") \
  X(OTHER_SIGNATURES, other_signatures,                                                           \
    "driver functions asked for in a version that is not known: not interposed")                  \
  X(DEEPBIND_LOADS, deepbind_loads,                                                               \
    "libraries loaded with RTLD_DEEPBIND: what they bind is not interposed")                      \
  X(NAMESPACE_LOADS, namespace_loads,                                                             \
    "libraries loaded into a namespace of their own: not interposed")                             \
  X(BINDING_HOLES, binding_holes, "DevX commands that reached the kernel past the hooks")         \
  X(RANGES_FULL, ranges_full, "allocations beyond what the table of memory holds")                \
  X(UMEMS_FULL, umems_full, "registrations for which there was no room")                          \
  X(QUEUES_FULL, queues_full, "queues for which there was no room")                               \
  X(UNKNOWN_MEMORY, unknown_memory, "registrations whose memory is of unknown kind")             \
  X(INDICES_DROPPED, indices_dropped, "producer indices that contradicted their queues")

enum sigma_gpu_counter {
#define SIGMA_GPU_ENUM(upper, lower, text) SIGMA_GPU_##upper,
  SIGMA_GPU_COUNTERS(SIGMA_GPU_ENUM)
#undef SIGMA_GPU_ENUM
      SIGMA_GPU_COUNTER_COUNT
};

enum sigma_gpu_memory {
  SIGMA_GPU_MEMORY_UNKNOWN,
  SIGMA_GPU_MEMORY_HOST,       /* plain */
  SIGMA_GPU_MEMORY_REGISTERED, /* host memory that the GPU can reach */
  SIGMA_GPU_MEMORY_DEVICE,
  SIGMA_GPU_MEMORY_MANAGED,
};

enum sigma_gpu_stack {
  SIGMA_GPU_STACK_UNKNOWN,
  SIGMA_GPU_STACK_NVSHMEM,
  SIGMA_GPU_STACK_DOCA, /* NCCL GIN and other users of DOCA GPUNetIO */
  SIGMA_GPU_STACK_UCX,
  SIGMA_GPU_STACK_DEEPEP,
  SIGMA_GPU_STACK_MOONCAKE,
  SIGMA_GPU_STACK_ROCSHMEM,
  SIGMA_GPU_STACK_MORI,
};

#define SIGMA_GPU_TIER_NONE 0xff

enum sigma_gpu_queue_state { SIGMA_GPU_QUEUE_FREE, SIGMA_GPU_QUEUE_LIVE, SIGMA_GPU_QUEUE_ENDED };

enum sigma_gpu_queue_flags {
  SIGMA_GPU_INITIATED = 1 << 0,   /* a GPU can post to it: by its memory, or by its doorbell page */
  SIGMA_GPU_COLLAPSED = 1 << 1,   /* all completions stand in one entry */
  SIGMA_GPU_OVERRUN = 1 << 2,     /* no consumer index */
  SIGMA_GPU_PAST_HOOKS = 1 << 3,  /* seen by the cross-check only */
  SIGMA_GPU_UAR_MAPPED = 1 << 4,  /* its doorbell page is registered with the GPU's driver */
  SIGMA_GPU_HAS_PATH = 1 << 5,    /* INIT2RTR was seen: the path's fields are valid */
  SIGMA_GPU_HAS_RETRIES = 1 << 6, /* RTR2RTS was seen: retries and time-out are valid */
  SIGMA_GPU_UAR_SHARED = 1 << 7,  /* other queues ring the same page */
  SIGMA_GPU_LISTENED = 1 << 8,    /* a tracer was there when it was made */
  SIGMA_GPU_USED_BEFORE = 1 << 9, /* its memory shows a life before this one */
};

/* Why not a better tier: name, and what records say (at most 23 characters). */
#define SIGMA_GPU_REASONS(X)                     \
  X(NONE, "")                                    \
  X(UNKNOWN_MEMORY, "memory of unknown kind")    \
  X(DEVICE_MEMORY, "") /* nobody reads it yet */ \
  X(NOT_WANTED, "tier 3 is asked for")           \
  X(SNAPSHOTS_WANTED, "tier 5 is asked for")     \
  X(NO_GDRCOPY, "no libgdrapi.so.2")             \
  X(GDRCOPY_FAILED, "gdr_open failed")           \
  X(NOT_PINNED, "gdrcopy cannot pin it")         \
  X(NOT_MAPPED, "gdrcopy cannot map it")         \
  X(NOT_READABLE, "mapping not readable")        \
  X(WINDOWS_FULL, "too many mappings")           \
  X(GIVEN_UP, "reader gave up")

enum sigma_gpu_reason {
#define SIGMA_GPU_ENUM(name, text) SIGMA_GPU_REASON_##name,
  SIGMA_GPU_REASONS(SIGMA_GPU_ENUM)
#undef SIGMA_GPU_ENUM
      SIGMA_GPU_REASON_COUNT
};

/* What is known of the stack's own 64-bit producer index. */
enum sigma_gpu_index_state {
  SIGMA_GPU_INDEX_NONE,
  SIGMA_GPU_INDEX_FOUND,     /* by a structure that the job copied to the device */
  SIGMA_GPU_INDEX_CERTIFIED, /* and it agrees with the doorbell record, also past a round of it */
  SIGMA_GPU_INDEX_DROPPED,   /* it contradicted the queue, or its memory went */
};

struct sigma_gpu_queue {
  __u32 sequence; /* odd: being written */
  __u16 state;    /* enum sigma_gpu_queue_state */
  __u16 flags;    /* enum sigma_gpu_queue_flags */
  __u64 context;  /* struct ibv_context *; 0 when seen by the cross-check only */
  __u64 created_ns;
  __u64 ended_ns;
  __u32 life; /* distinguishes queues of equal number, in order of creation */
  __u32 qp_num;
  __u32 cqn;
  __u32 pdn;
  __u64 ring_addr;     /* in the memory of ring_memory */
  __u64 doorbell_addr; /* the record of two be32: receive, send */
  __u64 cq_addr;
  __u64 cq_doorbell_addr;
  __u32 ring_entries; /* WQEBBs of 64 bytes */
  __u32 cq_entries;
  __u16 cqe_bytes;
  __u8 ring_memory; /* enum sigma_gpu_memory */
  __u8 doorbell_memory;
  __u8 cq_memory;
  __u8 stack;  /* enum sigma_gpu_stack */
  __u8 tier;   /* 0 to 5; SIGMA_GPU_TIER_NONE: not GPU-initiated */
  __u8 reason; /* enum sigma_gpu_reason */
  __s32 gpu;   /* device ordinal of its memory; -1: unknown */
  __u32 uar_page;
  __u64 uar_addr;  /* host address of the doorbell register */
  char device[32]; /* "mlx5_0" */
  /* Set-up attributes, as the commands gave them. */
  __u8 qp_type;  /* enum ibv_qp_type; 0xff: another */
  __u8 qp_state; /* enum ibv_qp_state */
  __u8 mtu;      /* enum ibv_mtu */
  __u8 port;
  __u32 peer_qp_num;
  __u8 peer_gid[16];
  __u16 peer_lid;
  __u16 udp_sport;
  __u8 dscp;
  __u8 traffic_class;
  __u8 sl;
  __u8 hop_limit;
  __u8 gid_index;
  __u8 ack_timeout;
  __u8 retries;
  __u8 rnr_retries;
  __u8 index_bytes;  /* width, 8, in the GPU's byte order; 0: none is known */
  __u8 index_memory; /* enum sigma_gpu_memory */
  __u8 index_state;  /* enum sigma_gpu_index_state */
  __u8 reserved2;
  __u64 index_addr;   /* blocks posted, since the queue was made */
  __u32 index_behind; /* so many blocks, at most, is it behind the doorbell record */
  __u32 reserved3;
};
SIGMA_SIZE(struct sigma_gpu_queue, 200);
SIGMA_AT(struct sigma_gpu_queue, ring_addr, 48);
SIGMA_AT(struct sigma_gpu_queue, device, 112);
SIGMA_AT(struct sigma_gpu_queue, qp_type, 144);
SIGMA_AT(struct sigma_gpu_queue, index_addr, 184);

struct sigma_gpu_registry {
  __u64 magic;
  __u32 version;
  __u32 head_bytes;  /* of this struct */
  __u32 queue_bytes; /* of one entry */
  __u32 capacity;
  __u32 used; /* entries that were ever used: the first ones */
  __u32 cuda; /* 1: the process has loaded the CUDA driver, and made mlx5 objects */
  struct sigma_gpu_queue* queues; /* `capacity` of them; an address of the owner */
  __u64 counters[SIGMA_GPU_COUNTER_COUNT];
  __u64 wrapped; /* driver functions that cuGetProcAddress handed out as the library's own */
};
SIGMA_AT(struct sigma_gpu_registry, counters, 40);

#endif
