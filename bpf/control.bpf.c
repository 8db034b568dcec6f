// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * The control plane: each uverbs command at its return, with its attributes and their payloads.
 *
 * Hooked in the kernel (ib_uverbs_ioctl: every copy of libibverbs, static ones too) or, where the
 * module is not there, in libibverbs (execute_ioctl). Both see struct ib_uverbs_ioctl_hdr and its
 * attributes in the job's memory, with the outputs filled in. Set-up only, so the code is plain
 * rather than fast.
 */
#include "bpf/context.h"
#include "bpf/draft.h"
#include "bpf/ring_commands.h"

/*
 * mlx5: where the doorbell record of a new queue pair is, so that the first post to it already has
 * its index. What else there is to know of the queue pair is read at that post.
 */
SIGMA_VERIFIED_ONCE int note_doorbell(const struct draft* draft, __u64 id) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !draft || !draft->qp_ptr || !draft->qp_num_at || !draft->driver_at) return 0;
  struct sigma_queue_pair_key key = {.tgid = tgid_of(id), .qp_ptr = draft->qp_ptr};
  struct sigma_queue_pair fresh = {};
  if (read_user(totals, &fresh.qp_num, sizeof(fresh.qp_num), draft->qp_num_at) &&
      read_user(totals, &fresh.doorbell, sizeof(fresh.doorbell),
                draft->driver_at + SIGMA_MLX5_CREATE_QP_DB_ADDR))
    bpf_map_update_elem(&queue_pairs, &key, &fresh, BPF_ANY);
  return 0;
}

/* The command that `call` began has returned. */
SIGMA_VERIFIED_ONCE int emit_command(const struct sigma_call* call, __u64 header, __s32 result,
                                   __u32 flags) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !call) return 0;
  __u64 id = bpf_get_current_pid_tgid();
  struct sigma_ioctl_hdr hdr;
  if (!read_user(totals, &hdr, sizeof(hdr), header)) return 0;

  bpf_map_update_elem(&drafts, &id, &blank_draft, BPF_ANY);
  struct draft* draft = bpf_map_lookup_elem(&drafts, &id);
  if (!draft) {
    count(totals, SIGMA_COUNT_ENTRY_FULL, 1);
    return 0;
  }
  struct sigma_uverbs* uverbs = &draft->uverbs;
  uverbs->ucontext = call->object;
  uverbs->enter_ns = call->call_ns;
  uverbs->rdev = call->number;
  uverbs->result = result;
  uverbs->driver_id = hdr.driver_id;
  uverbs->object_id = hdr.object_id;
  uverbs->method_id = hdr.method_id;
  uverbs->flags = flags;
  uverbs->num_attrs = hdr.num_attrs;
  if (hdr.num_attrs > SIGMA_UVERBS_MAX_ATTRS) {
    uverbs->num_attrs = SIGMA_UVERBS_MAX_ATTRS;
    uverbs->flags |= SIGMA_UVERBS_TRUNCATED;
  }
  draft->start = sizeof(*uverbs) + uverbs->num_attrs * ATTR_BYTES;
  draft->end = draft->start;
  for (__u32 i = 0; i < SIGMA_UVERBS_MAX_ATTRS && i < uverbs->num_attrs; i++)
    add_attribute(draft, header + sizeof(hdr), i);
  if (hdr.object_id == SIGMA_UVERBS_OBJECT_QP &&
      hdr.method_id == SIGMA_UVERBS_METHOD_QP_CREATE && !result &&
      hdr.driver_id == SIGMA_RDMA_DRIVER_MLX5)
    note_doorbell(draft, id);
  if (!result && hdr.driver_id == SIGMA_RDMA_DRIVER_MLX5) {
    note_registration(draft, id);
    note_ring(draft, id);
    note_resize(draft, id);
    note_gone(draft, id);
  } else if (hdr.driver_id == SIGMA_RDMA_DRIVER_MLX5) {
    note_not_ended(draft, id);
  }
  __u32 size = draft->end;
  uverbs->payload_bytes = size - draft->start;
  /* One comparison, of a value the compiler knows nothing about: a range check becomes a
   * subtraction, and the verifier of 6.12 then no longer bounds the register that the helper gets.
   */
  barrier_var(size);
  if (size <= MAX_RECORD) {
    fill_header(&uverbs->h, SIGMA_UVERBS, size, id, bpf_ktime_get_ns());
    count(totals, SIGMA_COUNT_ATTEMPTS, 1);
    if (bpf_ringbuf_output(&records, draft, size, BPF_RB_NO_WAKEUP))
      count(totals, SIGMA_COUNT_DROPPED, 1);
  }
  bpf_map_delete_elem(&drafts, &id);
  return 0;
}

/*
 * A command begins that may destroy a queue pair, after which another may come to stand at its
 * address: what is known of queue pairs is to be read again. Old libraries destroy them by
 * INVOKE_WRITE.
 */
static __always_inline void note_command(const struct sigma_hit* hit, __u64 header) {
  struct sigma_ioctl_hdr hdr;
  if (!read_user(hit->totals, &hdr, sizeof(hdr), header) ||
      hdr.object_id == SIGMA_UVERBS_OBJECT_QP ||
      (hdr.object_id == SIGMA_UVERBS_OBJECT_DEVICE &&
       hdr.method_id == SIGMA_UVERBS_METHOD_INVOKE_WRITE))
    new_generation();
}

