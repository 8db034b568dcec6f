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
#include "bpf/devx_rings.h"

#define MAX_RECORD 4096
#define ATTR_BYTES sizeof(struct sigma_uverbs_attr)

/*
 * A record in the making: too large for the stack. In the map only while one program runs. `end` is
 * here and not in a register so that the verifier takes all rounds of the loop over attributes for
 * alike.
 */
struct draft {
  union {
    struct sigma_uverbs uverbs;
    __u8 bytes[MAX_RECORD];
  };
  __u32 start; /* of the payload area */
  __u32 end;   /* of what is filled in */
  /* Attributes of QP CREATE: struct ibv_qp *, and where the number and the driver's part are. */
  __u64 qp_ptr;
  __u64 qp_num_at;
  __u64 driver_at;
  __u64 data[16]; /* of the attributes with the smallest numbers */
  __u64 devx[8]; /* likewise of those that mlx5 numbers from SIGMA_UVERBS_ATTR_DEVX_HANDLE on */
};

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 256);
  __type(key, __u64); /* pid_tgid */
  __type(value, struct draft);
} drafts SEC(".maps");

/* Never written: what a draft begins as. */
static struct draft blank_draft;

/* Inputs of up to 8 bytes stand in `data` itself; outputs are pointers whatever their size. */
static __always_inline bool is_pointer(const struct sigma_uverbs_attr* attr) {
  return attr->len > sizeof(attr->data) ||
         (attr->len && (attr->flags & SIGMA_UVERBS_ATTR_F_VALID_OUTPUT));
}

/* Copies one attribute and its payload into the draft. */
static __noinline int add_attribute(struct draft* draft, __u64 attrs, __u32 i) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !draft || i >= SIGMA_UVERBS_MAX_ATTRS) return 0;
  struct sigma_uverbs_attr attr = {};
  read_user(totals, &attr, sizeof(attr), attrs + i * ATTR_BYTES);
  attr.offset = SIGMA_UVERBS_NO_PAYLOAD;
  __u32 low = attr.attr_id;
  if (low < 16) draft->data[low & 15] = attr.data;
  if (low >> 3 == SIGMA_UVERBS_ATTR_DEVX_HANDLE >> 3) draft->devx[low & 7] = attr.data;
  if (attr.attr_id == SIGMA_UVERBS_ATTR_CREATE_QP_USER_HANDLE) draft->qp_ptr = attr.data;
  if (attr.attr_id == SIGMA_UVERBS_ATTR_CREATE_QP_RESP_QP_NUM) draft->qp_num_at = attr.data;
  if (attr.attr_id == SIGMA_UVERBS_ATTR_UHW_IN && attr.len >= SIGMA_MLX5_CREATE_QP_DB_ADDR + 8)
    draft->driver_at = attr.data;
  if (is_pointer(&attr)) {
    __u32 end = draft->end;
    __u32 length = attr.len;
    bool whole = length <= SIGMA_UVERBS_ATTR_BYTES;
    if (!whole) length = SIGMA_UVERBS_ATTR_BYTES;
    /* Opaque, then bounded again: the verifier of 6.1 does not connect the test with the register. */
    barrier_var(length);
    if (length > SIGMA_UVERBS_ATTR_BYTES) return 0;
    if (end <= MAX_RECORD - SIGMA_UVERBS_ATTR_BYTES &&
        read_user(totals, draft->bytes + end, length, attr.data)) {
      attr.offset = end - draft->start;
      draft->end = end + ((length + 7) & ~7u);
    } else {
      whole = false;
    }
    if (!whole) draft->uverbs.flags |= SIGMA_UVERBS_TRUNCATED;
  }
  *(struct sigma_uverbs_attr*)(draft->bytes + sizeof(struct sigma_uverbs) + i * ATTR_BYTES) = attr;
  return 0;
}

/*
 * mlx5: where the doorbell record of a new queue pair is, so that the first post to it already has
 * its index. What else there is to know of the queue pair is read at that post.
 */
