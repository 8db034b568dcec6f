// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A line of /proc/PID/maps (proc(5)):
//
//   7f0c2a000000-7f0c2a021000 r-xp 00001000 fe:01 131081      /usr/lib/libmlx5.so.1 (deleted)
//
// The kernel writes a newline in a name as \012 and nothing else escaped (seq_file_path, esc "\n"),
// and marks a name that is gone by " (deleted)". Names are the target's choice: they may contain
// spaces, look like another line's fields, or end in " (deleted)" themselves. Nothing is believed
// of a name until reachable_path() has compared inodes.
#include "resolve/proc_maps.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>

#include "base/fd.h"

namespace sigma {
namespace {

constexpr std::string_view kDeleted = " (deleted)";

// Reads maps of up to 64 MiB (some 600,000 mappings; vm.max_map_count is 65,530 by default).
constexpr size_t kMaxMapsBytes = size_t{64} << 20;

// Takes numbers and separators off the front of a line; after a mismatch every call fails.
class LineReader {
 public:
  explicit LineReader(std::string_view line) : rest_(line) {}

  uint64_t number(int base) {
    uint64_t value = 0;
    const char* begin = rest_.data();
    auto [end, error] = std::from_chars(begin, begin + rest_.size(), value, base);
    if (error != std::errc{}) return fail();
    rest_.remove_prefix(static_cast<size_t>(end - begin));
    return value;
  }

  void literal(char expected) {
    if (rest_.empty() || rest_.front() != expected) {
      fail();
    } else {
      rest_.remove_prefix(1);
    }
  }

