// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A model of a device that writes a completion ring, and of the owner that consumes it, by pieces of 16 bytes.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "cqe_writer.h"
#include "decode/cqe.h"
#include "decode/completion_ring.h"

namespace sigma {

inline constexpr uint8_t kInvalid = 0xf1;  // op_own before the first lap

// Writes completions by the rules of each layout, never over what the owner has not consumed.
class CompletionDevice {
 public:
  CompletionDevice(const CompletionRing& ring, bool requester, std::mt19937& random)
      : ring_(ring),
        requester_(requester),
        random_(random),
        memory_(ring.entries * ring.entry_bytes) {
    for (uint32_t slot = 0; slot < ring.entries; ++slot) {
      entry(slot)[63] = std::byte{kInvalid};
      if (ring.layout == CqLayout::compressed_enhanced) entry(slot)[62] = std::byte{0xff};
    }
  }

  // One 16-byte piece of what is to be written, or the next completions.
  void write() {
    if (pieces_.empty() && !produce()) return;
    const Piece& piece = pieces_.front();
    std::memcpy(memory_.data() + piece.at, piece.bytes.data(), piece.bytes.size());
    if (piece.produced > produced_) {
      produced_ = piece.produced;
      if (piece.session > 0) sessions_.push_back({piece.produced - piece.session, piece.session});
    }
    pieces_.pop_front();
  }

  // The owner consumes one completion; in the enhanced layout it marks the entries that a block
  // covers (UCX). Its index is published where a session ends.
  void consume(bool publish) {
    if (consumed_ == produced_) return;
    while (!sessions_.empty() && sessions_.front().first + sessions_.front().second <= consumed_)
      sessions_.pop_front();
    const bool inside = !sessions_.empty() && sessions_.front().first <= consumed_;
    const uint64_t last =
        inside ? sessions_.front().first + sessions_.front().second - 1 : consumed_;
    auto next = entry((consumed_ + 1) % ring_.entries);
    if (inside && consumed_ < last && unzips && ring_.layout == CqLayout::compressed_basic)
      next[63] = entry(sessions_.front().first % ring_.entries)[63];
    if (inside && consumed_ < last && ring_.layout == CqLayout::compressed_enhanced) {
      next[63] = std::byte{3 << 2};
      next[62] = static_cast<std::byte>(consumed_ / ring_.entries);
    }
    ++consumed_;
    // DPDK invalidates what a session of the basic layout covered.
    if (inside && consumed_ > last && !unzips && ring_.layout == CqLayout::compressed_basic)
      for (uint64_t at = sessions_.front().first; at <= last; ++at)
        entry(at % ring_.entries)[63] = std::byte{MLX5_CQE_INVALID << 4};
    if (publish && consumed_ > last) published_ = consumed_;
  }

  CqeFields completion(uint64_t position) const {
    CqeFields fields;
    fields.opcode = requester_ ? MLX5_CQE_REQ : MLX5_CQE_RESP_SEND;
    fields.wqe_opcode = requester_ ? uint8_t{MLX5_OPCODE_RDMA_READ} : uint8_t{0};
    fields.wqe_counter = static_cast<uint16_t>(requester_ ? position * 3 : position);
    fields.bytes = static_cast<uint32_t>(position * 7 + 1);
    fields.timestamp = position + 1;
    return fields;
  }
  bool is(const Cqe& cqe, uint64_t position) const {
    const CqeFields fields = completion(position);
    return cqe.kind == (requester_ ? CqeKind::requester : CqeKind::responder) &&
           cqe.qp_num == fields.qp_num && cqe.wqe_counter == fields.wqe_counter &&
           (!cqe.has_bytes || cqe.bytes == fields.bytes) &&
           (!cqe.has_timestamp || cqe.timestamp == fields.timestamp);
  }

  uint32_t doorbell() const { return published_ & 0xffffff; }
  uint64_t produced() const { return produced_; }
  uint64_t consumed() const { return consumed_; }
  std::span<const std::byte> memory() const { return memory_; }
  bool publishes = true;
  bool unzips = false;  // basic layout: marks a session's entries as UCX 1.13 does

 private:
  struct Piece {
    size_t at;
    std::array<std::byte, 16> bytes;
    uint64_t produced;  // with this piece
    uint32_t session;   // completions of the session that it ends, if it is one
  };

  std::span<std::byte, 64> entry(uint64_t slot) {
    return std::span<std::byte, 64>(
        memory_.data() + slot * ring_.entry_bytes + ring_.entry_bytes - 64, 64);
  }
  void put(uint64_t position, const CqeBytes& bytes, uint64_t produced, uint32_t session = 0) {
    const size_t at = position % ring_.entries * ring_.entry_bytes + ring_.entry_bytes - 64;
    for (size_t piece = 0; piece < 64; piece += 16) {
      Piece& queued = pieces_.emplace_back();
      queued.at = at + piece;
      std::memcpy(queued.bytes.data(), bytes.data() + piece, 16);
      queued.produced = piece == 48 ? produced : 0;
      queued.session = piece == 48 ? session : 0;
    }
  }

  bool produce() {
    const uint64_t at = produced_;
    const uint64_t fill =
        ring_.layout == CqLayout::compressed_basic ? ring_.entries / 4 * 3 : ring_.entries;
    const uint64_t limit = (publishes ? published_ : consumed_) + fill;
    if (at == limit) return false;
    const uint64_t room = limit - at;
    uint64_t count = 1;
    if (ring_.layout == CqLayout::compressed_basic && random_() % 2)
      count = std::min<uint64_t>(room, 2 + random_() % 30);
    // UCX gives all entries of a session the owner bit of its first.
    if (unzips) count = std::min(count, ring_.entries - at % ring_.entries);
    const bool titled = at % ring_.entries != 0;
    if (ring_.layout == CqLayout::compressed_enhanced && titled && random_() % 2) {
      count = std::min({room, ring_.entries - at % ring_.entries, uint64_t{1} + random_() % 7});
      CqeBytes block{};
      for (uint64_t i = 0; i < count; ++i) put_mini(block, i, completion(at + i));
      put_block_mark(block, count, static_cast<uint8_t>(at / ring_.entries));
      put(at, block, at + count, static_cast<uint32_t>(count));
      return true;
    }
    CqeFields fields = completion(at);
    if (count > 1) {
      for (uint64_t array = 0; array < count; array += 8) {
        CqeBytes minis{};
        for (uint64_t i = array; i < std::min(count, array + 8); ++i)
          put_mini(minis, i - array, completion(at + i));
        put(at + (array == 0 ? 1 : array), minis, 0);
      }
      fields.format = 3;
      fields.bytes = static_cast<uint32_t>(count);
    }
    const auto lap = static_cast<uint8_t>(at / ring_.entries);
    put(at, image_of(fields, lap & 1, ring_.layout == CqLayout::compressed_enhanced ? lap : 0),
        at + count, count > 1 ? static_cast<uint32_t>(count) : 0);
    return true;
  }

  CompletionRing ring_;
  bool requester_;
  std::mt19937& random_;
  std::vector<std::byte> memory_;
  std::deque<Piece> pieces_;
  std::deque<std::pair<uint64_t, uint32_t>> sessions_;  // first, completions
  uint64_t produced_ = 0, consumed_ = 0, published_ = 0;
};

}  // namespace sigma
