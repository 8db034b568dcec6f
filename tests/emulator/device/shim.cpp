// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the preloaded library interposes in the workload: the paths that libibverbs, libmlx5 and the
// applications above them look at, and the device file. Not mmap (the device's pages stand in its
// memory file at their offsets, so that UCX's own mmap hooks change nothing), not read, poll or
// close.
//
// Four path prefixes lead into $SIGMA_CONNECTX_DIR; everything else passes. The PCI domain does not
// exist on real machines, so that nothing real is hidden.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <rdma/rdma_user_ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "uverbs.h"

#define EXPORT extern "C" __attribute__((visibility("default")))
// The next definition of a function in link-map order, looked up once.
#define REAL(name) (connectx::real<decltype(&::name)>(#name, [] {}))

namespace connectx {
namespace {

constexpr const char* kPrefixes[] = {"/sys/class/infiniband", "/sys/devices/pci00c5:",
                                     "/sys/bus/pci/devices/00c5:", "/dev/infiniband"};
constexpr char kDevicePath[] = "/dev/infiniband/uverbs";
constexpr unsigned kMajor = 231, kFirstMinor = 192;
constexpr int kNetlinkRdma = 20;

// `unique` makes each use its own instantiation, and so its own cache.
template <typename Function, typename Unique>
Function real(const char* name, Unique) {
  static Function function = nullptr;
  if (!function) function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  return function;
}

const std::string& root() {
  return config().dir;
}

bool leads_inside(const char* path) {
  if (!path || path[0] != '/') return false;
  for (const char* prefix : kPrefixes) {
    if (!strncmp(path, prefix, strlen(prefix))) return true;
  }
  return false;
}

// The path to use instead; valid until the caller's end.
class Path {
 public:
  explicit Path(const char* path) : path_(path) {
    if (!leads_inside(path) || root().empty()) return;
    if (snprintf(buffer_, sizeof buffer_, "%s%s", root().c_str(), path) <
        static_cast<int>(sizeof buffer_))
      path_ = buffer_;
  }
  operator const char*() const { return path_; }

