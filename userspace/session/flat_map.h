// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// FlatMap: 64-bit key to a small value, in one array. Open addressing with backward-shift deletion:
// no tombstones, and no allocation while the number of entries stays below its maximum so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sigma {

// The finaliser of MurmurHash3: every bit of the key reaches every bit of the result.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdULL;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 33;
}

template <typename Value>
class FlatMap {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  Value* find(uint64_t key) {
    if (size_ == 0) return nullptr;
    for (size_t i = home(key);; i = next(i)) {
      if (!slots_[i].used) return nullptr;
      if (slots_[i].key == key) return &slots_[i].value;
    }
  }

  // The value of `key`, made if absent. Invalidates pointers.
  Value& operator[](uint64_t key) {
    if ((size_ + 1) * 4 > slots_.size() * 3) grow();
    size_t i = home(key);
    for (; slots_[i].used; i = next(i))
      if (slots_[i].key == key) return slots_[i].value;
    slots_[i] = {key, Value{}, true};
    ++size_;
    return slots_[i].value;
  }

  void erase(uint64_t key) {
    if (size_ == 0) return;
    size_t i = home(key);
    for (;; i = next(i)) {
      if (!slots_[i].used) return;
      if (slots_[i].key == key) break;
    }
    // Moves back what would no longer be reachable across the hole.
    for (size_t j = next(i); slots_[j].used; j = next(j)) {
      const size_t distance = (j - home(slots_[j].key)) & mask();
      if (distance >= ((j - i) & mask())) {
        slots_[i] = std::move(slots_[j]);
        i = j;
      }
    }
    slots_[i] = {};
    --size_;
  }

  void clear() {
    slots_.clear();
    size_ = 0;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    Value value{};
    bool used = false;
  };

  size_t mask() const { return slots_.size() - 1; }
  size_t home(uint64_t key) const { return mix64(key) & mask(); }
  size_t next(size_t i) const { return (i + 1) & mask(); }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : slots_.size() * 2);
    old.swap(slots_);
    for (Slot& slot : old) {
      if (!slot.used) continue;
      size_t i = home(slot.key);
      while (slots_[i].used) i = next(i);
      slots_[i] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace sigma
