// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/observer.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "bpf/ring_slots.h"
#include "observe/serving_library.h"

namespace sigma {
namespace {

// What is read and not yet taken; beyond it the rings go unread, and gaps say so.
constexpr size_t kMaxBytes = 128u << 20;
constexpr uint64_t kCheckCpuEveryNs = 100'000'000;
constexpr uint64_t kLookForOlderEveryNs = 1'000'000;
constexpr uint64_t kPlaceEveryNs = 1'000'000'000;

uint64_t thread_cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

void sleep_until(uint64_t ns) {
  const timespec time{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
}

}  // namespace

Observer::Observer(const ObserverOptions& options)
    : options_(options), directory_(*this), cpu_bound_(options.cpu_share), placement_(options.cpu_sysfs) {
  out_.set_lane(options.lane);
  marks_.set_lane(options.lane + 1);
  thread_ = std::thread([this] { run(); });
}

Observer::~Observer() {
  stopping_ = true;
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// ---- what the ring buffer brings ----------------------------------------------------------------

// Each has a reader, also before it has a ring that can be read: one of GPU memory never is.
Observer::Process& Observer::process(uint32_t pid) {
  Process& process = processes_[pid];
  if (!process.reader)
    process.reader = std::make_unique<ProcessReader>(pid, options_.policy, options_.slots);
  return process;
}

ProcessReader& Observer::reader(uint32_t pid) {
  return *process(pid).reader;
}

void Observer::on_uverbs(std::span<const std::byte> record) {
  ++waiting_;
  const std::lock_guard lock(mutex_);
  --waiting_;
  apply_explanations();  // a command may end a ring
  directory_.on_uverbs(record);
  const auto& command = *reinterpret_cast<const sigma_uverbs*>(record.data());
  if (record.size() < sizeof(sigma_uverbs) || command.ring_slot == 0 || command.ring_slot >= SIGMA_RING_SLOTS) return;
  // Not with the last copy: the command might have failed after it.
  if (command.flags & SIGMA_UVERBS_RING_GONE)
    free_slot(command.h.pid, command.ring_slot);
  else
    process(command.h.pid).slots.insert(command.ring_slot);
}

// To be given out again: by BPF, or by us to rings that are found. Once.
void Observer::free_slot(uint32_t pid, uint32_t number) {
  const auto it = processes_.find(pid);
  if (options_.slots != nullptr && it != processes_.end() && it->second.slots.erase(number) != 0)
    __atomic_store_n(&options_.slots[number].kind, __u16{0}, __ATOMIC_RELEASE);
}

void Observer::on_send(const SendSpec& spec) {
  reader(spec.owner.pid).open(spec, marks_);
  wake_.notify_one();
}
void Observer::on_cq(const CqSpec& spec) {
  reader(spec.owner.pid).open(spec, marks_);
  wake_.notify_one();
}
void Observer::on_resize(const RingOwner& owner, const CqSpec& spec) {
  reader(owner.pid).resize(owner, spec);
}
void Observer::on_resume_send(const RingOwner& owner, uint64_t at_ns) {
  reader(owner.pid).resume_send(owner, at_ns, marks_);
}
void Observer::on_resume_cq(const RingOwner& owner, uint64_t at_ns) {
  reader(owner.pid).resume_cq(owner, at_ns, marks_);
}
void Observer::on_end_send(const RingOwner& owner, uint64_t at_ns) {
  reader(owner.pid).close_send(owner, at_ns, marks_);
  told_posts_.forget(owner);
}
void Observer::on_end_cq(const RingOwner& owner, uint64_t at_ns) {
  reader(owner.pid).close_cq(owner, at_ns, marks_);
}
// The search may have found it before its command was heard.
void Observer::on_made(const RingOwner& owner, uint64_t at_ns) {
  const auto it = processes_.find(owner.pid);
  if (it == processes_.end() || !it->second.late) return;
  for (const auto& [context, name] : it->second.older_names)
    if (name == owner.context) it->second.late->told_by_command(context, owner.number, at_ns);
}
// One that is still sought: another may have its memory from now on.
void Observer::on_unknown_gone(uint32_t pid, uint64_t named, ObjectKind kind, uint32_t handle) {
  const auto it = processes_.find(pid);
  if (it == processes_.end() || !it->second.late) return;
  for (const auto& [context, name] : it->second.older_names)
    if (name == named) it->second.late->gone(context, kind, handle);
}

// ---- queues older than the attach --------------------------------------------------------------

OlderQueues Observer::add_older(const LiveObjects& live, uint64_t now_ns) {
  const auto pid = static_cast<uint32_t>(live.pid);
  LiveObjects of_mlx5 = live;
  std::string build_id;
  std::erase_if(of_mlx5.contexts, [&](const LiveContext& context) {
    const ServingLibrary library = serving_library(live.pid, context);
    if (library.mlx5) build_id = library.build_id;
    return !library.mlx5;
  });
  OlderQueues older;
  if (of_mlx5.contexts.empty()) return older;
  // The search reads much: the other processes' rings are looked at meanwhile.
  auto late = std::make_unique<LateRings>(live.pid, known_fields_);
  const auto files = options_.files_of ? options_.files_of(pid) : std::map<int, uint64_t>();
  const FoundRings found = late->begin(of_mlx5, build_id, now_ns);
  ++waiting_;
  const std::lock_guard lock(mutex_);
  --waiting_;
  (void)reader(pid);
  for (const LiveContext& context : of_mlx5.contexts) {
    if (context.inherited) continue;
    directory_.add_context(pid, context.address, context.device);
    if (!options_.files_of) {
      process(pid).older_names[context.address] = context.address;
    } else if (const auto file = files.find(context.cmd_fd); file != files.end()) {
      process(pid).older_names[context.address] = file->second;
      directory_.add_file(pid, file->second, context.address);
    }
  }
  add_found(pid, found);
  older.placed = found.sends.size();
  if (options_.told_by_library)
    for (const auto& [queue, tier] : options_.told_by_library(pid))
      for (const LiveContext& context : of_mlx5.contexts)
        if (tier != 1 && context.device == queue.first) late->told_inside(context.address, queue.second);
  for (const auto& [context, name] : process(pid).older_names) {
    const auto leave_to_command = [&](const auto& qp) {
      if (qp.context == context && directory_.has_heard_of(pid, name, qp.qp_num))
        late->told_by_command(context, qp.qp_num, now_ns);
    };
    std::ranges::for_each(of_mlx5.qps, leave_to_command);
    std::ranges::for_each(of_mlx5.devx_qps, leave_to_command);
  }
  older.unplaced = late->unplaced_verbs_qps();
  older.cqs_unplaced = late->unplaced_cqs();
  process(pid).late = std::move(late);
  wake_.notify_one();
  return older;
}

void Observer::add_found(uint32_t pid, const FoundRings& found) {
  for (FoundCq cq : found.cqs) {
    cq.spec.slot = claim_slot(cq.spec.owner, cq.handle, SIGMA_RING_CQ);
    directory_.add_found(cq.spec, cq.handle);
  }
  std::optional<std::map<std::pair<std::string, uint32_t>, uint8_t>> told;
  for (FoundSend send : found.sends) {
    if (send.spec.origin == SIGMA_RING_BY_CONTENT && options_.told_by_library) {
      // Asked for now: a queue is in the registry before it is posted to, and so before it can be found.
      if (!told) told = options_.told_by_library(pid);
      const RingOwner& owner = send.spec.owner;
      const auto tier = told->find({directory_.device_of(pid, owner.context), owner.number});
      if (tier != told->end() && tier->second != 1) {
        if (const auto& late = process(pid).late) late->told_inside(owner.context, owner.number);
        continue;
      }
      if (tier != told->end()) send.spec.initiator = SIGMA_INITIATOR_GPU, send.spec.tier = 1;
    }
    send.spec.slot = claim_slot(send.spec.owner, send.handle, SIGMA_RING_SEND);
    directory_.add_found(send.spec, send.handle, send.qp_ptr);
    if (send.qp_ptr != 0 && options_.on_doorbell)
      options_.on_doorbell(pid, send.qp_ptr, send.spec.owner.number, send.spec.doorbell_addr);
  }
}

// Of the slots that BPF leaves to us. The ring's place is filled in when it is opened.
uint32_t Observer::claim_slot(const RingOwner& owner, uint32_t handle, uint16_t kind) {
  if (options_.slots == nullptr || !options_.on_slot) return 0;
  const auto& names = process(owner.pid).older_names;
  const auto named = names.find(owner.context);
  if (named == names.end()) return 0;
  const uint64_t name = named->second;
  constexpr uint32_t kFirst = SIGMA_RING_SLOTS - SIGMA_RING_FOUND_SLOTS;
  for (uint32_t i = 0; i < SIGMA_RING_FOUND_SLOTS; ++i) {
    const uint32_t number = kFirst + (next_slot_ + i) % SIGMA_RING_FOUND_SLOTS;
    sigma_ring_slot& slot = options_.slots[number];
    if (__atomic_load_n(&slot.kind, __ATOMIC_ACQUIRE) != 0) continue;
    const uint32_t generation = slot.generation + 1;
    slot = {};
    slot.tgid = owner.pid;
    slot.generation = generation;
    slot.ucontext = name;
    slot.handle = handle;
    __atomic_store_n(&slot.kind, kind, __ATOMIC_RELEASE);
    next_slot_ = number + 1 - kFirst;
    if (options_.on_slot(owner.pid, name, handle, number)) {
      process(owner.pid).slots.insert(number);
      return number;
    }
    __atomic_store_n(&slot.kind, __u16{0}, __ATOMIC_RELEASE);
    return 0;
  }
  return 0;
}

// Those that could not be placed yet.
void Observer::look_for_older(uint64_t now_ns) {
  if (now_ns < older_due_ns_) return;
  older_due_ns_ = now_ns + kLookForOlderEveryNs;
  for (auto& [pid, process] : processes_) {
    if (!process.late || process.late->done()) continue;
    if (const FoundRings found = process.late->look(now_ns); !found.empty()) add_found(pid, found);
  }
}

void Observer::on_drain(std::span<const std::byte> record) {
  if (record.size() < sizeof(sigma_ring_drain) || options_.slots == nullptr) return;
  const auto& drain = *reinterpret_cast<const sigma_ring_drain*>(record.data());
  if (drain.slot >= SIGMA_RING_SLOTS) return;
  const uint32_t stride = drain.kind == SIGMA_RING_SEND ? uint32_t{kWqeBlockBytes}
                                                        : options_.slots[drain.slot].stride;
  const auto bytes = record.subspan(sizeof(sigma_ring_drain));
  const size_t size = std::min<size_t>(bytes.size(), size_t{drain.count} * stride);
  ++waiting_;
  const std::lock_guard lock(mutex_);
  --waiting_;
  apply_explanations();
  reader(drain.h.pid).on_drain(drain, bytes.first(size), marks_);
  if (drain.last != 0 && drain.reason == SIGMA_DRAIN_EXIT) free_slot(drain.h.pid, drain.slot);
}

// Kept until the next take(): one lock for many posts.
void Observer::on_post(const sigma_post& post, uint32_t blocks) {
  if (post.queue != SIGMA_QUEUE_SEND || !(post.flags & SIGMA_POST_HAS_INDEX)) return;
  const RingOwner* owner = directory_.find(post.h.pid, post.queue_ptr, post.qp_num);
  if (owner != nullptr) told_posts_.add(*owner, post, blocks);
}

bool Observer::on_gpu_ring(const sigma_ring& ring) {
  ++waiting_;
  const std::lock_guard lock(mutex_);
  --waiting_;
  directory_.on_gpu_ring(ring.h.pid, ring.ring_addr, ring.number);
  const auto it = processes_.find(ring.h.pid);
  return it != processes_.end() &&
         it->second.reader->set_gpu_initiated(ring.ring_addr, ring.number, ring.h.time_ns, marks_);
}

void Observer::on_ring_inside(const sigma_ring& ring) {
  ++waiting_;
  const std::lock_guard lock(mutex_);
  --waiting_;
  directory_.on_told_inside(ring.h.pid, ring.kind, ring.number);
}

void Observer::apply_explanations() {
  told_posts_.give([&](const RingOwner& owner, uint16_t index, uint32_t blocks, bool same_thread) {
    if (const auto it = processes_.find(owner.pid); it != processes_.end())
      it->second.reader->explain(owner, index, blocks, same_thread);
  });
}

void Observer::on_process_end(uint32_t pid, uint64_t now_ns) {
  ++waiting_;
  const std::lock_guard lock(mutex_);
  --waiting_;
  apply_explanations();
  directory_.on_process_end(pid);
  const auto it = processes_.find(pid);
  if (it == processes_.end()) return;
  keep_counts(pid, it->second);
  // BPF has copied what was left; a ring that is still there had no such copy.
  it->second.reader->end(now_ns, false, marks_);
  // Also those of rings that were not taken up, or whose last copy was lost.
  while (!it->second.slots.empty()) free_slot(pid, *it->second.slots.begin());
  processes_.erase(it);
  told_posts_.forget_process(pid);
}

// What is said of a process whose end has come, or the tracer's.
void Observer::keep_counts(uint32_t pid, const Process& process) {
  looks_ += process.reader->looks();
  if (placement_.on()) queue_bytes_.push_back({pid, process.reader->fresh_bytes(), true});
  if (!process.late) return;
  older_unplaced_ended_ += process.late->unplaced_qps();
  devx_unplaced_ended_ += process.late->devx_without_completions();
}

void Observer::set_probed(uint32_t pid, bool probed, const char* reason) {
  ++waiting_;
  const std::lock_guard lock(mutex_);
  --waiting_;
  apply_explanations();
  if (const auto it = processes_.find(pid); it != processes_.end())
    it->second.reader->set_probed(probed, reason, monotonic_now_ns(), out_);
}

void Observer::take(const Deliver& deliver, uint64_t told_until_ns) {
  {
    ++waiting_;
    const std::lock_guard lock(mutex_);
    --waiting_;
    apply_explanations();
    if (told_until_ns != 0)
      for (auto& [pid, process] : processes_) process.reader->told_until(told_until_ns);
    out_.take(taken_);
    marks_.take(taken_marks_);
  }
  for (RecordBuffer::Run& run : taken_) deliver(run);
  for (RecordBuffer::Run& run : taken_marks_) deliver(run);
}

void Observer::stop(const Deliver& deliver) {
  if (stopped_) return;
  stopped_ = true;
  stopping_ = true;
  wake_.notify_all();
  thread_.join();
  apply_explanations();
  for (auto& [pid, process] : processes_) {
    const bool read = process.reader->empty() || process.reader->look(out_);
    process.reader->end(monotonic_now_ns(), read, out_);
    keep_counts(pid, process);
  }
  processes_.clear();
  placement_.finish(queue_bytes_, thread_cpu_);
  take(deliver, 0);
}

void Observer::place(uint64_t now_ns) {
  if (!placement_.on() || now_ns - placed_ns_ < kPlaceEveryNs) return;
  placed_ns_ = now_ns;
  {
    ++waiting_;
    const std::lock_guard lock(mutex_);
    --waiting_;
    for (const auto& [pid, process] : processes_) queue_bytes_.push_back({pid, process.reader->fresh_bytes()});
  }
  placement_.round(queue_bytes_, thread_id_, thread_cpu_, now_ns);
  queue_bytes_.clear();
}

// ---- the thread ---------------------------------------------------------------------------------

void Observer::run() {
  prctl(PR_SET_NAME, "sigma-observer");
  prctl(PR_SET_TIMERSLACK, 1UL);
  thread_id_ = gettid();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const uint64_t now_ns = monotonic_now_ns();
    look_for_older(now_ns);
    const uint64_t next_ns = look_around(now_ns);
    bound_cpu(now_ns);
    if (next_ns == 0) {  // nothing to read
      const bool sought = std::ranges::any_of(processes_, [](const auto& entry) {
        return entry.second.late && !entry.second.late->done();
      });
      wake_.wait_for(lock, std::chrono::milliseconds(sought ? 1 : 100));
      continue;
    }
    lock.unlock();
    // The tracer's thread comes first: a lock that is free for an instant is not seen to be.
    if (monotonic_now_ns() < next_ns) sleep_until(next_ns);
    while (waiting_ > 0 && !stopping_) std::this_thread::yield();
    lock.lock();
  }
}

// Looks at whom it is time to look at. Returns when the next one is due; 0: nobody.
uint64_t Observer::look_around(uint64_t now_ns) {
  uint64_t next_ns = 0;
  const bool full = out_.bytes() > kMaxBytes;
  for (auto& [pid, process] : processes_) {
    ProcessReader& reader = *process.reader;
    if (reader.empty()) continue;
    if (process.next_ns <= now_ns) {
      if (const int cpu = sched_getcpu(); cpu >= 0)
        thread_cpu_.store(static_cast<uint32_t>(cpu), std::memory_order_relaxed);
      const bool readable = full || reader.look(out_);
      if (!readable) ++unreadable_;
      process.next_ns = now_ns + (readable ? reader.interval().ns() : Interval::kIdleNs);
    }
    next_ns = next_ns == 0 ? process.next_ns : std::min(next_ns, process.next_ns);
  }
  return next_ns;
}

// Longer intervals when the looks take more than they may; the doorbells alone when these lose so
// much that the looks are not worth their price.
void Observer::bound_cpu(uint64_t now_ns) {
  if (cpu_checked_ns_ == 0) {
    cpu_checked_ns_ = now_ns;
    cpu_used_ns_ = thread_cpu_ns();
    return;
  }
  const uint64_t elapsed_ns = now_ns - cpu_checked_ns_;
  if (elapsed_ns < kCheckCpuEveryNs) return;
  const uint64_t used_ns = thread_cpu_ns();
  const double share =
      static_cast<double>(used_ns - cpu_used_ns_) / static_cast<double>(elapsed_ns);
  cpu_checked_ns_ = now_ns;
  cpu_used_ns_ = used_ns;
  cpu_bound_.used(share, elapsed_ns, now_ns);
  for (auto& [pid, process] : processes_) {
    process.reader->interval().set_floor(cpu_bound_.floor_ns());
    process.reader->set_pressed(cpu_bound_.pressed(), monotonic_now_ns(), out_);  // behind the last look
  }
}

// ---- coverage -----------------------------------------------------------------------------------

void Observer::add_to(Counters& counters) const {
  const std::lock_guard lock(mutex_);
  counters.observer_looks += looks_;
  counters.devx_completions_unplaced += devx_unplaced_ended_;
  for (const auto& [pid, process] : processes_) {
    counters.observer_looks += process.reader->looks();
    if (process.late) counters.devx_completions_unplaced += process.late->devx_without_completions();
  }
  counters.observer_pressed_ms += cpu_bound_.pressed_total_ns() / 1'000'000;
  counters.rings_unplaced += directory_.unplaced();
  placement_.add_to(counters);
}

std::vector<std::string> Observer::statements() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  if (unreadable_ > 0)
    lines.push_back(fmt::format("the memory of a traced process could not be read {} times", unreadable_));
  uint64_t unplaced = older_unplaced_ended_;
  for (const auto& [pid, process] : processes_)
    if (process.late) unplaced += process.late->unplaced_qps();
  if (unplaced > 0)
    lines.push_back(fmt::format(
        "{} queue pairs made before the attach, or by a command that was not heard, have shown no ring in memory: what "
        "they post past the probes is not seen",
        unplaced));
  for (std::string& line : placement_.statements()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace sigma
