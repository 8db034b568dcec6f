// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/port_counters.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <tuple>
#include <utility>

#include "attach/rdma_sysfs.h"
#include "base/clock.h"

namespace sigma {
namespace fs = std::filesystem;
namespace {

// `counters`: of the InfiniBand specification; `hw_counters`: of the driver.
constexpr std::string_view kFolders[] = {"counters", "hw_counters"};
constexpr std::string_view kNoCounter = "lifespan";  // how long the driver keeps its values, in ms

bool parse(const std::string& text, uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

auto key_of(const CounterSample& sample) {
  return std::tie(sample.device, sample.port, sample.counter);
}

}  // namespace

std::vector<CounterSample> read_port_counters() {
  std::vector<CounterSample> samples;
  std::error_code error;
  const fs::path root = fs::path(sysfs_root()) / "class/infiniband";
  for (fs::directory_iterator device(root, error), end; !error && device != end;
       device.increment(error)) {
    std::error_code port_error;
    for (fs::directory_iterator port(device->path() / "ports", port_error);
         !port_error && port != end; port.increment(port_error)) {
      const std::string number = port->path().filename();
      uint64_t port_number = 0;
      if (!parse(number, port_number)) continue;
      for (const std::string_view folder : kFolders) {
        std::error_code file_error;
        for (fs::directory_iterator file(port->path() / folder, file_error);
             !file_error && file != end; file.increment(file_error)) {
          CounterSample sample;
          sample.counter = file->path().filename();
          if (sample.counter == kNoCounter) continue;
          std::ifstream in(file->path());
          std::string text;
          if (!std::getline(in, text) || !parse(text, sample.value)) continue;
          sample.time_ns = monotonic_now_ns();
          sample.device = device->path().filename();
          sample.port = static_cast<uint32_t>(port_number);
          samples.push_back(std::move(sample));
        }
      }
    }
  }
  std::sort(samples.begin(), samples.end(),
            [](const auto& a, const auto& b) { return key_of(a) < key_of(b); });
  return samples;
}

PortCounters::PortCounters(std::chrono::milliseconds interval) {
  sample(false);
  // Signals are for the thread that waits for them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, interval] { run(interval); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

PortCounters::~PortCounters() {
  stop();
}

void PortCounters::run(std::chrono::milliseconds interval) {
  std::unique_lock lock(mutex_);
  while (!woken_.wait_for(lock, interval, [this] { return stopping_; })) {
    lock.unlock();
    sample(false);
    lock.lock();
  }
}

void PortCounters::sample(bool last) {
  std::vector<CounterSample> now = read_port_counters();
  std::vector<CounterSample> changed;
  auto before = newest_.begin();
  for (const CounterSample& each : now) {
    while (before != newest_.end() && key_of(*before) < key_of(each)) ++before;
    const bool known = before != newest_.end() && key_of(*before) == key_of(each);
    if (last || !known || before->value != each.value) changed.push_back(each);
  }
  // In order of time, as they were read, device by device.
  std::sort(changed.begin(), changed.end(),
            [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
  const std::lock_guard lock(mutex_);
  if (waiting_.size() + changed.size() <= kMaxWaiting) {
    waiting_.insert(waiting_.end(), std::make_move_iterator(changed.begin()),
                    std::make_move_iterator(changed.end()));
    newest_ = std::move(now);
  }
}

std::vector<CounterSample> PortCounters::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(waiting_, {});
}

void PortCounters::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  woken_.notify_all();
  thread_.join();
  sample(true);
}

}  // namespace sigma
