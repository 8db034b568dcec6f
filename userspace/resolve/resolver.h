// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Resolver: plans for files, made once for each content.
//
//   Resolver resolver;
//   if (resolver.classify(path) == LibraryKind::provider)
//     auto plan = resolver.plan(path, libibverbs_of_the_same_process);
//
// Owned by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "resolve/resolve.h"

namespace sigma {

// A function pointer seen in a running process, as an offset in the file that it points into.
struct LivePointer {
  sigma_function function;
  uint64_t file_offset = 0;
};

using SharedPlan = std::shared_ptr<const LibraryPlan>;

class Resolver {
 public:
  Resolver();
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // By the dynamic section alone, a few reads: cheap enough for every mapped file of every process.
  // `other` for whatever cannot be read or is no library of ours.
  LibraryKind classify(const std::string& path) const;

  // The plan for the file at `path`, which may be /proc/PID/root/... or /proc/PID/map_files/...;
  // then debug files are looked for in that process's root. A provider needs the libibverbs that
  // the same process maps: it tells the order of the tables. Without it ("") only names can help.
  // `mapped_as`: the path as the target's maps show it, for the name; empty: `path` says it.
  // Plans are kept by content, so a library in ten containers is resolved once. Fails when the file
  // cannot be read or is neither libibverbs nor a provider; a plan without functions is no failure.
  Result<SharedPlan> plan(const std::string& path, const std::string& libibverbs,
                          const std::string& mapped_as = {});

  // plan(), with what a running process shows: functions are confirmed or added, and where the two
  // disagree on what an address is, the process is right (a note says so). Also serves files of
  // other kinds, such as programs with libibverbs linked in.
  Result<SharedPlan> plan_from_live(const std::string& path, const std::string& libibverbs,
                                    std::span<const LivePointer> live,
                                    const std::string& mapped_as = {});

 private:
  struct Cache;
  std::unique_ptr<Cache> cache_;
};

}  // namespace sigma
