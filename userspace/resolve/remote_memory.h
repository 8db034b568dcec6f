// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// RemoteMemory: another process's memory, read without stopping or disturbing it.
//
//   SIGMA_ASSIGN(RemoteMemory memory, RemoteMemory::open(pid));
//   if (auto qp = memory.read_object<ibv_qp>(address)) ...
//
// Every read goes by process_vm_readv, and only to pages that are in memory at that moment (pagemap
// bit 63). Never read, because reading them would cost the job something:
//   - pages that are not present: untouched, swapped out, or migrated to a GPU (HMM entries show as
//     swapped, bit 62); a read would bring them in;
//   - device mappings (/dev/..., and PFN mappings of drivers): reads may have side effects, and some
//     drivers' access handlers have crashed;
//   - ranges registered with a userfaultfd: a read could wait for, or wake, the job's fault handler.
// What is read was true at some moment during the call: the owner writes meanwhile. Callers copy,
// validate the copy, and read again what must be sure.
//
// Single-threaded. Addresses are the target's.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "resolve/proc_maps.h"

namespace sigma {

struct ScanLimits {
  uint64_t max_bytes = uint64_t{64} << 30;  // read from the target, all passes together
  std::chrono::milliseconds max_time{20'000};
};

struct ScanTotals {
  uint64_t writable_bytes = 0;  // size of the mappings that were looked at
  uint64_t read_bytes = 0;
  uint64_t absent_bytes = 0;   // swapped out or on a device: not looked at, may hold objects
  uint64_t skipped_bytes = 0;  // userfaultfd ranges
  bool complete = true;        // false: a limit ended the scan
};

class RemoteMemory {
 public:
  // Fails when the process is gone or may not be read.
  static Result<RemoteMemory> open(pid_t pid);

  // Reads the maps again: what was mapped since becomes readable.
  Status refresh();

  pid_t pid() const { return pid_; }
  const std::vector<Mapping>& maps() const { return maps_; }

  // Reads all of `out`, or nothing: false when any page of it may not be read (see above).
  bool read(uint64_t address, std::span<std::byte> out) const;

  template <typename T>
  std::optional<T> read_object(uint64_t address) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    if (!read(address, std::as_writable_bytes(std::span(&value, 1)))) return std::nullopt;
    return value;
  }

  // One word at each of `addresses`, in a few system calls. result[i] is empty where it failed.
  std::vector<std::optional<uint64_t>> read_words(std::span<const uint64_t> addresses) const;

  // Calls `visit` with each present piece (at most 4 MiB, page-aligned) of the writable private
  // mappings but the main stack, in order of address. totals.read_bytes adds up over calls, and
  // max_bytes holds for the sum; max_time for each call.
  using Visitor = std::function<void(uint64_t address, std::span<const uint64_t> words)>;
  void scan_writable(const ScanLimits& limits, ScanTotals& totals, const Visitor& visit) const;

 private:
  RemoteMemory(pid_t pid, std::vector<Mapping> maps, Fd pagemap)
      : pid_(pid), maps_(std::move(maps)), pagemap_(std::move(pagemap)) {}

  bool may_read(uint64_t address, uint64_t bytes) const;
  bool all_present(uint64_t address, uint64_t bytes) const;
  bool is_forbidden(const Mapping& mapping) const;
  Status find_userfault_ranges();

  pid_t pid_;
  std::vector<Mapping> maps_;
  Fd pagemap_;
  std::vector<uint64_t> userfault_starts_;  // start addresses of mappings, sorted
};

// A device's memory, or memory that the kernel lends: reading it is not only reading.
bool is_device_mapping(const Mapping& mapping);

}  // namespace sigma
