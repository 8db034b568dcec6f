/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What uverbs commands of mlx5 do to rings. As a command returns: a ring was made, went on in another
 * buffer, or is gone. As one begins: it ends a ring, which gets its last look (rings.h), or starts it
 * anew.
 */
#ifndef SIGMA_RING_COMMANDS_H
#define SIGMA_RING_COMMANDS_H

#include "bpf/devx_rings.h"
#include "bpf/draft.h"

static __always_inline struct ring_command command_of(const struct draft* draft, __u64 id) {
  struct ring_command command = {.tgid = tgid_of(id), .ucontext = draft->uverbs.ucontext};
  return command;
}

/* ---- at a command's return ---- */

/* A ring has been made: its place is noted for the day it ends. */
SIGMA_VERIFIED_ONCE int note_ring(struct draft* draft, __u64 id) {
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
          PRM(totals, devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_CMD_OUT), SIGMA_PRM_NUMBER);
  } else if (qp) {
    struct sigma_mlx5_create_qp at = {};
    struct ring_command of = command_of(draft, id);
    __u32 send_cq = draft->data[SIGMA_UVERBS_ATTR_CREATE_QP_SEND_CQ];
    __u32 recv_cq = draft->data[SIGMA_UVERBS_ATTR_CREATE_QP_RECV_CQ];
    slot->cq[0] = ring_slot_of(key.tgid, of.ucontext, send_cq);
    slot->cq[1] = ring_slot_of(key.tgid, of.ucontext, recv_cq);
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

SIGMA_VERIFIED_ONCE int note_registration(const struct draft* draft, __u64 id) {
  if (!draft || draft->uverbs.object_id != SIGMA_UVERBS_OBJECT_DEVX_UMEM ||
      draft->uverbs.method_id != SIGMA_UVERBS_METHOD_DEVX_UMEM_REG)
    return 0;
  return note_umem(tgid_of(id), draft->uverbs.ucontext, devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_UMEM_ID),
                   devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_UMEM_ADDR), devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_UMEM_LEN));
}

/* QPs to RESET by verbs. */
SIGMA_VERIFIED_ONCE int is_reset(__u64 core) {
  struct sigma_totals* totals = totals_of_cpu();
  __u32 mask = 0;
  __u8 state = 0xff;
  return totals && read_user(totals, &mask, sizeof(mask), core + SIGMA_MODIFY_QP_MASK) &&
         (mask & SIGMA_IBV_QP_STATE) &&
         read_user(totals, &state, sizeof(state), core + SIGMA_MODIFY_QP_STATE) &&
         state == SIGMA_IBV_QPS_RESET;
}

/* How a command that has returned ends a ring, or would have: enum sigma_drain_reason; 0: not at all. */
SIGMA_VERIFIED_ONCE int ended_by(const struct draft* draft, __u32* handle) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !draft || !handle) return 0;
  __u32 object = draft->uverbs.object_id, method = draft->uverbs.method_id;
  *handle = draft->data[SIGMA_UVERBS_ATTR_HANDLE];
  if (object == SIGMA_UVERBS_OBJECT_QP && method == SIGMA_UVERBS_METHOD_QP_DESTROY)
    return SIGMA_DRAIN_DESTROY;
  if (object == SIGMA_UVERBS_OBJECT_CQ && method == SIGMA_UVERBS_METHOD_CQ_DESTROY)
    return SIGMA_DRAIN_DESTROY;
  if (object == SIGMA_UVERBS_OBJECT_DEVX_OBJ) {
    *handle = devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_HANDLE);
    if (method == SIGMA_UVERBS_METHOD_DEVX_OBJ_DESTROY) return SIGMA_DRAIN_DESTROY;
    if (method != SIGMA_UVERBS_METHOD_DEVX_OBJ_MODIFY) return 0;
    __u64 command = devx_data(draft, SIGMA_UVERBS_ATTR_DEVX_CMD_IN);
    return PRM(totals, command, SIGMA_PRM_OPCODE) == SIGMA_PRM_2RST_QP ? SIGMA_DRAIN_RESET : 0;
  }
  if (object != SIGMA_UVERBS_OBJECT_DEVICE || method != SIGMA_UVERBS_METHOD_INVOKE_WRITE) return 0;
  __u32 command = draft->data[SIGMA_UVERBS_ATTR_WRITE_CMD] & SIGMA_UVERBS_CMD_NUMBER;
  __u64 core = draft->data[SIGMA_UVERBS_ATTR_CORE_IN];
  if (command == SIGMA_UVERBS_CMD_MODIFY_QP) {
    if (!is_reset(core)) return 0;
    return read_user(totals, handle, sizeof(*handle), core + SIGMA_MODIFY_QP_HANDLE) ? SIGMA_DRAIN_RESET : 0;
  }
  if (command != SIGMA_UVERBS_CMD_DESTROY_CQ && command != SIGMA_UVERBS_CMD_DESTROY_QP) return 0;
  return read_user(totals, handle, sizeof(*handle), core + SIGMA_RESIZE_CQ_HANDLE) ? SIGMA_DRAIN_DESTROY : 0;
}

