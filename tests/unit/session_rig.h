// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A session with a sink that keeps what it is given, and makers of records with sensible defaults.
// Time is a counter: each record comes one tick after the one before, unless a test sets it. At the end
// the same records go through a session that matches by several threads (session_twin.h).
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "decode_uverbs_record.h"
#include "session/session.h"
#include "session_twin.h"

struct KeptOperation : sigma::Operation {
  std::string comm_text;
};

class Rig : public sigma::OperationSink {
 public:
  static constexpr uint32_t kPid = 100;
  static constexpr uint64_t kContext = 0x1000;

  explicit Rig(sigma::SessionOptions options = {})
      : options_(with_defaults(options)), session(*this, options_) {}

  void on_operation(const sigma::Operation& operation) override {
    said_.push_back(said(operation));
    KeptOperation kept{operation, std::string(operation.comm)};
    kept.comm = {};
    operations.push_back(std::move(kept));
  }

  template <typename T>
  void send(T record, sigma_record_type type, uint32_t pid, uint32_t tid = 0) {
    record.h.type = type;
    record.h.size = sizeof(T);
    record.h.pid = pid;
    record.h.tid = tid != 0 ? tid : pid;
    record.h.time_ns = ++now;
    deliver(std::as_bytes(std::span(&record, 1)));
  }
  void deliver(std::span<const std::byte> record) {
    if (!finished_) records_.emplace_back(record.begin(), record.end());
    session.on_record(record);
  }
  void uverbs(UverbsRecord record, uint32_t pid = kPid, uint64_t context = kContext) {
    deliver(record.from(++now, pid, context).bytes());
  }
  // As the kernel's hook sees it: a file, and the device's node.
  void uverbs_kernel(UverbsRecord record, uint32_t pid, uint64_t file, uint32_t rdev) {
    deliver(record.from(++now, pid, file, rdev).bytes());
  }

