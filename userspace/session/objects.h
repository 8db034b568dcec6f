// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Objects: devices, contexts, queue pairs, completion queues, regions, address handles, processes;
// who made them, and how long they live.
//
// Three ways of naming must meet:
//   - the control plane names an object by (uverbs file, handle);
//   - the data path names a queue pair by (pid, struct ibv_context *, qp_num);
//   - numbers repeat across devices and are reused: (device, qp_num, life) is unique.
// A HandleSpace is one uverbs file. The kernel hook knows it by its struct file and device node,
// the library hook by the ibv_context. A UserContext is an ibv_context in a process; its device may
// become known only later, and until then it stands on a nameless device of its own, which bind()
// merges into the real one.
//
// Owned by Session and changed by its caller's thread alone. Where others match (session.h), they read
// while nothing changes: their work is waited for before. What they own of an object are a queue pair's
// queues and what is learnt from them, each queue pair's by one thread. comm() is for all of them.
//
// Pointers to live objects stay valid until the object's end, at which `on_end` is called;
// `generation()` changes whenever a cached pointer or route may be stale.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/counters.h"
#include "decode/uverbs.h"
#include "session/nic_clock.h"
#include "session/observed_ring.h"
#include "session/pick_ups.h"
#include "session/session.h"
#include "session/shared_queue.h"
#include "session/work_queue.h"

namespace sigma {

struct Device;
struct HandleSpace;

// Which of several threads has it; set by Session's caller alone, looked at by all.
class ShardNumber {
 public:
  void set(uint32_t number) {
    if (number_.load(std::memory_order_relaxed) != number) number_.store(number, std::memory_order_relaxed);
  }
  uint32_t value_or(uint32_t otherwise) const {
    const uint32_t number = number_.load(std::memory_order_relaxed);
    return number == kNone ? otherwise : number;
  }

 private:
  static constexpr uint32_t kNone = ~0u;
  std::atomic<uint32_t> number_ = kNone;
};

struct Srq {
  uint32_t pid = 0;
  uint64_t ptr = 0;  // struct ibv_srq *; 0 while unknown
  std::optional<uint32_t> handle;
  HandleSpace* space = nullptr;
  ShardNumber shard;
  SharedQueue queue;
};

// One life of a queue pair.
struct Qp {
  std::shared_ptr<QueuePair> info;
  // It was reset, and the last word of the ring of `info` is still to come: the life after.
  std::shared_ptr<QueuePair> next;
  Device* device = nullptr;
  HandleSpace* space = nullptr;  // null: older than the attach, and not yet placed
  uint64_t context = 0;          // struct ibv_context * by which it was first used
  WorkQueue send{Queue::send};
  WorkQueue recv{Queue::recv};
  uint64_t send_cq_ptr = 0, recv_cq_ptr = 0, srq_ptr = 0;  // 0: unknown
  std::optional<uint32_t> srq_handle;
  uint32_t rq_entries = 0;  // mlx5: of the receive ring; 0: unknown
  // The last call to the send queue, where the provider gives indices (mlx5: WQE indices, 16 bits).
  struct Call {
    bool known = false;
    bool concurrent = false;  // calls before it, of other threads, may not have taken effect yet
    bool sized = false;       // `next` counts every request so far
    uint32_t tid = 0;
    uint16_t index = 0;  // as read when it began
    uint16_t next = 0;   // where the next call begins, once all so far have taken effect
    uint64_t call_ns = 0;
  } last_call;
  uint64_t send_moved_ns = 0;  // the last completion of a send
  ObservedRing ring;
  std::unique_ptr<PickUps> pick_ups[2];  // of each side (enum class Queue), where polls are probed as well
  uint32_t inherited_by = 0;  // the last child seen to have a copy of it
  bool has_operations = false;
  ShardNumber shard;  // by which its records are matched

