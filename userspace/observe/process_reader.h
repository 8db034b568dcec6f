// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// ProcessReader: all rings of one process, a look at a time.
//
// A look is at most two process_vm_readv calls. The order in each is what certifies the rest:
//   1. completion rings, then all doorbell records: what has completed was posted before
//   2. new blocks of the send rings, the completion rings again, then all doorbell records again:
//      how far the writers have come while we copied
// A ring that BPF has marked (sigma_ring_slot.dead, .looks) after a copy is not the ring any more,
// or is about to be rewritten: the copy is dropped, and BPF's own one is waited for.
#pragma once

#include <sys/uio.h>

#include <array>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "observe/cq_reader.h"
#include "observe/interval.h"
#include "observe/laps.h"
#include "observe/send_reader.h"

namespace sigma {

struct ReaderPolicy {
  bool read_posts = true;         // else doorbells are counted only
  bool probes_tell = true;        // probes tell of posts as well: what they explain is not read
  bool read_completions = true;
  bool polls_probed = false;      // probes tell of polls as well
};

class ProcessReader {
 public:
  // `slots`: BPF's array, SIGMA_RING_SLOTS long; null: none.
  ProcessReader(uint32_t pid, const ReaderPolicy& policy, sigma_ring_slot* slots);

  void open(const SendSpec& spec, RecordBuffer& out);
  void open(const CqSpec& spec, RecordBuffer& out);
  void resize(const RingOwner& owner, const CqSpec& spec);
  // A command that BPF took for the ring's end has failed.
  void resume_send(const RingOwner& owner, uint64_t now_ns, RecordBuffer& out);
  void resume_cq(const RingOwner& owner, uint64_t now_ns, RecordBuffer& out);
  // A ring that BPF does not copy at its end has ended.
  void close_send(const RingOwner& owner, uint64_t at_ns, RecordBuffer& out);
  void close_cq(const RingOwner& owner, uint64_t at_ns, RecordBuffer& out);
  // One record of BPF's last look.
  void on_drain(const sigma_ring_drain& drain, std::span<const std::byte> bytes,
                RecordBuffer& out);
  // The send ring at this address: a GPU posts to it. False: not read here.
  bool set_gpu_initiated(uint64_t ring_addr, uint32_t qp_num, uint64_t now_ns, RecordBuffer& out);
  void explain(const RingOwner& owner, uint16_t index, uint32_t blocks, bool same_thread);
  // All of it ends: the process has gone, or it is read no further, and has been to the end (`seen`).
  void end(uint64_t at_ns, bool seen, RecordBuffer& out);
  // The doorbells alone, for as long as it is on.
  void set_pressed(bool pressed, uint64_t now_ns, RecordBuffer& out);
  // All records of probes up to this time have been given to explain().
  void told_until(uint64_t ns);
  void set_probed(bool probed, const char* reason, uint64_t now_ns, RecordBuffer& out);

  // False: nothing could be read; the process has gone, or forbids it.
  bool look(RecordBuffer& out);
  bool empty() const { return sends_.empty() && cqs_.empty(); }
  Interval& interval() { return interval_; }
  uint64_t looks() const { return looks_; }
  // Of queues, that had been written since they were read before: each line of it goes over from the writer's
  // cache to the reader's.
  uint64_t fresh_bytes() const { return fresh_bytes_; }

