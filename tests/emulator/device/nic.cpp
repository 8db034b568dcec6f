// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The NIC thread: looks at doorbell records, inboxes and arm words; sleeps when nothing moves, so
// that several processes fit on few cores; keeps the clock page and the sysfs counters current.
#include "nic.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <infiniband/mlx5dv.h>
#include <rdma/mlx5-abi.h>

#include "clock.h"

namespace connectx {
namespace {

constexpr unsigned kRequestBatch = 128;
constexpr unsigned kSpinsBeforeSleep = 30;
constexpr uint64_t kShortestSleepNs = 10'000, kLongestSleepNs = 1'000'000, kIdleSleepNs = 5'000'000;
constexpr uint64_t kPort = 1;
constexpr long kStepAsideNs = 5'000;
constexpr uint64_t kCounterPeriodNs = 50'000'000;
constexpr off_t kClockPageOffset = off_t{MLX5_IB_MMAP_CORE_CLOCK} << 8 << 12;
constexpr off_t kClockInfoOffset = off_t{MLX5_IB_MMAP_CLOCK_INFO} << 8 << 12;

struct CounterName {
  const char* directory;
  const char* name;
};
constexpr CounterName kCounterNames[] = {
#define COUNTER(directory, name) {#directory, #name},
#include "../counters.def"
#undef COUNTER
};

// Adds what this process counted to the device's counters, and shows the sums in sysfs. The files
// never shrink, so one write replaces the text.
void publish_counters(Device& device) {
  DeviceEntry& shared = nic().fabric->devices[device.index];
  for (unsigned i = 0; i < kCounters; ++i) {
    if (device.counters[i] == 0) continue;
    const uint64_t sum = shared.counters[i].fetch_add(device.counters[i]) + device.counters[i];
    device.counters[i] = 0;
    char path[512], text[24];
    snprintf(path, sizeof path, "%s/sys/class/infiniband/%s/ports/1/%s/%s", config().dir.c_str(),
             device.config->name.c_str(), kCounterNames[i].directory, kCounterNames[i].name);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) continue;
    const int length = snprintf(text, sizeof text, "%llu\n", static_cast<unsigned long long>(sum));
    if (pwrite(fd, text, length, 0) != length) note("cannot write %s", path);
    close(fd);
  }
}

void show_clock(Device& device, uint64_t now_ns) {
  if (!device.clock_page) return;
  const uint64_t ticks = nic_ticks(device.config->clock, now_ns);
  auto* words = reinterpret_cast<volatile uint32_t*>(device.clock_page);
  words[1] = htobe32(static_cast<uint32_t>(ticks));
  words[0] = htobe32(static_cast<uint32_t>(ticks >> 32));
}

bool map_clock_pages(Device& device) {
  void* page =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, device.memory_fd, kClockPageOffset);
  void* info_page =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, device.memory_fd, kClockInfoOffset);
  if (page == MAP_FAILED || info_page == MAP_FAILED) return false;
  device.clock_page = static_cast<uint8_t*>(page);
  auto* info = static_cast<mlx5_ib_clock_info*>(info_page);
  const uint64_t now_ns = monotonic_ns();
  info->nsec = clock_ns(CLOCK_REALTIME);
  info->cycles = nic_ticks(device.config->clock, now_ns);
  info->shift = 21;
  info->mult = static_cast<uint32_t>((uint64_t{1'000'000} << info->shift) /
                                     device.config->clock.nominal_khz);
  info->mask = ~uint64_t{0} >> 1;
  info->overflow_period = uint64_t{1} << 40;
  show_clock(device, now_ns);
  return true;
}