  // Of which commands speak.
  QueuePair& newest() { return next ? *next : *info; }
};

struct Cq {
  CompletionQueue info;
  uint64_t ptr = 0;
  bool real_time = false;  // its time stamps are the device's real time, not ticks of its clock
  bool observed = false;  // its ring is read
};

struct Ah {
  std::shared_ptr<const Address> peer;
};

struct Device {
  std::string name;
  std::map<uint32_t, std::unique_ptr<Qp>> qps;   // live, by number
  std::unordered_map<uint32_t, uint32_t> lives;  // so far, by number; 24-bit numbers bound it
  std::unordered_map<uint32_t, sigma_qp_peer> peers;  // netlink spoke before the queue pair was seen
  NicClock clock;
};

struct HandleSpace {
  Device* device = nullptr;
  uint32_t pid = 0;
  uint64_t file = 0;     // kernel hook; 0: not known
  uint64_t context = 0;  // struct ibv_context *; 0: not known
  std::unordered_map<uint32_t, Qp*> qps;
  std::unordered_map<uint32_t, std::unique_ptr<Cq>> cqs;
  std::unordered_map<uint32_t, Srq*> srqs;
  std::unordered_map<uint32_t, MemoryRegion> mrs;
  std::unordered_map<uint32_t, Ah> ahs;
};

struct UserContext {
  uint32_t pid = 0;
  uint64_t context = 0;
  Device* device = nullptr;      // nameless until bound
  HandleSpace* space = nullptr;  // null: not yet placed
};

struct ProcessState {
  Process info;
  uint32_t parent = 0;  // 0: not seen to be forked
  bool paused = false;
  bool comm_known = false;
};

class Objects {
 public:
  struct OnEnd {
    std::function<void(Qp&, uint64_t now_ns)> qp;
    std::function<void(Srq&, uint64_t now_ns)> srq;
  };

  Objects(const SessionOptions& options, Counters& counters)
      : options_(options), counters_(counters) {}

  void set_on_end(OnEnd on_end) { on_end_ = std::move(on_end); }
  uint64_t generation() const { return generation_; }

  // ---- the data path's names
  UserContext& user_context(uint32_t pid, uint64_t context);
  Qp* find_qp(UserContext& user, uint32_t qp_num, uint64_t qp_ptr);
  // As find_qp, for a completion: the CQ may tell the device.
  Qp* find_qp_of_completion(UserContext& user, uint32_t qp_num, uint64_t cq_ptr);
  // As find_qp, and nothing is learnt: null also where find_qp would have to change something.
  Qp* known_qp(uint32_t pid, uint64_t context, uint32_t qp_num) const;
  Qp& older_qp(UserContext& user, uint32_t qp_num, uint64_t now_ns);
  // A reader reads this ring, or no longer does.
  void set_observed(const sigma_ring& ring);
  // What polls return of it is known from its ring.
  bool is_observed_cq(uint32_t pid, uint64_t ptr);
  // Polls of rings that are read are probed as well: both are told (SIGMA_RING_POLLED).
  bool tells_pick_ups() const { return tells_pick_ups_; }
  // By the names that a reader of rings has: its context, or (by_file) its uverbs file.
  Qp& qp_of_ring(uint32_t pid, uint64_t context, bool by_file, uint32_t qp_num);
  // As had_life(), by these names, for a number that no living queue pair has.
  bool has_ended(uint32_t pid, uint64_t context, bool by_file, uint32_t qp_num);
  // Whether the number had a life that ended, so that a straggler is not a sign of an older queue
  // pair.
  bool had_life(const UserContext& user, uint32_t qp_num) const;
  Srq* find_srq(uint32_t pid, uint64_t ptr);
  Srq& older_srq(UserContext& user, uint64_t ptr);
  // The SRQ that a queue pair receives from; null if it has none or it is unknown.
  Srq* srq_of(Qp& qp);
  uint64_t cq_ptr(const HandleSpace* space, std::optional<uint32_t> handle) const;
  const Cq* find_cq(uint32_t pid, uint64_t ptr) const;
  const Ah* find_ah(const Qp& qp, uint32_t pid, uint32_t handle) const;
  // The queues that complete in a CQ.
  struct QueueRef {
    Qp* qp;
    Queue side;
  };
  std::vector<QueueRef> queues_of_cq(uint32_t pid, uint64_t cq_ptr);

