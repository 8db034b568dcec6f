// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/known_fields.h"

#include <array>
#include <string_view>

namespace sigma {
namespace {

// One offset of each structure, relative to struct ibv_qp and struct ibv_cq. Measured on Debian's builds.
struct Row {
  std::string_view build_id;
  uint16_t ring;    // of mlx5_qp.sq_start
  uint16_t active;  // of mlx5_cq.active_buf
};
constexpr auto kRows = std::to_array<Row>({
    {"c5814279212a3275fb448d682e6984e141f755b0", 0x260, 0x1a0},  // Debian 11: rdma-core 33.2
    {"800c6ca768baceb592682738a03643f11379cbdd", 0x2b8, 0x1a0},  // Debian 12: rdma-core 44.0
    {"746f5276b649cf32baf1b69182c5b2a48b985f6f", 0x2c0, 0x1a0},  // Debian 13: rdma-core 56.1
    {"a7e9437a27b9d3a7d44205709d165833694eef8b", 0x2d0, 0x1b0},  // Debian sid: rdma-core 65.0
});

}  // namespace

// The fields behind these are where they are in all builds that were measured (rdma-core, providers/mlx5/mlx5.h):
// mlx5_qp { ...; sq_start; mlx5_wq sq { ...; wqe_cnt; ...; qend; ... }; db; ... }, and mlx5_cq { ...; active_buf;
// ...; cqn; cons_index; dbrec; ... }. So an entry of the table stands for several fields, and a wrong one leads to
// nothing that is a ring, its size and a doorbell record at once (tests/emulator/trace/late_fields.cpp).
FieldsOfBuild fields_from(uint16_t ring, uint16_t active) {
  constexpr uint16_t kBlocks = 0x24, kDoorbell = 0x58, kCqDoorbell = 0x30;
  const auto behind = [](uint16_t base, uint16_t distance) { return static_cast<uint16_t>(base + distance); };
  return {{{ring, behind(ring, kBlocks), behind(ring, kDoorbell)}}, {{active, behind(active, kCqDoorbell)}}};
}

KnownFields::KnownFields() {
  for (const Row& row : kRows) builds_[std::string(row.build_id)] = fields_from(row.ring, row.active);
}

FieldsOfBuild KnownFields::of(const std::string& build_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = builds_.find(build_id);
  return it == builds_.end() ? FieldsOfBuild{} : it->second;
}

void KnownFields::learn(const std::string& build_id, const FieldsOfBuild& fields) {
  if (build_id.empty()) return;
  const std::lock_guard lock(mutex_);
  FieldsOfBuild& known = builds_[build_id];
  if (!fields.sends.empty()) known.sends = fields.sends;
  if (!fields.cqs.empty()) known.cqs = fields.cqs;
}

}  // namespace sigma
