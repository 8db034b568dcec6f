// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Correlator: posts and completions to operations, of the queue pairs whose records it is given
// (those with its number, Qp::shard). Keeps staged batches aside until they are committed, asks the
// queue which request a completion belongs to (work_queue.h, shared_queue.h), and gives the sink
// each operation exactly once. The queue of each record is found before (delivery.cpp).
//
// Errors: of a completion with an error status only wr_id, status, vendor_err and qp_num are used.
// Which side it is of is told by the CQ where the two sides have different ones, else by the wr_id,
// sends first; found pending on both sides, the operation is marked ambiguous.
//
// What is read from rings has indices instead of wr_ids: ring_posts.cpp, ring_completions.cpp.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/counters.h"
#include "session/completion_time.h"
#include "session/objects.h"
#include "session/opcodes.h"
#include "session/operation.h"

namespace sigma {

class Correlator {
 public:
  Correlator(OperationSink& sink, Objects& objects, Counters& counters, const SessionLimits& limits,
             uint32_t shard = 0)
      : sink_(sink),
        objects_(objects),
        counters_(counters),
        limits_(limits),
        shard_(shard),
        times_(objects, counters) {}

  OperationSink& sink() { return sink_; }
  // Operations from here on are finished by this record.
  void set_record(uint64_t number) { record_ = number; }

  void on_post(Qp& qp, const sigma_post& post);
  void on_post(Srq& srq, const sigma_post& post);
  // Null: not known. A batch of a queue pair that is gone is dropped.
  void on_post_result(Qp* qp, Srq* srq, const sigma_post_result& result);
  bool has_batch(const sigma_post_result& result);
  // Null: a straggler of a queue pair that has ended.
  void on_completion(Qp* qp, const sigma_completion& wc);
  // One that tells no queue pair: `several` queues could have had it. Null: none, or any of
  // several.
  void on_completion_of(Qp* qp, Queue side, bool several, const sigma_completion& wc);

  // What was read from rings (rings.cpp, ring_posts.cpp, ring_completions.cpp).
  void on_ring(Qp& qp, const sigma_ring& ring);
  void on_ring_post(Qp& qp, const sigma_ring_post& post);
  void on_ring_completion(Qp& qp, const sigma_ring_completion& completion);
  void on_ring_gap(Qp& qp, const sigma_ring_gap& gap);
  // A poll returned what the ring tells of.
  void on_pick_up(Qp& qp, const sigma_completion& wc);

  // Reports what is pending as unfinished; the queue goes on. `qps_peer_unknown` is counted here.
  // `destroyed_ns` is set where the queue pair itself has ended, not only the trace.
  void end_life(Qp& qp);
  void close(Srq& srq);
  // The governor stopped looking: what is pending closes, and the queue is out of step.
  void interrupt(Qp& qp);
  void interrupt(Srq& srq);
  // Batches of this process (0: of all) that were never committed.
  void drop_batches(uint32_t pid);
  // The queue pair's batches come from another one; what is in its queues is counted here.
  void take_over(Correlator& from, const Qp& qp);

 private:
  // Requests of one wr_start that are not committed yet.
  struct Batch {
    bool active = false;
    uint32_t pid = 0, tid = 0;
    uint64_t call_ns = 0, context = 0, queue_ptr = 0;
    uint32_t qp_num = 0;
    const Qp* qp = nullptr;  // whose it is: to be compared only
    std::vector<Pending> requests;
  };
  static constexpr size_t kMaxBatches = 1024;

  void begin_call(Qp& qp, const Pending& first);
  void count_in(Qp& qp, Pending& pending, bool omits);
  void count_out(Qp& qp, uint32_t tid, uint64_t call_ns, uint32_t accepted);
  void refuse_from(Qp& qp, uint16_t index);
  void enqueue(Qp& qp, Queue side, Pending&& pending);
  void enqueue(Srq& srq, Pending&& pending);
  void make_room(size_t size_of_queue, Qp* qp, Queue side, Srq* srq);
  void evict_oldest();

  // Of the call that a post or a result is of.
  template <typename T>
  Batch* find_batch(const T& record);
  void stage(Qp& qp, const sigma_post& post);
  void commit(Batch& batch, Qp& qp, uint64_t now_ns);
  void drop(Batch& batch, uint64_t Counters::*counter);

  void count(const sigma_post& post);
  void count(const sigma_completion& wc);
  void complete_somewhere(Qp& qp, const sigma_completion& wc);
  void complete_send(Qp& qp, const sigma_completion& wc);
  void complete_recv(Qp& qp, const sigma_completion& wc);
  void complete_error(Qp& qp, const sigma_completion& wc);
  void complete_queued(Qp& qp, Queue side, WorkQueue::Match match, const sigma_completion& wc);
  void complete_shared(Qp& qp, Srq* srq, const sigma_completion& wc, uint8_t flags);
  void complete_unseen(Qp* qp, const sigma_completion& wc);
  void close(Qp& qp);
  void miss_end(Qp& qp);

  void take_reason(Observed& observed, const sigma_ring& ring);
  bool is_past(const Qp& qp, RingReader reader, uint32_t life);
  bool is_of_life(Qp& qp, RingReader reader, uint32_t life);
  bool merge(Qp& qp, const sigma_ring_post& post);
  bool take_ring_send(Qp& qp, const sigma_ring_completion& cqe, uint64_t index);
  void complete_ring_send(Qp& qp, const sigma_ring_completion& cqe);
  void complete_ring_recv(Qp& qp, const sigma_ring_completion& cqe);
  void complete_ring_unseen(Qp& qp, Queue side, const sigma_ring_completion& cqe);
  void tell_initiator(Qp& qp, const sigma_ring& ring);
  void tell_completion_alone(Qp& qp, Queue side, const sigma_ring_completion& cqe);
  void settle_waiting(Qp& qp);
  void give_up_waiting(Qp& qp);
  void infer_until(Qp& qp, size_t end, const sigma_ring_completion& cqe);
  void pop(Qp& qp, Queue side);
  void note_reported(Qp& qp, const Pending& pending);
  void stamp(Operation& operation);
  void apply(Operation& operation, const sigma_ring_completion& cqe);
  void note_told(Qp& qp, const sigma_ring_completion& cqe);
  void tell(Qp& qp, Queue side, uint32_t pid, const std::optional<PickUps::Delay>& delay);
  void close_pick_ups(Qp& qp);

  // Building an operation: from what was posted, then from the completion, then to the sink.
  Operation& begin(Qp* qp, Queue side, uint32_t pid);
  Operation& begin(Qp* qp, Queue side, const Pending& pending, const WorkQueue* queue);
  void apply(Operation& operation, const sigma_completion& wc, bool ambiguous);
  void emit(Operation& operation);
  void emit_unfinished(Qp* qp, Queue side, const Pending& pending, const WorkQueue* queue);
  std::string_view comm(uint32_t pid);

  OperationSink& sink_;
  Objects& objects_;
  Counters& counters_;
  const SessionLimits& limits_;
  uint32_t shard_;
  uint64_t record_ = 0;
  CompletionTimes times_;
  CompletionTime completed_;  // of the completion at hand
  // Likewise, once its request is found: when, and its wr_id.
  std::optional<PickUps::Told> told_;
  std::vector<Batch> batches_;
  size_t active_batches_ = 0;
  // In all queues. Queue pairs may be found to be one and the same: a few may have been another's.
  int64_t pending_ = 0;
  struct {
    uint64_t generation = 0;
    uint32_t pid = 0;
    std::string_view comm;
  } last_comm_;
  Operation operation_;
};

}  // namespace sigma
