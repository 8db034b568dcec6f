// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "oracle.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdio>
#include <cstring>
#include <string>

#include "clock.h"

namespace connectx {
namespace {

constexpr size_t kWindow = size_t{16} << 20;    // the file grows by this much
constexpr size_t kPopulated = size_t{1} << 20;  // and gets its pages in steps of this

struct Log {
  int fd = -1;
  char* window = nullptr;
  size_t window_start = 0;  // file offset of the window
  size_t used = 0;          // bytes used in it
  size_t populated = 0;     // bytes of it that have their pages
};
Log log_;

bool map_next_window() {
  if (log_.window) munmap(log_.window, kWindow);
  log_.window = nullptr;
  if (ftruncate(log_.fd, static_cast<off_t>(log_.window_start + kWindow)) != 0) return false;
  void* memory = mmap(nullptr, kWindow, PROT_READ | PROT_WRITE, MAP_SHARED, log_.fd,
                      static_cast<off_t>(log_.window_start));
  if (memory == MAP_FAILED) return false;
  log_.window = static_cast<char*>(memory);
  log_.used = log_.populated = 0;
  return true;
}

// A fault for each page would cost more than all else that the device does for a small request,
// most in virtual machines. Kernels before 5.14 do without.
void populate() {
  madvise(log_.window + log_.populated, kPopulated, MADV_POPULATE_WRITE);
  log_.populated += kPopulated;
}

void copy_in(const char* data, size_t bytes) {
  while (bytes > 0 && log_.window) {
    const size_t fits = bytes < kWindow - log_.used ? bytes : kWindow - log_.used;
    if (log_.used + fits > log_.populated) populate();
    memcpy(log_.window + log_.used, data, fits);
    log_.used += fits;
    data += fits;
    bytes -= fits;
    if (log_.used == kWindow) {
      log_.window_start += kWindow;
      if (!map_next_window()) complain("the oracle's log cannot grow: records are lost");
    }
  }
}

}  // namespace

void oracle_open() {
  if (!config().oracle || config().dir.empty()) return;
  if (log_.window) munmap(log_.window, kWindow);  // a forked child: the parent's log is not ours
  if (log_.fd >= 0) close(log_.fd);
  log_ = {};
  OracleFileHeader header{};
  memcpy(header.magic, "CXORACLE", sizeof header.magic);
  header.version = kOracleVersion;
  header.pid = static_cast<uint32_t>(getpid());
  header.start_ns = monotonic_ns();
  if (FILE* comm = fopen("/proc/self/comm", "re")) {
    if (fgets(header.command, sizeof header.command, comm))
      header.command[strcspn(header.command, "\n")] = 0;
    fclose(comm);
  }
  const std::string path = config().dir + "/oracle/" + std::to_string(header.pid) + "." +
                           std::to_string(header.start_ns) + ".log";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    complain("cannot create %s: %s", path.c_str(), strerror(errno));
    return;
  }
  // Out of the way of programs that count on low numbers.
  log_.fd = fcntl(fd, F_DUPFD_CLOEXEC, 900);
  if (log_.fd < 0)
    log_.fd = fd;
  else
    close(fd);
  if (!map_next_window()) {
    complain("cannot map %s: %s", path.c_str(), strerror(errno));
    return;
  }
  copy_in(reinterpret_cast<const char*>(&header), sizeof header);
}

void oracle_close() {
  if (log_.fd < 0) return;
  if (log_.window && ftruncate(log_.fd, static_cast<off_t>(log_.window_start + log_.used)) != 0)
    complain("the oracle's log keeps a tail of zeros");
  if (log_.window) munmap(log_.window, kWindow);
  close(log_.fd);
  log_ = {};
}

bool oracle_on() {
  return log_.window != nullptr;
}

void oracle_append(const void* record, uint16_t bytes) {
  if (log_.window) copy_in(static_cast<const char*>(record), bytes);
}

}  // namespace connectx
