// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "trace/trace_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "base/private_file.h"
#include "trace/trace_meta.h"

namespace sigma {
namespace {

constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

Error failed(const std::string& path, int errnum) {
  Error error{fmt::format("cannot write the trace {}: {}", path, errno_text(errnum))};
  if (errnum == ENOENT) error.hint = "create the folder above it first: mkdir -p";
  if (errnum == EACCES || errnum == EPERM || errnum == EROFS)
    error.hint = "choose a place that you may write to: -o DIR";
  if (errnum == ENOSPC || errnum == EDQUOT)
    error.hint = "free some space, or choose another file system: -o DIR";
  return error;
}

Error refused(const std::string& path, std::string_view reason) {
  return Error{fmt::format("will not replace {}: {}", path, reason),
               "choose another name: -o DIR, or remove it first"};
}

Result<std::vector<std::string>> entries(int folder, const std::string& path) {
  const int copy = openat(folder, ".", kFolder);
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(copy < 0 ? nullptr : fdopendir(copy), closedir);
  if (!dir) {
    const int errnum = errno;
    if (copy >= 0) close(copy);
    return failed(path, errnum);
  }
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

bool is_regular_at(int folder, const std::string& name) {
  struct stat info {};
  return fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
}

// A trace's meta.json begins in one way, whatever it says further on.
bool says_trace(int folder) {
  const Fd fd(openat(folder, "meta.json", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  std::string text(kTraceMetaBegin.size(), '\0');
  return fd && is_regular_at(folder, "meta.json") &&
         pread(fd.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
         text == kTraceMetaBegin;
}

bool is_left_over(std::string_view name) {  // of a meta.json that was being written
  return name.starts_with(".meta.json.") && name.ends_with(".tmp");
}

// Looks at everything before it removes anything.
Status empty_trace(int folder, const std::string& path) {
  constexpr std::string_view kNotOurs = "it is not a trace of sigmatrace";
  if (!says_trace(folder)) return refused(path, kNotOurs);
  SIGMA_ASSIGN(const auto names, entries(folder, path));
  for (const std::string& name : names)
    if (name != "ctf" &&
        !(is_regular_at(folder, name) && (name == "meta.json" || is_left_over(name))))
      return refused(path, fmt::format("{} in it is not ours", name));
  const Fd ctf(openat(folder, "ctf", kFolder));
  std::vector<std::string> streams;
  if (ctf) {
    SIGMA_ASSIGN(streams, entries(ctf.get(), path));
    for (const std::string& name : streams)
      if (!is_regular_at(ctf.get(), name) || !(name == "metadata" || is_stream_name(name)))
        return refused(path, fmt::format("ctf/{} in it is not ours", name));
  } else if (errno != ENOENT) {
    return refused(path, "its ctf is not a folder");
  }
  for (const std::string& name : streams)
    if (unlinkat(ctf.get(), name.c_str(), 0) != 0) return failed(path, errno);
  for (const std::string& name : names)
    if (unlinkat(folder, name.c_str(), name == "ctf" ? AT_REMOVEDIR : 0) != 0)
      return failed(path, errno);
  return {};
}

struct Folders {
  Fd root, ctf;
};

// One try with one authority. `*denied` tells that more authority may help.
Result<Folders> make(const std::string& path, const Caller& caller, bool as_root, bool* denied) {
  const auto fail = [&](int errnum) {
    *denied = errnum == EACCES || errnum == EPERM;
    return failed(path, errnum);
  };
  const bool made = mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return fail(errno);
  Folders folders{Fd(open(path.c_str(), kFolder)), {}};
  if (!folders.root) {
    if (errno == ENOTDIR || errno == ELOOP) return refused(path, "it is not a folder");
    return fail(errno);
  }
  const int root = folders.root.get();
  struct stat info {};
  if (fstat(root, &info) != 0) return fail(errno);
  if (made && as_root && fchown(root, caller.uid, caller.gid) != 0) return fail(errno);
  if (!made) {
    if (info.st_uid != caller.uid)
      return refused(path, fmt::format("it belongs to another user (uid {})", info.st_uid));
    SIGMA_CHECK(empty_trace(root, path));
  }
  if (mkdirat(root, "ctf", 0700) != 0) return fail(errno);
  folders.ctf.reset(openat(root, "ctf", kFolder));
  if (!folders.ctf) return fail(errno);
  if (as_root && fchown(folders.ctf.get(), caller.uid, caller.gid) != 0) return fail(errno);
  return folders;
}

}  // namespace

bool is_stream_name(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  const auto number = [&] {  // takes one off the front
    const size_t end = std::min(name.find_first_not_of(kDigits), name.size());
    name.remove_prefix(end);
    return end > 0;
  };
  if (name.starts_with("control"))
    name.remove_prefix(7);
  else if (name.starts_with("rings"))
    name.remove_prefix(5);
  else if (name.starts_with("cpu"))
    if (name.remove_prefix(3); !number()) return false;
  if (name.empty()) return true;
  if (name.front() != '.') return false;
  name.remove_prefix(1);
  return number() && name.empty();
}

Result<TraceDir> TraceDir::create(const std::string& path) {
  std::string folder = path;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  const Caller caller = calling_user();
  bool denied = false;
  auto folders = [&] {
    const ActAs user(caller);
    return make(folder, caller, false, &denied);
  }();
  if (!folders.ok() && denied && caller.uid != geteuid())
    folders = make(folder, caller, true, &denied);
  if (!folders.ok()) return std::move(folders).error();
  SIGMA_ASSIGN(Fd meta,
               write_private_file(folder + "/meta.json", std::string(kTraceMetaBegin) + "\n}\n"));
  return TraceDir(folder, std::move(folders->ctf), std::move(meta));
}

Result<Fd> TraceDir::create_stream(const std::string& name) {
  const Caller caller = calling_user();
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  Fd fd([&] {
    const ActAs user(caller);
    return openat(ctf_.get(), name.c_str(), kFlags, 0600);
  }());
  if (!fd) {
    fd.reset(openat(ctf_.get(), name.c_str(), kFlags, 0600));
    if (fd && fchown(fd.get(), caller.uid, caller.gid) != 0) return failed(path_, errno);
  }
  if (!fd) return failed(path_, errno);
  return fd;
}

void TraceDir::remove_stream(const std::string& name) {
  const ActAs user(calling_user());
  unlinkat(ctf_.get(), name.c_str(), 0);
}

Status TraceDir::write_meta(std::string_view text) {
  auto fd = write_private_file(path_ + "/meta.json", text);
  if (fd.ok()) {
    meta_ = *std::move(fd);
    return {};
  }
  // In place, if it surely has the room: half a meta.json would be worse than the first one.
  const auto size = static_cast<off_t>(text.size());
  if ((fallocate(meta_.get(), FALLOC_FL_KEEP_SIZE, 0, size) != 0 && errno != EOPNOTSUPP) ||
      lseek(meta_.get(), 0, SEEK_SET) != 0)
    return std::move(fd).error();
  int errnum = 0;
  if (write_all(meta_.get(), text, &errnum) == text.size() && ftruncate(meta_.get(), size) == 0)
    return {};
  return failed(path_, errnum ? errnum : errno);
}

}  // namespace sigma
