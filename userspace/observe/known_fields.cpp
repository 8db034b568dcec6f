// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/known_fields.h"

#include <array>
#include <string_view>

namespace sigma {
namespace {

// Relative to struct ibv_qp and struct ibv_cq. Measured on Debian's builds.
struct Row {
  std::string_view build_id;
  SendFields send;
  CqFields cq;
};
constexpr auto kRows = std::to_array<Row>({
    // Debian 11: rdma-core 33.2
    {"c5814279212a3275fb448d682e6984e141f755b0", {0x260, 0x284, 0x2b8}, {0x1a0, 0x1d0}},
    // Debian 12: rdma-core 44.0
    {"800c6ca768baceb592682738a03643f11379cbdd", {0x2b8, 0x2dc, 0x310}, {0x1a0, 0x1d0}},
    // Debian 13: rdma-core 56.1
    {"746f5276b649cf32baf1b69182c5b2a48b985f6f", {0x2c0, 0x2e4, 0x318}, {0x1a0, 0x1d0}},
    // Debian sid: rdma-core 65.0
    {"a7e9437a27b9d3a7d44205709d165833694eef8b", {0x2d0, 0x2f4, 0x328}, {0x1b0, 0x1e0}},
});

}  // namespace

KnownFields::KnownFields() {
  for (const Row& row : kRows) builds_[std::string(row.build_id)] = {{row.send}, {row.cq}};
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
