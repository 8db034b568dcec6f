// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Guard: whether this thread is in code of ours already.
//
// Libraries call each other: our wrapper of mlx5dv_devx_obj_create runs libmlx5, which calls ioctl;
// the driver's cuGetProcAddress may use dlsym. Only the outermost call is the job's; what comes
// from within it goes straight to the real function.
//
// Initial-exec TLS: the first use must not allocate, for it may be the dlsym with which an
// allocator looks for its own functions.
#pragma once

#include <stdint.h>

namespace sigma::gpu {

extern __thread uint32_t guard_depth
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

class Guard {
 public:
  Guard() : outermost_(guard_depth++ == 0) {}
  ~Guard() { --guard_depth; }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // The call comes from the job, and is to be looked at.
  bool outermost() const { return outermost_; }

 private:
  bool outermost_;
};

}  // namespace sigma::gpu
