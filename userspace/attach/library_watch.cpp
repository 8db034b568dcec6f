// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// perf_event_open(2): a dummy software event per CPU, whose side-band records are all that is
// wanted.
//
//   PERF_RECORD_MMAP2: header, u32 pid, tid, u64 address, length, offset,
//                      { u32 major, minor, u64 inode, generation }
//                      or, with PERF_RECORD_MISC_MMAP_BUILD_ID, { u8 size, 3 x pad, u8 build_id[20]
//                      }, u32 protection, flags, char name[] (padded to 8), then the sample_id
//                      fields.
//   sample_id, for sample_type TID | TIME | CPU: u32 pid, tid, u64 time, u32 cpu, reserved.
#include "attach/library_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/perf_event.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <utility>

namespace sigma {
namespace {

struct Mmap2Record {
  perf_event_header header;
  uint32_t pid, tid;
  uint64_t address, length, offset;
  union {
    struct {
      uint32_t major, minor;
      uint64_t inode, generation;
    } file;
    struct {
      uint8_t size, pad[3], bytes[20];
    } build_id;
  } identity;
  uint32_t protection, flags;
};
static_assert(sizeof(Mmap2Record) == 72);

struct SampleId {
  uint32_t pid, tid;
  uint64_t time;
  uint32_t cpu, reserved;
};
static_assert(sizeof(SampleId) == 24);

struct LostRecord {
  perf_event_header header;
  uint64_t id, lost;
};

// "0-3,8,10-11" (sysfs), or nothing when it does not parse.
std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty() && text.front() >= '0' && text.front() <= '9') {
    int first = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), first);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    int last = first;
    if (text.starts_with('-')) {
      auto [end_last, ignored] = std::from_chars(text.data() + 1, text.data() + text.size(), last);
      text.remove_prefix(static_cast<size_t>(end_last - text.data()));
    }
    for (int cpu = first; error == std::errc{} && cpu <= last && cpu < (1 << 16); ++cpu)
      cpus.push_back(cpu);
    if (!text.starts_with(',')) break;
    text.remove_prefix(1);
  }
  return cpus;
}

std::vector<int> online_cpus() {
  std::ifstream in("/sys/devices/system/cpu/online");
  std::string text;
  std::getline(in, text);
  return parse_cpu_list(text);
}

Error open_error(int cause) {
  if (cause == EACCES || cause == EPERM) {
    return {"not permitted to watch for new libraries (perf_event_open)",
            "run as root, or with CAP_PERFMON; or set kernel.perf_event_paranoid to 0"};
  }
  return {fmt::format("cannot watch for new libraries: perf_event_open: {}", errno_text(cause))};
}

// One CPU's ring: the kernel writes at data_head, the reader frees up to data_tail.
class Ring {
 public:
  // Nothing when the CPU has gone offline.
  static Result<std::optional<Ring>> open(int cpu, const LibraryWatchOptions& options) {
    perf_event_attr attr{};
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_DUMMY;
    attr.mmap = 1;  // what is mapped executable
    attr.mmap2 = 1;
    attr.build_id = options.build_ids;
    attr.sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU;
    attr.sample_id_all = 1;
    attr.use_clockid = 1;
    attr.clockid = CLOCK_MONOTONIC;
    attr.watermark = 1;
    attr.wakeup_watermark = 1;
    Fd fd(
        static_cast<int>(::syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC)));
    if (!fd && errno == ENODEV) return std::optional<Ring>();
    if (!fd) return open_error(errno);
    auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    void* base =
        ::mmap(nullptr, page + options.ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (base == MAP_FAILED) {
      return Error{
          fmt::format("cannot map a ring of {} bytes: {}", options.ring_bytes, errno_text(errno)),
          "see kernel.perf_event_mlock_kb"};
    }
    return std::optional(Ring(std::move(fd), base, page, options.ring_bytes));
  }

  Ring(Ring&& other) noexcept
      : fd_(std::move(other.fd_)),
        base_(std::exchange(other.base_, nullptr)),
        page_(other.page_),
        size_(other.size_) {}
  Ring& operator=(Ring&&) = delete;
  ~Ring() {
    if (base_) ::munmap(base_, page_ + size_);
  }

  int fd() const { return fd_.get(); }

  // Calls visit(record) with each whole record that is there now.
  template <typename Visit>
  void drain(std::vector<std::byte>& copy, const Visit& visit) {
    auto* control = static_cast<perf_event_mmap_page*>(base_);
    const auto* data = static_cast<const std::byte*>(base_) + page_;
    const uint64_t head = __atomic_load_n(&control->data_head, __ATOMIC_ACQUIRE);
    uint64_t tail = control->data_tail;
    while (head - tail >= sizeof(perf_event_header)) {
      // Records are multiples of 8 bytes and so is the ring: a header does not wrap.
      perf_event_header header;
      std::memcpy(&header, data + tail % size_, sizeof header);
      if (header.size < sizeof header || header.size > head - tail) {
        tail = head;
        break;
      }
      copy.resize(header.size);
      size_t first = std::min<size_t>(header.size, size_ - tail % size_);
      std::memcpy(copy.data(), data + tail % size_, first);
      std::memcpy(copy.data() + first, data, header.size - first);
      visit(std::span<const std::byte>(copy));
      tail += header.size;
    }
    __atomic_store_n(&control->data_tail, tail, __ATOMIC_RELEASE);
  }

