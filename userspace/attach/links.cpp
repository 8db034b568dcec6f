// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/links.h"

#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <thread>

#include "resolve/proc_maps.h"

namespace sigma {
namespace {

constexpr int kBpfLinkCreate = 28;  // BPF_LINK_CREATE

// union bpf_attr's link_create with its uprobe_multi member (linux/bpf.h of 6.6 and later).
struct LinkCreateMulti {
  uint32_t prog_fd;
  uint32_t target_fd;
  uint32_t attach_type;
  uint32_t flags;
  uint64_t path;
  uint64_t offsets;
  uint64_t ref_ctr_offsets;
  uint64_t cookies;
  uint32_t cnt;
  uint32_t multi_flags;
  uint32_t pid;
  uint32_t padding;
};
static_assert(sizeof(LinkCreateMulti) == 64);
// The PMU's format/ref_ctr_offset: "config:32-63".
constexpr int kCounterShift = 32;
constexpr uint32_t kMultiReturn = 1;  // BPF_F_UPROBE_MULTI_RETURN

struct LinkCreatePerf {
  uint32_t prog_fd;
  uint32_t target_fd;
  uint32_t attach_type;
  uint32_t flags;
  uint64_t cookie;
};

template <typename Attributes>
int link_create(Attributes& attributes, Fd& link) {
  const long fd = syscall(SYS_bpf, kBpfLinkCreate, &attributes, sizeof(attributes));
  if (fd < 0) return -errno;
  link.reset(static_cast<int>(fd));
  return 0;
}

uint64_t address(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

// The PMU's number, and the bit of `config` that asks for a return probe (format/retprobe:
// "config:N").
struct UprobePmu {
  int type = -1;
  int return_bit = 0;
};

UprobePmu read_pmu() {
  UprobePmu pmu;
  auto read_number = [](const char* path, const char* format, int& value) {
    std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path, "re"), fclose);
    if (!file || fscanf(file.get(), format, &value) != 1) value = -1;
  };
  read_number("/sys/bus/event_source/devices/uprobe/type", "%d", pmu.type);
  read_number("/sys/bus/event_source/devices/uprobe/format/retprobe", "config:%d", pmu.return_bit);
  return pmu;
}

}  // namespace

int link_uprobe_multi(const UprobeMultiRequest& request, UprobeLink& link) {
  LinkCreateMulti attributes = {};
  attributes.prog_fd = static_cast<uint32_t>(request.program_fd);
  attributes.attach_type = request.attach_type;
  attributes.path = address(request.path.c_str());
  attributes.offsets = address(request.offsets.data());
  attributes.cookies = address(request.cookies.data());
  attributes.ref_ctr_offsets = address(request.counter_offsets.data());
  attributes.cnt = static_cast<uint32_t>(request.offsets.size());
  attributes.multi_flags = request.at_return ? kMultiReturn : 0;
  attributes.pid = static_cast<uint32_t>(request.pid);
  return link_create(attributes, link.link);
}

int link_uprobe_perf(int program_fd, const std::string& path, uint64_t offset, uint64_t cookie,
                     pid_t pid, bool at_return, UprobeLink& link, uint64_t counter_offset) {
  static const UprobePmu pmu = read_pmu();
  if (pmu.type < 0 || (at_return && pmu.return_bit < 0)) return -ENOENT;

  perf_event_attr attributes = {};
  attributes.size = sizeof(attributes);
  attributes.type = static_cast<uint32_t>(pmu.type);
  attributes.config = at_return ? uint64_t{1} << pmu.return_bit : 0;
  attributes.config |= counter_offset << kCounterShift;
  attributes.config1 = address(path.c_str());
  attributes.config2 = offset;
  // A process-wide uprobe needs any CPU; a system-wide one is placed once, whatever the CPU named
  // here.
  const long event = syscall(SYS_perf_event_open, &attributes, pid > 0 ? pid : -1, pid > 0 ? -1 : 0,
                             -1, PERF_FLAG_FD_CLOEXEC);
  if (event < 0) return -errno;
  link.event.reset(static_cast<int>(event));

  LinkCreatePerf request = {};
  request.prog_fd = static_cast<uint32_t>(program_fd);
  request.target_fd = static_cast<uint32_t>(event);
  request.attach_type = kAttachPerf;
  request.cookie = cookie;
  if (const int error = link_create(request, link.link)) return error;
  if (ioctl(link.event.get(), PERF_EVENT_IOC_ENABLE, 0) < 0) return -errno;
  return 0;
}

void close_links(std::vector<UprobeLink> links) {
  constexpr size_t kThreads = 64;
  if (links.size() < 2) return;
  std::atomic<size_t> next = 0;
  auto close_some = [&] {
    for (size_t i = next++; i < links.size(); i = next++) {
      links[i].link.reset();
      links[i].event.reset();
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(kThreads, links.size()); i++) threads.emplace_back(close_some);
  close_some();
  for (std::thread& thread : threads) thread.join();
}

Result<OwnSite> own_site(const void* function) {
  SIGMA_ASSIGN(const std::vector<Mapping> maps, read_maps(getpid()));
  const Mapping* mapping = find_mapping(maps, address(function));
  if (!mapping || mapping->path.empty() || mapping->inode == 0)
    return Error{"a function of our own is not mapped from a file",
                 "run sigmatrace from a regular file"};
  OwnSite site;
  SIGMA_ASSIGN(site.path, reachable_path(getpid(), *mapping));
  site.offset = address(function) - mapping->start + mapping->offset;
  return site;
}

}  // namespace sigma
