// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The records' layout is the same in C and C++, and the data-path ones keep to their bound.
#include "bpf/records.h"

#include "catch.h"

extern "C" const unsigned long sigma_c_sizes[];
extern "C" const unsigned long sigma_c_offsets[];

TEST_CASE("records have the same size in C and C++") {
  const unsigned long sizes[] = {
      sizeof(sigma_header),  sizeof(sigma_post),    sizeof(sigma_post_result), sizeof(sigma_completion),
      sizeof(sigma_qp_seen), sizeof(sigma_context), sizeof(sigma_process),     sizeof(sigma_uverbs),
      sizeof(sigma_uverbs_attr), sizeof(sigma_mr_seen), sizeof(sigma_qp_peer), sizeof(sigma_window),
      sizeof(sigma_clock_sample),
    sizeof(sigma_ring), sizeof(sigma_ring_post), sizeof(sigma_ring_completion), sizeof(sigma_ring_gap),
  };
  for (size_t i = 0; i < std::size(sizes); ++i) CHECK(sizes[i] == sigma_c_sizes[i]);
}

TEST_CASE("records have their last fields at the same offset in C and C++") {
  const unsigned long offsets[] = {
      offsetof(sigma_header, tid),       offsetof(sigma_post, reserved),  offsetof(sigma_completion, reserved),
      offsetof(sigma_uverbs, flags),     offsetof(sigma_context, device), offsetof(sigma_qp_peer, qp_type),
      offsetof(sigma_clock_sample, device),
    offsetof(sigma_ring, reason), offsetof(sigma_ring_post, reserved), offsetof(sigma_ring_completion, reserved), offsetof(sigma_ring_gap, reserved),
  };
  for (size_t i = 0; i < std::size(offsets); ++i) CHECK(offsets[i] == sigma_c_offsets[i]);
}

TEST_CASE("data-path records are at most 128 bytes") {
  CHECK(sizeof(sigma_post) <= 128);
  CHECK(sizeof(sigma_post_result) <= 128);
  CHECK(sizeof(sigma_completion) <= 128);
  CHECK(sizeof(sigma_ring) <= 128);
  CHECK(sizeof(sigma_ring_post) <= 128);
  CHECK(sizeof(sigma_ring_completion) <= 128);
  CHECK(sizeof(sigma_ring_gap) <= 128);
}