static __noinline int note_doorbell(const struct draft* draft, __u64 id) {
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

static __always_inline struct ring_command command_of(const struct draft* draft, __u64 id) {
  struct ring_command command = {.tgid = tgid_of(id),
                                 .rdev = draft->uverbs.rdev,
                                 .ucontext = draft->uverbs.ucontext};
  return command;
}

static __always_inline __u64 devx_data(const struct draft* draft, __u32 attr) {
  return draft->devx[attr & 7];
}

/* A ring has been made: its place is noted for the day it ends. */
static __noinline int note_ring(struct draft* draft, __u64 id) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !draft) return 0;
  struct sigma_uverbs* uverbs = &draft->uverbs;
  struct sigma_ring_key key = {
      .tgid = tgid_of(id), .ucontext = uverbs->ucontext, .handle = draft->data[0]};
  bool devx = uverbs->object_id == SIGMA_UVERBS_OBJECT_DEVX_OBJ &&
              uverbs->method_id == SIGMA_UVERBS_METHOD_DEVX_OBJ_CREATE;
  bool qp = uverbs->object_id == SIGMA_UVERBS_OBJECT_QP &&
            uverbs->method_id == SIGMA_UVERBS_METHOD_QP_CREATE;
  bool cq = uverbs->object_id == SIGMA_UVERBS_OBJECT_CQ &&
            uverbs->method_id == SIGMA_UVERBS_METHOD_CQ_CREATE;
  __u32 kind = cq ? SIGMA_RING_CQ : qp ? SIGMA_RING_SEND : 0;
  __u64 command = devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_CMD_IN);
  if (devx) {
    key.handle = devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_HANDLE);
    kind = devx_ring_kind(totals, command);
  }
  if (!kind) return 0;

  __u32 number = new_ring_slot(kind, key.tgid);
  struct sigma_ring_slot* slot = bpf_map_lookup_elem(&ring_slots, &number);
  if (!number || !slot) return 0;
  slot->ucontext = key.ucontext;
  slot->handle = key.handle;
  if (devx) {
    place_devx_ring(&key, command, slot);
    if (kind == SIGMA_RING_CQ)
      slot->number =
          prm_word(totals, devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_CMD_OUT), 8) & 0xffffff;
  } else if (qp) {
    struct sigma_mlx5_create_qp at = {};
    struct ring_command of = command_of(draft, id);
    __u32 send_cq = draft->data[SIGMA_UVERBS_ATTR_CREATE_QP_SEND_CQ];
    __u32 recv_cq = draft->data[SIGMA_UVERBS_ATTR_CREATE_QP_RECV_CQ];
    slot->cq[0] = ring_slot_of(key.tgid, ring_name(&of, send_cq), send_cq);
    slot->cq[1] = ring_slot_of(key.tgid, ring_name(&of, recv_cq), recv_cq);
    if (draft->driver_at && read_user(totals, &at, sizeof(at), draft->driver_at)) {
      slot->doorbell_addr = at.db_addr;
      slot->entries = at.sq_wqe_count;
      slot->stride = 64;
      bool raw = draft->data[SIGMA_UVERBS_ATTR_CREATE_QP_TYPE] == SIGMA_IBV_QPT_RAW_PACKET;
      slot->ring_addr = raw ? at.sq_buf_addr
                            : at.buf_addr + ((__u64)at.rq_wqe_count << (at.rq_wqe_shift & 31));
    }
  } else if (cq) {
    struct sigma_mlx5_create_cq at = {};
    __u32 last = 0;
    if (draft->driver_at && read_user(totals, &at, sizeof(at), draft->driver_at) &&
        read_user(totals, &last, sizeof(last),
                  draft->data[SIGMA_UVERBS_ATTR_CREATE_CQ_RESP_CQE])) {
      slot->doorbell_addr = at.db_addr;
      slot->entries = last + 1;
      slot->stride = at.cqe_size;
      slot->ring_addr = at.buf_addr;
    }
    read_user(totals, &slot->number, sizeof(slot->number), devx_data(draft, SIGMA_UVERBS_ATTR_UHW_OUT));
  }
  /* What does not have this form is for user space to look at. */
  if (!slot->entries || (slot->entries & (slot->entries - 1))) slot->ring_addr = 0;
  bpf_map_update_elem(&ring_objects, &key, &number, BPF_ANY);
  uverbs->ring_slot = number;
  key.handle = slot->number;
  if (key.handle) bpf_map_update_elem(&ring_cqs, &key, &number, BPF_ANY);
  return 0;
}

