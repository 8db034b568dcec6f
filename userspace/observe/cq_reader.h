// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// CqReader: one life of one completion ring, from copies of its memory to records.
//
// Entries stay readable after the owner has consumed them, until the next lap overwrites them. Laps
// are counted by the consumer index, where the owner keeps it, else by the last entry read
// (completion_ring.h). An index that does not allow what the device has written is nobody's: where the
// owner polls by itself, libmlx5's cleanings are all that it counts. An entry that the library has moved into
// another's place is told once, and the other is a gap (told_completions.h).
//
// Where entries are not read, to spare the job, the index is all that there is. Then the one entry that its owner
// is to poll next is looked at while the index stands still: the device does not write there again before that one
// has been consumed. If it has, the index is nobody's, and the ring is read on. Rings whose index cannot be
// judged so, those that compress, are read on in any case.
// No I/O. One thread.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "observe/output.h"
#include "observe/reached_indices.h"
#include "observe/ring_specs.h"
#include "observe/send_reader.h"
#include "observe/told_completions.h"

namespace sigma {

class CqReader {
 public:
  // The send ring of a queue pair of the same owner; null: not observed.
  using FindSend = std::function<SendReader*(uint32_t qp_num)>;

  CqReader(const CqSpec& spec, uint32_t life, FindSend find_send);

  const CqSpec& spec() const { return spec_; }
  uint32_t life() const { return life_; }
  uint64_t next() const { return cursor_.next; }
  uint64_t missed() const { return missed_; }
  double last_fill() const { return fill_; }
  // Its owner's index bounds what the device has written: it is kept, and was never found overrun.
  bool counts() const { return cursor_.counts && !overrun_; }
  // Where the owner's consumer is, whose index (24 bits) the doorbell record says now.
  uint64_t consumed(uint32_t consumer) const { return extend24(cursor_.consumed, consumer); }
  // Completions of this queue pair may have been read while it was not observed.
  bool knows_stranger(uint32_t qp_num) const;
  // Completions of receives were seen in it.
  bool serves_receives() const { return serves_receives_; }

  void begin(RecordBuffer& out);
  // It has not ended after all: a life of its own from here on.
  void resume(uint32_t life, uint64_t now_ns, RecordBuffer& out);
  // Found in use: what was completed before is not ours, also where its owner is not as far yet.
  void start_at(uint64_t position, uint64_t consumed) {
    cursor_.next = position;
    cursor_.consumed = consumed;
    cursor_.counts = consumed != 0;
  }

  // The entries to copy: from `first` on, the last one read included where it serves as anchor.
  struct Wanted {
    uint64_t first = 0;
    uint32_t count = 0;
  };
  // `generous`: after a long time, when more may have come than the looks before suggest; `consumer`: of the
  // doorbell record, 0 if it is not known: what its owner has passed is there.
  Wanted wanted(bool generous, uint32_t consumer = 0) const;
  // Which requests had completed when the first copy was made, by all entries that are new in it. `consumer`: of
  // the doorbell record, read after it. `only_user`: the one queue pair whose requests complete in the ring, if it
  // is one; then a few of the entries suffice. nullopt: it does not have them all, or does not show that it has.
  std::optional<ReachedIndices> reached(const Wanted& wanted, const RingBytes& first_copy, uint32_t consumer,
                                        const SendRing* only_user) const;
  // The newest completion of a request among the last before `consumed` that the copy has.
  struct Newest {
    uint64_t position = 0;
    uint32_t qp_num = 0;
    uint16_t counter = 0;
  };
  std::optional<Newest> newest(uint64_t consumed, const Wanted& wanted, const RingBytes& first_copy) const;
  // Whether the first copy says that there is something new: then a second one is needed.
  bool has_news(const Wanted& wanted, const RingBytes& first_copy) const;
  // The copy ends in an entry that is there: more may have come.
  bool is_short(const Wanted& wanted, const RingBytes& first_copy) const;
  // `consumer`: of the doorbell record, read between the two copies.
  void on_copies(const Wanted& wanted, const RingBytes& first_copy, const RingBytes& second_copy,
                 uint32_t consumer, const LookTimes& times, RecordBuffer& out);
  // Nothing new was seen.
  void on_nothing(uint32_t consumer);
  // The latest look has read all that there was when it began.
  bool caught_up() const { return caught_up_; }
  // `counted`: entries are not read for a while, where the owner's index counts them; those that do not
  // count are.
  void set_counted(bool counted, const char* reason, uint64_t now_ns, RecordBuffer& out);
  bool is_read() const {
    return !counted_ || !counts() || spec_.ring.collapsed || spec_.ring.layout != CqLayout::plain;
  }
  // Instead of copies: what has been overwritten was missed; the last lap stands, to be read yet. `check`: a copy
  // of index_check()'s entry from before `consumer` was read. True: on_index_check() is to have it, and a second
  // one from after.
  Wanted index_check() const;
  bool on_counted(uint32_t consumer, const RingBytes& check, const LookTimes& times, RecordBuffer& out);
  void on_index_check(const RingBytes& first, const RingBytes& second, uint64_t now_ns, RecordBuffer& out);
  // What BPF copied, from position `first` on.
  void on_last(uint64_t first, const RingBytes& bytes, uint32_t consumer, const LookTimes& times,
               RecordBuffer& out);
  // The ring goes on in another buffer, where entry i of the old one stands at i + 1.
  void on_resized(const CqSpec& spec);
  void end(uint64_t at_ns, RecordBuffer& out);

