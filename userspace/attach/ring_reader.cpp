// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/ring_reader.h"

#include <bpf/libbpf.h>

#include <cerrno>

#include "bpf/config.h"

namespace sigma {
namespace {

// libbpf stops at a negative return, having consumed the record, and passes it on.
constexpr int kEnough = -ECANCELED;

}  // namespace

Result<std::unique_ptr<RingReader>> RingReader::open(int ring_map_fd, OnRecord on_record) {
  std::unique_ptr<RingReader> reader(new RingReader(std::move(on_record)));
  reader->ring_ = ring_buffer__new(ring_map_fd, &RingReader::on_sample, reader.get(), nullptr);
  if (reader->ring_ == nullptr)
    return Error{"cannot map the BPF ring buffer: " + errno_text(errno),
                 "a smaller --ring-size, or a higher memory limit, may help"};
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
