// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Files that the tracer writes: mode 0600, of the calling user (under sudo: of that user).
//
// The tracer often runs as root and writes where its user says, /tmp included, so:
//   - the file system is asked as the calling user first (which also serves root-squashed NFS);
//   - where that is denied, root creates new files for the user, and replaces the user's own, but
//     never those of somebody else: a sudo rule for sigmatrace alone gives nobody /etc/shadow;
//   - symbolic links are not followed in the last component, and a file is made under a new name and
//     renamed into place, so planted links, FIFOs and hard links lead nowhere.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace sigma {

struct Caller {
  uid_t uid = 0;
  gid_t gid = 0;
};

// Who called: SUDO_UID and SUDO_GID where root was asked by sudo and both are valid, else the
// effective user.
Caller calling_user();

// This thread's file system identity, for a scope. Without the privilege to change it, it stays.
class ActAs {
 public:
  explicit ActAs(const Caller& caller);
  ~ActAs();
  ActAs(const ActAs&) = delete;
  ActAs& operator=(const ActAs&) = delete;

 private:
  gid_t gid_;
  uid_t uid_;
};

// An empty file at `path`, replacing a regular file there. Character devices and FIFOs of the
// user's (or root's) are opened as they are. Anything else is refused.
Result<Fd> create_private_file(const std::string& path);

// The file at `path` holds `contents`, or what it held before; never a part. The new file's
// descriptor is returned, open for writing.
Result<Fd> write_private_file(const std::string& path, std::string_view contents);

// All of `bytes` to `fd`, through interruptions and (on non-blocking descriptors) waiting.
// Returns how many were written; fewer than all with `*error` set to the errno.
size_t write_all(int fd, std::string_view bytes, int* error);

}  // namespace sigma
