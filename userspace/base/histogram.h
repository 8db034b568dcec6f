// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A log-linear histogram of 64-bit values: percentiles within 1%, in memory that depends on the
// values' range and not on their number.
//
// Each octave [2^k, 2^(k+1)) has 64 equal buckets, so a bucket is at most 1/64 of its values wide
// and its middle at most 0.8% off. Values below 64 have a bucket each. An octave takes 512 bytes
// once it is used; latencies of one queue pair span a handful.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>

namespace sigma {

class Histogram {
 public:
  void add(uint64_t value) {
    ++count_;
    if (value > max_) max_ = value;
    auto& octave = octaves_[octave_of(value)];
    if (!octave) octave = std::make_unique<Octave>();
    ++(*octave)[slot_of(value)];
  }

  void add(const Histogram& other) {
    count_ += other.count_;
    if (other.max_ > max_) max_ = other.max_;
    for (size_t i = 0; i < octaves_.size(); ++i) {
      if (!other.octaves_[i]) continue;
      if (!octaves_[i]) octaves_[i] = std::make_unique<Octave>();
      for (size_t slot = 0; slot < kSlots; ++slot)
        (*octaves_[i])[slot] += (*other.octaves_[i])[slot];
    }
  }

  uint64_t count() const { return count_; }
  uint64_t max() const { return max_; }

  // The value below or at which `fraction` (0..1] of all lie, by the nearest-rank rule; 0 when
  // empty.
  uint64_t percentile(double fraction) const;

 private:
  static constexpr unsigned kBits = 6;
  static constexpr unsigned kSlots = 1u << kBits;
  using Octave = std::array<uint64_t, kSlots>;

  // Octave 0: values below 64; octave n: values of n + 6 bits.
  static unsigned octave_of(uint64_t value) {
    const auto width = static_cast<unsigned>(std::bit_width(value));
    return width <= kBits ? 0 : width - kBits;
  }
  static unsigned slot_of(uint64_t value) {
    const unsigned octave = octave_of(value);
    return octave == 0 ? static_cast<unsigned>(value)
                       : static_cast<unsigned>(value >> (octave - 1)) & (kSlots - 1);
  }
  static uint64_t middle_of(unsigned octave, unsigned slot) {
    if (octave == 0) return slot;
    const uint64_t width = uint64_t{1} << (octave - 1);
    return (uint64_t{kSlots} + slot) * width + width / 2;
  }

  std::array<std::unique_ptr<Octave>, 64 - kBits + 1> octaves_{};
  uint64_t count_ = 0;
  uint64_t max_ = 0;
};

inline uint64_t Histogram::percentile(double fraction) const {
  if (count_ == 0) return 0;
  const double exact = fraction * static_cast<double>(count_);
  auto rank = static_cast<uint64_t>(exact);
  if (static_cast<double>(rank) < exact) ++rank;  // nearest rank: ceil
  if (rank < 1) rank = 1;
  if (rank >= count_) return max_;
  uint64_t below = 0;
  for (unsigned octave = 0; octave < octaves_.size(); ++octave) {
    if (!octaves_[octave]) continue;
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      below += (*octaves_[octave])[slot];
      if (below >= rank) {
        const uint64_t middle = middle_of(octave, slot);
        return middle < max_ ? middle : max_;
      }
    }
  }
  return max_;
}

}  // namespace sigma
