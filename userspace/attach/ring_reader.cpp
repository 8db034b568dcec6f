// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/ring_reader.h"

#include <bpf/libbpf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "bpf/config.h"

namespace sigma {
namespace {

// libbpf stops at a negative return, having consumed the record, and passes it on.
constexpr int kEnough = -ECANCELED;

}  // namespace

// kernel/bpf/ringbuf.c: the consumer's position, then the producers', each in a page of its own. libbpf tells them
// since 1.3.
Status RingReader::Pages::map(int ring_map_fd) {
  page_bytes_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* at = mmap(nullptr, 2 * page_bytes_, PROT_READ, MAP_SHARED, ring_map_fd, 0);
  if (at == MAP_FAILED) return Error{"cannot map the BPF ring buffer's positions: " + errno_text(errno)};
  memory_ = static_cast<std::byte*>(at);
  return {};
}

RingReader::Pages::~Pages() {
  if (memory_ != nullptr) munmap(memory_, 2 * page_bytes_);
}

uint64_t RingReader::Pages::at(size_t page) const {
  return __atomic_load_n(reinterpret_cast<const unsigned long*>(memory_ + page * page_bytes_), __ATOMIC_ACQUIRE);
}

Result<std::unique_ptr<RingReader>> RingReader::open(int ring_map_fd, OnRecord on_record) {
  std::unique_ptr<RingReader> reader(new RingReader(std::move(on_record)));
  reader->ring_ = ring_buffer__new(ring_map_fd, &RingReader::on_sample, reader.get(), nullptr);
  if (reader->ring_ == nullptr)
    return Error{"cannot map the BPF ring buffer: " + errno_text(errno),
                 "a smaller --ring-size, or a higher memory limit, may help"};
  SIGMA_CHECK(reader->pages_.map(ring_map_fd));
  return reader;
}

RingReader::~RingReader() { ring_buffer__free(ring_); }

int RingReader::on_sample(void* self, void* data, size_t size) {
  auto& reader = *static_cast<RingReader*>(self);
  const auto* header = static_cast<const sigma_header*>(data);
  ++reader.consumed_;
  const int go_on = --reader.left_ == 0 ? kEnough : 0;
  // The ring's record may be longer than what the header says, never shorter.
  if (size < sizeof *header || header->size < sizeof *header || header->size > size || header->type == 0 ||
      (header->type >= SIGMA_RECORD_TYPES && header->type != SIGMA_RING_DRAIN)) {
    ++reader.malformed_;
    return go_on;
  }
  reader.on_record_({static_cast<const std::byte*>(data), header->size});
  return go_on;
}

Result<size_t> RingReader::drain(size_t max_records) {
  if (max_records == 0) return size_t{0};
  const uint64_t before = consumed_;
  left_ = max_records;
  const int error = ring_buffer__consume(ring_);
  if (error < 0 && error != kEnough) return Error{"reading the BPF ring buffer failed: " + errno_text(-error)};
  return static_cast<size_t>(consumed_ - before);
}

}  // namespace sigma
