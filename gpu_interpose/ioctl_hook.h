// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The wrapper of ioctl, by which libibverbs sends every command to the kernel. A DevX command that
// comes here without one of our mlx5dv wrappers above it was bound past them (RTLD_DEEPBIND, a
// hidden shim, a second copy of libmlx5): it is taken from here, and counted as a binding hole.
#pragma once

#include <stdint.h>

extern "C" __attribute__((visibility("default"))) int ioctl(int fd, unsigned long request,
                                                            ...) noexcept;

namespace sigma::gpu {

// The kernel's handle of the object that the calling thread's last DevX create command made.
uint32_t last_devx_handle();

}  // namespace sigma::gpu
