// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where builds of libmlx5 have the fields of their queue pairs and CQs, by build-id: for processes
// whose queues have not been used yet, so that none of them can tell it. What other processes' queues
// have told is remembered here as well.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "observe/cq_place.h"
#include "observe/send_place.h"

namespace sigma {

struct FieldsOfBuild {
  std::vector<SendFields> sends;  // alternatives that have told the same so far
  std::vector<CqFields> cqs;
};

// Where they are in a build of libmlx5 that has mlx5_qp.sq_start at `ring` behind struct ibv_qp, and
// mlx5_cq.active_buf at `active` behind struct ibv_cq.
FieldsOfBuild fields_from(uint16_t ring, uint16_t active);

// May be asked by several threads.
class KnownFields {
 public:
  KnownFields();
  FieldsOfBuild of(const std::string& build_id) const;
  // What a vote has told; empty ones tell nothing. An empty build-id is not remembered.
  void learn(const std::string& build_id, const FieldsOfBuild& fields);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, FieldsOfBuild> builds_;
};

}  // namespace sigma
