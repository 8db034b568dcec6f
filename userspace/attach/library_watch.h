// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// LibraryWatch: tells of every file that a process maps as code: exec, dlopen, without touching it.
//
//   SIGMA_ASSIGN(LibraryWatch watch, LibraryWatch::open({}));
//   ... poll watch.fd() ...
//   watch.read([&](const LibraryEvent& event) { ... });
//
// The kernel writes a PERF_RECORD_MMAP2 for each executable file mapping to a ring per CPU; no BPF
// and no probe is involved, and a process that maps nothing pays nothing. The caller looks at a
// file only when it does not know its inode yet. Where this is not permitted, open() fails, and the
// caller scans /proc/PID/maps now and then instead (some 0.13 ms a process).
//
// CPUs that come online later are not watched.
//
// Needs CAP_PERFMON (5.8), or kernel.perf_event_paranoid at most 0. Single-threaded.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace sigma {

struct LibraryEvent {
  uint64_t time_ns = 0;                          // CLOCK_MONOTONIC
  pid_t pid = 0, tid = 0;                        // in the caller's pid namespace
  uint64_t address = 0, length = 0, offset = 0;  // of the mapping, and in the file
  std::string path;  // as the process sees it: read it below /proc/PID/root
  // The file. By build-id when asked for and the file has one; then device and inode are 0.
  dev_t device = 0;
  uint64_t inode = 0;
  std::string build_id;  // hex
};

struct LibraryWatchOptions {
  size_t ring_bytes = 64 << 10;  // per CPU; a power of two, at least a page
  bool build_ids = false;        // 5.12
};

class LibraryWatch {
 public:
  using Callback = std::function<void(const LibraryEvent&)>;

  // Every event from the return of this on is delivered or counted as lost.
  static Result<LibraryWatch> open(const LibraryWatchOptions& options);
  LibraryWatch(LibraryWatch&&) noexcept;
  LibraryWatch& operator=(LibraryWatch&&) noexcept;
  ~LibraryWatch();

  // Readable when events wait; for poll or epoll.
  int fd() const;

  // Delivers what waits: in order of time per CPU. Never blocks. The callback must not call read().
  void read(const Callback& callback);

  // Events that found a ring full. After a loss the caller scans the maps of its processes.
  uint64_t lost() const;

 private:
  struct Impl;
  explicit LibraryWatch(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Parses one perf record, whole, as LibraryWatch asks the kernel to write them. False when it is
// not a mapping of a file by its name.
bool parse_mmap_record(std::span<const std::byte> record, LibraryEvent& event);

}  // namespace sigma
