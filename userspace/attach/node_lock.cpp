// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/node_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

namespace sigma {
namespace {

constexpr const char* kPath = "/run/lock/sigmatrace";

std::string lock_path() {
  const char* other = getauxval(AT_SECURE) == 0 ? std::getenv("SIGMATRACE_LOCK") : nullptr;
  return other != nullptr && *other != '\0' ? other : kPath;
}

// Not O_CREAT on a file that is there: in a sticky folder the kernel refuses root another user's
// file then (fs.protected_regular).
Fd open_lock(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  Fd file(open(path.c_str(), kFlags));
  if (!file && errno == ENOENT) {
    file = Fd(open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0600));
    if (!file && errno == EEXIST) file = Fd(open(path.c_str(), kFlags));  // another one was quicker
  }
  return file;
}

flock whole_file() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

std::string holder(int file) {
  struct flock lock = whole_file();
  // 0: in a pid namespace that is not ours.
  if (fcntl(file, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK || lock.l_pid <= 0)
    return "another process";
  std::ifstream in(fmt::format("/proc/{}/comm", lock.l_pid));
  std::string comm;
  std::getline(in, comm);
  return fmt::format("process {} ({})", lock.l_pid, comm);
}

}  // namespace

Result<NodeLock> NodeLock::take() {
  const std::string path = lock_path();
  for (;;) {
    Fd file = open_lock(path);
    const int cause = errno;
    if (!file && cause == EACCES)
      return Error{
          fmt::format(
              "cannot open the lock of system-wide tracers, {}: another user's tracer holds it or "
              "left it behind",
              path),
          "wait for its end; if none runs: sudo rm " + path};
    if (!file)
      return Error{fmt::format("cannot open the lock of system-wide tracers, {}: {}", path,
                               errno_text(cause)),
                   cause == ENOENT ? "make its folder: sudo mkdir -p " + path.substr(0, path.rfind('/')) : "run it with sudo"};
    struct stat held, named;
    if (fstat(file.get(), &held) != 0 || !S_ISREG(held.st_mode))
      return Error{fmt::format("{} is no file", path), "sudo rm " + path};
    struct flock lock = whole_file();
    if (fcntl(file.get(), F_SETLK, &lock) != 0)
      return Error{fmt::format("a system-wide trace runs already: {} holds the lock {}",
                               holder(file.get()), path),
                   "wait for its end, or end it; --pid traces beside it"};
    // Locked, but is it still the file of that name? Its last holder may have removed it meanwhile.
    if (lstat(path.c_str(), &named) == 0 && named.st_dev == held.st_dev &&
        named.st_ino == held.st_ino)
      return NodeLock(std::move(file), path);
  }
}

NodeLock::~NodeLock() {
  if (file_) unlink(path_.c_str());
}

}  // namespace sigma