static __noinline int note_registration(const struct draft* draft, __u64 id) {
  if (!draft || draft->uverbs.object_id != SIGMA_UVERBS_OBJECT_DEVX_UMEM ||
      draft->uverbs.method_id != SIGMA_UVERBS_METHOD_DEVX_UMEM_REG)
    return 0;
  struct umem umem = {.addr = devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_UMEM_ADDR),
                      .length = devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_UMEM_LEN)};
  return note_umem(tgid_of(id), draft->uverbs.ucontext,
                   devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_UMEM_ID), &umem);
}

/* The object is gone for good. Its ring's slot user space frees, once it has had the last copy. */
static __noinline int note_gone(const struct draft* draft, __u64 id) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !draft) return 0;
  __u32 object = draft->uverbs.object_id, method = draft->uverbs.method_id;
  __u32 handle = draft->data[SIGMA_UVERBS_ATTR_HANDLE];
  if (object == SIGMA_UVERBS_OBJECT_DEVX_OBJ) {
    if (method != SIGMA_UVERBS_METHOD_DEVX_OBJ_DESTROY) return 0;
    handle = devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_HANDLE);
  } else if (object == SIGMA_UVERBS_OBJECT_DEVICE) {
    if (method != SIGMA_UVERBS_METHOD_INVOKE_WRITE) return 0;
    __u32 command = draft->data[SIGMA_UVERBS_ATTR_WRITE_CMD] & SIGMA_UVERBS_CMD_NUMBER;
    if ((command != SIGMA_UVERBS_CMD_DESTROY_CQ && command != SIGMA_UVERBS_CMD_DESTROY_QP) ||
        !read_user(totals, &handle, sizeof(handle),
                   draft->data[SIGMA_UVERBS_ATTR_CORE_IN] + SIGMA_RESIZE_CQ_HANDLE))
      return 0;
  } else if (!(object == SIGMA_UVERBS_OBJECT_QP && method == SIGMA_UVERBS_METHOD_QP_DESTROY) &&
             !(object == SIGMA_UVERBS_OBJECT_CQ && method == SIGMA_UVERBS_METHOD_CQ_DESTROY)) {
    return 0;
  }
  struct ring_command of = command_of(draft, id);
  forget_ring(of.tgid, ring_name(&of, handle), handle);
  return 0;
}

/* A completion ring goes on in another buffer, one entry further on: the device has written one more
 * to the old one, to say so. Read by the reader as soon as it has taken in the old one's copy and knows
 * of this buffer (`life`); if it ends before that, it is copied like any. */
static __noinline int note_resize(const struct draft* draft, __u64 id) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !draft) return 0;
  if (draft->uverbs.object_id != SIGMA_UVERBS_OBJECT_DEVICE ||
      draft->uverbs.method_id != SIGMA_UVERBS_METHOD_INVOKE_WRITE ||
      (draft->data[SIGMA_UVERBS_ATTR_WRITE_CMD] & SIGMA_UVERBS_CMD_NUMBER) !=
          SIGMA_UVERBS_CMD_RESIZE_CQ)
    return 0;
  struct sigma_resize_cq resize = {};
  struct sigma_mlx5_resize_cq at = {};
  if (!draft->driver_at || !read_user(totals, &at, sizeof(at), draft->driver_at) ||
      !read_user(totals, &resize, sizeof(resize), draft->data[SIGMA_UVERBS_ATTR_CORE_IN]))
    return 0;
  struct ring_command of = command_of(draft, id);
  __u32 number = ring_slot_of(of.tgid, ring_name(&of, resize.cq_handle), resize.cq_handle);
  struct sigma_ring_slot* slot = bpf_map_lookup_elem(&ring_slots, &number);
  __u32 entries = resize.cqe + 1;
  if (!number || !slot || slot->kind != SIGMA_RING_CQ || slot->tgid != tgid_of(id)) return 0;
  slot->ring_addr = entries & (entries - 1) ? 0 : at.buf_addr;
  slot->entries = entries;
  slot->stride = at.cqe_size;
  slot->copied++;
  slot->life++;
  barrier();
  if (slot->dead == SIGMA_DRAIN_RESIZE) slot->dead = 0;
  return 0;
}

