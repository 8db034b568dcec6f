// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/spare_events.h"

#include <bpf/libbpf.h>

#include <cerrno>
#include <cstring>

namespace sigma {

Result<std::unique_ptr<SpareEvents>> SpareEvents::open(int map_fd) {
  std::unique_ptr<SpareEvents> spare(new SpareEvents);
  spare->ring_ = ring_buffer__new(map_fd, &SpareEvents::on_sample, spare.get(), nullptr);
  if (spare->ring_ == nullptr) return Error{"cannot map the BPF ring buffer of process events: " + errno_text(errno)};
  return spare;
}

SpareEvents::~SpareEvents() { ring_buffer__free(ring_); }

int SpareEvents::on_sample(void* self, void* data, size_t size) {
  auto& spare = *static_cast<SpareEvents*>(self);
  ++spare.consumed_;
  if (size >= sizeof(sigma_spare_event)) std::memcpy(&spare.events_.emplace_back(), data, sizeof(sigma_spare_event));
  return 0;
}

Status SpareEvents::read() {
  const int error = ring_buffer__consume(ring_);
  if (error < 0) return Error{"reading the BPF ring buffer of process events failed: " + errno_text(-error)};
  return {};
}

std::optional<sigma_process> SpareEvents::take(uint64_t position) {
  if (events_.empty() || events_.front().position > position) return std::nullopt;
  const sigma_process event = events_.front().process;
  events_.pop_front();
  return event;
}

}  // namespace sigma