 private:
  const char* path_;
  char buffer_[PATH_MAX];
};

const DeviceConfig* device_of(const char* path) {
  if (!path || strncmp(path, kDevicePath, strlen(kDevicePath)) != 0) return nullptr;
  const unsigned number = strtoul(path + strlen(kDevicePath), nullptr, 10);
  for (const DeviceConfig& device : config().devices) {
    if (device.uverbs == number) return &device;
  }
  return nullptr;
}

int open_device(const DeviceConfig& settings) {
  if (!nic_start()) {
    errno = EIO;
    return -1;
  }
  for (const auto& device : nic().devices) {
    if (device->config != &settings) continue;
    // An open file of its own for each context, as with a character device.
    const std::string self = "/proc/self/fd/" + std::to_string(device->memory_fd);
    int fd = REAL(open)(self.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) fd = fcntl(device->memory_fd, F_DUPFD_CLOEXEC, 3);
    Guard guard;
    Context& context = device->contexts[fd];  // what had this number before is closed
    if (context.async_events) --context.async_events->users;
    context = {};
    return fd;
  }
  errno = ENXIO;
  return -1;
}

void disguise(struct stat& status, unsigned uverbs) {
  status.st_mode = S_IFCHR | 0666;
  status.st_rdev = makedev(kMajor, kFirstMinor + uverbs);
}

bool any_device_open() {
  return nic_running() && !nic().devices.empty();
}

// Which device a descriptor is, by the inode of its memory file, so that duplicates count too.
// Costs one system call, and nothing before a device was opened.
Device* device_of(int fd) {
  if (!any_device_open()) return nullptr;
  struct stat status;
  if (REAL(fstat)(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink != 0)
    return nullptr;
  for (const auto& device : nic().devices) {
    if (device->memory_inode == status.st_ino) return device.get();
  }
  return nullptr;
}

template <typename Status, typename Function>
int stat_path(Function function, const char* path, Status* status) {
  const int result = function(Path(path), status);
  if (const DeviceConfig* device = result == 0 ? device_of(path) : nullptr)
    disguise(*reinterpret_cast<struct stat*>(status), device->uverbs);
  return result;
}

template <typename Status, typename Function>
int stat_fd(Function function, int fd, Status* status) {
  const int result = function(fd, status);
  if (const Device* device = result == 0 ? device_of(fd) : nullptr)
    disguise(*reinterpret_cast<struct stat*>(status), device->config->uverbs);
  return result;
}

// Results of realpath name the path that the application believes in.
char* hide_root(char* path) {
  const size_t length = root().size();
  if (path && length && !strncmp(path, root().c_str(), length) && path[length] == '/')
    memmove(path, path + length, strlen(path + length) + 1);
  return path;
}

// The command passes a function of the kernel's too, with what ib_uverbs_ioctl gets (the open file, any
// number, the command's address) and that one's kind of answer: a tracer can hook shmem_fallocate instead.
// The device's file is a memfd: a hole is punched where it has no page, at the command's address; or the
// call fails, for memfds collapse no ranges (mm/shmem.c). After the command, with its answers filled in.
void tell_kernel(int fd, const void* command, int error) {
  if (!config().kernel_hook) return;
  const int saved = errno;
  const int mode = error == 0 ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE : FALLOC_FL_COLLAPSE_RANGE;
  fallocate(fd, mode, static_cast<off_t>(reinterpret_cast<uintptr_t>(command)), 1);
  errno = saved;
}

mode_t mode_argument(int flags, va_list arguments) {
  return flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

}  // namespace
}  // namespace connectx

using connectx::Path;

#define OPEN_FUNCTION(name)                                                                    \
  EXPORT int name(const char* path, int flags, ...) {                                          \
    if (const auto* device = connectx::device_of(path)) return connectx::open_device(*device); \
    va_list arguments;                                                                         \
    va_start(arguments, flags);                                                                \
    const mode_t mode = connectx::mode_argument(flags, arguments);                             \
    va_end(arguments);                                                                         \
    return REAL(name)(Path(path), flags, mode);                                                \
  }
OPEN_FUNCTION(open)
OPEN_FUNCTION(open64)

#define OPENAT_FUNCTION(name)                                                                  \
  EXPORT int name(int directory, const char* path, int flags, ...) {                           \
    if (const auto* device = connectx::device_of(path)) return connectx::open_device(*device); \
    va_list arguments;                                                                         \
    va_start(arguments, flags);                                                                \
    const mode_t mode = connectx::mode_argument(flags, arguments);                             \
    va_end(arguments);                                                                         \
    return REAL(name)(directory, Path(path), flags, mode);                                     \
  }
OPENAT_FUNCTION(openat)
OPENAT_FUNCTION(openat64)

// What _FORTIFY_SOURCE makes of open without a mode.
EXPORT int __open_2(const char* path, int flags) {
  return open(path, flags);
}
EXPORT int __open64_2(const char* path, int flags) {
  return open(path, flags | O_LARGEFILE);
}
EXPORT int __openat_2(int directory, const char* path, int flags) {
  return openat(directory, path, flags);
}
EXPORT int __openat64_2(int directory, const char* path, int flags) {
  return openat(directory, path, flags | O_LARGEFILE);
}

EXPORT FILE* fopen(const char* path, const char* mode) {
  return REAL(fopen)(Path(path), mode);
}
EXPORT FILE* fopen64(const char* path, const char* mode) {
  return REAL(fopen64)(Path(path), mode);
}
EXPORT DIR* opendir(const char* path) {
  return REAL(opendir)(Path(path));
}
EXPORT int access(const char* path, int mode) {
  return REAL(access)(Path(path), mode);
}
EXPORT ssize_t readlink(const char* path, char* buffer, size_t size) {
  return REAL(readlink)(Path(path), buffer, size);
}
EXPORT char* realpath(const char* path, char* resolved) {
  return connectx::hide_root(REAL(realpath)(Path(path), resolved));
}
EXPORT char* __realpath_chk(const char* path, char* resolved, size_t) {
  return realpath(path, resolved);
}

EXPORT int stat(const char* path, struct stat* status) {
  return connectx::stat_path(REAL(stat), path, status);
}
EXPORT int stat64(const char* path, struct stat64* status) {
  return connectx::stat_path(REAL(stat64), path, status);
}
EXPORT int lstat(const char* path, struct stat* status) {
  return connectx::stat_path(REAL(lstat), path, status);
}
EXPORT int lstat64(const char* path, struct stat64* status) {
  return connectx::stat_path(REAL(lstat64), path, status);
}
EXPORT int fstat(int fd, struct stat* status) {
  return connectx::stat_fd(REAL(fstat), fd, status);
}
EXPORT int fstat64(int fd, struct stat64* status) {
  return connectx::stat_fd(REAL(fstat64), fd, status);
}

// What programs and libraries call that were built with a C library before 2.33: its headers made
// stat and the others of these.
extern "C" {
int __xstat(int version, const char* path, struct stat* status);
int __xstat64(int version, const char* path, struct stat64* status);
int __lxstat(int version, const char* path, struct stat* status);
int __lxstat64(int version, const char* path, struct stat64* status);
int __fxstat(int version, int fd, struct stat* status);
int __fxstat64(int version, int fd, struct stat64* status);
}
EXPORT int __xstat(int, const char* path, struct stat* status) {
  return stat(path, status);
}
EXPORT int __xstat64(int, const char* path, struct stat64* status) {
  return stat64(path, status);
}
EXPORT int __lxstat(int, const char* path, struct stat* status) {
  return lstat(path, status);
}
EXPORT int __lxstat64(int, const char* path, struct stat64* status) {
  return lstat64(path, status);
}
EXPORT int __fxstat(int, int fd, struct stat* status) {
  return fstat(fd, status);
}
EXPORT int __fxstat64(int, int fd, struct stat64* status) {
  return fstat64(fd, status);
}

// Without RDMA netlink libibverbs finds devices through sysfs.
EXPORT int socket(int domain, int type, int protocol) {
  if (domain == AF_NETLINK && protocol == connectx::kNetlinkRdma && !connectx::root().empty()) {
    errno = EPROTONOSUPPORT;
    return -1;
  }
  return REAL(socket)(domain, type, protocol);
}

EXPORT int ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  if (request == RDMA_VERBS_IOCTL) {
    if (connectx::Device* device = connectx::device_of(fd)) {
      const int error =
          connectx::dispatch(*device, fd, *static_cast<ib_uverbs_ioctl_hdr*>(argument));
      connectx::tell_kernel(fd, argument, error);
      if (error == 0) return 0;
      errno = error;
      return -1;
    }
  }
  return REAL(ioctl)(fd, request, argument);
}
