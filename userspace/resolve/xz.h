// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"

namespace sigma {

// Unpacks one .xz stream. Its bytes may be anyone's: more than `max_bytes` of output is an error,
// and so is a stream that needs more than 64 MiB of work memory (xz -9 needs 65 MB, .gnu_debugdata
// is packed with less).
Result<std::vector<std::byte>> unxz(std::span<const std::byte> packed, size_t max_bytes);

}  // namespace sigma
