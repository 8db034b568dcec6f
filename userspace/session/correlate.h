// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Correlator: posts and completions to operations. Finds the queue of each record, keeps staged
// batches aside until they are committed, asks the queue which request a completion belongs to
// (work_queue.h, shared_queue.h), and gives the sink each operation exactly once.
//
// Errors: of a completion with an error status only wr_id, status, vendor_err and qp_num are used.
// Which side it is of is told by the CQ where the two sides have different ones, else by the wr_id,
// sends first; found pending on both sides, the operation is marked ambiguous.
//
// What is read from rings has indices instead of wr_ids: rings.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/counters.h"
#include "session/completion_time.h"
#include "session/objects.h"
#include "session/opcodes.h"
#include "session/operation.h"

namespace sigma {

class Correlator {
 public:
  Correlator(OperationSink& sink, Objects& objects, Counters& counters, const SessionLimits& limits)
      : sink_(sink),
        objects_(objects),
        counters_(counters),
        limits_(limits),
        times_(objects, counters) {}

  void on_post(const sigma_post& post);
  void on_post_result(const sigma_post_result& result);
  void on_completion(const sigma_completion& completion);

  // What was read from rings (rings.cpp).
  void on_ring(const sigma_ring& ring);
  void on_ring_post(const sigma_ring_post& post);
  void on_ring_completion(const sigma_ring_completion& completion);
  void on_ring_gap(const sigma_ring_gap& gap);

  // Reports what is pending as unfinished; the queue goes on. `qps_peer_unknown` is counted here.
  void end_life(Qp& qp);
  void close(Srq& srq);
  // The governor stopped looking: what is pending closes, and the queues are out of step.
  void on_window(const sigma_window& window);
  // Batches of this process that were never committed.
  void drop_batches(uint32_t pid);
  void drop_all_batches();

 private:
  // Where the records of one (pid, context, qp_num) go; valid for one generation of the objects.
  struct Route {
    uint64_t generation = 0;
    uint64_t context = 0;
    uint32_t pid = 0, qp_num = 0;
    Qp* qp = nullptr;
  };
  // Requests of one wr_start that are not committed yet.
  struct Batch {
    bool active = false;
    uint32_t pid = 0, tid = 0;
    uint64_t call_ns = 0, context = 0, queue_ptr = 0;
    uint32_t qp_num = 0;
    std::vector<Pending> requests;
  };
  static constexpr size_t kMaxBatches = 1024;

  bool ignored(uint32_t pid);
  Qp* route(uint32_t pid, uint64_t context, uint32_t qp_num);
  Qp& qp_of_post(const sigma_header& h, uint64_t context, uint32_t qp_num, uint64_t queue_ptr);
  Srq& srq_of_post(const sigma_header& h, uint64_t context, uint64_t queue_ptr);

  void begin_call(Qp& qp, const Pending& first);
  void count_in(Qp& qp, Pending& pending, bool omits);
  void count_out(Qp& qp, uint32_t tid, uint64_t call_ns, uint32_t accepted);
  void refuse_from(Qp& qp, uint16_t index);
  void enqueue(Qp& qp, Queue side, Pending&& pending);
  void enqueue(Srq& srq, Pending&& pending);
  void make_room(size_t size_of_queue, Qp* qp, Queue side, Srq* srq);
  void evict_oldest();

  Batch* find_batch(uint32_t tid, uint64_t call_ns);
  void stage(const sigma_post& post);
  void commit(Batch& batch, uint64_t now_ns);
  void drop(Batch& batch, uint64_t Counters::*counter);

  Qp* qp_of_completion(const sigma_completion& wc);
  void complete_by_queue(const sigma_completion& wc);
  void complete_somewhere(Qp& qp, const sigma_completion& wc);
  void complete_send(Qp& qp, const sigma_completion& wc);
  void complete_recv(Qp& qp, const sigma_completion& wc);
  void complete_error(Qp& qp, const sigma_completion& wc);
  void complete_queued(Qp& qp, Queue side, WorkQueue::Match match, const sigma_completion& wc);
  void complete_shared(Qp& qp, Srq* srq, const sigma_completion& wc, uint8_t flags);
  void complete_unseen(Qp* qp, const sigma_completion& wc);

  Qp& qp_of_ring(const sigma_header& h, uint64_t context, uint16_t flags, uint32_t qp_num);
  bool is_of_life(Qp& qp, uint32_t life);
  bool merge(Qp& qp, const sigma_ring_post& post);
  bool take_ring_send(Qp& qp, const sigma_ring_completion& cqe, uint64_t index);
  void complete_ring_send(Qp& qp, const sigma_ring_completion& cqe);
  void complete_ring_recv(Qp& qp, const sigma_ring_completion& cqe);
  void complete_ring_unseen(Qp& qp, Queue side, const sigma_ring_completion& cqe);
  void settle_waiting(Qp& qp);
  void give_up_waiting(Qp& qp);
  void infer_until(Qp& qp, size_t end, const sigma_ring_completion& cqe);
  void pop(Qp& qp, Queue side);
  void note_reported(Qp& qp, const Pending& pending);
  void stamp(Operation& operation);
  void apply(Operation& operation, const sigma_ring_completion& cqe);

  // Building an operation: from what was posted, then from the completion, then to the sink.
  Operation& begin(Qp* qp, Queue side, uint32_t pid);
  Operation& begin(Qp* qp, Queue side, const Pending& pending, const WorkQueue* queue);
  void apply(Operation& operation, const sigma_completion& wc, bool ambiguous);
  void emit(Operation& operation);
  void emit_unfinished(Qp* qp, Queue side, const Pending& pending, const WorkQueue* queue);
  void close(Qp& qp);

  OperationSink& sink_;
  Objects& objects_;
  Counters& counters_;
  const SessionLimits& limits_;
  CompletionTimes times_;
  CompletionTime completed_;  // of the completion at hand
  std::array<Route, 4096> routes_{};
  std::vector<Batch> batches_;
  size_t active_batches_ = 0;
  size_t pending_ = 0;  // in all queues
  bool paused_all_ = false;
  bool any_paused_ = false;  // a process has been paused
  Operation operation_;
};

}  // namespace sigma
