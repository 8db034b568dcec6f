// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A producer for the reader's bench: fills the ring with full-size posts and their completions as fast
// as it is called, in the shape that a busy job gives them. Run by BPF_PROG_TEST_RUN, no probe involved.
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "bpf/records.h"

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 8 << 20);
} records SEC(".maps");

struct producer_args {
  __u32 pairs;     // in: pairs of post and completion to emit
  __u32 queues;    // in: over so many queue pairs, numbered from 1
  __u64 sequence;  // in, out: wr_id of the next pair
  __u64 dropped;   // out: records without room
};

static int emit_pair(__u32 unused, struct producer_args* args) {
  const __u64 id = args->sequence++;
  const __u32 qp_num = 1 + id % (args->queues ? args->queues : 1);
  struct sigma_post* post = bpf_ringbuf_reserve(&records, sizeof *post, 0);
  if (!post) {
    args->dropped += 2;  // a completion without its post would only be noise
    return 0;
  }
  __builtin_memset(post, 0, sizeof *post);
  post->h.time_ns = bpf_ktime_get_ns();
  post->h.type = SIGMA_POST;
  post->h.size = sizeof *post;
  post->h.cpu = bpf_get_smp_processor_id();
  post->h.pid = post->h.tid = 4242;
  post->context = 0x1000;
  post->call_ns = post->h.time_ns;
  post->queue_ptr = 0x10000 + qp_num * 0x100;
  post->wr_id = id;
  post->local_addr = 0x7f0012345000 + id * 64;
  post->remote_addr = 0x7f0054321000 + id * 64;
  post->bytes = 65536;
  post->qp_num = qp_num;
  post->lkey = 0x1234;
  post->rkey = 0x4321;
  post->num_sge = 1;
  post->send_flags = 2;  // IBV_SEND_SIGNALED
  post->qp_type = 2;     // IBV_QPT_RC
  bpf_ringbuf_submit(post, BPF_RB_NO_WAKEUP);

  struct sigma_completion* done = bpf_ringbuf_reserve(&records, sizeof *done, 0);
  if (!done) {
    args->dropped += 1;
    return 0;
  }
  __builtin_memset(done, 0, sizeof *done);
  done->h.time_ns = bpf_ktime_get_ns();
  done->h.type = SIGMA_COMPLETION;
  done->h.size = sizeof *done;
  done->h.cpu = bpf_get_smp_processor_id();
  done->h.pid = done->h.tid = 4242;
  done->context = 0x1000;
  done->cq_ptr = 0x2000;
  done->wr_id = id;
  done->opcode = 1;  // IBV_WC_RDMA_WRITE
  done->qp_num = qp_num;
  done->batch = 1;
  bpf_ringbuf_submit(done, BPF_RB_NO_WAKEUP);
  return 0;
}

SEC("syscall")
int produce(struct producer_args* args) {
  struct producer_args local = *args;
  // The mask clears the argument's upper half: clang leaves there what the load brought, and kernels
  // that inline bpf_loop compare all 64 bits.
  bpf_loop(local.pairs & 0xffff, emit_pair, &local, 0);
  args->sequence = local.sequence;
  args->dropped = local.dropped;
  return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
