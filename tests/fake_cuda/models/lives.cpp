// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a job does to its queues beside posting: lives SCENARIO. Posts are NVSHMEM's, one queue at a
// time, and their data is verified; each scenario ends with "ok".
//
//   lives    resets, a fork, a free that is refused, numbers and addresses that come again, an exec
//   context  the context ends with the queues, and another job begins in the same process
//   signal   a signal between two halves of the posts, SIGMA_LIVES_SIGNAL
//   exit     the process ends as it is
//   torn     the ring's memory is freed, the queue is not destroyed first
//   twice    all of a queue is destroyed, deregistered and freed, and then once more
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "nvshmem_device.h"

// What is freed keeps its content while this is set, so that a job which uses it survives that.
namespace {
bool keep_freed = false;
}
extern "C" void __libc_free(void*);
extern "C" void free(void* memory) {
  if (!keep_freed) __libc_free(memory);
}

namespace models {
namespace {

constexpr unsigned kBytes = 64, kWindow = 4;

struct Job {
  struct Stack : NvshmemHost<NvshmemPoster> {};
  Stack stack;
  Options options;
  Buffer heap;
  ibv_mr* region = nullptr;
  unsigned posting = 0, count = 0;
  uint64_t value = 0;

  explicit Job(unsigned depth = 128) {
    options.depth = depth;
    stack.open(options);
    heap = stack.heap(2 * kBytes * kWindow);
    region = stack.host.memory_region(heap, true);
  }
  void connect(unsigned i) {
    Peer peer = stack.local(i);
    peer.lid = stack.host.port.lid;
    memcpy(peer.gid, stack.host.gid.raw, 16);
    stack.connect(i, peer);
  }
  void make(unsigned queues) {
    options.queues = queues;
    stack.create(options);
    for (unsigned i = 0; i < queues; ++i) connect(i);
    stack.publish();
  }
  void make_and_post(unsigned queues, unsigned operations) {
    make(queues);
    for (unsigned i = 0; i < queues; ++i) post(i, operations);
  }
  void unmake() { stack.destroy(); }
  void close() {
    require(ibv_dereg_mr(region) == 0, "cannot deregister the heap");
    stack.host.release(heap);
    stack.host.close();
  }
  void end() {
    unmake();
    close();
  }

  static void kernel(void* argument, unsigned) { static_cast<Job*>(argument)->post(); }
  void launch(unsigned queue, unsigned operations) {
    posting = queue;
    count = operations;
    stack.launch(1, kernel, this);
  }
  void post(unsigned queue, unsigned operations) {
    launch(queue, operations);
    stack.join();
  }
  void post() {
    NvshmemPoster& device = stack.device(posting);
    for (unsigned at = 0; at < count; at += kWindow) {
      uint64_t end = 0;
      const unsigned batch = count - at < kWindow ? count - at : kWindow;
      for (unsigned i = 0; i < batch; ++i) {
        uint8_t* from = heap.gpu + i * kBytes;
        fill(from, kBytes, ++value);
        Operation operation;
        operation.kind = Kind::write;
        operation.bytes = kBytes;
        operation.local = heap.address + i * kBytes;
        operation.remote = operation.local + kBytes * kWindow;
        operation.lkey = region->lkey;
        operation.rkey = region->rkey;
        const uint64_t base = device.reserve(1);
        write_wqe(device.ring, base, operation, true);
        device.submit(base, 1, i, i + 1 == batch);
        end = base + 1;
      }
      device.flush(end);
      for (Spin spin; device.done(end) != Done::yes; spin.once())
        require(!device.fate.over(), "the queue failed: %#x", device.fate.syndrome.load());
      for (unsigned i = 0; i < batch; ++i)
        require(filled(heap.gpu + (kWindow + i) * kBytes, kBytes, value - batch + 1 + i),
                "wrong data");
      pause_us(400);
    }
  }

