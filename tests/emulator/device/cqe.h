// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Entries of a completion queue, and sessions of compressed ones. Used by cq.cpp and
// cqe_session.cpp; the engines call write_cqe (nic.h).
//
// A session of N completions takes N positions (mlx5 kernel driver, en_rx.c; DPDK's mlx5 PMD). At
// its first stands the title: a whole CQE with format 3 whose byte_cnt is N. The rest, and the
// title's own values, are 8-byte minis, eight to an entry: at title + 1, title + 8, title + 16...
// The entries between are not written. A requester's mini holds wqe_counter, opcode and byte_cnt; a
// responder's a checksum and byte_cnt, its wqe_counter being the title's + its place. Everything
// else, the time stamp too, is the title's. The software restores the owner bits of the entries.
#pragma once

#include <infiniband/mlx5dv.h>

#include <cstddef>
#include <cstdint>

#include "oracle.h"

namespace connectx {

struct Cq;

// A completion that is not in the ring yet.
struct HeldCqe {
  mlx5_cqe64 image;
  OracleCqe record;
};

inline constexpr uint32_t kLongestSession = 20;  // three entries of minis: 8, 8 and 4

// ---- cq.cpp
uint8_t* cqe_entry(const Cq& cq, uint64_t position);
mlx5_cqe64* cqe_at(const Cq& cq, uint64_t position);
// Hands the entry at `cq.produced` to the reader.
void put_cqe(Cq& cq, const mlx5_cqe64& image);

// ---- cqe_session.cpp
bool may_be_compressed(const HeldCqe& cqe);
// Holds it for a session; writes those held before when it does not go with them.
void hold_cqe(Cq& cq, const HeldCqe& cqe);
void put_session(Cq& cq, const HeldCqe* cqes, size_t count);

}  // namespace connectx
