// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#pragma once

#include <sys/types.h>

#include <string>

#include "resolve/live_contexts.h"

namespace sigma {

// The build-id of the library that serves a context; empty: not libmlx5, or not to be told.
struct ServingLibrary {
  bool mlx5 = false;
  std::string build_id;
};
ServingLibrary serving_library(pid_t pid, const LiveContext& context);

}  // namespace sigma