bool open_devices(Nic& instance) {
  unsigned index = 0;
  for (const DeviceConfig& settings : config().devices) {
    if (index == kMaxDevices) break;
    auto device = std::make_unique<Device>();
    device->config = &settings;
    device->index = index++;
    const int fd = memfd_create(("infiniband:" + settings.name).c_str(), MFD_CLOEXEC);
    // High, so that programs which count on low numbers are not disturbed.
    device->memory_fd = fcntl(fd, F_DUPFD_CLOEXEC, 900);
    if (device->memory_fd < 0)
      device->memory_fd = fd;
    else
      close(fd);
    if (device->memory_fd < 0 || ftruncate(device->memory_fd, off_t{1} << 30) != 0 ||
        !map_clock_pages(*device)) {
      complain("cannot make the memory of %s: %s", settings.name.c_str(), strerror(errno));
      return false;
    }
    struct stat status;
    fstat(device->memory_fd, &status);
    device->memory_inode = status.st_ino;
    instance.devices.push_back(std::move(device));
  }
  return !instance.devices.empty();
}

void pause_ns(long ns) {
  const timespec pause{0, ns};
  nanosleep(&pause, nullptr);
}

// A slow device: each request waits before it is served, outside the lock.
void delay_request(Nic& instance) {
  const long delay_us = config().faults.delay_us;
  if (delay_us && instance.fabric->processes[instance.process].requests.front())
    pause_ns(delay_us * 1000);
}

unsigned serve_inbox(Nic& instance) {
  ProcessEntry& inbox = instance.fabric->processes[instance.process];
  const unsigned batch = config().faults.delay_us ? 1 : kRequestBatch;
  unsigned served = 0;
  for (; served < batch; ++served) {
    const Request* request = inbox.requests.front();
    if (!request) break;
    serve_request(*request);
    inbox.requests.pop();
  }
  for (unsigned i = 0; i < kRequestBatch; ++i, ++served) {
    const Datagram* datagram = inbox.datagrams.front();
    if (!datagram) break;
    serve_datagram(*datagram);
    inbox.datagrams.pop();
  }
  return served;
}

unsigned run_queue_pair(Qp& qp, uint64_t now_ns) {
  if (qp.state != QpState::err) return run_send_queue(qp, now_ns);
  flush_send_queue(qp);
  return flush_receive_queue(qp);
}

unsigned pass(Nic& instance) {
  unsigned work = serve_inbox(instance);
  take_doorbells();
  const uint64_t now_ns = monotonic_ns();
  for (size_t i = 0; i < instance.active.size(); ++i)
    work += run_queue_pair(*instance.active[i], now_ns);
  for (Cq* cq : instance.holding) release_cqes(*cq);
  instance.holding.clear();
  for (const auto& device : instance.devices) {
    for (const auto& [number, cq] : device->cqs) {
      if (cq->channel && cq->produced > cq->notified) check_arm(*cq);
    }
  }
  return work;
}

void write_port_file(const Device& device, const char* name, const char* text) {
  char path[512];
  snprintf(path, sizeof path, "%s/sys/class/infiniband/%s/ports/1/%s", config().dir.c_str(),
           device.config->name.c_str(), name);
  const int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (fd < 0) return;
  if (write(fd, text, strlen(text)) < 0) note("cannot write %s", path);
  close(fd);
}

// The link is down while $SIGMA_CONNECTX_DIR/link_down/<device> exists. Every process looks for
// itself and tells its own contexts; all write the same into sysfs.
void watch_link(Device& device) {
  const std::string path = config().dir + "/link_down/" + device.config->name;
  const bool down = access(path.c_str(), F_OK) == 0;
  if (down == device.link_down) return;
  device.link_down = down;
  nic().fabric->devices[device.index].link_down = down;
  write_port_file(device, "state", down ? "1: DOWN\n" : "4: ACTIVE\n");
  write_port_file(device, "phys_state", down ? "3: Disabled\n" : "5: LinkUp\n");
  if (down) ++device.counters[link_downed];
  for (auto& [fd, context] : device.contexts)
    post_async_event(context.async_events, down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE,
                     kPort);
}

