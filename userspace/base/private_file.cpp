// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "base/private_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/auxv.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace sigma {
namespace {

std::optional<uint32_t> id_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (!text) return std::nullopt;
  uint32_t id = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, id);
  // (uid_t)-1 means "leave as it is" to chown and setfsuid.
  if (error != std::errc{} || stop != end || stop == text || id == UINT32_MAX) return std::nullopt;
  return id;
}

// Where a file shall be. The folder is opened once: later steps cannot be led elsewhere.
struct Place {
  std::string path;
  std::string name;  // last component
  Fd folder;
};

enum class Authority { caller, root };

Error failed(const std::string& path, int errnum) {
  Error error{fmt::format("cannot write {}: {}", path, errno_text(errnum))};
  switch (errnum) {
    case ENOENT:
      error.hint = "create the folder first: mkdir -p";
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      error.hint = "choose a place that you may write to: -o PATH";
      break;
    case ENOSPC:
    case EDQUOT:
      error.hint = "free some space, or choose another file system: -o PATH";
      break;
    default:
      break;
  }
  return error;
}

bool is_denied(int errnum) {
  return errnum == EACCES || errnum == EPERM;
}

// 0, or an errno.
int open_folder(Place* place) {
  const size_t slash = place->path.rfind('/');
  place->name = place->path.substr(slash == std::string::npos ? 0 : slash + 1);
  const std::string folder = slash == std::string::npos ? "." : place->path.substr(0, slash + 1);
  place->folder.reset(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  return place->folder ? 0 : errno;
}

// What stands at the place now; nullopt: nothing. `*denied` as in replace().
Result<std::optional<struct stat>> look(const Place& place, bool* denied) {
  struct stat info {};
  if (place.name.empty() || place.name == "." || place.name == "..")
    return Error{fmt::format("cannot write {}: it is a folder", place.path),
                 "name a file: -o FILE.csv"};
  if (fstatat(place.folder.get(), place.name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0)
    return std::optional(info);
  if (errno == ENOENT) return std::optional<struct stat>();
  *denied = is_denied(errno);
  return failed(place.path, errno);
}

// Devices and FIFOs are used as they are. O_NOFOLLOW and the second look make sure that it is the
// object whose owner was checked.
Result<Fd> open_special(const Place& place, const struct stat& expected, const Caller& caller) {
  if (S_ISFIFO(expected.st_mode) && expected.st_uid != caller.uid && expected.st_uid != 0)
    return Error{fmt::format("will not write to {}: the pipe belongs to another user (uid {})",
                             place.path, expected.st_uid)};
  Fd fd(
      openat(place.folder.get(), place.name.c_str(), O_WRONLY | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC));
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0) return failed(place.path, errno);
  if (info.st_dev != expected.st_dev || info.st_ino != expected.st_ino)
    return Error{fmt::format("will not write to {}: it changed while it was opened", place.path)};
  return fd;
}

// A new file of the caller's, with `contents`, renamed to the place. 0 or an errno.
int put(const Place& place, const Caller& caller, Authority authority, std::string_view contents,
        Fd* result) {
  const std::string staged = fmt::format(".{}.{}.tmp", place.name.substr(0, 200), getpid());
  const int folder = place.folder.get();
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  Fd fd(openat(folder, staged.c_str(), kFlags, 0600));
  if (!fd && errno == EEXIST) {  // left by a killed tracer with our pid
    unlinkat(folder, staged.c_str(), 0);
    fd.reset(openat(folder, staged.c_str(), kFlags, 0600));
  }
  if (!fd) return errno;
  int error = 0;
  if (fchmod(fd.get(), 0600) != 0) error = errno;  // whatever the umask
  if (!error && authority == Authority::root && fchown(fd.get(), caller.uid, caller.gid) != 0)
    error = errno;
  if (!error) write_all(fd.get(), contents, &error);
  if (!error && renameat(folder, staged.c_str(), folder, place.name.c_str()) != 0) error = errno;
  if (error) {
    unlinkat(folder, staged.c_str(), 0);
    return error;
  }
  *result = std::move(fd);
  return 0;
}

// One try with one authority. `*denied` tells that more authority may help.
Result<Fd> replace(const std::string& path, const Caller& caller, Authority authority,
                   std::string_view contents, bool* denied) {
  Place place{path, {}, {}};
  if (const int error = open_folder(&place)) {
    *denied = is_denied(error);
    return failed(path, error);
  }
  SIGMA_ASSIGN(const auto there, look(place, denied));
  if (there) {
    const mode_t mode = there->st_mode;
    if (S_ISLNK(mode))
      return Error{fmt::format("will not write to {}: it is a symbolic link", path),
                   "name the file that it points to, or use `-o -` for standard output"};
    if (S_ISCHR(mode) || S_ISFIFO(mode)) return open_special(place, *there, caller);
    if (!S_ISREG(mode))
      return Error{fmt::format("will not replace {}: it is not a regular file", path),
                   "choose another name: -o PATH"};
    if (authority == Authority::root && there->st_uid != caller.uid)
      return Error{fmt::format("will not replace {}: it belongs to another user (uid {})", path,
                               there->st_uid),
                   "remove it first, or choose another name: -o PATH"};
  }
  Fd fd;
  if (const int error = put(place, caller, authority, contents, &fd)) {
    *denied = is_denied(error);
    return failed(path, error);
  }
  return fd;
}

}  // namespace

ActAs::ActAs(const Caller& caller)
    : gid_(static_cast<gid_t>(setfsgid(caller.gid))),
      uid_(static_cast<uid_t>(setfsuid(caller.uid))) {}

ActAs::~ActAs() {
  setfsuid(uid_);
  setfsgid(gid_);
}

Caller calling_user() {
  const Caller effective{geteuid(), getegid()};
  if (effective.uid != 0 || getauxval(AT_SECURE)) return effective;
  const auto uid = id_from_environment("SUDO_UID");
  const auto gid = id_from_environment("SUDO_GID");
  return uid && gid ? Caller{*uid, *gid} : effective;
}

Result<Fd> write_private_file(const std::string& path, std::string_view contents) {
  const Caller caller = calling_user();
  bool denied = false;
  auto result = [&] {
    const ActAs user(caller);
    return replace(path, caller, Authority::caller, contents, &denied);
  }();
  if (result.ok() || !denied || caller.uid == geteuid()) return result;
  return replace(path, caller, Authority::root, contents, &denied);
}

Result<Fd> create_private_file(const std::string& path) {
  return write_private_file(path, {});
}

size_t write_all(int fd, std::string_view bytes, int* error) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = write(fd, bytes.data() + done, bytes.size() - done);
    if (count > 0) {
      done += static_cast<size_t>(count);
    } else if (count == 0 || errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      *error = errno;
      return done;
    }
  }
  return done;
}

}  // namespace sigma
