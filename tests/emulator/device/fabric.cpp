// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "fabric.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "config.h"

namespace connectx {
namespace {

void release_qps(Fabric& fabric, unsigned process) {
  for (DeviceEntry& device : fabric.devices) {
    for (QpEntry& qp : device.qps) {
      if (qp.owner.load(std::memory_order_relaxed) != process + 1) continue;
      qp.receiving = 0;
      qp.owner = 0;
    }
  }
}

bool dead(int32_t pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  char path[32], text[256] = "";
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE* file = fopen(path, "re");
  if (!file) return true;
  const size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[length] = 0;
  const char* name_end = strrchr(text, ')');  // then " S"
  return name_end && strlen(name_end) > 2 && (name_end[2] == 'Z' || name_end[2] == 'X');
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

Fabric* join_fabric(const char* path, unsigned& process) {
  const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || flock(fd, LOCK_EX) != 0 || ftruncate(fd, sizeof(Fabric)) != 0) {
    complain("cannot open the fabric %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return nullptr;
  }
  void* memory = mmap(nullptr, sizeof(Fabric), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    complain("cannot map the fabric %s: %s", path, strerror(errno));
    close(fd);
    return nullptr;
  }
  auto& fabric = *static_cast<Fabric*>(memory);
  Fabric* result = nullptr;
  for (unsigned i = 0; i < kMaxProcesses && !result; ++i) {
    ProcessEntry& entry = fabric.processes[i];
    const int32_t pid = entry.pid.load();
    if (pid != 0 && !dead(pid)) continue;
    if (pid != 0) release_qps(fabric, i);
    // What a former owner left in the inbox is nobody's.
    memset(static_cast<void*>(&entry), 0, sizeof entry);
    entry.pid = getpid();
    process = i;
    result = &fabric;
  }
  if (!result) {
    complain("more than %u processes on one fabric", kMaxProcesses);
    munmap(memory, sizeof(Fabric));
  }
  flock(fd, LOCK_UN);  // the mapping keeps the file, and so the lock, alive
  close(fd);
  return result;
}

void leave_fabric(Fabric& fabric, unsigned process) {
  release_qps(fabric, process);
  fabric.processes[process].pid = 0;
}

bool process_alive(const Fabric& fabric, unsigned process) {
  const int32_t pid = fabric.processes[process].pid.load();
  return pid != 0 && !dead(pid);
}

uint32_t claim_qpn(Fabric& fabric, unsigned device, unsigned process) {
  static const bool lowest = getenv("SIGMA_CONNECTX_REUSE_QPN") != nullptr;
  DeviceEntry& entry = fabric.devices[device];
  for (unsigned tries = 0; tries < kQpsPerDevice; ++tries) {
    const uint32_t slot = lowest ? tries : entry.next_qpn.fetch_add(1) % kQpsPerDevice;
    uint32_t unowned = 0;
    if (!entry.qps[slot].owner.compare_exchange_strong(unowned, process + 1)) continue;
    entry.qps[slot].receiving = 0;
    entry.qps[slot].life.fetch_add(1);
    entry.qps[slot].ack = 0;
    return kFirstQpn + slot;
  }
  return 0;
}

void wake_process(Fabric& fabric, unsigned process) {
  ProcessEntry& entry = fabric.processes[process];
  entry.doorbell.fetch_add(1);
  if (entry.sleeping.load()) futex(entry.doorbell, FUTEX_WAKE, 1, nullptr);
}

void sleep_process(Fabric& fabric, unsigned process, uint32_t seen, uint64_t timeout_ns) {
  ProcessEntry& entry = fabric.processes[process];
  const timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000),
                         static_cast<long>(timeout_ns % 1'000'000'000)};
  entry.sleeping = 1;
  futex(entry.doorbell, FUTEX_WAIT, seen, &timeout);
  entry.sleeping = 0;
}

}  // namespace connectx
