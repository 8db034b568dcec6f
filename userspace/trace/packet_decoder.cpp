// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "trace/packet_decoder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "trace/codec.h"
#include "trace/stream_index.h"

namespace sigma {
namespace {

// Of all sources together, at least one of each. Few: what is decoded is to be used while the cache
// still holds it.
constexpr size_t kPacketsAhead = 12;

// The one size of a type's records; 0: they differ, or there is no such type. A table, for every
// event asks.
uint16_t only_size_of(uint16_t type) {
  static const auto sizes = [] {
    std::array<uint16_t, 256> table{};
    for (const RecordSchema& schema : record_schemas())
      if (schema.tail == Tail::none && schema.type < table.size()) table[schema.type] = schema.size;
    return table;
  }();
  return type < sizes.size() ? sizes[type] : 0;
}

// read_event() for records of one size, without a call; anything else is left to it.
inline std::optional<Event> read(std::span<const std::byte> bytes, std::span<std::byte> out) {
  constexpr size_t kHeaderBytes = sizeof(sigma_header);
  if (bytes.size() < sizeof(EventHead)) return std::nullopt;
  EventHead head;
  std::memcpy(&head, bytes.data(), sizeof head);
  const size_t size = head.size;
  if (size == 0 || size != only_size_of(head.id) || size > out.size() ||
      bytes.size() < size + kEventOverhead)
    return read_event(bytes, out);
  sigma_header header;
  std::memcpy(&header, &head, sizeof header);
  header.time_ns -= head.late_ns;
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + kHeaderBytes, bytes.data() + sizeof head, size - kHeaderBytes);
  return Event{head.timestamp_ns, head.sequence, size + kEventOverhead, out.first(size)};
}

void decode(const PacketHead& head, std::span<const std::byte> events, DecodedPacket& out) {
  out.events.clear();
  out.damage = {};
  out.damaged_bytes = 0;
  out.encoded_bytes = events.size();
  // A record takes less than its event, also when its end is brought to a multiple of 8.
  static_assert(kEventOverhead >= 8);
  if (out.storage.size() * 8 < events.size()) out.storage.resize(events.size() / 8 + 1);
  std::span<std::byte> room = std::as_writable_bytes(std::span(out.storage));
  out.events.reserve(head.events);  // no more than fit into the packet: reject_packet
  uint64_t last_ns = head.timestamp_begin, next_sequence = 0;
  while (!events.empty() || out.events.size() != head.events) {
    const auto event = read(events, room);
    if (!event || out.events.size() == head.events || event->timestamp_ns < last_ns ||
        event->timestamp_ns > head.timestamp_end || event->sequence < next_sequence) {
      out.damaged_bytes = events.size();
      out.damage = "a damaged packet";
      return;
    }
    out.events.push_back({event->timestamp_ns, event->sequence, event->record});
    last_ns = event->timestamp_ns;
    next_sequence = event->sequence + 1;
    events = events.subspan(event->encoded_bytes);
    room = room.subspan((event->record.size() + 7) / 8 * 8);
  }
}

}  // namespace

// Heads are looked at again, rather than kept: memory must not grow with the trace.
bool PacketSource::next(DecodedPacket& out) {
  for (;;) {
    if (rest_.empty()) {
      if (sound_.empty()) return false;
      rest_ = sound_.front();
      sound_ = sound_.subspan(1);
      continue;
    }
    PacketHead head;
    if (reject_packet(rest_, uuid_, &head)) {
      out.events.clear();
      out.encoded_bytes = out.damaged_bytes = rest_.size();
      out.damage = "changed while it was read";
      rest_ = {};
      return true;
    }
    const size_t size = head.packet_bits / 8;
    decode(head, rest_.subspan(sizeof head, size - sizeof head), out);
    rest_ = rest_.subspan(size);
    if (!out.events.empty() || !out.damage.empty()) return true;
  }
}

PacketDecoder::PacketDecoder(std::vector<PacketSource> sources, unsigned threads)
    : ahead_(std::max<size_t>(1, kPacketsAhead / std::max<size_t>(1, sources.size()))) {
  for (PacketSource& source : sources) slots_.emplace_back(std::move(source));
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

PacketDecoder::~PacketDecoder() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// The source that is the least ahead. Called with the lock held.
PacketDecoder::Slot* PacketDecoder::choose() {
  Slot* best = nullptr;
  for (Slot& slot : slots_)
    if (!slot.busy && !slot.ended && slot.ready.size() < ahead_ &&
        (!best || slot.ready.size() < best->ready.size()))
      best = &slot;
  return best;
}

void PacketDecoder::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Slot* slot = nullptr;
    changed_.wait(lock, [&] { return stopping_ || (slot = choose()); });
    if (stopping_) return;
    slot->busy = true;
    std::unique_ptr<DecodedPacket> packet;
    if (!free_.empty()) {
      packet = std::move(free_.back());
      free_.pop_back();
    }
    lock.unlock();
    if (!packet) packet = std::make_unique<DecodedPacket>();
    const bool any = slot->source.next(*packet);
    lock.lock();
    slot->busy = false;
    slot->ended = !any;
    if (any) slot->ready.push_back(std::move(packet));
    changed_.notify_all();
  }
}

std::unique_ptr<DecodedPacket> PacketDecoder::take(size_t source,
                                                   std::unique_ptr<DecodedPacket> done) {
  Slot& slot = slots_[source];
  if (threads_.empty()) {
    if (!done) done = std::make_unique<DecodedPacket>();
    return slot.source.next(*done) ? std::move(done) : nullptr;
  }
  std::unique_lock lock(mutex_);
  if (done) free_.push_back(std::move(done));
  changed_.wait(lock, [&] { return slot.ended || !slot.ready.empty(); });
  if (slot.ready.empty()) return nullptr;
  auto packet = std::move(slot.ready.front());
  slot.ready.pop_front();
  lock.unlock();
  changed_.notify_all();
  return packet;
}

}  // namespace sigma
