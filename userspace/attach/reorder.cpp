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

}  // namespace

Reorder::Reorder(Deliver deliver, uint64_t window_ns) : deliver_(std::move(deliver)), window_ns_(window_ns) {}

void Reorder::Lane::append(std::span<const std::byte> record) {
  const size_t at = bytes.size();
  bytes.resize(at + stride(record.size()));
  std::copy(record.begin(), record.end(), bytes.begin() + static_cast<ptrdiff_t>(at));
  last_ns = header_at(record.data()).time_ns;
}

void Reorder::Lane::insert_by_time(std::span<const std::byte> record) {
  const uint64_t time_ns = header_at(record.data()).time_ns;
  size_t at = begin;
  while (at < bytes.size() && header_at(bytes.data() + at).time_ns <= time_ns)
    at += stride(header_at(bytes.data() + at).size);
  const auto place = bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), stride(record.size()), std::byte{});
  std::copy(record.begin(), record.end(), place);
}

void Reorder::Lane::pop() {
  begin += stride(front().size);
  if (begin == bytes.size()) {
    bytes.clear();
    begin = 0;
  } else if (begin > (1u << 20) && begin > bytes.size() / 2) {
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(begin));
    begin = 0;
  }
}

void Reorder::push(std::span<const std::byte> record) {
  const sigma_header& header = header_at(record.data());
  if (header.time_ns < released_ns_) {
    ++late_;
    deliver_(record);
    return;
  }
  const uint32_t cpu = std::min(header.cpu, kMaxLanes - 1);
  if (cpu >= lanes_.size()) lanes_.resize(cpu + 1);
  Lane& lane = lanes_[cpu];
  if (lane.empty() || header.time_ns >= lane.last_ns)
    lane.append(record);
  else
    lane.insert_by_time(record);
}

void Reorder::release(uint64_t now_ns) {
  if (now_ns > window_ns_) release_until(now_ns - window_ns_);
}

void Reorder::flush() { release_until(std::numeric_limits<uint64_t>::max()); }

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
    do {
      released_ns_ = lane.front().time_ns;
      deliver_({lane.bytes.data() + lane.begin, lane.front().size});
      lane.pop();
    } while (!lane.empty() && lane.front().time_ns < next_ns);
    if (!lane.empty() && lane.front().time_ns < limit_ns) heads.push({lane.front().time_ns, index});
  }
  if (limit_ns != std::numeric_limits<uint64_t>::max()) released_ns_ = std::max(released_ns_, limit_ns);
}

size_t Reorder::held_bytes() const {
  size_t sum = 0;
  for (const Lane& lane : lanes_) sum += lane.bytes.size() - lane.begin;
  return sum;
}

}  // namespace sigma
