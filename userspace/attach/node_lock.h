// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// NodeLock: one system-wide tracer a node; a second one is told who holds the lock.
//
// A POSIX record lock on /run/lock/sigmatrace: the kernel knows its holder and frees it with the
// process, however that ends. The file is its maker's alone (0600), so that no other user can keep
// the lock from those who may trace; it goes with the holder. SIGMATRACE_LOCK names another file,
// for tests, unless privileges came by file capabilities.
//
// Containers with a /run of their own do not see each other's locks.
#pragma once

#include <string>
#include <utility>

#include "base/fd.h"
#include "base/result.h"

namespace sigma {

class NodeLock {
 public:
  static Result<NodeLock> take();
  NodeLock(NodeLock&&) noexcept = default;
  NodeLock& operator=(NodeLock&&) = delete;
  ~NodeLock();

 private:
  NodeLock(Fd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  Fd file_;
  std::string path_;
};

}  // namespace sigma