/* The command that `call` began has returned. */
static __noinline int emit_command(const struct sigma_call* call, __u64 header, __s32 result,
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

/* A ring ends, or is about to be emptied. A queue pair takes its completion rings' new entries
 * along: the library clears them of its own afterwards. */
static __noinline int end_ring(const struct ring_command* command, __u32 handle, __u32 reason) {
  if (!command) return 0;
  __u32 number = ring_slot_of(command->tgid, ring_name(command, handle), handle);
  struct sigma_ring_slot* slot = bpf_map_lookup_elem(&ring_slots, &number);
  if (!number || !slot) return 0;
  __u32 cq0 = slot->cq[0], cq1 = slot->cq[1];
  bool qp = slot->kind == SIGMA_RING_SEND;
  drain_ring(number, reason);
  if (!qp) return 0;
  if (cq0) drain_ring(cq0, SIGMA_DRAIN_LOOK);
  if (cq1 && cq1 != cq0) drain_ring(cq1, SIGMA_DRAIN_LOOK);
  return 0;
}

/* RESET to INIT: the library has zeroed the doorbell record since, and a new life begins. */
static __noinline int renew_ring(const struct ring_command* command, __u32 handle) {
  if (!command) return 0;
  __u32 number = ring_slot_of(command->tgid, ring_name(command, handle), handle);
  struct sigma_ring_slot* slot = bpf_map_lookup_elem(&ring_slots, &number);
  if (!number || !slot || slot->dead != SIGMA_DRAIN_RESET || slot->tgid != command->tgid) return 0;
  slot->life++;
  barrier();
  slot->dead = 0;
  return 0;
}

/* One of the first attributes of a command that begins. `n`: how many it has so far. */
static __noinline int find_attr(__u64 attrs, __u32 n, __u32 wanted, __u64* data) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !data) return 0;
  for (__u32 i = 0; i < 4; i++) {
    struct sigma_uverbs_attr attr = {};
    if (i >= n || !read_user(totals, &attr, sizeof(attr), attrs + i * ATTR_BYTES)) return 0;
    if (attr.attr_id != wanted) continue;
    *data = attr.data;
    return attr.len > sizeof(attr.data) ? 2 : 1;
  }
  return 0;
}