 private:
  Ring(Fd fd, void* base, size_t page, size_t size)
      : fd_(std::move(fd)), base_(base), page_(page), size_(size) {}

  Fd fd_;
  void* base_;
  size_t page_, size_;
};

}  // namespace

bool parse_mmap_record(std::span<const std::byte> record, LibraryEvent& event) {
  Mmap2Record head;
  SampleId sample;
  if (record.size() < sizeof head + sizeof sample) return false;
  std::memcpy(&head, record.data(), sizeof head);
  if (head.header.type != PERF_RECORD_MMAP2) return false;
  std::memcpy(&sample, record.data() + record.size() - sizeof sample, sizeof sample);

  auto name = record.subspan(sizeof head, record.size() - sizeof head - sizeof sample);
  auto end = std::find(name.begin(), name.end(), std::byte{0});
  event = {};
  event.path.assign(reinterpret_cast<const char*>(name.data()),
                    static_cast<size_t>(end - name.begin()));
  // "//anon", "[vdso]", "[heap]" and the like are no files.
  if (end == name.end() || !event.path.starts_with('/') || event.path.starts_with("//"))
    return false;

  event.time_ns = sample.time;
  event.pid = static_cast<pid_t>(head.pid);
  event.tid = static_cast<pid_t>(head.tid);
  event.address = head.address;
  event.length = head.length;
  event.offset = head.offset;
  if (head.header.misc & PERF_RECORD_MISC_MMAP_BUILD_ID) {
    const auto& id = head.identity.build_id;
    for (size_t i = 0; i < std::min<size_t>(id.size, sizeof id.bytes); ++i)
      event.build_id += fmt::format("{:02x}", id.bytes[i]);
  } else {
    event.device = makedev(head.identity.file.major, head.identity.file.minor);
    event.inode = head.identity.file.inode;
  }
  return true;
}

struct LibraryWatch::Impl {
  std::vector<Ring> rings;
  Fd epoll;
  uint64_t lost = 0;
  std::vector<std::byte> copy;
};

Result<LibraryWatch> LibraryWatch::open(const LibraryWatchOptions& options) {
  auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  if (options.ring_bytes < page || (options.ring_bytes & (options.ring_bytes - 1)) != 0)
    return Error{
        fmt::format("a ring of {} bytes is not a power of two of pages", options.ring_bytes)};
  auto impl = std::make_unique<Impl>();
  impl->epoll = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!impl->epoll) return Error{fmt::format("epoll_create1: {}", errno_text(errno))};
  std::vector<int> cpus = online_cpus();
  if (cpus.empty()) return Error{"cannot read /sys/devices/system/cpu/online"};
  for (int cpu : cpus) {
    SIGMA_ASSIGN(std::optional<Ring> ring, Ring::open(cpu, options));
    if (!ring) continue;
    epoll_event interest{};
    interest.events = EPOLLIN;
    if (::epoll_ctl(impl->epoll.get(), EPOLL_CTL_ADD, ring->fd(), &interest) != 0)
      return Error{fmt::format("epoll_ctl: {}", errno_text(errno))};
    impl->rings.push_back(*std::move(ring));
  }
  return LibraryWatch(std::move(impl));
}

LibraryWatch::LibraryWatch(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LibraryWatch::LibraryWatch(LibraryWatch&&) noexcept = default;
LibraryWatch& LibraryWatch::operator=(LibraryWatch&&) noexcept = default;
LibraryWatch::~LibraryWatch() = default;

int LibraryWatch::fd() const {
  return impl_->epoll.get();
}

uint64_t LibraryWatch::lost() const {
  return impl_->lost;
}

void LibraryWatch::read(const Callback& callback) {
  // perf's poll handler clears its mark when asked (perf_poll), so that fd() is not readable again
  // before something new comes. Marks set meanwhile are for the next time.
  epoll_event events[64];
  for (size_t seen = 0; seen < impl_->rings.size(); seen += std::size(events)) {
    if (::epoll_wait(impl_->epoll.get(), events, std::size(events), 0) <
        static_cast<int>(std::size(events)))
      break;
  }
  for (Ring& ring : impl_->rings) {
    ring.drain(impl_->copy, [&](std::span<const std::byte> record) {
      LostRecord lost;
      LibraryEvent event;
      if (parse_mmap_record(record, event)) {
        callback(event);
      } else if (record.size() >= sizeof lost) {
        std::memcpy(&lost, record.data(), sizeof lost);
        if (lost.header.type == PERF_RECORD_LOST) impl_->lost += lost.lost;
      }
    });
  }
}

}  // namespace sigma
