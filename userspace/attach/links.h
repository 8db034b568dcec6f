// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Links between uprobes and loaded programs, by the raw system calls: libbpf 1.1 knows no multi
// links. Errors are negative errno values, as the caller decides what they mean.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace sigma {

// enum bpf_attach_type of kernels that may be newer than the headers. Given to the program at its
// load and to its link.
inline constexpr uint32_t kAttachPerf = 41;         // BPF_PERF_EVENT; the program is loaded with 0
inline constexpr uint32_t kAttachUprobeMulti = 48;  // BPF_TRACE_UPROBE_MULTI
inline constexpr uint32_t kAttachUprobeSession = 57;  // BPF_TRACE_UPROBE_SESSION

// Both descriptors must go for the probe to go: closing removes it.
struct UprobeLink {
  Fd link;
  Fd event;  // perf form only
};

struct UprobeMultiRequest {
  int program_fd = -1;
  uint32_t attach_type = kAttachUprobeMulti;
  std::string path;
  std::span<const uint64_t> offsets;
  std::span<const uint64_t> cookies;  // as many, or none
  // Where in the file the kernel counts each probe, in every process that has it; as many, or none.
  std::span<const uint64_t> counter_offsets;
  pid_t pid = 0;                      // 0: every process
  bool at_return = false;             // multi only; a session sees both
};

// The kernel's answer: a link, or -errno. All offsets or none are attached.
int link_uprobe_multi(const UprobeMultiRequest& request, UprobeLink& link);

// One probe by perf_event_open. pid 0: every process. `counter_offset` 0: it is not counted.
int link_uprobe_perf(int program_fd, const std::string& path, uint64_t offset, uint64_t cookie,
                     pid_t pid, bool at_return, UprobeLink& link, uint64_t counter_offset = 0);

// Closes many links by parallel threads: each close waits for the kernel's grace periods (~50 ms).
void close_links(std::vector<UprobeLink> links);

// A function of this process as a probe site: the file it is mapped from and the offset in it.
struct OwnSite {
  std::string path;
  uint64_t offset = 0;
};
Result<OwnSite> own_site(const void* function);

}  // namespace sigma
