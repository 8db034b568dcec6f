// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// libibverbs loads the provider NAME of a line "driver NAME" in /etc/libibverbs.d/*.driver as
// NAME-rdmavN.so, N being its private ABI, from its own folder libibverbs/ below the library
// directory; a NAME with a slash is used as it stands. Those that are shared libraries in their own
// right (libmlx5.so.1) are in the library directory, and the folder's names are links to them.
#include "attach/installed_providers.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/fd.h"

namespace sigma {
namespace {

// Library directories; those of multiarch systems have one more level.
constexpr std::string_view kLibraryDirectories[] = {
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"};
constexpr std::string_view kMultiarch[] = {"x86_64-linux-gnu", "aarch64-linux-gnu"};
constexpr std::string_view kConfiguration = "/etc/libibverbs.d";
constexpr size_t kMaxConfigurationBytes = 4096;
constexpr size_t kMaxEntries = 4096;

class Finder {
 public:
  explicit Finder(std::string root) : root_(std::move(root)) {
    while (root_.ends_with('/')) root_.pop_back();
    directory_ = Fd(::open(root_.empty() ? "/" : root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }

  std::vector<std::string> find() {
    for (std::string_view library : kLibraryDirectories) {
      look_in(std::string(library));
      for (std::string_view arch : kMultiarch) look_in(fmt::format("{}/{}", library, arch));
    }
    for (const std::string& name : list(std::string(kConfiguration))) {
      if (name.ends_with(".driver"))
        look_at_configuration(fmt::format("{}/{}", kConfiguration, name));
    }
    return std::move(found_);
  }

 private:
  // Opens as a process with this root would. Never waits for a FIFO's writer.
  Fd open(const std::string& path, uint64_t flags) const {
    open_how how{};
    how.flags = flags | O_CLOEXEC | (flags & O_PATH ? 0 : O_NONBLOCK);
    how.resolve = RESOLVE_IN_ROOT;
    return Fd(
        static_cast<int>(::syscall(SYS_openat2, directory_.get(), path.c_str(), &how, sizeof how)));
  }

  std::vector<std::string> list(const std::string& path) const {
    std::vector<std::string> names;
    Fd fd = open(path, O_RDONLY | O_DIRECTORY);
    if (!fd) return names;
    std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd.get()), ::closedir);
    if (!directory) return names;
    fd.release();
    while (const dirent* entry = ::readdir(directory.get())) {
      if (names.size() >= kMaxEntries) break;
      names.emplace_back(entry->d_name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  void look_in(const std::string& library) {
    add(library + "/libibverbs.so.1");
    std::string folder = library + "/libibverbs";
    for (const std::string& name : list(folder)) {
      if (name.find("-rdmav") != std::string::npos && name.ends_with(".so"))
        add(folder + '/' + name);
    }
  }

  void look_at_configuration(const std::string& path) {
    Fd fd = open(path, O_RDONLY);
    std::string text(kMaxConfigurationBytes, '\0');
    ssize_t got = fd ? ::read(fd.get(), text.data(), text.size()) : 0;
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    for (std::string_view rest = text; !rest.empty();) {
      std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      constexpr std::string_view keyword = "driver";
      if (!line.starts_with(keyword)) continue;
      line.remove_prefix(keyword.size());
      size_t first = line.find_first_not_of(" \t");
      if (first == std::string_view::npos) continue;
      line.remove_prefix(first);
      line = line.substr(0, line.find_first_of(" \t\r"));
      if (line.starts_with('/')) add_driver(std::string(line));
    }
  }

  // `name` without the private ABI's number: takes every file that has one.
  void add_driver(const std::string& name) {
    size_t slash = name.rfind('/');
    std::string folder = name.substr(0, slash), prefix = name.substr(slash + 1) + "-rdmav";
    for (const std::string& file : list(folder.empty() ? "/" : folder)) {
      if (file.starts_with(prefix) && file.ends_with(".so")) add(folder + '/' + file);
    }
  }

  // Adds the file that `path` leads to, by the name that it has when all links are followed.
  void add(const std::string& path) {
    struct stat status;
    Fd fd = open(path, O_PATH);
    if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;
    if (!known_.emplace(status.st_dev, status.st_ino).second) return;

    char name[4096];
    std::string link = fmt::format("/proc/self/fd/{}", fd.get());
    ssize_t length = ::readlink(link.c_str(), name, sizeof name);
    std::string real = length > 0 ? std::string(name, static_cast<size_t>(length)) : std::string();
    // The kernel names the file from our root, or, in another mount namespace, from that one's.
    for (const std::string& candidate : {real, root_ + real, root_ + path}) {
      struct stat again;
      if (candidate.starts_with(root_ + '/') && ::stat(candidate.c_str(), &again) == 0 &&
          again.st_dev == status.st_dev && again.st_ino == status.st_ino) {
        found_.push_back(candidate);
        return;
      }
    }
  }

  std::string root_;  // without a slash at the end: "" for "/"
  Fd directory_;
  std::set<std::pair<dev_t, ino_t>> known_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> installed_providers(const std::string& root) {
  return Finder(root).find();
}

}  // namespace sigma
