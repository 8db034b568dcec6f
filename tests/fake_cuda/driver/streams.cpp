// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Streams, each with a thread that does its work in order; events; capture; kernels.
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

#include "device_side.h"
#include "state.h"

namespace fake_cuda {
namespace {

thread_local CUstreamCaptureMode thread_mode_ = CU_STREAM_CAPTURE_MODE_GLOBAL;
thread_local std::map<Context*, Stream*> per_thread_;

uint64_t thread_id() {
  return static_cast<uint64_t>(syscall(SYS_gettid));
}

bool ready(const Work& work) {
  for (const auto& before : work.after)
    if (!before->done) return false;
  return true;
}

void* stream_thread(void* argument) {
  prctl(PR_SET_NAME, "cuda-stream");
  Stream& stream = *static_cast<Stream*>(argument);
  std::unique_lock<std::mutex> hold(state().lock);
  for (;;) {
    state().changed.wait(hold, [&] {
      return !stream.queue.empty() ? ready(*stream.queue.front()) || !stream.alive : !stream.alive;
    });
    if (stream.queue.empty()) return nullptr;
    const std::shared_ptr<Work> work = stream.queue.front();
    hold.unlock();
    if (work->run) work->run();
    hold.lock();
    work->run = nullptr;
    work->done = true;
    stream.queue.pop_front();
    state().changed.notify_all();
  }
}

void start_thread(Stream& stream) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, nullptr, stream_thread, &stream) == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void invalidate(Stream& stream) {
  stream.capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

// Work on the legacy stream waits for all blocking streams: not possible while one is captured.
CUresult implicit_dependency(Context& context) {
  CUresult result = CUDA_SUCCESS;
  for (Stream* stream : context.streams) {
    if (!stream->blocking() || stream->capture != CU_STREAM_CAPTURE_STATUS_ACTIVE) continue;
    invalidate(*stream);
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

}  // namespace

CUresult capture_allows() {
  if (thread_mode_ == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  std::lock_guard<std::mutex> hold(state().lock);
  CUresult result = CUDA_SUCCESS;
  for (Stream* stream : state().streams) {
    if (stream->capture != CU_STREAM_CAPTURE_STATUS_ACTIVE ||
        stream->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
      continue;
    const bool own = stream->capture_thread == thread_id();
    const bool everywhere = stream->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                            thread_mode_ == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !everywhere) continue;
    invalidate(*stream);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

Stream* make_stream(Context& context, unsigned flags, int priority, bool legacy) {
  auto* stream = new Stream;  // its thread may outlive any owner
  stream->context = &context;
  stream->flags = flags;
  stream->priority = priority;
  stream->legacy = legacy;
  context.streams.insert(stream);
  state().streams.insert(stream);
  start_thread(*stream);
  return stream;
}

// The lock is held.
Stream* resolve(Context& context, CUstream handle, bool per_thread, CUresult& why) {
  if ((!handle && per_thread) || handle == CU_STREAM_PER_THREAD) {
    Stream*& own = per_thread_[&context];
    if (!own) own = make_stream(context, 0, 0, false);
    return own;
  }
  if (!handle || handle == CU_STREAM_LEGACY) {
    why = implicit_dependency(context);
    return why == CUDA_SUCCESS ? context.legacy : nullptr;
  }
  auto* stream = reinterpret_cast<Stream*>(handle);
  why = CUDA_ERROR_INVALID_HANDLE;
  return state().streams.contains(stream) && stream->alive ? stream : nullptr;
}

// The lock is held. Work for a stream under capture is recorded, not done.
std::shared_ptr<Work> enqueue(Stream& stream, std::function<void()> run) {
  auto work = std::make_shared<Work>();
  if (stream.capture == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    work->done = true;
    return work;
  }
  work->run = std::move(run);
  if (stream.legacy) {
    for (const Stream* other : stream.context->streams)
      if (other->blocking() && other->last && !other->last->done)
        work->after.push_back(other->last);
  } else if (stream.blocking() && stream.context->legacy->last &&
             !stream.context->legacy->last->done) {
    work->after.push_back(stream.context->legacy->last);
  }
  stream.queue.push_back(work);
  stream.last = work;
  state().changed.notify_all();
  return work;
}

void wait(const std::shared_ptr<Work>& work) {
  std::unique_lock<std::mutex> hold(state().lock);
  state().changed.wait(hold, [&] { return work->done; });
}

// Ends a context's streams: what runs is waited for, except copies that were made to hang.
void end_streams(Context& context) {
  std::unique_lock<std::mutex> hold(state().lock);
  std::vector<Stream*> all(context.streams.begin(), context.streams.end());
  for (Stream* stream : all) stream->alive = false;
  state().changed.notify_all();
  state().changed.wait(hold, [&] {
    for (const Stream* stream : all)
      if (!stream->queue.empty()) return false;
    return true;
  });
  for (Stream* stream : all) {
    state().streams.erase(stream);
    context.streams.erase(stream);
  }
}

}  // namespace fake_cuda

using namespace fake_cuda;

CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  FAKE_CUDA_ENTER(context);
  if (!out || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> driver(context->lock);
  std::lock_guard<std::mutex> hold(state().lock);
  *out = reinterpret_cast<CUstream>(make_stream(*context, flags, priority, false));
  return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  return cuStreamCreateWithPriority(out, flags, 0);
}

// Work already queued is still done.
CUresult cuStreamDestroy_v2(CUstream handle) {
  if (const CUresult why = usable()) return why;
  std::lock_guard<std::mutex> hold(state().lock);
  auto* stream = reinterpret_cast<Stream*>(handle);
  if (!state().streams.contains(stream) || !stream->alive || stream->legacy)
    return CUDA_ERROR_INVALID_HANDLE;
  stream->alive = false;
  state().streams.erase(stream);
  stream->context->streams.erase(stream);
  state().changed.notify_all();
  return CUDA_SUCCESS;
}

static CUresult find_stream(CUstream handle, bool per_thread, Stream*& stream) {
  FAKE_CUDA_ENTER(context);
  std::lock_guard<std::mutex> hold(state().lock);
  stream = resolve(*context, handle, per_thread, why);
  if (!stream) return why;
  if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_SUCCESS;
  invalidate(*stream);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult synchronize(CUstream handle, bool per_thread) {
  if (const CUresult refused = capture_allows()) return refused;
  Stream* stream;
  if (const CUresult why = find_stream(handle, per_thread, stream)) return why;
  std::shared_ptr<Work> last;
  {
    std::lock_guard<std::mutex> hold(state().lock);
    last = stream->last;
  }
  if (last) wait(last);
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
  return synchronize(stream, false);
}
CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  return synchronize(stream, true);
}

static CUresult query(CUstream handle, bool per_thread) {
  if (const CUresult refused = capture_allows()) return refused;
  Stream* stream;
  if (const CUresult why = find_stream(handle, per_thread, stream)) return why;
  std::lock_guard<std::mutex> hold(state().lock);
  return !stream->last || stream->last->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuStreamQuery(CUstream stream) {
  return query(stream, false);
}
CUresult cuStreamQuery_ptsz(CUstream stream) {
  return query(stream, true);
}

static CUresult wait_event(CUstream handle, CUevent event, bool per_thread) {
  FAKE_CUDA_ENTER(context);
  std::lock_guard<std::mutex> hold(state().lock);
  Stream* stream = resolve(*context, handle, per_thread, why);
  if (!stream) return why;
  if (!state().events.contains(reinterpret_cast<Event*>(event))) return CUDA_ERROR_INVALID_HANDLE;
  const auto before = reinterpret_cast<Event*>(event)->recorded;
  const auto work = enqueue(*stream, nullptr);
  if (before && !before->done) work->after.push_back(before);
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  return wait_event(stream, event, false);
}
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned) {
  return wait_event(stream, event, true);
}

static CUresult host_function(CUstream handle, CUhostFn function, void* user, bool per_thread) {
  FAKE_CUDA_ENTER(context);
  std::lock_guard<std::mutex> hold(state().lock);
  Stream* stream = resolve(*context, handle, per_thread, why);
  if (!stream) return why;
  enqueue(*stream, [function, user] { function(user); });
  return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* user) {
  return host_function(stream, function, user, false);
}
CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* user) {
  return host_function(stream, function, user, true);
}

// ---- Capture

static CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode, bool per_thread) {
  FAKE_CUDA_ENTER(context);
  std::lock_guard<std::mutex> hold(state().lock);
  Stream* stream = resolve(*context, handle, per_thread, why);
  if (!stream) return why;
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_INVALID_VALUE;
  stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  stream->capture_mode = mode;
  stream->capture_thread = thread_id();
  return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(stream, mode, false);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(stream, mode, true);
}

static CUresult end_capture(CUstream handle, CUgraph* graph, bool per_thread) {
  FAKE_CUDA_ENTER(context);
  std::lock_guard<std::mutex> hold(state().lock);
  Stream* stream = resolve(*context, handle, per_thread, why);
  if (!stream) return why;
  if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      stream->capture_thread != thread_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  const bool lost = stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  stream->capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (graph) *graph = nullptr;
  return lost ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return end_capture(stream, graph, false);
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return end_capture(stream, graph, true);
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus* status, bool per_thread) {
  FAKE_CUDA_ENTER(context);
  std::lock_guard<std::mutex> hold(state().lock);
  Stream* stream = resolve(*context, handle, per_thread, why);
  if (!stream) return why;
  *status = stream->capture;
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return is_capturing(stream, status, false);
}
CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus* status) {
  return is_capturing(stream, status, true);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (const CUresult why = usable()) return why;
  if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_mode_);
  return CUDA_SUCCESS;
}

// ---- Events

CUresult cuEventCreate(CUevent* out, unsigned) {
  FAKE_CUDA_ENTER(context);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  auto* event = new Event;
  event->context = context;
  std::lock_guard<std::mutex> hold(state().lock);
  state().events.insert(event);
  *out = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  if (const CUresult why = usable()) return why;
  std::lock_guard<std::mutex> hold(state().lock);
  auto* event = reinterpret_cast<Event*>(handle);
  if (state().events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete event;
  return CUDA_SUCCESS;
}

static CUresult record(CUevent handle, CUstream stream_handle, bool per_thread) {
  FAKE_CUDA_ENTER(context);
  std::lock_guard<std::mutex> hold(state().lock);
  auto* event = reinterpret_cast<Event*>(handle);
  if (!state().events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
  Stream* stream = resolve(*context, stream_handle, per_thread, why);
  if (!stream) return why;
  event->recorded = enqueue(*stream, nullptr);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  return record(event, stream, false);
}
CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
  return record(event, stream, true);
}

CUresult cuEventQuery(CUevent handle) {
  if (const CUresult why = usable()) return why;
  if (const CUresult refused = capture_allows()) return refused;
  std::lock_guard<std::mutex> hold(state().lock);
  auto* event = reinterpret_cast<Event*>(handle);
  if (!state().events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
  return !event->recorded || event->recorded->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  if (const CUresult why = usable()) return why;
  if (const CUresult refused = capture_allows()) return refused;
  std::shared_ptr<Work> recorded;
  {
    std::lock_guard<std::mutex> hold(state().lock);
    auto* event = reinterpret_cast<Event*>(handle);
    if (!state().events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
    recorded = event->recorded;
  }
  if (recorded) wait(recorded);
  return CUDA_SUCCESS;
}

// ---- Kernels

namespace {

struct Block {
  FakeKernel kernel;
  void* argument;
  unsigned index;
};

void* block_thread(void* argument) {
  prctl(PR_SET_NAME, "cuda-block");
  const Block& block = *static_cast<const Block*>(argument);
  block.kernel(block.argument, block.index);
  return nullptr;
}

void run_kernel(Context& context, unsigned blocks, FakeKernel kernel, void* argument) {
  {
    std::lock_guard<std::mutex> hold(state().lock);
    ++context.kernels;
  }
  std::vector<Block> all;
  for (unsigned i = 0; i < blocks; ++i) all.push_back({kernel, argument, i});
  std::vector<pthread_t> threads(blocks);
  for (unsigned i = 1; i < blocks; ++i) pthread_create(&threads[i], nullptr, block_thread, &all[i]);
  if (blocks > 0) block_thread(all.data());
  for (unsigned i = 1; i < blocks; ++i) pthread_join(threads[i], nullptr);
  std::lock_guard<std::mutex> hold(state().lock);
  --context.kernels;
}

}  // namespace

extern "C" CUresult fake_gpu_launch(CUstream handle, unsigned blocks, FakeKernel kernel,
                                    void* argument) {
  FAKE_CUDA_ENTER(context);
  std::lock_guard<std::mutex> driver(context->lock);
  std::lock_guard<std::mutex> hold(state().lock);
  Stream* stream = resolve(*context, handle, false, why);
  if (!stream) return why;
  enqueue(*stream, [=] { run_kernel(*context, blocks, kernel, argument); });
  return CUDA_SUCCESS;
}