 private:
  static constexpr size_t kRun = 32;  // entries that are decoded at once

  // Nobody has written to it yet: rings begin with invalid entries, or with none.
  static bool never_written(const std::array<std::byte, kCqeBytes>& entry);
  void take_all(uint64_t from, const RingBytes& first, const RingBytes& second,
                const LookTimes& times, RecordBuffer& out);
  bool catch_up(uint64_t first, const RingBytes& bytes, const LookTimes& times, RecordBuffer& out);
  bool lapped(const Wanted& wanted, const RingBytes& copy) const;
  std::optional<bool> overtaken(uint64_t from, const RingBytes& copy) const;
  bool refutes_index(uint64_t from, const RingBytes& first, const RingBytes& second, uint64_t consumed) const;
  void refute_index(uint64_t now_ns, RecordBuffer& out);
  uint32_t index_to_take(uint64_t from, const RingBytes& first, const RingBytes& second, uint32_t consumer);
  std::optional<ReachedIndices> sampled(const Wanted& wanted, const RingBytes& copy, const SendRing& user,
                                        uint64_t& end) const;
  LookTimes since_left(const LookTimes& look) const;
  RingName name() const;
  void report(const Cqe& cqe, uint64_t position, const LookTimes& times, RecordBuffer& out);
  bool is_told(const Cqe& cqe, uint64_t position, SendReader* send);
  // Of entries before `end`, or before the next one.
  void gap(uint64_t count, const LookTimes& times, RecordBuffer& out, uint8_t reason = SIGMA_GAP_LAPPED,
           uint64_t end = ~uint64_t{0});
  void state(uint8_t event, const char* reason, uint64_t now_ns, RecordBuffer& out);

  CqSpec spec_;
  CompletionCursor cursor_;
  uint32_t life_;
  FindSend find_send_;
  uint32_t expected_ = 4;  // entries that the next look may find
  uint64_t first_ = 0, seen_ = 0, missed_ = 0;
  double fill_ = 0;
  ToldCompletions told_before_;
  uint64_t left_since_ns_ = 0;  // what the look before did not get to was there since then; 0: nothing
  std::array<uint32_t, 16> strangers_{};  // whose completions were read, the last ones
  uint32_t strangers_known_ = 0;
  bool serves_receives_ = false;
  bool caught_up_ = false;
  bool counted_ = false;
  uint64_t counted_since_ns_ = 0;
  // What stood in the place of the entry that the owner polls next, as its index says.
  struct Sighting {
    uint64_t position = 0;
    std::array<std::byte, kCqeBytes> entry{};
    std::optional<uint64_t> stamp;  // 0: never written; empty: it has none
    bool there = false;             // it is that entry, by its owner bit
  };
  std::optional<Sighting> sighted_;
  bool whole_first_ = false;  // the next look takes all of the first lap: it shows that the first entry stands
  bool index_refuted_ = false;  // the doorbell record's index is not the owner's
  bool overrun_ = false;  // entries were read that an index which is kept does not allow
  bool missed_late_ = false;  // the latest look missed some that may have come after it had read the doorbells
  bool cut_ = false;  // the latest copy ended within a session
  bool whole_ring_ = false;  // a lap has passed uncounted: the next look takes all of it
  bool modulo_ = false;      // one has: what was missed is known modulo twice the entries
};

}  // namespace sigma
