// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Rings that a test writes, their readers, and what these tell.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/be.h"
#include "catch.h"
#include "observe/cq_reader.h"
#include "observe/send_reader.h"
#include "observe/told_posts.h"

namespace observe_rig {

using sigma::LookTimes;
using sigma::PostedBounds;
using sigma::RecordBuffer;
using sigma::RingBytes;
using sigma::SendReader;

inline constexpr uint32_t kQp = 0x4711;

inline void put32(std::byte* at, uint32_t value) {
  const sigma::Be32 field(value);
  std::memcpy(at, &field, sizeof(field));
}

// A send ring and its writer. Each request says its position in its remote address.
struct Ring {
  explicit Ring(uint32_t size) : blocks(size), memory(size * 64) {}

  // RDMA WRITE with one data segment, or one of `wide` blocks with inline data.
  void post(uint32_t wide = 1) {
    const uint32_t units = wide == 1 ? 3 : wide * 4;
    for (uint32_t i = 0; i < wide; ++i) std::memset(at(posted + i), 0, 64);
    std::byte* wqe = at(posted);
    put32(wqe, static_cast<uint32_t>((posted & 0xffff) << 8 | 0x08));
    put32(wqe + 4, kQp << 8 | units);
    put32(wqe + 8, 0x08);
    put32(wqe + 16, static_cast<uint32_t>(posted >> 32));
    put32(wqe + 20, static_cast<uint32_t>(posted));
    put32(wqe + 24, 77);
    if (wide == 1) {
      put32(wqe + 32, 64);
      put32(wqe + 36, 55);
    } else {
      put32(wqe + 32, 0x80000000u | (wide * 64 - 36));
    }
    posted += wide;
  }
  std::byte* at(uint64_t position) { return memory.data() + (position & (blocks - 1)) * 64; }
  uint16_t doorbell() const { return static_cast<uint16_t>(posted); }
  std::vector<std::byte> copy(uint64_t first, uint64_t end) {
    std::vector<std::byte> bytes;
    for (; first < end; ++first) bytes.insert(bytes.end(), at(first), at(first) + 64);
    return bytes;
  }

  uint32_t blocks;
  uint64_t posted = 0;
  std::vector<std::byte> memory;
};

struct Heard {
  std::vector<sigma_ring_post> posts;
  std::vector<sigma_ring_gap> gaps;
  std::vector<sigma_ring_completion> completions;
  std::vector<sigma_ring> states;
  std::vector<RecordBuffer::Run> runs;  // the last ones, whose room is used again
  uint64_t seen = 0, missed = 0;

  void take(RecordBuffer& out) {
    out.take(runs);
    for (const RecordBuffer::Run& run : runs) RecordBuffer::for_each(run.bytes, [&](auto record) { hear(record); });
  }
  void hear(std::span<const std::byte> record) {
    switch (reinterpret_cast<const sigma_header*>(record.data())->type) {
      case SIGMA_RING_POST:
        posts.push_back(*reinterpret_cast<const sigma_ring_post*>(record.data()));
        seen += posts.back().blocks;
        break;
      case SIGMA_RING_GAP:
        gaps.push_back(*reinterpret_cast<const sigma_ring_gap*>(record.data()));
        missed += gaps.back().count;
        break;
      case SIGMA_RING_COMPLETION:
        completions.push_back(*reinterpret_cast<const sigma_ring_completion*>(record.data()));
        break;
      case SIGMA_RING:
        states.push_back(*reinterpret_cast<const sigma_ring*>(record.data()));
        break;
    }
  }
  // Likewise, where the place may be rounds of 65,536 off.
  void check_places() const {
    size_t wrong = 0;
    for (size_t i = 0; i < posts.size(); ++i)
      wrong += (posts[i].remote_addr & 0xffff) != (posts[i].index & 0xffff) || posts[i].rkey != 77 ||
               (i > 0 && (posts[i].index <= posts[i - 1].index || posts[i].remote_addr <= posts[i - 1].remote_addr));
    CHECK(wrong == 0);
  }
  // Every request is what was posted at its place, each once, in order.
  void check_posts() const {
    size_t wrong = 0;
    for (size_t i = 0; i < posts.size(); ++i)
      wrong += posts[i].remote_addr != posts[i].index || posts[i].rkey != 77 ||
               (i > 0 && posts[i].index <= posts[i - 1].index);
    CHECK(wrong == 0);
  }
};

inline sigma::SendSpec spec_of(const Ring& ring) {
  sigma::SendSpec spec;
  spec.owner = {.pid = 7, .context = 1, .by_file = false, .number = kQp};
  spec.ring_addr = 0x1000;
  spec.doorbell_addr = 0x2000;
  spec.blocks = ring.blocks;
  spec.service = sigma::QpService::rc;
  return spec;
}

struct Watched {
  explicit Watched(uint32_t blocks, SendReader::Mode mode = SendReader::Mode::read, bool probes_tell = false)
      : ring(blocks), reader(std::make_unique<SendReader>(spec_of(ring), 0, mode, probes_tell)) {}