  // `late`: record and completion show the life before for a while.
  void reset(unsigned i, bool late) {
    stack.host.reset(stack.objects[i].qp, stack.objects[i].qpn);
    if (late) pause_us(20'000);
    stack.clear(i);
    connect(i);
  }

  // As a free in the middle of a capture: the driver refuses it, and all goes on.
  void refused_free(unsigned i) {
    Cuda& cuda = stack.host.cuda;
    CUstream stream;
    CUgraph graph;
    require(cuda.cuStreamCreateWithPriority(&stream, 0, 0) == CUDA_SUCCESS &&
                cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS,
            "no capture");
    require(cuda.cuMemFree(stack.objects[i].ring_memory.base) != CUDA_SUCCESS,
            "a free in a capture");
    cuda.cuStreamEndCapture(stream, &graph);
    require(cuda.cuStreamDestroy(stream) == CUDA_SUCCESS, "the capture does not end");
  }
};

int lives(const char* program) {
  Job job;
  job.make_and_post(2, 100);
  job.reset(0, false);
  job.post(0, 40);
  job.reset(0, true);
  job.post(0, 40);
  const pid_t child = fork();
  require(child >= 0, "cannot fork");
  if (child == 0) {
    // Its parent's queues are none of its own, and CUDA is of no use here.
    CUdeviceptr memory = 0;
    _exit(job.stack.host.cuda.cuMemAlloc(&memory, 4096) == CUDA_SUCCESS);
  }
  job.post(1, 30);
  int status;
  require(waitpid(child, &status, 0) == child && status == 0, "the child: %d", status);
  job.refused_free(1);
  job.post(1, 30);
  job.unmake();
  for (int i = 0; i < 4; ++i) {
    job.make_and_post(1, 20);
    job.unmake();
  }
  printf("ok\n");
  fflush(stdout);
  // A thread of the driver's may be at work: the image goes under it.
  job.make_and_post(1, 20);
  setenv("SIGMA_GPU_CAPTURE", getenv("SIGMA_LIVES_CAPTURE_AFTER"), 1);
  execl("/proc/self/exe", program, "after", nullptr);
  require(false, "cannot exec");
  return 1;
}

int after(const char*) {
  Job job;
  job.make_and_post(1, 40);
  job.end();
  printf("after: ok\n");
  return 0;
}

int context(const char*) {
  Job first;
  first.make(2);
  first.launch(0, 60);
  pause_us(5'000);
  require(first.stack.host.cuda.cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS, "cannot reset");
  // Memory is gone; what the NIC has is not, and nobody posts to it.
  Job second;
  second.make_and_post(1, 60);
  second.end();
  printf("ok\n");
  return 0;
}

int signalled(const char*) {
  Job job(32);
  job.make_and_post(1, 60);
  raise(atoi(getenv("SIGMATRACE_GPU_SIGNAL")));
  pause_us(400'000);
  job.post(0, 60);
  job.end();
  printf("ok\n");
  return 0;
}

int leave(const char*) {
  Job job;
  job.make_and_post(2, 40);
  printf("ok\n");
  return 0;
}

// First the memory, by a driver function that no hook sees; then, much later, the queue.
int torn(const char*) {
  Job job;
  job.make_and_post(2, 40);
  const auto past_hooks = reinterpret_cast<CUresult (*)(CUdeviceptr)>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_gpu_free"));
  require(past_hooks && past_hooks(job.stack.objects[0].ring_memory.base) == CUDA_SUCCESS,
          "cannot free");
  job.stack.objects[0].ring_memory = {};
  job.post(1, 40);
  job.end();
  printf("ok\n");
  return 0;
}

int twice(const char*) {
  Job job;
  job.make_and_post(2, 40);
  const auto& mlx5 = job.stack.host.mlx5;
  auto& cuda = job.stack.host.cuda;
  QueueObjects& made = job.stack.objects[0];
  keep_freed = true;
  for (mlx5dv_devx_obj* object : {made.qp, made.cq}) {
    require(mlx5.mlx5dv_devx_obj_destroy(object) == 0, "cannot destroy");
    require(mlx5.mlx5dv_devx_obj_destroy(object) != 0, "destroyed twice");
  }
  for (mlx5dv_devx_umem* umem : {made.ring_umem, made.record_umem, made.cq_umem}) {
    require(mlx5.mlx5dv_devx_umem_dereg(umem) == 0, "cannot deregister");
    require(mlx5.mlx5dv_devx_umem_dereg(umem) != 0, "deregistered twice");
  }
  for (const Buffer* buffer : {&made.ring_memory, &made.record_memory, &made.cq_memory}) {
    require(cuda.cuMemFree(buffer->base) == CUDA_SUCCESS, "cannot free");
    require(cuda.cuMemFree(buffer->base) != CUDA_SUCCESS, "freed twice");
  }
  keep_freed = false;
  job.post(1, 40);
  job.stack.objects.erase(job.stack.objects.begin());
  job.unmake();
  // Memory and numbers come again.
  job.make_and_post(1, 40);
  job.end();
  printf("ok\n");
  return 0;
}

constexpr struct {
  const char* name;
  int (*run)(const char* program);
} kScenarios[] = {{"lives", lives},    {"after", after}, {"context", context}, {"signal", signalled},
                  {"exit", leave},     {"torn", torn},   {"twice", twice}};

}  // namespace
}  // namespace models

int main(int argc, char** argv) {
  for (const auto& scenario : models::kScenarios)
    if (argc == 2 && !strcmp(argv[1], scenario.name)) return scenario.run(argv[0]);
  models::require(false, "usage: lives lives|context|signal|exit|torn|twice");
}
