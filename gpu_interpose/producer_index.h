// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// ProducerIndex: the 64-bit index that a stack's device code keeps of what it has posted to one
// queue, as evidence of how often the doorbell record's 16 bits went round while nobody looked.
//
// Where it stands is known from a structure (published_index.h), what it means is not taken on
// trust. It counts once it has agreed with the record, all bits of it, and has then carried over a
// multiple of 65,536 in plain sight, that is between looks between which the record could be
// followed: a 16-bit counter in a wider field does not. The first contradiction ends it for this
// life of the queue. No I/O, no allocation.
#pragma once

#include <stdint.h>

namespace sigma::gpu {

class ProducerIndex {
 public:
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  enum class State : uint8_t { none, found, certified, dropped };
  // Its value before and after the doorbell record was read.
  struct Reading {
    uint64_t before, after;
  };

  // `blocks`: of the ring, at most so far is the record behind it. `behind`: at most so far is it
  // behind the record. `from_birth`: positions are the queue's own; else they may differ from the
  // index by a multiple of 65,536.
  void begin(uint64_t address, uint32_t blocks, uint32_t behind, bool from_birth) {
    *this = ProducerIndex{};
    address_ = address;
    blocks_ = blocks;
    behind_ = behind;
    based_ = from_birth;
    state_ = address ? State::found : State::none;
  }
  uint64_t address() const { return address_; }
  State state() const { return state_; }
  void drop() { state_ = State::dropped; }

  // Whether a look at a queue that has come to `posted` reads it: where it is needed and can tell,
  // where a round is about to end, and now and then.
  bool wanted(bool needed, uint64_t posted) {
    if (state_ != State::found && state_ != State::certified) return false;
    const bool rounds = posted % 65'536 >= kRoundEnds || (posted - place_) >> 16 != 0;
    return turn_++ % kTurns == 0 || (state_ == State::certified ? needed : rounds);
  }

  // A look before which the record may have gone round.
  void lost_sight() { in_sight_ = false; }

  // A look before which it has not. `record`: its position, of which, where not `exact`, only 16
  // bits and how far it moved in plain sight are right.
  void check(const Reading& reading, uint64_t record, bool exact, uint64_t now_ns) {
    if (!in_order(reading)) return drop();
    if (!based_) base_ = (reading.before - record + 32'768) & ~uint64_t{0xffff};
    based_ = true;
    uint64_t place = 0;
    const Found found = place_of(reading, static_cast<uint16_t>(record), place);
    if (found == Found::several) return;
    const uint64_t rounds = place - record;
    const bool followed = in_sight_ && looks_ > 0;
    if (found == Found::none || (exact && rounds != 0) || (followed && rounds != rounds_))
      return drop();
    agreed_ |= exact;
    carried_ |= followed && place >> 16 > place_ >> 16;
    if (looks_ == 0 || place != place_) ++looks_;
    in_sight_ = true;
    rounds_ = rounds;
    note(reading, place, now_ns);
    if (agreed_ && carried_ && looks_ >= kLooks) state_ = State::certified;
  }

  // The record's whole position where only its 16 bits are known; kUnknown: the index does not tell
  // it. At most `most_per_s` blocks are posted in a second.
  uint64_t resolve(const Reading& reading, uint16_t record, uint64_t most_per_s, uint64_t now_ns) {
    if (state_ != State::certified) return kUnknown;
    if (!in_order(reading)) return drop(), kUnknown;
    // One that stands still while the record moves says nothing of how far.
    if (reading.after == last_ && record != static_cast<uint16_t>(place_)) return kUnknown;
    uint64_t place = 0;
    const Found found = place_of(reading, record, place);
    if (found == Found::several) return kUnknown;
    // Records may be stored a little out of order.
    if (found == Found::none || place + blocks_ < place_) return drop(), kUnknown;
    if (place < place_) place = place_;
    const double most =
        static_cast<double>(now_ns - noted_ns_) * 1e-9 * static_cast<double>(most_per_s);
    if (static_cast<double>(place - place_) > most + blocks_) return drop(), kUnknown;
    note(reading, place, now_ns);
    return place;
  }

 private:
  static constexpr uint32_t kTurns = 16, kLooks = 3, kRoundEnds = 49'152;
  enum class Found : uint8_t { none, one, several };

  // It only grows, and began within this queue's count.
  bool in_order(const Reading& reading) const {
    return reading.after >= reading.before && reading.before >= last_ && reading.before >= base_;
  }
  // Where the record can have stood between the readings.
  Found place_of(const Reading& reading, uint16_t record, uint64_t& place) const {
    const uint64_t before = reading.before - base_, high = reading.after - base_ + behind_;
    const uint64_t low = before > blocks_ ? before - blocks_ : 0;
    if (high - low >= 65'536) return Found::several;
    place = low + static_cast<uint16_t>(record - static_cast<uint16_t>(low));
    return place <= high ? Found::one : Found::none;
  }
  void note(const Reading& reading, uint64_t place, uint64_t now_ns) {
    last_ = reading.after;
    place_ = place;
    noted_ns_ = now_ns;
  }

  // `place_`: the record's, at the last reading, `rounds_` ahead of the position then told.
  uint64_t address_ = 0, base_ = 0, last_ = 0, place_ = 0, rounds_ = 0, noted_ns_ = 0;
  uint32_t blocks_ = 0, behind_ = 0, turn_ = 0, looks_ = 0;
  bool based_ = false, agreed_ = false, carried_ = false, in_sight_ = false;
  State state_ = State::none;
};

}  // namespace sigma::gpu