  // ---- control plane
  void context(const char* device = "rxe0", uint32_t pid = kPid, uint64_t context = kContext) {
    sigma_context record{};
    record.context = context;
    record.kind = SIGMA_CONTEXT_SEEN;
    std::strncpy(record.device, device, sizeof(record.device) - 1);
    send(record, SIGMA_CONTEXT, pid);
  }
  void context_closed(uint32_t pid = kPid, uint64_t context = kContext) {
    sigma_context record{};
    record.context = context;
    record.kind = SIGMA_CONTEXT_CLOSED;
    send(record, SIGMA_CONTEXT, pid);
  }
  struct QpSpec {
    bool sig_all = false;
    uint8_t type = IBV_QPT_RC;
    uint32_t send_cq = 1, recv_cq = 1;  // handles
    uint32_t srq = 0;                   // handle; 0: none
    uint64_t ptr = 0;                   // 0: qp_ptr(number)
    uint32_t handle = 0;                // 0: the number
  };
  static uint64_t qp_ptr(uint32_t number) { return 0x500000 + number * 0x100ull; }
  static uint64_t cq_ptr(uint32_t handle) { return 0x900000 + handle * 0x100ull; }
  static UverbsRecord create_qp_record(uint32_t number, const QpSpec& spec) {
    UverbsRecord record(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE);
    record.handle(UVERBS_ATTR_CREATE_QP_HANDLE, spec.handle ? spec.handle : number)
        .in(UVERBS_ATTR_CREATE_QP_USER_HANDLE, spec.ptr ? spec.ptr : qp_ptr(number))
        .handle(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, spec.send_cq)
        .handle(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, spec.recv_cq)
        .in(UVERBS_ATTR_CREATE_QP_TYPE, uint64_t{spec.type})
        .out(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, number);
    if (spec.srq != 0) record.handle(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, spec.srq);
    if (spec.sig_all)
      record.in(UVERBS_ATTR_CREATE_QP_FLAGS, uint32_t{IB_UVERBS_QP_CREATE_SQ_SIG_ALL});
    return record;
  }
  void create_qp(uint32_t number, const QpSpec& spec, uint32_t pid = kPid,
                 uint64_t context = kContext) {
    uverbs(create_qp_record(number, spec), pid, context);
  }
  void create_cq(uint32_t handle, uint32_t pid = kPid, uint64_t context = kContext) {
    uverbs(UverbsRecord(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE)
               .handle(UVERBS_ATTR_CREATE_CQ_HANDLE, handle)
               .in(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, cq_ptr(handle)),
           pid, context);
  }
  void create_srq(uint32_t handle, uint64_t ptr, uint32_t pid = kPid, uint64_t context = kContext) {
    uverbs(UverbsRecord(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE)
               .handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, handle)
               .in(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, ptr),
           pid, context);
  }
  void modify_qp(const ib_uverbs_modify_qp& core, uint32_t pid = kPid,
                 uint64_t context = kContext) {
    uverbs(UverbsRecord::write(IB_USER_VERBS_CMD_MODIFY_QP, core), pid, context);
  }
  void set_state(uint32_t handle, uint8_t state, uint32_t pid = kPid, uint64_t context = kContext) {
    ib_uverbs_modify_qp core{};
    core.qp_handle = handle;
    core.attr_mask = IBV_QP_STATE;
    core.qp_state = state;
    modify_qp(core, pid, context);
  }
  void destroy_qp(uint32_t handle, uint32_t pid = kPid, uint64_t context = kContext) {
    uverbs(UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY)
               .handle(UVERBS_ATTR_DESTROY_QP_HANDLE, handle),
           pid, context);
  }
  void qp_seen(uint32_t number, uint32_t state = IBV_QPS_RTS, uint32_t pid = kPid,
               uint64_t context = kContext, uint64_t send_cq = 0, uint64_t recv_cq = 0,
               uint64_t srq = 0) {
    sigma_qp_seen record{};
    record.context = context;
    record.qp_ptr = qp_ptr(number);
    record.send_cq_ptr = send_cq;
    record.recv_cq_ptr = recv_cq;
    record.srq_ptr = srq;
    record.qp_num = number;
    record.handle = number;
    record.qp_type = IBV_QPT_RC;
    record.state = state;
    record.source = SIGMA_QP_AT_POST;
    send(record, SIGMA_QP_SEEN, pid);
  }
  void process(sigma_process_kind kind, uint32_t pid, uint32_t child = 0, const char* comm = "") {
    sigma_process record{};
    record.kind = kind;
    record.child_pid = child;
    std::strncpy(record.comm, comm, sizeof(record.comm) - 1);
    send(record, SIGMA_PROCESS, pid);
  }
  void window(sigma_window_kind kind, uint32_t pid = kPid) {
    sigma_window record{};
    record.kind = kind;
    send(record, SIGMA_WINDOW, pid);
  }

  // ---- data path
  static sigma_post post(uint32_t qp, uint64_t wr_id, uint8_t send_flags = IBV_SEND_SIGNALED,
                         uint8_t opcode = IBV_WR_RDMA_WRITE) {
    sigma_post record{};
    record.context = kContext;
    record.queue_ptr = qp_ptr(qp);
    record.wr_id = wr_id;
    record.bytes = 64;
    record.num_sge = 1;
    record.qp_num = qp;
    record.opcode = opcode;
    record.send_flags = send_flags;
    record.qp_type = 0xff;
    return record;
  }
  static sigma_post recv(uint32_t qp, uint64_t wr_id) {
    sigma_post record = post(qp, wr_id, 0, 0);
    record.queue = SIGMA_QUEUE_RECV;
    return record;
  }
  static sigma_post srq_recv(uint64_t srq, uint64_t wr_id) {
    sigma_post record = recv(0, wr_id);
    record.queue = SIGMA_QUEUE_SRQ;
    record.queue_ptr = srq;
    return record;
  }
  // A call of its own, unless call_ns is set.
  void send_post(sigma_post record, uint32_t pid = kPid, uint32_t tid = 0) {
    if (record.call_ns == 0) record.call_ns = now + 1;
    send(record, SIGMA_POST, pid, tid);
  }
  static sigma_completion completion(uint32_t qp, uint64_t wr_id,
                                     uint32_t opcode = IBV_WC_RDMA_WRITE,
                                     uint32_t status = IBV_WC_SUCCESS, uint64_t cq = 0) {
    sigma_completion record{};
    record.context = kContext;
    record.cq_ptr = cq != 0 ? cq : cq_ptr(1);
    record.wr_id = wr_id;
    record.status = status;
    record.opcode = opcode;
    record.byte_len = 64;
    record.qp_num = qp;
    record.batch = 1;
    return record;
  }
  void send_completion(const sigma_completion& record, uint32_t pid = kPid) {
    send(record, SIGMA_COMPLETION, pid);
  }
  void result(sigma_post_outcome outcome, uint64_t call_ns, uint32_t qp, uint32_t accepted = 0,
              uint32_t tid = kPid, sigma_queue queue = SIGMA_QUEUE_SEND, uint64_t queue_ptr = 0) {
    sigma_post_result record{};
    record.context = kContext;
    record.call_ns = call_ns;
    record.queue_ptr = queue_ptr != 0 ? queue_ptr : qp_ptr(qp);
    record.qp_num = qp;
    record.accepted = accepted;
    record.outcome = outcome;
    record.queue = queue;
    send(record, SIGMA_POST_RESULT, kPid, tid);
  }

  sigma::Counters& finish() {
    session.finish(++now);
    finished_ = true;
    // Limits of all queues together are shared out among the threads.
    if (options_.limits.pending == sigma::SessionLimits().pending)
      for (const uint32_t shards : {2u, 5u}) check_twin(shards, options_, records_, session, said_);
    return session.counters();
  }

  uint64_t now = 1000;
  std::vector<KeptOperation> operations;
  std::map<uint32_t, std::string> nodes;  // rdev to device

 private:
  sigma::SessionOptions options_;
  Twin::Records records_;
  bool finished_ = false;
  std::vector<SaidOperation> said_;

 public:
  sigma::Session session;

 private:
  sigma::SessionOptions with_defaults(sigma::SessionOptions options) {
    if (!options.device_of_node)
      options.device_of_node = [this](uint32_t rdev) {
        const auto it = nodes.find(rdev);
        return it == nodes.end() ? std::string() : it->second;
      };
    if (!options.comm_of)
      options.comm_of = [](uint32_t pid) { return "comm" + std::to_string(pid); };
    return options;
  }
};

// 10.0.0.LAST, mapped into IPv6.
inline std::array<uint8_t, 16> mapped_gid(uint8_t last) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last};
}

// The command that connects the queue pair of `handle` to queue pair `peer` at that address.
inline ib_uverbs_modify_qp to_rtr(uint32_t handle, uint32_t peer, uint8_t gid_last) {
  ib_uverbs_modify_qp core{};
  core.qp_handle = handle;
  core.attr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_PATH_MTU | IBV_QP_RQ_PSN;
  core.qp_state = IBV_QPS_RTR;
  core.dest_qp_num = peer;
  core.path_mtu = IBV_MTU_1024;
  core.rq_psn = 1;
  core.dest.is_global = 1;
  const auto address = mapped_gid(gid_last);
  std::copy(address.begin(), address.end(), core.dest.dgid);
  return core;
}
