// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A CPU's records nearly always arrive in order, so that merging the lanes' heads is all the sorting there is. What
// comes out of order goes to another lane of its CPU, in constant time: behind one record of a later time (our own
// ones are made while the ring still holds older ones) all that the ring holds may come so.
#include "attach/reorder.h"

#include <algorithm>
#include <limits>

namespace sigma {
namespace {

// Records lie at multiples of 8, so that their headers can be read in place.
size_t stride(size_t size) { return (size + 7) & ~size_t{7}; }

const sigma_header& header_at(const std::byte* bytes) { return *reinterpret_cast<const sigma_header*>(bytes); }

// More than a machine has: a bound against a corrupt `cpu` field.
constexpr uint32_t kMaxCpus = 8192;
// Each holds records in order; only where all of them have got ahead is a place looked for in the last one.
constexpr size_t kLanesOfCpu = 8;

constexpr size_t kChunkBytes = 256 * 1024;
constexpr size_t kMaxRoomBytes = 32u << 20;

}  // namespace

Reorder::Reorder(Deliver deliver, uint64_t window_ns) : deliver_(std::move(deliver)), window_ns_(window_ns) {}

// The first that this time can be appended to, so that what is of one time stays in order; else the last.
Reorder::Lane& Reorder::lane_for(uint32_t cpu, uint64_t time_ns) {
  cpu = std::min(cpu, kMaxCpus - 1);
  if (cpu >= cpus_.size()) cpus_.resize(cpu + 1);
  std::vector<Lane>& lanes = cpus_[cpu];
  for (Lane& lane : lanes)
    if (lane.takes(time_ns)) return lane;
  if (lanes.size() < kLanesOfCpu) lanes.emplace_back();
  return lanes.back();
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
  Lane& lane = lane_for(header.cpu, header.time_ns);
  if (lane.takes(header.time_ns))
    append(lane, record);
  else
    insert_by_time(lane, record);
}

void Reorder::push_run(RecordBytes& records, uint64_t last_ns) {
  if (records.empty()) return;
  const sigma_header& first = header_at(records.data());
  if (records.size() >= kLongRunBytes && last_ns != 0 && first.time_ns >= released_ns_) {
    if (Lane& lane = lane_for(first.cpu, first.time_ns); lane.takes(first.time_ns)) {
      lane.chunks.push_back({std::move(records), true});
      lane.last_ns = last_ns;
      records = run_rooms_.take();
      return;
    }
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
  const auto add = [&](Lane& lane, size_t number) {
    if (!lane.empty() && lane.front().time_ns < limit_ns) heads.push({lane.front().time_ns, number, &lane});
  };
  for (size_t cpu = 0; cpu < cpus_.size(); ++cpu)
    for (size_t i = 0; i < cpus_[cpu].size(); ++i) add(cpus_[cpu][i], cpu * kLanesOfCpu + i);
  while (!heads.empty()) {
    const Head head = heads.top();
    heads.pop();
    const uint64_t next_ns = heads.empty() ? limit_ns : std::min(limit_ns, heads.top().time_ns);
    // A run of one lane goes out without touching the heap.
    pass_on(*head.lane, next_ns);
    add(*head.lane, head.number);
  }
  if (limit_ns != std::numeric_limits<uint64_t>::max()) released_ns_ = std::max(released_ns_, limit_ns);
}

size_t Reorder::held_bytes() const {
  size_t sum = 0;
  for (const std::vector<Lane>& lanes : cpus_)
    for (const Lane& lane : lanes)
      for (const Chunk& chunk : lane.chunks) sum += chunk.bytes.size() - chunk.begin;
  return sum;
}

}  // namespace sigma
