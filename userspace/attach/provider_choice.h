// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which installed providers can be needed by the devices of this machine. A process maps its provider
// late, and probing all that a distribution ships beforehand costs time where each probe is a link of
// its own; a provider left out here is still found when it is mapped (attach/library_watch.h).
#pragma once

#include <span>
#include <string_view>

#include "attach/rdma_sysfs.h"

namespace sigma {

// `library`: a file name or path, as ".../libmlx5.so.1.24.44.0" or ".../librxe-rdmav34.so".
// True unless it is sure that none of `devices` is served by it.
bool may_serve(std::string_view library, std::span<const SysfsDevice> devices);

}  // namespace sigma