/* What of the command that begins at `header` ends a ring, or starts it anew. */
static __noinline int note_ends(const struct ring_command* of, __u64 header, __u32 n) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !of) return 0;
  __u64 attrs = header + sizeof(struct sigma_ioctl_hdr), data = 0;
  struct sigma_ioctl_hdr hdr;
  if (!read_user(totals, &hdr, sizeof(hdr), header)) return 0;
  __u32 object = hdr.object_id, method = hdr.method_id;
  if ((object == SIGMA_UVERBS_OBJECT_QP && method == SIGMA_UVERBS_METHOD_QP_DESTROY) ||
      (object == SIGMA_UVERBS_OBJECT_CQ && method == SIGMA_UVERBS_METHOD_CQ_DESTROY)) {
    if (find_attr(attrs, n, SIGMA_UVERBS_ATTR_HANDLE, &data))
      end_ring(of, data, SIGMA_DRAIN_DESTROY);
  } else if (object == SIGMA_UVERBS_OBJECT_DEVX_OBJ) {
    __u64 command = 0;
    __be16 opcode = 0;
    if (!find_attr(attrs, n, SIGMA_UVERBS_ATTR_DEVX_HANDLE, &data)) return 0;
    if (method == SIGMA_UVERBS_METHOD_DEVX_OBJ_DESTROY)
      end_ring(of, data, SIGMA_DRAIN_DESTROY);
    else if (method == SIGMA_UVERBS_METHOD_DEVX_OBJ_MODIFY &&
             find_attr(attrs, n, SIGMA_UVERBS_ATTR_DEVX_CMD_IN, &command) == 2 &&
             read_user(totals, &opcode, sizeof(opcode), command)) {
      __u32 number = __builtin_bswap16(opcode);
      if (number == SIGMA_PRM_2RST_QP) end_ring(of, data, SIGMA_DRAIN_RESET);
      if (number == SIGMA_PRM_RST2INIT_QP) renew_ring(of, data);
    }
  } else if (object == SIGMA_UVERBS_OBJECT_DEVICE &&
             method == SIGMA_UVERBS_METHOD_GET_CONTEXT) {
    note_young_file(of);
  } else if (object == SIGMA_UVERBS_OBJECT_DEVICE &&
             method == SIGMA_UVERBS_METHOD_INVOKE_WRITE) {
    __u64 core = 0;
    __u32 handle = 0, mask = 0;
    __u8 state = 0xff;
    if (!find_attr(attrs, n, SIGMA_UVERBS_ATTR_WRITE_CMD, &data)) return 0;
    if (find_attr(attrs, n, SIGMA_UVERBS_ATTR_CORE_IN, &core) != 2) return 0;
    __u32 command = data & SIGMA_UVERBS_CMD_NUMBER;
    if (command == SIGMA_UVERBS_CMD_GET_CONTEXT) {
      note_young_file(of);
    } else if (command == SIGMA_UVERBS_CMD_MODIFY_QP) {
      if (read_user(totals, &mask, sizeof(mask), core + SIGMA_MODIFY_QP_MASK) &&
          (mask & SIGMA_IBV_QP_STATE) &&
          read_user(totals, &state, sizeof(state), core + SIGMA_MODIFY_QP_STATE) &&
          state <= SIGMA_IBV_QPS_INIT &&
          read_user(totals, &handle, sizeof(handle), core + SIGMA_MODIFY_QP_HANDLE)) {
        if (state == SIGMA_IBV_QPS_RESET)
          end_ring(of, handle, SIGMA_DRAIN_RESET);
        else
          renew_ring(of, handle);
      }
    } else if (command == SIGMA_UVERBS_CMD_RESIZE_CQ || command == SIGMA_UVERBS_CMD_DESTROY_CQ ||
               command == SIGMA_UVERBS_CMD_DESTROY_QP) {
      if (read_user(totals, &handle, sizeof(handle), core + SIGMA_RESIZE_CQ_HANDLE))
        end_ring(of, handle,
                 command == SIGMA_UVERBS_CMD_RESIZE_CQ ? SIGMA_DRAIN_RESIZE : SIGMA_DRAIN_DESTROY);
    }
  }
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
  return emit_command(&call, call.argument + SIGMA_COMMAND_BUFFER_HDR, result, 0);
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
  struct ring_command of = {.tgid = tgid_of(hit.id), .rdev = rdev, .ucontext = (__u64)file};
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
  return emit_command(&call, call.argument, result, SIGMA_UVERBS_KERNEL);
}

SEC("fentry/ib_uverbs_ioctl")
int BPF_PROG(uverbs_fentry, struct file* file, unsigned int cmd, unsigned long arg) {
  return kernel_entry(file, file->f_inode->i_rdev, arg);
}

SEC("fexit/ib_uverbs_ioctl")
int BPF_PROG(uverbs_fexit, struct file* file, unsigned int cmd, unsigned long arg, long result) {
  return kernel_exit((__s32)result);
}

SEC("kprobe/ib_uverbs_ioctl")
int BPF_KPROBE(uverbs_kprobe, struct file* file, unsigned int cmd, unsigned long arg) {
  return kernel_entry(file, BPF_CORE_READ(file, f_inode, i_rdev), arg);
}

SEC("kretprobe/ib_uverbs_ioctl") int BPF_KRETPROBE(uverbs_kretprobe, long result) {
  return kernel_exit((__s32)result);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
