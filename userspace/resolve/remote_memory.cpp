// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// pagemap: one u64 per page; bit 63 present, bit 62 swapped or device-private
// (Documentation/admin-guide/mm/pagemap.rst). It is read just before the pages are, so that a page
// can go in between; then process_vm_readv brings it back, which is harmless and rare.
#include "resolve/remote_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

namespace sigma {
namespace {

constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kSwapped = uint64_t{1} << 62;
constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr size_t kReadsPerCall = 512;  // of IOV_MAX 1024
// smaps costs the target its mmap lock for the walk of each mapping: above this it is not read.
constexpr uint64_t kMaxSmapsResidentBytes = uint64_t{64} << 30;

uint64_t page_size() {
  static const auto size = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

bool has_userfaultfd(pid_t pid) {
  std::string directory = fmt::format("/proc/{}/fd", pid);
  std::unique_ptr<DIR, int (*)(DIR*)> fds(::opendir(directory.c_str()), ::closedir);
  if (!fds) return true;  // cannot tell: look
  while (const dirent* entry = ::readdir(fds.get())) {
    char target[64];
    ssize_t length = ::readlinkat(::dirfd(fds.get()), entry->d_name, target, sizeof target);
    if (length > 0 &&
        std::string_view(target, static_cast<size_t>(length)) == "anon_inode:[userfaultfd]")
      return true;
  }
  return false;
}

uint64_t resident_bytes(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/statm", pid));
  uint64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * page_size();
}

}  // namespace

bool is_device_mapping(const Mapping& mapping) {
  const std::string& path = mapping.path;
  if (path.starts_with("/dev/shm/") || path.starts_with("/dev/hugepages/")) return false;
  if (path == "/dev/zero" || path.starts_with("/dev/zero ")) return false;
  return path.starts_with("/dev/") || path.starts_with("/sys/") ||
         path.starts_with("anon_inode:") || path.starts_with("[vvar") || path == "[vsyscall]" ||
         path.starts_with("/dmabuf:");
}

Result<RemoteMemory> RemoteMemory::open(pid_t pid) {
  SIGMA_ASSIGN(std::vector<Mapping> maps, read_maps(pid));
  std::string path = fmt::format("/proc/{}/pagemap", pid);
  Fd pagemap(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!pagemap) {
    return Error{fmt::format("cannot open {}: {}", path, errno_text(errno)),
                 "run as root, or with CAP_SYS_PTRACE"};
  }
  RemoteMemory memory(pid, std::move(maps), std::move(pagemap));
  SIGMA_CHECK(memory.find_userfault_ranges());

  // pagemap opens for everybody on some kernels and then reads as zeros; one real read decides.
  for (const Mapping& mapping : memory.maps_) {
    if (!mapping.readable || memory.is_forbidden(mapping)) continue;
    uint64_t word;
    iovec local{&word, sizeof word};
    iovec remote{reinterpret_cast<void*>(mapping.start), sizeof word};
    if (!memory.all_present(mapping.start, sizeof word)) continue;
    if (::process_vm_readv(pid, &local, 1, &remote, 1, 0) == sizeof word) return memory;
    if (errno != EPERM && errno != ENOSYS) continue;
    return Error{
        fmt::format("cannot read the memory of process {}: {}", pid, errno_text(errno)),
        "run as root, or with CAP_SYS_PTRACE; see also /proc/sys/kernel/yama/ptrace_scope"};
  }
  return memory;
}

Status RemoteMemory::refresh() {
  SIGMA_ASSIGN(maps_, read_maps(pid_));
  return find_userfault_ranges();
}

// VmFlags (um: missing, uw: write-protect, ui: minor) stand only in smaps, which walks all page
// tables under the mmap lock: about 10 ms per GiB of small pages. So it is read only where the
// process holds a userfaultfd. One that was handed to another process and closed here is not seen
// by this; there the present bit is the guard, and only a page that goes away during a read can
// reach the handler.
Status RemoteMemory::find_userfault_ranges() {
  userfault_starts_.clear();
  if (!has_userfaultfd(pid_)) return {};
  if (resident_bytes(pid_) > kMaxSmapsResidentBytes) {
    return Error{
        fmt::format("process {} uses userfaultfd and is too large to tell for which memory", pid_)};
  }
  std::ifstream smaps(fmt::format("/proc/{}/smaps", pid_));
  std::string line;
  uint64_t start = 0;
  while (std::getline(smaps, line)) {
    if (line.starts_with("VmFlags:")) {
      line += ' ';
      bool registered = line.find(" um ") != std::string::npos ||
                        line.find(" uw ") != std::string::npos ||
                        line.find(" ui ") != std::string::npos;
      if (registered) userfault_starts_.push_back(start);
    } else if (auto head = parse_maps(line); !head.empty()) {
      start = head.front().start;
    }
  }
  if (!smaps.eof() || start == 0) {
    return Error{fmt::format("cannot read /proc/{}/smaps to find its userfaultfd ranges", pid_)};
  }
  std::sort(userfault_starts_.begin(), userfault_starts_.end());
  return {};
}

bool RemoteMemory::is_forbidden(const Mapping& mapping) const {
  return is_device_mapping(mapping) ||
         std::binary_search(userfault_starts_.begin(), userfault_starts_.end(), mapping.start);
}

bool RemoteMemory::may_read(uint64_t address, uint64_t bytes) const {
  if (bytes == 0 || address + bytes < address) return false;
  const uint64_t end = address + bytes;
  while (address < end) {
    const Mapping* mapping = find_mapping(maps_, address);
    if (!mapping || !mapping->readable || is_forbidden(*mapping)) return false;
    address = mapping->end;
  }
  return true;
}

bool RemoteMemory::all_present(uint64_t address, uint64_t bytes) const {
  uint64_t first = address / page_size();
  uint64_t last = (address + bytes - 1) / page_size();
  while (first <= last) {
    uint64_t entries[64];
    size_t count = std::min<uint64_t>(std::size(entries), last - first + 1);
    auto want = static_cast<ssize_t>(count * sizeof(uint64_t));
    if (::pread(pagemap_.get(), entries, static_cast<size_t>(want),
                static_cast<off_t>(first * sizeof(uint64_t))) != want) {
      return false;
    }
    if (!std::all_of(entries, entries + count, [](uint64_t e) { return e & kPresent; }))
      return false;
    first += count;
  }
  return true;
}

bool RemoteMemory::read(uint64_t address, std::span<std::byte> out) const {
  if (!may_read(address, out.size()) || !all_present(address, out.size())) return false;
  iovec local{out.data(), out.size()};
  iovec remote{reinterpret_cast<void*>(address), out.size()};
  return ::process_vm_readv(pid_, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(out.size());
}

std::vector<std::optional<uint64_t>> RemoteMemory::read_words(
    std::span<const uint64_t> addresses) const {
  std::vector<std::optional<uint64_t>> result(addresses.size());
  std::vector<size_t> allowed;
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (may_read(addresses[i], sizeof(uint64_t)) && all_present(addresses[i], sizeof(uint64_t)))
      allowed.push_back(i);
  }
  for (size_t done = 0; done < allowed.size();) {
    uint64_t values[kReadsPerCall];
    iovec local[kReadsPerCall], remote[kReadsPerCall];
    size_t count = std::min(kReadsPerCall, allowed.size() - done);
    for (size_t i = 0; i < count; ++i) {
      local[i] = {&values[i], sizeof(uint64_t)};
      remote[i] = {reinterpret_cast<void*>(addresses[allowed[done + i]]), sizeof(uint64_t)};
    }
    ssize_t got = ::process_vm_readv(pid_, local, count, remote, count, 0);
    // The kernel stops at the first word that it cannot read: that one is skipped, the rest
    // retried.
    size_t whole = got < 0 ? 0 : static_cast<size_t>(got) / sizeof(uint64_t);
    for (size_t i = 0; i < whole; ++i) result[allowed[done + i]] = values[i];
    done += whole < count ? whole + 1 : count;
  }
  return result;
}

void RemoteMemory::scan_writable(const ScanLimits& limits, ScanTotals& totals,
                                 const Visitor& visit) const {
  const auto deadline = std::chrono::steady_clock::now() + limits.max_time;
  const uint64_t page = page_size();
  totals.writable_bytes = totals.absent_bytes = totals.skipped_bytes = 0;
  std::vector<uint64_t> buffer(kPieceBytes / sizeof(uint64_t));
  std::vector<uint64_t> entries(kPieceBytes / page);
  for (const Mapping& mapping : maps_) {
    if (!mapping.readable || !mapping.writable || mapping.shared || mapping.path == "[stack]" ||
        is_device_mapping(mapping)) {
      continue;
    }
    if (is_forbidden(mapping)) {
      totals.skipped_bytes += mapping.end - mapping.start;
      continue;
    }
    totals.writable_bytes += mapping.end - mapping.start;
    for (uint64_t piece = mapping.start; piece < mapping.end; piece += kPieceBytes) {
      if (totals.read_bytes >= limits.max_bytes || std::chrono::steady_clock::now() >= deadline) {
        totals.complete = false;
        return;
      }
      size_t pages = std::min<uint64_t>(kPieceBytes, mapping.end - piece) / page;
      ssize_t got = ::pread(pagemap_.get(), entries.data(), pages * sizeof(uint64_t),
                            static_cast<off_t>(piece / page * sizeof(uint64_t)));
      if (got < 0) break;  // the mapping, or the process, is gone
      pages = std::min(pages, static_cast<size_t>(got) / sizeof(uint64_t));
      for (size_t i = 0; i < pages;) {
        size_t run = i;
        while (run < pages && (entries[run] & kPresent)) ++run;
        if (run == i) {
          if (entries[i] & kSwapped) totals.absent_bytes += page;
          ++i;
          continue;
        }
        uint64_t address = piece + i * page;
        iovec local{buffer.data(), (run - i) * page};
        iovec remote{reinterpret_cast<void*>(address), (run - i) * page};
        ssize_t bytes = ::process_vm_readv(pid_, &local, 1, &remote, 1, 0);
        if (bytes > 0) {
          totals.read_bytes += static_cast<uint64_t>(bytes);
          visit(address, std::span(buffer).first(static_cast<size_t>(bytes) / sizeof(uint64_t)));
        }
        i = run;
      }
    }
  }
}

}  // namespace sigma