/* The object is gone for good: user space gives the ring's slot back, once it has had the last copy. */
SIGMA_VERIFIED_ONCE int note_gone(struct draft* draft, __u64 id) {
  if (!draft) return 0;
  __u32 handle = 0;
  if (ended_by(draft, &handle) != SIGMA_DRAIN_DESTROY) return 0;
  struct ring_command of = command_of(draft, id);
  __u32 number = forget_ring(of.tgid, of.ucontext, handle);
  if (!number) return 0;
  draft->uverbs.ring_slot = number;
  draft->uverbs.flags |= SIGMA_UVERBS_RING_GONE;
  return 0;
}

/* The command has failed, and its ring goes on: it was copied, and is read again from there. */
SIGMA_VERIFIED_ONCE int note_not_ended(const struct draft* draft, __u64 id) {
  if (!draft) return 0;
  __u32 handle = 0, reason = ended_by(draft, &handle);
  if (!reason) return 0;
  struct ring_command of = command_of(draft, id);
  __u64 name = of.ucontext;
  __u32 number = ring_slot_of(of.tgid, name, handle);
  struct sigma_ring_slot* slot = bpf_map_lookup_elem(&ring_slots, &number);
  if (number && is_ring_of(slot, of.tgid, name, handle) && slot->dead == reason) slot->dead = 0;
  return 0;
}

/* A completion ring goes on in another buffer, one entry further on: the device has written one more
 * to the old one, to say so. Read by the reader as soon as it has taken in the old one's copy and knows
 * of this buffer (`life`); if it ends before that, it is copied like any. */
SIGMA_VERIFIED_ONCE int note_resize(const struct draft* draft, __u64 id) {
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
  __u32 number = ring_slot_of(of.tgid, of.ucontext, resize.cq_handle);
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

/* ---- at a command's begin ---- */

/* A ring ends, or is about to be emptied. A queue pair takes its completion rings' new entries
 * along: the library clears them of its own afterwards. */
SIGMA_VERIFIED_ONCE int end_ring(const struct ring_command* command, __u32 handle, __u32 reason) {
  if (!command) return 0;
  __u64 name = command->ucontext;
  __u32 number = ring_slot_of(command->tgid, name, handle);
  struct sigma_ring_slot* slot = bpf_map_lookup_elem(&ring_slots, &number);
  if (!number || !is_ring_of(slot, command->tgid, name, handle)) return 0;
  __u32 cq0 = slot->cq[0], cq1 = slot->cq[1];
  bool qp = slot->kind == SIGMA_RING_SEND;
  drain_ring(number, reason);
  if (!qp) return 0;
  if (cq0) drain_ring(cq0, SIGMA_DRAIN_LOOK);
  if (cq1 && cq1 != cq0) drain_ring(cq1, SIGMA_DRAIN_LOOK);
  return 0;
}

/* RESET to INIT: the library has zeroed the doorbell record since, and a new life begins. */
SIGMA_VERIFIED_ONCE int renew_ring(const struct ring_command* command, __u32 handle) {
  if (!command) return 0;
  __u32 number = ring_slot_of(command->tgid, command->ucontext, handle);
  struct sigma_ring_slot* slot = bpf_map_lookup_elem(&ring_slots, &number);
  if (!number || !slot || slot->dead != SIGMA_DRAIN_RESET || slot->tgid != command->tgid) return 0;
  slot->life++;
  barrier();
  slot->dead = 0;
  return 0;
}

/* One of the first attributes of a command that begins. `n`: how many it has so far. */
SIGMA_VERIFIED_ONCE int find_attr(__u64 attrs, __u32 n, __u32 wanted, __u64* data) {
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
SIGMA_VERIFIED_ONCE int note_ends(const struct ring_command* of, __u64 header, __u32 n) {
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
             method == SIGMA_UVERBS_METHOD_INVOKE_WRITE) {
    __u64 core = 0;
    __u32 handle = 0, mask = 0;
    __u8 state = 0xff;
    if (!find_attr(attrs, n, SIGMA_UVERBS_ATTR_WRITE_CMD, &data)) return 0;
    if (find_attr(attrs, n, SIGMA_UVERBS_ATTR_CORE_IN, &core) != 2) return 0;
    __u32 command = data & SIGMA_UVERBS_CMD_NUMBER;
    if (command == SIGMA_UVERBS_CMD_MODIFY_QP) {
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

#endif
