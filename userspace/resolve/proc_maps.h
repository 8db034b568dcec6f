// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// /proc/PID/maps, parsed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sigma {

struct Mapping {
  uint64_t start = 0, end = 0;  // [start, end)
  uint64_t offset = 0;          // in the file
  bool readable = false, writable = false, executable = false, shared = false;
  dev_t device = 0;
  uint64_t inode = 0;           // 0: anonymous
  std::string path;             // without " (deleted)"
  bool deleted = false;
};

// Parses the text of a maps file; lines that do not parse are left out.
std::vector<Mapping> parse_maps(std::string_view text);

// Fails with the cause when the process is gone or may not be read.
Result<std::vector<Mapping>> read_maps(pid_t pid);

// The mapping that holds `address`, or nullptr. `maps` in order of address, as the kernel gives them.
const Mapping* find_mapping(const std::vector<Mapping>& maps, uint64_t address);

// A path by which this process can open the mapped file, whatever the target's root and whether the
// file still has a name: /proc/PID/root/..., or /proc/PID/map_files/... when that is another inode.
Result<std::string> reachable_path(pid_t pid, const Mapping& mapping);

}  // namespace sigma
