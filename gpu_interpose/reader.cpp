// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/reader.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <new>

#include "gpu_interpose/emit.h"
#include "gpu_interpose/guard.h"
#include "gpu_interpose/hooks.h"
#include "gpu_interpose/queues.h"
#include "gpu_interpose/sampler.h"
#include "gpu_interpose/until_exit.h"

namespace sigma::gpu {
namespace {

constexpr uint64_t kAbsentLookNs = 100'000'000;  // whether a tracer has come
constexpr uint64_t kTotalsNs = 1'000'000'000;
constexpr uint64_t kExitNs = 50'000'000;  // that the job waits, at most
// A reader that is late again and again costs the job no more than this many waits.
constexpr uint32_t kMostInVain = 20;

std::atomic<bool> running{false};    // the thread exists
std::atomic<bool> listening{false};  // and a tracer does
std::atomic<bool> exiting{false}, snapshot_wanted{false};
std::atomic<uint32_t> changes{0};             // of the registry
std::atomic<uint32_t> wake_word{0};           // futex: something is asked
std::atomic<uint32_t> asked{0}, answered{0};  // tickets; `answered` is a futex
std::atomic<uint64_t> drain_ns{20'000'000};   // that the job waits for a last look, at most
std::atomic<bool> behind{false};              // a wait was in vain: the next ones do not wait
std::atomic<uint32_t> in_vain{0};             // of them, ever
std::atomic<uint32_t> pauses{0};
std::atomic<uint8_t> marks[SIGMA_GPU_MAX_QUEUES];

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, uint64_t ns) {
  const timespec limit{static_cast<time_t>(ns / 1'000'000'000),
                       static_cast<long>(ns % 1'000'000'000)};
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation | FUTEX_PRIVATE_FLAG,
                 value, &limit, nullptr, 0);
}

void wake_reader() {
  wake_word.fetch_add(1, std::memory_order_release);
  futex(wake_word, FUTEX_WAKE, 1, 0);
}

// Until the reader has done what was asked up to now, but not long.
void wait_for_reader(uint64_t limit_ns) {
  if (in_vain.load(std::memory_order_relaxed) >= kMostInVain) return;
  const int kept = errno;
  const uint32_t ticket = asked.fetch_add(1, std::memory_order_acq_rel) + 1;
  wake_reader();
  const uint64_t end = now_ns() + limit_ns;
  while (!behind.load(std::memory_order_relaxed)) {
    const uint32_t now_answered = answered.load(std::memory_order_acquire);
    if (static_cast<int32_t>(now_answered - ticket) >= 0) break;
    const uint64_t now = now_ns();
    if (now >= end) {
      behind.store(true, std::memory_order_relaxed);
      in_vain.fetch_add(1, std::memory_order_relaxed);
      break;
    }
    futex(answered, FUTEX_WAIT, now_answered, end - now);
  }
  errno = kept;
}

// ---- the thread ---------------------------------------------------------------------------------

void* find_driver_function(const char* symbol) {
  return loaded_function(Library::cuda, symbol);
}

void* find_in_library(void* library, const char* symbol) {
  return function_of(library, symbol);
}

bool find_cuda(CudaCalls& calls) {
  if (!find_calls(calls, find_driver_function)) return false;
#define CALL(member, symbol, type, parameters) bound_until_exit<&CudaCalls::member>(calls);
#include "gpu_interpose/reader_calls.def"
#undef CALL
  return true;
}

// In the reader's thread, when a tracer is there and a queue in device memory: not before.
bool find_gdrcopy(GdrCalls& calls) {
  void* library = open_library("libgdrapi.so.2");
  if (!library || !find_gdr_calls(calls, find_in_library, library)) return false;
  bound_until_exit<&GdrCalls::open>(calls);
  bound_until_exit<&GdrCalls::pin>(calls);
  bound_until_exit<&GdrCalls::unpin>(calls);
  bound_until_exit<&GdrCalls::info>(calls);
  bound_until_exit<&GdrCalls::map>(calls);
  bound_until_exit<&GdrCalls::unmap>(calls);
  return true;
}

void emit_records(const void* records, uint32_t bytes) {
  if (tracer_present()) sigmatrace_gpu_emit(records, bytes);
}

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtoul(text, nullptr, 10) : otherwise;
}

void on_signal(int) {
  snapshot_wanted.store(true, std::memory_order_relaxed);
}

void take_signal() {
  const auto number = static_cast<int>(number_of("SIGMATRACE_GPU_SIGNAL", 0));
  struct sigaction now {};
  if (number <= 0 || sigaction(number, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction ours {};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;
  sigaction(number, &ours, nullptr);
}

SamplerOptions options_of_environment() {
  SamplerOptions options;
  const uint64_t tier = number_of("SIGMATRACE_GPU_TIER", 2);
  options.snapshots_only = tier == 5;
  options.windows = tier == 2;
  options.last_limit_ns = number_of("SIGMATRACE_GPU_WAIT_MS", 20) * 1'000'000;
  drain_ns.store(options.last_limit_ns, std::memory_order_relaxed);
  options.hang_ns = number_of("SIGMATRACE_GPU_HANG_MS", options.hang_ns / 1'000'000) * 1'000'000;
  options.most_posts_per_s = number_of("SIGMATRACE_GPU_MOST_POSTS", options.most_posts_per_s);
  if (options.most_posts_per_s == 0) options.most_posts_per_s = 1;
  return options;
}

ReaderMark mark_of(uint32_t index) {
  return static_cast<ReaderMark>(marks[index].load(std::memory_order_acquire));
}

class Reader {
 public:
  Reader(void* memory, const SamplerOptions& options)
      : batch_(emit_records),
        has_calls_(find_cuda(calls_)),
        sampler_(sigmatrace_gpu_registry, has_calls_ ? &calls_ : nullptr, batch_, memory, options,
                 marks, find_gdrcopy, tell_tier) {
    sampler_.tell_indices_to(tell_index);
  }

  void run() {
    while (!exiting.load(std::memory_order_acquire)) {
      const uint32_t word = wake_word.load(std::memory_order_acquire);
      const uint64_t pause = step();
      if (pause > 0) futex(wake_word, FUTEX_WAIT, word, pause);
    }
    if (listening.load(std::memory_order_relaxed))
      sampler_.end_queues([](uint32_t) { return true; });
    batch_.flush();
    answer(asked.load(std::memory_order_acquire));
  }

 private:
  // Returns after how long to come again.
  uint64_t step() {
    const uint32_t ticket = asked.load(std::memory_order_acquire);
    if (!tracer_present()) {
      // Nothing of ours stays in the job's contexts.
      if (listening.exchange(false)) {
        sampler_.forget();
        sampler_.leave_device(-1);
      }
      answer(ticket);
      return kAbsentLookNs;
    }
    if (!listening.exchange(true)) {
      attached_ns_ = now_ns();
      refreshed_ = changes.load(std::memory_order_acquire);
      sampler_.refresh(attached_ns_);
    }
    if (pauses.load(std::memory_order_acquire) > 0) {
      if (!paused_) sampler_.last_look([](uint32_t) { return true; });
      batch_.flush();
      paused_ = true;
      sampler_.leave_device(-1);
      answer(ticket);
      return 1'000'000;
    }
    paused_ = false;
    if (const uint32_t now = changes.load(std::memory_order_acquire); now != refreshed_) {
      refreshed_ = now;
      sampler_.refresh(attached_ns_);
    }
    if (ticket != answered.load(std::memory_order_relaxed)) {
      sampler_.last_look([](uint32_t i) { return mark_of(i) == ReaderMark::look; });
      sampler_.reset_queues([](uint32_t i) { return mark_of(i) == ReaderMark::reset; });
      sampler_.end_queues([](uint32_t i) { return mark_of(i) == ReaderMark::ends; });
      batch_.flush();
      answer(ticket);
    }
    if (snapshot_wanted.exchange(false)) sampler_.want_snapshot();
    uint64_t pause = kAbsentLookNs;
    if (sampler_.any_device_queue()) pause = sampler_.look();
    if (const uint64_t now = now_ns(); now - totals_ns_ >= kTotalsNs) {
      totals_ns_ = now;
      sampler_.tell_totals();
    }
    batch_.flush();
    return pause;
  }

  void answer(uint32_t ticket) {
    behind.store(false, std::memory_order_relaxed);
    if (answered.exchange(ticket, std::memory_order_acq_rel) != ticket)
      futex(answered, FUTEX_WAKE, INT32_MAX, 0);
  }

  RecordBatch batch_;
  CudaCalls calls_{};
  bool has_calls_;
  Sampler sampler_;
  uint64_t attached_ns_ = 0, totals_ns_ = 0;
  uint32_t refreshed_ = 0;
  bool paused_ = false;
};

void* reader_thread(void*) {
  const Guard ours;  // nothing that this thread does is the job's
  prctl(PR_SET_NAME, "sigmatrace-gpu");
  prctl(PR_SET_TIMERSLACK, 5'000ul);
  take_signal();
  void* memory = mmap(nullptr, Sampler::memory_bytes() + sizeof(Reader), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    running.store(false);
    return nullptr;
  }
  void* place = static_cast<char*>(memory) + Sampler::memory_bytes();
  (new (place) Reader(memory, options_of_environment()))->run();
  running.store(false, std::memory_order_release);
  return nullptr;
}

// Before the driver's own end, as it was there before us. The thread makes no call from then on,
// whether it was done in time or not.
void at_exit() {
  if (!running.load(std::memory_order_acquire)) return;
  exiting.store(true, std::memory_order_release);
  wait_for_reader(kExitNs);
  process_ends.store(true, std::memory_order_release);
}

// A thread of the job's makes it, at a queue's set-up. By look-up: which library has the function,
// and its version, is another one in every glibc.
void start_thread() {
  if (exiting.load() || running.exchange(true, std::memory_order_acq_rel)) return;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  using Detach = int (*)(pthread_t);
  const auto create = reinterpret_cast<Create>(loaded_function(Library::libc, "pthread_create"));
  const auto detach = reinterpret_cast<Detach>(loaded_function(Library::libc, "pthread_detach"));
  // The job's signals are not for this thread.
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool made = create && create(&thread, nullptr, reader_thread, nullptr) == 0;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (!made) return running.store(false);
  if (detach) detach(thread);
  static std::atomic<bool> at_exit_known{false};
  if (!at_exit_known.exchange(true)) atexit(at_exit);
}

}  // namespace

void reader_queues_changed(bool in_device_memory) {
  changes.fetch_add(1, std::memory_order_release);
  if (in_device_memory) start_thread();
  if (listening.load(std::memory_order_relaxed)) wake_reader();
}

bool reader_listens() {
  return running.load(std::memory_order_acquire) && listening.load(std::memory_order_acquire);
}

void reader_mark(uint32_t index, ReaderMark mark) {
  marks[index].store(static_cast<uint8_t>(mark), std::memory_order_release);
}

void reader_unmark(uint32_t index) {
  changes.fetch_add(1, std::memory_order_release);
  reader_mark(index, ReaderMark::none);
}

void reader_wait() {
  wait_for_reader(drain_ns.load(std::memory_order_relaxed));
}

void reader_gone(uint32_t index) {
  reader_unmark(index);
}

ReaderPause::ReaderPause() {
  pauses.fetch_add(1, std::memory_order_acq_rel);
  if (running.load(std::memory_order_acquire))
    wait_for_reader(drain_ns.load(std::memory_order_relaxed));
}

ReaderPause::~ReaderPause() {
  pauses.fetch_sub(1, std::memory_order_acq_rel);
}

void reader_after_fork() {
  running = listening = behind = snapshot_wanted = false;
  asked = answered = wake_word = pauses = in_vain = 0;
  for (auto& mark : marks) mark.store(0, std::memory_order_relaxed);
}

}  // namespace sigma::gpu
