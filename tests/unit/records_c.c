/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The layout as the C compiler sees it; records.cpp compares it with C++'s. */
#include "bpf/records.h"

const unsigned long sigma_c_sizes[] = {
    sizeof(struct sigma_header),     sizeof(struct sigma_post),    sizeof(struct sigma_post_result),
    sizeof(struct sigma_completion), sizeof(struct sigma_qp_seen), sizeof(struct sigma_context),
    sizeof(struct sigma_process),    sizeof(struct sigma_uverbs),  sizeof(struct sigma_uverbs_attr),
    sizeof(struct sigma_mr_seen),    sizeof(struct sigma_qp_peer), sizeof(struct sigma_window),
    sizeof(struct sigma_clock_sample),
    sizeof(struct sigma_ring), sizeof(struct sigma_ring_post), sizeof(struct sigma_ring_completion), sizeof(struct sigma_ring_gap),
};
const unsigned long sigma_c_offsets[] = {
    offsetof(struct sigma_header, tid),       offsetof(struct sigma_post, reserved),
    offsetof(struct sigma_completion, reserved), offsetof(struct sigma_uverbs, flags),
    offsetof(struct sigma_context, device),   offsetof(struct sigma_qp_peer, qp_type),
    offsetof(struct sigma_clock_sample, device),
    offsetof(struct sigma_ring, reason), offsetof(struct sigma_ring_post, reserved), offsetof(struct sigma_ring_completion, reserved), offsetof(struct sigma_ring_gap, reserved),
};
