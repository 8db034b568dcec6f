// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Observer: reads the mlx5 queues of the traced processes from outside, on a thread of its own.
//
//   auto observer = std::make_unique<Observer>(options);
//   observer->on_uverbs(record);             // what the ring buffer brings, in its order
//   observer->take([&](RecordBuffer::Run& run) { ... }, 0)  // what was read meanwhile
//
// All calls by one thread, the tracer's; a lock parts it from the looks, which take some 10 us. A
// look that began before take() has ended when it returns: no record with an earlier time follows.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "observe/cpu_bound.h"
#include "observe/directory.h"
#include "observe/late_rings.h"
#include "observe/placement.h"
#include "observe/process_reader.h"
#include "observe/told_posts.h"

namespace sigma {

struct ObserverOptions {
  ReaderPolicy policy;
  double cpu_share = 0.30;           // of one core, for all looks
  uint32_t lane = 0;                 // sigma_header.cpu of its records, and the next one
  sigma_ring_slot* slots = nullptr;  // BPF's array
  std::string cpu_sysfs;             // the root that tells which CPUs share a cache; empty: the thread is not placed
  // Set where commands name a file of the kernel's and no context: which file (sigma_uverbs.ucontext) each
  // descriptor of a process stands for.
  std::function<std::map<int, uint64_t>(uint32_t pid)> files_of;
  // Queue pairs that GPUs post to, by device and number, with the tier, as the library preloaded into the
  // process says. Those in host memory (1) are read from outside; the others it reads itself, and they are
  // not read as well where their memory happens to be mapped. By any thread.
  std::function<std::map<std::pair<std::string, uint32_t>, uint8_t>(uint32_t pid)> told_by_library;
  // Of queues older than the attach, by whichever thread finds them: BPF copies the ring of this
  // slot when a command on (pid, name, handle) ends it (false: it will not), where `name` is the context
  // or its file; and where a queue pair's doorbell is.
  std::function<bool(uint32_t pid, uint64_t name, uint32_t handle, uint32_t slot)> on_slot;
  std::function<void(uint32_t pid, uint64_t qp_ptr, uint32_t qp_num, uint64_t doorbell_addr)>
      on_doorbell;
};

// mlx5's queues of a process that were there before the attach.
struct OlderQueues {
  size_t placed = 0, unplaced = 0;  // queue pairs; unplaced: of verbs
  size_t cqs_unplaced = 0;          // that queue pairs name
};

class Observer : private Directory::Events {
 public:
  explicit Observer(const ObserverOptions& options);
  ~Observer() override;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  void on_uverbs(std::span<const std::byte> record);
  void on_drain(std::span<const std::byte> record);
  void on_post(const sigma_post& post, uint32_t blocks);
  // What a process had before: rings that can be placed are read from now on, others as soon as they
  // show themselves. Takes as long as the search.
  OlderQueues add_older(const LiveObjects& live, uint64_t now_ns);
  // The preloaded library names a queue in host memory that a GPU posts to. False: not read here.
  bool on_gpu_ring(const sigma_ring& ring);
  // It has begun to read this ring itself, or says why it does not.
  void on_ring_inside(const sigma_ring& ring);
  void on_process_end(uint32_t pid, uint64_t now_ns);
  // The probes on posts of this process have gone, or are back: the rings tell of all posts, or of
  // those only that no probe explains.
  void set_probed(uint32_t pid, bool probed, const char* reason);

  // Who is told may keep the bytes, for others that are empty.
  using Deliver = std::function<void(RecordBuffer::Run& run)>;
  // `told_until_ns`: the ring buffer was empty at this time or later, so that on_post() has had all
  // posts before it; 0: it was not.
  void take(const Deliver& deliver, uint64_t told_until_ns);
  // Places the thread near those whose queues it reads, once a second; in between it does nothing. Not on the
  // thread itself, which this would hold up by some ms.
  void place(uint64_t now_ns);
  // Reads what there is, ends all rings, and gives the rest.
  void stop(const Deliver& deliver);

  void add_to(Counters& counters) const;
  std::vector<std::string> statements() const;

 private:
  struct Process {
    std::unique_ptr<ProcessReader> reader;
    std::unique_ptr<LateRings> late;  // what was there before the attach
    std::map<uint64_t, uint64_t> older_names;  // by context: how commands name it
    std::set<uint32_t> slots;                  // of its rings, given back when they have ended
    uint64_t next_ns = 0;
  };

  void on_send(const SendSpec& spec) override;
  void on_cq(const CqSpec& spec) override;
  void on_resize(const RingOwner& owner, const CqSpec& spec) override;
  void on_resume_send(const RingOwner& owner, uint64_t at_ns) override;
  void on_resume_cq(const RingOwner& owner, uint64_t at_ns) override;
  void on_end_send(const RingOwner& owner, uint64_t at_ns) override;
  void on_end_cq(const RingOwner& owner, uint64_t at_ns) override;
  void on_made(const RingOwner& owner, uint64_t at_ns) override;
  void on_unknown_gone(uint32_t pid, uint64_t context, ObjectKind kind, uint32_t handle) override;

  void run();
  uint64_t look_around(uint64_t now_ns);
  void bound_cpu(uint64_t now_ns);
  Process& process(uint32_t pid);
  ProcessReader& reader(uint32_t pid);
  void add_found(uint32_t pid, const FoundRings& found);
  void free_slot(uint32_t pid, uint32_t number);
  void keep_counts(uint32_t pid, const Process& process);
  uint32_t claim_slot(const RingOwner& owner, uint32_t handle, uint16_t kind);
  void look_for_older(uint64_t now_ns);
  void apply_explanations();

  ObserverOptions options_;
  Directory directory_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> waiting_{0};  // for the lock
  std::map<uint32_t, Process> processes_;
  KnownFields known_fields_;
  uint32_t next_slot_ = 0;  // of those for found rings
  uint64_t older_due_ns_ = 0;
  uint64_t older_unplaced_ended_ = 0, devx_unplaced_ended_ = 0;  // of processes that have ended
  // What looks give, and what commands do: these tell of the past. A lane each keeps both in order
  // of time.
  RecordBuffer out_, marks_;
  std::vector<RecordBuffer::Run> taken_, taken_marks_;
  ToldPosts told_posts_;
  uint64_t cpu_checked_ns_ = 0, cpu_used_ns_ = 0;
  CpuBound cpu_bound_;
  uint64_t looks_ = 0, unreadable_ = 0;
  // Of the calling thread alone, but for what the other one says of itself.
  Placement placement_;
  std::vector<QueueBytes> queue_bytes_;  // of processes that have ended since the last round, then of all
  uint64_t placed_ns_ = 0;
  std::atomic<pid_t> thread_id_{0};
  std::atomic<uint32_t> thread_cpu_{0};  // where it looked last
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace sigma