  std::string_view take(size_t count) {
    if (rest_.size() < count) {
      fail();
      return {};
    }
    std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_after_blanks() const {
    size_t first = rest_.find_first_not_of(' ');
    return first == std::string_view::npos ? std::string_view{} : rest_.substr(first);
  }

  bool ok() const { return ok_; }

 private:
  uint64_t fail() {
    ok_ = false;
    rest_ = {};
    return 0;
  }

  std::string_view rest_;
  bool ok_ = true;
};

std::string unescape_newlines(std::string_view name) {
  constexpr std::string_view escape = "\\012";
  std::string out;
  out.reserve(name.size());
  while (!name.empty()) {
    if (name.starts_with(escape)) {
      out.push_back('\n');
      name.remove_prefix(escape.size());
    } else {
      out.push_back(name.front());
      name.remove_prefix(1);
    }
  }
  return out;
}

std::optional<Mapping> parse_line(std::string_view line) {
  LineReader in(line);
  Mapping mapping;
  mapping.start = in.number(16);
  in.literal('-');
  mapping.end = in.number(16);
  in.literal(' ');
  std::string_view flags = in.take(4);
  in.literal(' ');
  mapping.offset = in.number(16);
  in.literal(' ');
  uint64_t major_number = in.number(16);
  in.literal(':');
  uint64_t minor_number = in.number(16);
  in.literal(' ');
  mapping.inode = in.number(10);
  if (!in.ok() || mapping.start >= mapping.end || major_number > UINT32_MAX ||
      minor_number > UINT32_MAX) {
    return std::nullopt;
  }
  mapping.readable = flags[0] == 'r';
  mapping.writable = flags[1] == 'w';
  mapping.executable = flags[2] == 'x';
  mapping.shared = flags[3] == 's';
  mapping.device =
      makedev(static_cast<unsigned>(major_number), static_cast<unsigned>(minor_number));

  std::string_view name = in.rest_after_blanks();
  if (name.ends_with(kDeleted)) {
    mapping.deleted = true;
    name.remove_suffix(kDeleted.size());
  }
  mapping.path = unescape_newlines(name);
  return mapping;
}

// Reads a whole file of procfs. Returns 0, or the errno.
int read_whole(const std::string& path, std::string& text) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return errno;
  constexpr size_t chunk = 64 << 10;
  for (;;) {
    size_t old_size = text.size();
    if (old_size > kMaxMapsBytes) return EFBIG;
    text.resize(old_size + chunk);
    ssize_t got = ::read(fd.get(), text.data() + old_size, chunk);
    int cause = errno;
    text.resize(old_size + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return 0;
    if (got < 0 && cause != EINTR) return cause;
  }
}

// Opens `path` below `root` without following a symbolic link: the kernel gave the mapping's name
// resolved, so that a link on the way means that it is not the mapped file any more. An absolute
// one would even lead out of the target's root.
Fd open_below(const std::string& root, const std::string& path) {
  Fd directory(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return {};
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS;
  return Fd(
      static_cast<int>(::syscall(SYS_openat2, directory.get(), path.c_str(), &how, sizeof how)));
}

}  // namespace

std::vector<Mapping> parse_maps(std::string_view text) {
  std::vector<Mapping> maps;
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    if (auto mapping = parse_line(text.substr(0, end))) maps.push_back(*std::move(mapping));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return maps;
}

Result<std::vector<Mapping>> read_maps(pid_t pid) {
  std::string text;
  std::string path = fmt::format("/proc/{}/maps", pid);
  if (int cause = read_whole(path, text); cause == ENOENT || cause == ESRCH) {
    return Error{fmt::format("process {} does not exist (any more)", pid)};
  } else if (cause != 0) {
    bool denied = cause == EACCES || cause == EPERM;
    return Error{fmt::format("cannot read {}: {}", path, errno_text(cause)),
                 denied ? "run as root, or with CAP_SYS_PTRACE" : ""};
  }
  // A zombie and a kernel thread have an empty maps file.
  std::vector<Mapping> maps = parse_maps(text);
  if (maps.empty()) return Error{fmt::format("process {} has no memory: it has exited", pid)};
  return maps;
}

const Mapping* find_mapping(const std::vector<Mapping>& maps, uint64_t address) {
  auto after = std::upper_bound(maps.begin(), maps.end(), address,
                                [](uint64_t a, const Mapping& m) { return a < m.start; });
  if (after == maps.begin()) return nullptr;
  const Mapping& candidate = *std::prev(after);
  return address < candidate.end ? &candidate : nullptr;
}

Result<std::string> reachable_path(pid_t pid, const Mapping& mapping) {
  if (mapping.inode == 0 || !mapping.path.starts_with('/')) {
    return Error{fmt::format("mapping {:x}-{:x} of process {} is not of a file", mapping.start,
                             mapping.end, pid)};
  }
  std::string root = fmt::format("/proc/{}/root", pid);
  if (!mapping.deleted) {
    struct stat status;
    Fd file = open_below(root, mapping.path);
    // The inode decides. maps and stat may differ in the device: maps shows the superblock's, stat
    // on btrfs the subvolume's and on overlayfs the overlay's or the layer's.
    if (file && ::fstat(file.get(), &status) == 0 && status.st_ino == mapping.inode &&
        S_ISREG(status.st_mode)) {
      return root + mapping.path;
    }
  }
  std::string by_address =
      fmt::format("/proc/{}/map_files/{:x}-{:x}", pid, mapping.start, mapping.end);
  Fd file(::open(by_address.c_str(), O_RDONLY | O_CLOEXEC));
  if (file) return by_address;
  int cause = errno;
  return Error{
      fmt::format(
          "cannot reach {} as process {} has it mapped: {} and {}: {}", mapping.path, pid,
          mapping.deleted ? "its file was deleted or replaced" : "its name leads to another file",
          by_address, errno_text(cause)),
      cause == EPERM || cause == EACCES ? "run as root, or with CAP_CHECKPOINT_RESTORE (and CAP_DAC_READ_SEARCH for a "
                                             "process of another user)"
                                        : "the mapping is gone: is the process still running?"};
}

}  // namespace sigma