  // ---- the control plane's names
  // Of one uverbs command's caller.
  HandleSpace& space_of(const sigma_uverbs& command, bool opens);
  Qp* find_qp_by_handle(HandleSpace& space, uint32_t handle);
  Qp& create_qp(HandleSpace& space, uint32_t handle, uint32_t qp_num, uint64_t now_ns);
  // An entry of space.qps is of a queue pair that says the same: of that space, with that handle.
  void enter_space(Qp& qp, HandleSpace& space, uint32_t handle);
  void leave_space(Qp& qp);
  // Ends this life and begins the next, with the attributes of creation. Of a ring that is read inside
  // the job, which has a last word to come, begin_next() does so when that has come.
  void reset_qp(Qp& qp, uint64_t now_ns);
  void begin_next(Qp& qp, uint64_t now_ns);
  void end_qp(Qp& qp, uint64_t now_ns);
  // By its DESTROY: likewise.
  void destroy_qp(Qp& qp, uint64_t now_ns);
  void end_cq(HandleSpace& space, uint32_t handle, uint64_t now_ns);
  void end_mr(HandleSpace& space, uint32_t handle, uint64_t now_ns);
  void end_srq(Srq& srq, uint64_t now_ns);
  void add_srq(HandleSpace& space, uint32_t handle, uint64_t ptr, uint64_t now_ns);

  // ---- records
  void on_qp_seen(const sigma_qp_seen& seen);
  void on_mr_seen(const sigma_mr_seen& seen);
  void on_qp_peer(const sigma_qp_peer& peer);
  void on_clock_sample(const sigma_clock_sample& sample);
  void on_context(const sigma_context& record);
  void on_process(const sigma_process& record);

  ProcessState& process(uint32_t pid);
  // Valid for this generation.
  std::string_view comm(uint32_t pid);

  template <typename F>
  void for_each_qp(F&& f) {
    for (auto& device : devices_)
      for (auto& [number, qp] : device->qps) f(*qp);
  }
  template <typename F>
  void for_each_srq(F&& f) {
    for (auto& srq : srqs_) f(*srq);
  }

  std::vector<std::shared_ptr<const QueuePair>> queue_pairs() const;
  std::vector<MemoryRegion> memory_regions() const;
  RegistrationTotals& registrations() { return registrations_; }
  std::vector<CompletionQueue> completion_queues() const;
  std::vector<Process> processes() const;

 private:
  using PidPtr = std::pair<uint32_t, uint64_t>;

  Device& device_named(const std::string& name);
  Device& nameless_device();
  // A nameless device turns out to be `to`.
  void bind(Device& nameless, Device& to);
  void place(UserContext& user);
  void place(Qp& qp, UserContext& user);
  void apply_peer(Qp& qp, const sigma_qp_peer& peer);
  Qp& new_life(Device& device, uint32_t qp_num, uint32_t pid);
  Qp& older_life(Device& device, uint32_t qp_num, uint32_t pid, uint64_t context);
  void end_space(HandleSpace& space, uint64_t now_ns);   // its objects
  void drop_space(HandleSpace& space, uint64_t now_ns);  // itself as well
  void end_process(uint32_t pid, uint64_t now_ns);
  uint32_t parent_of(uint32_t pid) const;
  HandleSpace& new_space(Device& device, uint32_t pid);
  template <typename T>
  void remember(std::deque<T>& closed, T value) {
    if (options_.limits.closed_objects == 0) return;
    while (closed.size() >= options_.limits.closed_objects) closed.pop_front();
    closed.push_back(std::move(value));
  }

  const SessionOptions& options_;
  Counters& counters_;
  OnEnd on_end_;
  bool any_observed_ = false;
  bool tells_pick_ups_ = false;
  struct {
    uint64_t generation = 0, ptr = 0;
    uint32_t pid = 0;
    bool observed = false;
  } last_polled_;
  uint64_t generation_ = 1;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<HandleSpace>> spaces_;
  std::map<PidPtr, UserContext> users_;
  std::vector<std::unique_ptr<Srq>> srqs_;
  std::map<PidPtr, Srq*> srqs_by_ptr_;
  std::map<uint32_t, ProcessState> processes_;
  std::mutex comm_mutex_;
  uint32_t ending_pid_ = 0;  // a process whose exit is being told of, and its name by that
  std::string ending_comm_;

  std::deque<std::shared_ptr<const QueuePair>> closed_qps_;
  std::deque<MemoryRegion> closed_mrs_;
  RegistrationTotals registrations_;
  std::deque<CompletionQueue> closed_cqs_;
  std::deque<Process> closed_processes_;
};

}  // namespace sigma
