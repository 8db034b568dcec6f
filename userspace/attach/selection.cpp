// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/selection.h"

#include <bpf/btf.h>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>

namespace sigma {
namespace {

constexpr size_t kCommBytes = sizeof(sigma_selection::comm) - 1;

std::string comm_of(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/comm", pid));
  std::string comm;
  std::getline(in, comm);
  return comm;
}

// The line "0::/system.slice/job" of /proc/PID/cgroup: the unified hierarchy (cgroups(7)).
std::optional<std::string> cgroup_of(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/cgroup", pid));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("0::")) return line.substr(3);
  return std::nullopt;
}

bool is_below(std::string_view path, std::string_view folder) {
  if (folder == "/") return true;
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

struct Mount {
  std::string root, point;  // what of the file system, and where
};

// The mount that holds `path`: the longest mount point of a cgroup2 file system that it is below.
// A line of mountinfo: "30 25 0:26 /root /point options - cgroup2 source super", proc(5).
std::optional<Mount> cgroup2_mount(const std::string& path) {
  std::ifstream in("/proc/self/mountinfo");
  std::optional<Mount> best;
  for (std::string line; std::getline(in, line);) {
    if (line.find(" - cgroup2 ") == line.npos) continue;
    std::string_view rest = line;
    std::string_view fields[5];
    for (std::string_view& field : fields) {
      const size_t space = std::min(rest.find(' '), rest.size());
      field = rest.substr(0, space);
      rest.remove_prefix(std::min(space + 1, rest.size()));
    }
    if (is_below(path, fields[4]) && (!best || fields[4].size() > best->point.size()))
      best = Mount{std::string(fields[3]), std::string(fields[4])};
  }
  return best;
}

// Offsets in struct task_struct, from the kernel's own description of itself.
struct TaskOffsets {
  uint32_t leader = 0, comm = 0;
};

TaskOffsets task_offsets() {
  const std::unique_ptr<btf, void (*)(btf*)> kernel(btf__load_vmlinux_btf(), btf__free);
  if (!kernel) return {};
  const int32_t id = btf__find_by_name_kind(kernel.get(), "task_struct", BTF_KIND_STRUCT);
  if (id < 0) return {};
  const btf_type* type = btf__type_by_id(kernel.get(), static_cast<uint32_t>(id));
  TaskOffsets offsets;
  for (uint32_t i = 0; i < btf_vlen(type); i++) {
    const char* name = btf__name_by_offset(kernel.get(), btf_members(type)[i].name_off);
    const uint32_t at = btf_member_bit_offset(type, i) / 8;
    if (std::strcmp(name, "group_leader") == 0) offsets.leader = at;
    if (std::strcmp(name, "comm") == 0) offsets.comm = at;
  }
  return offsets;
}

}  // namespace

std::string Selection::text() const {
  std::string text = comm.empty() ? "all processes" : fmt::format("processes named {}", comm);
  if (uid) text += fmt::format(" of user {}", *uid);
  if (!cgroup.empty()) text += " in " + cgroup;
  return text;
}

std::optional<uid_t> uid_of(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("Uid:\t")) continue;
    uid_t uid = 0;
    const auto parsed = std::from_chars(line.data() + 5, line.data() + line.size(), uid);
    if (parsed.ec == std::errc{}) return uid;
  }
  return std::nullopt;
}

Result<ProcessSelector> ProcessSelector::open(const Selection& selection) {
  ProcessSelector selector(selection);
  selector.selection_.comm.resize(std::min(selection.comm.size(), kCommBytes));
  if (selection.cgroup.empty()) return selector;

  selector.cgroup_ = Fd(::open(selection.cgroup.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!selector.cgroup_)
    return Error{fmt::format("cannot open the cgroup {}: {}", selection.cgroup, errno_text(errno)),
                 "name its folder, such as /sys/fs/cgroup/system.slice"};
  struct statfs status;
  if (fstatfs(selector.cgroup_.get(), &status) != 0 || status.f_type != CGROUP2_SUPER_MAGIC)
    return Error{fmt::format("{} is no cgroup of version 2", selection.cgroup),
                 "name its folder in a cgroup2 file system; `stat -f -c %T FOLDER` tells"};
  const std::unique_ptr<char, void (*)(void*)> real(realpath(selection.cgroup.c_str(), nullptr),
                                                    free);
  const auto mount = real ? cgroup2_mount(real.get()) : std::nullopt;
  if (!mount) return Error{fmt::format("{}: its mount is not known", selection.cgroup)};
  const std::string_view below =
      std::string_view(real.get()).substr(mount->point == "/" ? 0 : mount->point.size());
  selector.cgroup_path_ = fmt::format("{}{}", mount->root == "/" ? "" : mount->root, below);
  if (selector.cgroup_path_.empty()) selector.cgroup_path_.assign(1, '/');
  return selector;
}

bool ProcessSelector::matches(pid_t pid) const {
  if (pid == getpid()) return false;
  const auto uid = uid_of(pid);
  if (!uid || (selection_.uid && *uid != *selection_.uid)) return false;
  if (!selection_.comm.empty() && comm_of(pid) != selection_.comm) return false;
  if (cgroup_path_.empty()) return true;
  const auto cgroup = cgroup_of(pid);
  return cgroup && is_below(*cgroup, cgroup_path_);
}

void ProcessSelector::for_each(const std::function<void(pid_t)>& visit) const {
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), closedir);
  if (!processes) return;
  while (const dirent* entry = readdir(processes.get())) {
    const std::string_view name = entry->d_name;
    pid_t pid = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (parsed.ec == std::errc{} && parsed.ptr == name.data() + name.size() && matches(pid))
      visit(pid);
  }
}

sigma_selection ProcessSelector::for_bpf() const {
  sigma_selection selection = {};
  selection.by_uid = selection_.uid.has_value();
  selection.uid = selection_.uid.value_or(0);
  selection.by_cgroup = !selection_.cgroup.empty();
  selection.by_comm = !selection_.comm.empty();
  std::memcpy(selection.comm, selection_.comm.data(), selection_.comm.size());
  if (selection.by_comm) {
    const TaskOffsets offsets = task_offsets();
    selection.leader_at = offsets.leader;
    selection.comm_at = offsets.comm;
  }
  selection.except_tgid = static_cast<uint32_t>(getpid());
  return selection;
}

}  // namespace sigma
