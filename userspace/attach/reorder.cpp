// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One lane per CPU. Within a lane records nearly always arrive in order, so merging the lanes' heads
// is all the sorting there is; the rare inversion within a lane is put in its place on arrival.
#include "attach/reorder.h"

#include <algorithm>
#include <limits>

namespace sigma {
namespace {

// Records lie at multiples of 8, so that their headers can be read in place.
size_t stride(size_t size) { return (size + 7) & ~size_t{7}; }

const sigma_header& header_at(const std::byte* bytes) { return *reinterpret_cast<const sigma_header*>(bytes); }

// More CPUs than a machine has: a bound against a corrupt `cpu` field.
constexpr uint32_t kMaxLanes = 8192;

constexpr size_t kChunkBytes = 256 * 1024;
constexpr size_t kMaxRoomBytes = 32u << 20;

}  // namespace

Reorder::Reorder(Deliver deliver, uint64_t window_ns) : deliver_(std::move(deliver)), window_ns_(window_ns) {}

Reorder::Lane& Reorder::lane_of(uint32_t cpu) {
  cpu = std::min(cpu, kMaxLanes - 1);
  if (cpu >= lanes_.size()) lanes_.resize(cpu + 1);
  return lanes_[cpu];
}

RecordBytes Reorder::Rooms::take() {
  if (all.empty()) return {};
  RecordBytes room = std::move(all.back());
  all.pop_back();
  bytes -= room.capacity();
  return room;
}

void Reorder::Rooms::keep(RecordBytes&& room) {
  room.clear();
  if (bytes + room.capacity() > kMaxRoomBytes) return;
  bytes += room.capacity();
  all.push_back(std::move(room));
}

void Reorder::append(Lane& lane, std::span<const std::byte> record) {
  if (lane.empty() || lane.chunks.back().is_run || lane.chunks.back().bytes.size() + record.size() > kChunkBytes) {
    lane.chunks.push_back({rooms_.take()});
    lane.chunks.back().bytes.reserve(kChunkBytes);
  }
  RecordBytes& bytes = lane.chunks.back().bytes;
  bytes.insert(bytes.end(), record.begin(), record.end());
  bytes.resize(stride(bytes.size()));
  lane.last_ns = header_at(record.data()).time_ns;
}

// Behind all that are not younger. What comes late is nearly always of the newest chunk's time.
void Reorder::insert_by_time(Lane& lane, std::span<const std::byte> record) {
  const uint64_t time_ns = header_at(record.data()).time_ns;
  size_t number = lane.chunks.size();
  while (number > 1 && header_at(lane.chunks[number - 1].bytes.data() + lane.chunks[number - 1].begin).time_ns > time_ns)
    --number;
  for (number = std::max<size_t>(number, 1) - 1; number < lane.chunks.size(); ++number) {
    Chunk& chunk = lane.chunks[number];
    for (size_t at = chunk.begin; at < chunk.bytes.size();) {
      const sigma_header& header = header_at(chunk.bytes.data() + at);
      if (header.time_ns <= time_ns) {
        at += stride(header.size);
        continue;
      }
      const auto place = chunk.bytes.begin() + static_cast<ptrdiff_t>(at);
      std::copy(record.begin(), record.end(), chunk.bytes.insert(place, stride(record.size()), std::byte{}));
      return;
    }
  }
  append(lane, record);
}

void Reorder::push(std::span<const std::byte> record) {
  const sigma_header& header = header_at(record.data());
  if (header.time_ns < released_ns_) {
    ++late_;
    deliver_(record);
    return;
  }
  Lane& lane = lane_of(header.cpu);
  if (lane.empty() || header.time_ns >= lane.last_ns)
    append(lane, record);
  else
    insert_by_time(lane, record);
}

void Reorder::push_run(RecordBytes& records, uint64_t last_ns) {
  if (records.empty()) return;
  const sigma_header& first = header_at(records.data());
  Lane& lane = lane_of(first.cpu);
  const bool is_long = records.size() >= kLongRunBytes;
  if (is_long && last_ns != 0 && first.time_ns >= released_ns_ && (lane.empty() || first.time_ns >= lane.last_ns)) {
    lane.chunks.push_back({std::move(records), true});
    lane.last_ns = last_ns;
    records = run_rooms_.take();
    return;
  }
  for (size_t at = 0; at < records.size();) {
    const size_t size = header_at(records.data() + at).size;
    push(std::span<const std::byte>(records).subspan(at, size));
    at += stride(size);
  }
  records.clear();
}

void Reorder::release(uint64_t now_ns) {
  if (now_ns > window_ns_) release_until(now_ns - window_ns_);
}

void Reorder::flush() { release_until(std::numeric_limits<uint64_t>::max()); }

// Its first record, and those behind it that are older than `before_ns`.
void Reorder::pass_on(Lane& lane, uint64_t before_ns) {
  bool first = true;
  while (!lane.empty()) {
    Chunk& chunk = lane.chunks.front();
    for (; !chunk.empty(); first = false) {
      const sigma_header& header = header_at(chunk.bytes.data() + chunk.begin);
      if (!first && header.time_ns >= before_ns) return;
      released_ns_ = header.time_ns;
      deliver_({chunk.bytes.data() + chunk.begin, header.size});
      chunk.begin += stride(header.size);
    }
    (chunk.is_run ? run_rooms_ : rooms_).keep(std::move(chunk.bytes));
    lane.chunks.pop_front();
  }
}

void Reorder::release_until(uint64_t limit_ns) {
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
  for (uint32_t i = 0; i < lanes_.size(); ++i)
    if (!lanes_[i].empty() && lanes_[i].front().time_ns < limit_ns) heads.push({lanes_[i].front().time_ns, i});
  while (!heads.empty()) {
    Lane& lane = lanes_[heads.top().lane];
    const uint32_t index = heads.top().lane;
    heads.pop();
    const uint64_t next_ns = heads.empty() ? limit_ns : std::min(limit_ns, heads.top().time_ns);
    // A run of one lane goes out without touching the heap.
    pass_on(lane, next_ns);
    if (!lane.empty() && lane.front().time_ns < limit_ns) heads.push({lane.front().time_ns, index});
  }
  if (limit_ns != std::numeric_limits<uint64_t>::max()) released_ns_ = std::max(released_ns_, limit_ns);
}

size_t Reorder::held_bytes() const {
  size_t sum = 0;
  for (const Lane& lane : lanes_)
    for (const Chunk& chunk : lane.chunks) sum += chunk.bytes.size() - chunk.begin;
  return sum;
}

}  // namespace sigma
