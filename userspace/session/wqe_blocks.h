// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How far a send request moves an mlx5 queue's index on.
#pragma once

#include <cstdint>
#include <optional>

#include "bpf/records.h"

namespace sigma {

// Basic blocks of 64 bytes that the request takes in the send queue; nullopt where the record does
// not tell: other queue pair types and opcodes, truncated or unreadable requests, and lists whose
// elements may or may not be empty (empty ones take no room).
std::optional<uint16_t> mlx5_wqe_blocks(const sigma_post& post);

}  // namespace sigma