 private:
  // BPF's copies of the ring in a slot, as far as they have come; over all lives that the slot serves.
  struct Copies {
    uint32_t generation = 0, taken = 0;
  };
  struct Send {
    std::unique_ptr<SendReader> reader;
    const Copies* copies = nullptr;  // null: BPF makes none
    const std::byte *before = nullptr, *after = nullptr;  // its doorbell in the two copies
    SendReader::Wanted wanted;
    size_t at = 0;        // of its blocks in the copy
    uint64_t read_ns = 0;  // begin of the last look that took it in, or of its life
    uint64_t told_ns = 0;  // begin of the last one that took in its doorbell, likewise
    uint64_t told_look = 0;  // its number, or of the one before the life
    bool fresh = true;       // no look has taken it in
    uint32_t unsure = 0;     // copies in a row that were held up
    uint64_t copied = 0;      // all before has been, by the looks before this one
    uint64_t held_since = 0;  // the look since which some always wait for a certificate
  };
  struct Completion {
    std::unique_ptr<CqReader> reader;
    const std::byte *before = nullptr, *after = nullptr;
    CqReader::Wanted wanted;
    size_t first_at = 0, second_at = 0;
    bool news = false;
    CqReader::Wanted check;  // of a ring that is not read: the entry that judges its index
    bool checks = false;     // it takes two copies
    uint64_t consumed = 0;  // by its owner, at the last look
    CompletionLook look;    // where it was asked for, the one of this number
    uint64_t look_number = 0;
    uint64_t opened_look = 0;  // the number of the last look before it
    uint32_t users = 0;        // queue pairs whose requests complete in it
    uint64_t missed = 0;    // by the look before
    uint64_t gap_at = 0;    // the last look that found some missing, or before the first one
    uint32_t looks = 0;    // of BPF's, taken in
    uint64_t read_ns = 0;  // begin of the last look that took it in, or of its life
  };
  struct Pieces {
    uint64_t first = 0;
    bool any = false;
    std::vector<std::byte> bytes;
  };

  void rebuild();
  bool is_stopped(const CqSpec& spec, uint32_t looks) const;
  bool is_stopped(const Send& send) const;
  void publish();
  Copies& send_copies(uint32_t slot, uint32_t generation);
  PostedBounds bounds_of(const Send& send, uint16_t doorbell, uint64_t elapsed_ns, uint64_t copy_ns);
  PostedBounds bounds_at_end(const Send& send, const sigma_ring_drain& drain) const;
  void add_doorbells(std::vector<std::byte>& copy);
  // How many completions are copied: those that the looks before suggest, or as many as may have come in a long
  // time, and what their owners have consumed as the copy before said.
  enum class Extent : uint8_t { expected, generous };
  bool copy_completions(Extent extent);
  bool first_copies(uint64_t& begin_ns, uint64_t& end_ns);
  bool has_moved() const;
  bool is_short() const;
  bool copy(std::vector<iovec>& local, std::vector<iovec>& remote);
  void settle_unfinished(uint64_t now_ns, RecordBuffer& out);
  bool still_reads(RecordBuffer& out);
  SendReader* find_send(const RingOwner& cq, uint32_t qp_num);
  SendReader::Mode mode() const;
  void add_range(std::vector<iovec>& local, std::vector<iovec>& remote, size_t& at,
                 uint64_t ring_addr, uint32_t entries, uint32_t stride, uint64_t first,
                 uint64_t count);
  static RingBytes bytes_of(const std::vector<std::byte>& buffer, size_t at, uint64_t count,
                            uint32_t stride);

  uint32_t pid_;
  ReaderPolicy policy_;
  bool pressed_ = false;
  sigma_ring_slot* slots_;
  std::map<RingOwner, Send> sends_;
  std::map<RingOwner, Completion> cqs_;
  // BPF has copied their ends, and the commands that are to end them have not returned.
  std::map<RingOwner, Send> ending_sends_;
  std::map<RingOwner, Completion> ending_cqs_;
  std::map<uint32_t, Copies> send_copies_;
  std::map<RingOwner, uint32_t> send_lives_, cq_lives_;
  // Of copies that are not complete yet, by slot and the thread whose command it is.
  std::map<std::pair<uint32_t, uint32_t>, Pieces> pieces_;
  Interval interval_;
  bool changed_ = true;  // rings came or went
  // The send rings that completions named last, by their number's low bits; while nothing has changed.
  struct Named {
    RingOwner owner;
    SendReader* send = nullptr;
  };
  std::array<Named, 64> named_;
  uint64_t last_begin_ns_ = 0;
  uint64_t looks_ = 0, fresh_bytes_ = 0;
  uint32_t failures_ = 0;

  // The doorbell records' pages, and room for two copies of them.
  std::vector<iovec> doorbells_;
  std::vector<std::byte> doorbells_before_, doorbells_after_;
  std::vector<iovec> local_, remote_;
  std::vector<std::byte> first_, second_;
};

}  // namespace sigma