void publish(Nic& instance, uint64_t now_ns) {
  for (const auto& device : instance.devices) {
    watch_link(*device);
    show_clock(*device, now_ns);
    publish_counters(*device);
  }
}

void* nic_thread(void*) {
  Nic& instance = nic();
  prctl(PR_SET_NAME, "connectx-nic");
  prctl(PR_SET_TIMERSLACK, 1);
  // The device must come before threads that spin on its completions: on a loaded machine they
  // would otherwise wait for it by whole time slices. Unprivileged: without.
  const sched_param priority{1};
  if (!config().realtime || pthread_setschedparam(pthread_self(), SCHED_RR, &priority) != 0)
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), -20);
  unsigned idle = 0;
  uint64_t sleep_ns = kShortestSleepNs, published_ns = 0;
  for (;;) {
    const uint32_t doorbell = instance.fabric->processes[instance.process].doorbell.load();
    // Not a yield: at real-time priority that would hold back the very thread that waits.
    while (instance.waiting.load() > 0) pause_ns(kStepAsideNs);
    delay_request(instance);
    bool any;
    unsigned work;
    {
      std::lock_guard<std::mutex> hold(instance.lock);
      work = pass(instance);
      any = !instance.active.empty();
      const uint64_t now_ns = monotonic_ns();
      if (now_ns - published_ns >= kCounterPeriodNs) {
        publish(instance, now_ns);
        published_ns = now_ns;
      } else if (work == 0 || (idle & 15) == 0) {
        for (const auto& device : instance.devices) show_clock(*device, now_ns);
      }
    }
    if (work > 0) {
      idle = 0;
      sleep_ns = kShortestSleepNs;
    }
    if (config().pause_ns && any) {
      sleep_process(*instance.fabric, instance.process, doorbell, config().pause_ns);
    } else if (work == 0 && ++idle > kSpinsBeforeSleep) {
      sleep_process(*instance.fabric, instance.process, doorbell, any ? sleep_ns : kIdleSleepNs);
      sleep_ns = std::min(sleep_ns * 2, kLongestSleepNs);
    }
  }
  return nullptr;
}

bool started_ = false;
pthread_mutex_t start_lock_ = PTHREAD_MUTEX_INITIALIZER;

// Destructors of other libraries may still destroy objects after this, so nothing is torn down: the
// counters are brought up to date. The library's own destructor, which runs late, ends the rest.
void at_exit() {
  if (!started_) return;
  Guard guard;
  publish(nic(), monotonic_ns());
}

__attribute__((destructor)) void at_unload() {
  if (!started_) return;
  Guard guard;
  publish(nic(), monotonic_ns());
  leave_fabric(*nic().fabric, nic().process);
  oracle_close();
}

// A forked child owns none of its parent's objects: it starts anew if it opens a device.
void in_child() {
  started_ = false;
  new (&start_lock_) pthread_mutex_t(PTHREAD_MUTEX_INITIALIZER);
}

Nic* instance_ = nullptr;

}  // namespace

Nic& nic() {
  return *instance_;
}

bool nic_running() {
  return started_;
}

bool nic_start() {
  pthread_mutex_lock(&start_lock_);
  static bool hooks = false;
  if (!started_) {
    instance_ = new Nic;  // a forked child's predecessor is left alone: its lock may be held
    instance_->pid = getpid();
    instance_->fabric = join_fabric((config().dir + "/fabric").c_str(), instance_->process);
    if (instance_->fabric && open_devices(*instance_)) {
      if (!hooks) {
        hooks = true;
        atexit(at_exit);
        pthread_atfork(nullptr, nullptr, in_child);
      }
      // Where Yama restricts tracing, peers may still read this process's memory.
      prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
      oracle_open();
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      pthread_t thread;
      started_ = pthread_create(&thread, nullptr, nic_thread, nullptr) == 0;
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }
  const bool result = started_;
  pthread_mutex_unlock(&start_lock_);
  return result;
}

}  // namespace connectx