/* ---- libibverbs: int execute_ioctl(struct ibv_context *, struct ibv_command_buffer *)
 * ------------- */

static __always_inline bool execute_entry(struct pt_regs* ctx) {
  struct sigma_hit hit;
  if (!sigma_admit(&hit)) return false;
  struct sigma_call call = {.call_ns = bpf_ktime_get_ns(),
                            .object = PT_REGS_PARM1(ctx),
                            .argument = PT_REGS_PARM2(ctx),
                            .target_flags = hit.target_flags};
  note_command(&hit, call.argument + SIGMA_COMMAND_BUFFER_HDR);
  /* The header is not finished yet: its number of attributes is where the next would go. */
  __u64 next = 0, attrs = call.argument + SIGMA_COMMAND_BUFFER_HDR + sizeof(struct sigma_ioctl_hdr);
  if (read_user(hit.totals, &next, sizeof(next), call.argument + SIGMA_COMMAND_BUFFER_NEXT_ATTR) &&
      next >= attrs && next - attrs <= SIGMA_UVERBS_MAX_ATTRS * ATTR_BYTES) {
    struct ring_command of = {.tgid = tgid_of(hit.id), .ucontext = call.object};
    note_ends(&of, call.argument + SIGMA_COMMAND_BUFFER_HDR, (next - attrs) / ATTR_BYTES);
  }
  remember_call(&hit, SIGMA_FN_EXECUTE_IOCTL, &call);
  return true;
}

static __noinline int execute_exit(__s32 result) {
  struct sigma_hit hit;
  struct sigma_call* slot = recall(&hit, SIGMA_FN_EXECUTE_IOCTL);
  if (!slot) return 0;
  struct sigma_call call = *slot;
  slot->call_ns = 0;
  see_context(hit.id, call.object, true);
  emit_command(&call, call.argument + SIGMA_COMMAND_BUFFER_HDR, result, 0);
  return 0;
}

SEC("uprobe") int execute_ioctl(struct pt_regs* ctx) {
  execute_entry(ctx);
  return 0;
}

SEC("uprobe") int execute_ioctl_return(struct pt_regs* ctx) {
  if (is_strangers(ctx)) return 0;
  return execute_exit((__s32)PT_REGS_RC(ctx));
}

SEC("uprobe") int execute_ioctl_session(struct pt_regs* ctx) {
  if (is_return(ctx)) return execute_exit((__s32)PT_REGS_RC(ctx));
  return execute_entry(ctx) ? SIGMA_SESSION_WANT_RETURN : SIGMA_SESSION_NO_RETURN;
}

/* int ibv_close_device(struct ibv_context *) */
SEC("uprobe") int close_device(struct pt_regs* ctx) {
  struct sigma_hit hit;
  if (!sigma_admit(&hit)) return 0;
  struct sigma_context_key key = {.tgid = tgid_of(hit.id), .context = PT_REGS_PARM1(ctx)};
  bpf_map_delete_elem(&contexts, &key);
  new_epoch();
  emit_context(hit.id, key.context, SIGMA_CONTEXT_CLOSED);
  return 0;
}

/* ---- kernel: long ib_uverbs_ioctl(struct file *, unsigned int cmd, unsigned long arg)
 * -------------- */

static __always_inline int kernel_entry(struct file* file, __u32 rdev, __u64 arg) {
  struct sigma_hit hit;
  if (!sigma_admit(&hit)) return 0;
  struct sigma_call call = {.call_ns = bpf_ktime_get_ns(),
                            .object = (__u64)file,
                            .argument = arg,
                            .number = rdev,
                            .target_flags = hit.target_flags};
  note_command(&hit, arg);
  struct sigma_ioctl_hdr hdr;
  struct ring_command of = {.tgid = tgid_of(hit.id), .ucontext = (__u64)file};
  if (read_user(hit.totals, &hdr, sizeof(hdr), arg)) note_ends(&of, arg, hdr.num_attrs);
  remember_call(&hit, SIGMA_FN_EXECUTE_IOCTL, &call);
  return 0;
}

static __noinline int kernel_exit(__s32 result) {
  struct sigma_hit hit;
  struct sigma_call* slot = recall(&hit, SIGMA_FN_EXECUTE_IOCTL);
  if (!slot) return 0;
  struct sigma_call call = *slot;
  slot->call_ns = 0;
  emit_command(&call, call.argument, result, SIGMA_UVERBS_KERNEL);
  return 0;
}

SEC("fentry/ib_uverbs_ioctl")
int BPF_PROG(uverbs_fentry, struct file* file, unsigned int cmd, unsigned long arg) {
  return kernel_entry(file, file->f_inode->i_rdev, arg);
}

SEC("fexit/ib_uverbs_ioctl")
int BPF_PROG(uverbs_fexit, struct file* file, unsigned int cmd, unsigned long arg, long result) {
  __u64 value = result; /* where it stands, if the function hooked is the one that it should be */
  if (config.has_loop) bpf_get_func_ret(ctx, &value); /* likewise since 5.17 */
  return kernel_exit((__s32)value);
}

SEC("kprobe/ib_uverbs_ioctl")
int BPF_KPROBE(uverbs_kprobe, struct file* file, unsigned int cmd, unsigned long arg) {
  return kernel_entry(file, BPF_CORE_READ(file, f_inode, i_rdev), arg);
}

SEC("kretprobe/ib_uverbs_ioctl") int BPF_KRETPROBE(uverbs_kretprobe, long result) {
  return kernel_exit((__s32)result);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
