// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/serving_library.h"

#include "resolve/elf_file.h"
#include "resolve/proc_maps.h"

namespace sigma {

ServingLibrary serving_library(pid_t pid, const LiveContext& context) {
  const auto maps = read_maps(pid);
  if (!maps.ok()) return {};
  const Mapping* mapping = find_mapping(*maps, context.post_send);
  if (mapping == nullptr || mapping->inode == 0) return {};
  const std::string name = mapping->path.substr(mapping->path.rfind('/') + 1);
  // Providers are plugins by this name, libmlx5 apart; what else posts has rdma-core linked in.
  if (name.find("mlx5") == std::string::npos && name.find("-rdmav") != std::string::npos) return {};
  ServingLibrary library{true, {}};
  if (const auto path = reachable_path(pid, *mapping); path.ok())
    if (const auto elf = ElfFile::open(*path); elf.ok()) library.build_id = elf->build_id();
  return library;
}

}  // namespace sigma