  // `meanwhile`: requests that are posted between the doorbell's copy and the blocks'.
  void look(uint32_t meanwhile = 0) { look(meanwhile, PostedBounds::within_a_round(reader->posted())); }
  void look(uint32_t meanwhile, const PostedBounds& bounds) {
    now += 1000;
    const LookTimes times{now - 1000, now};
    const auto wanted = reader->on_doorbell(ring.doorbell(), times, bounds, out);
    for (uint32_t i = 0; i < meanwhile; ++i) ring.post();
    if (wanted.any()) {
      const auto bytes = ring.copy(wanted.first, wanted.end);
      reader->on_copy(wanted, RingBytes{std::span<const std::byte>(bytes)}, ring.doorbell(),
                      PostedBounds::within_a_round(wanted.end), times, out);
    }
    heard.take(out);
  }
  void last(uint64_t first) { last(first, PostedBounds::within_a_round(reader->posted())); }
  void last(uint64_t first, const PostedBounds& bounds) {
    const auto bytes = ring.copy(first, ring.posted);
    reader->on_last(first, RingBytes{std::span<const std::byte>(bytes)}, ring.doorbell(), bounds, LookTimes{now, now + 10},
                    out);
    heard.take(out);
  }

  Ring ring;
  RecordBuffer out;
  Heard heard;
  uint64_t now = 1'000'000;
  std::unique_ptr<SendReader> reader;
};

struct CqRing {
  explicit CqRing(uint32_t size, uint32_t stride) : entries(size), stride(stride), memory(size * stride) {
    for (uint32_t i = 0; i < size; ++i) memory[(i + 1) * stride - 1] = std::byte{0xf0};
  }
  void complete(uint16_t counter) { write(produced++, counter); }
  // A session of the compressed basic layout: a title, and mini entries of their counters.
  void complete_session(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t array = produced + (i < 8 ? 1 : i / 8 * 8);
      std::byte* mini = memory.data() + (array & (entries - 1)) * stride + stride - 64 + i % 8 * 8;
      put32(mini, static_cast<uint32_t>((produced + i) & 0xffff) << 16 | 0x0800);
    }
    const uint64_t title = produced;
    write(title, static_cast<uint16_t>(title));
    std::byte* cqe = memory.data() + (title & (entries - 1)) * stride + stride - 64;
    put32(cqe + 44, count);
    cqe[63] |= std::byte{3 << 2};
    produced += count;
  }
  void write(uint64_t position, uint16_t counter) {
    std::byte* cqe = memory.data() + (position & (entries - 1)) * stride + stride - 64;
    std::memset(cqe, 0, 64);
    put32(cqe + 56, 0x08u << 24 | kQp);
    cqe[60] = static_cast<std::byte>(counter >> 8);
    cqe[61] = static_cast<std::byte>(counter);
    put32(cqe + 52, static_cast<uint32_t>(position + 1));  // of its time stamp
    cqe[63] = static_cast<std::byte>(position / entries & 1);
  }
  std::vector<std::byte> copy(uint64_t first, uint64_t count) const {
    std::vector<std::byte> bytes;
    for (uint64_t i = first; i < first + count; ++i) {
      const auto* entry = memory.data() + (i & (entries - 1)) * stride;
      bytes.insert(bytes.end(), entry, entry + stride);
    }
    return bytes;
  }
  uint32_t entries, stride;
  uint64_t produced = 0, consumed = 0;
  std::vector<std::byte> memory;
};

// What the observer does with a completion ring, once.
template <typename AnyRing>
void look_at(sigma::CqReader& reader, const AnyRing& ring, uint32_t consumer, const LookTimes& times, RecordBuffer& out) {
  const auto wanted = reader.wanted(false);
  const auto bytes = ring.copy(wanted.first, wanted.count);
  const RingBytes copy{std::span<const std::byte>(bytes)};
  if (reader.has_news(wanted, copy))
    reader.on_copies(wanted, copy, copy, consumer, times, out);
  else
    reader.on_nothing(consumer);
}

struct WatchedCq {
  WatchedCq(uint32_t entries, uint32_t stride, bool counts, sigma::CqLayout layout = sigma::CqLayout::plain)
      : ring(entries, stride), counts(counts) {
    sigma::CqSpec spec;
    spec.owner = {.pid = 7, .context = 1, .by_file = false, .number = 3};
    spec.ring_addr = 0x1000;
    spec.ring = {.entries = entries, .entry_bytes = stride, .layout = layout};
    reader = std::make_unique<sigma::CqReader>(spec, 0, [](uint32_t) { return nullptr; });
  }
  void look() {
    now += 1000;
    look_at(*reader, ring, counts ? ring.consumed & 0xffffff : 0, {now - 1000, now}, out);
    heard.take(out);
  }
  CqRing ring;
  bool counts;
  RecordBuffer out;
  Heard heard;
  uint64_t now = 1'000'000;
  std::unique_ptr<sigma::CqReader> reader;
};

}  // namespace observe_rig
