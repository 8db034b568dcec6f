// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Packets of a stream's file to records; and a pool of threads that does it ahead of the reader.
//
// What a packet holds does not depend on other packets, but for two rules that the reader checks
// where one follows another: time and sequence numbers never go back. Content is hostile: what is
// wrong ends the packet, and is told with it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "trace/packet.h"

namespace sigma {

struct DecodedEvent {
  uint64_t timestamp_ns = 0;
  uint64_t sequence = 0;
  std::span<const std::byte> record;  // in DecodedPacket::storage, aligned to 8 bytes
};

struct DecodedPacket {
  std::vector<DecodedEvent> events;
  std::vector<uint64_t> storage;
  size_t encoded_bytes = 0;  // of the events, damaged ones included
  size_t damaged_bytes = 0;  // skipped after the last one of `events`
  std::string_view damage;   // what was wrong with them; empty: nothing
};

// A file's packets, one after the other. `sound`: pieces of the file that hold whole packets.
class PacketSource {
 public:
  PacketSource(std::span<const std::span<const std::byte>> sound, const Uuid& uuid)
      : sound_(sound), uuid_(uuid) {}

  // The next packet that has something to tell. false: there is none.
  bool next(DecodedPacket& out);

 private:
  std::span<const std::span<const std::byte>> sound_;
  Uuid uuid_;
  std::span<const std::byte> rest_;  // of the piece
};

// Decodes ahead, each file's packets in their order. take() is for one thread. Without threads,
// take() decodes.
class PacketDecoder {
 public:
  PacketDecoder(std::vector<PacketSource> sources, unsigned threads);
  ~PacketDecoder();
  PacketDecoder(const PacketDecoder&) = delete;
  PacketDecoder& operator=(const PacketDecoder&) = delete;

  // The source's next packet; null: there is none. Give back the one before as `done`.
  std::unique_ptr<DecodedPacket> take(size_t source, std::unique_ptr<DecodedPacket> done);

 private:
  struct Slot {
    explicit Slot(PacketSource&& from) : source(std::move(from)) {}
    PacketSource source;
    std::deque<std::unique_ptr<DecodedPacket>> ready;
    bool busy = false, ended = false;
  };
  void run();
  Slot* choose();

  std::deque<Slot> slots_;
  size_t ahead_;  // packets of each source
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<DecodedPacket>> free_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sigma
