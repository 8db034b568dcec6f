// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The registry of the preloaded GPU library (gpu_interpose/registry.h), read from outside: which
// queues a process had before it was traced, and to whom they lead.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bpf/records.h"
#include "gpu_interpose/registry.h"
#include "resolve/remote_memory.h"

namespace sigma {

// The live queues of the registry at `address` in that process. What it holds may be anything:
// entries that are being written, or cannot be read, are left out. Fails when there is no registry
// of this version. `with_ended`: also those that have ended and whose entry nobody has taken over.
Result<std::vector<sigma_gpu_queue>> read_gpu_registry(const RemoteMemory& memory,
                                                       uint64_t address, bool with_ended = false);

// The peers that the queues' set-up commands named.
std::vector<sigma_qp_peer> to_peer_records(const std::vector<sigma_gpu_queue>& queues,
                                           uint64_t now_ns);

// By device and number, the tier of those that GPUs post to: 1 are in host memory, and the observer
// reads them; of the others the library tells, or nobody.
std::map<std::pair<std::string, uint32_t>, uint8_t> gpu_tiers(const std::vector<sigma_gpu_queue>& queues);

// Where a symbol of a file stands in a process that maps it; 0: it does not.
uint64_t address_in_process(const std::vector<Mapping>& maps, const std::string& mapped_as,
                            uint64_t file_offset);

}  // namespace sigma
