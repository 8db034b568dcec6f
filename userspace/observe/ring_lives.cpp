// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which rings a ProcessReader reads, and until when: their begins, what BPF has copied at their ends, commands that
// failed after that, and memory that has gone. What BPF and the reader tell each other stands in sigma_ring_slot.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "observe/process_reader.h"

namespace sigma {
namespace {

constexpr uint32_t kMaxFailures = 3;

template <typename T>
T load_shared(const T& field) {
  return __atomic_load_n(&field, __ATOMIC_ACQUIRE);
}
template <typename T>
void store_shared(T& field, T value) {
  __atomic_store_n(&field, value, __ATOMIC_RELEASE);
}

}  // namespace

void ProcessReader::open(const SendSpec& spec, RecordBuffer& out) {
  close_send(spec.owner, spec.since_ns, out);
  Send send;
  // A queue that only receives has no ring: it is known for its completions.
  send.reader = std::make_unique<SendReader>(spec, send_lives_[spec.owner]++, mode(), policy_.probes_tell);
  send.read_ns = send.told_ns = spec.unread_since_ns != 0 ? spec.unread_since_ns : spec.since_ns;
  send.told_look = looks_;
  if (spec.first != 0) send.reader->start_at(spec.first);
  send.reader->begin(out);
  if (slots_ != nullptr && spec.slot != 0) {
    sigma_ring_slot& slot = slots_[spec.slot];
    send.copies = &send_copies(spec.slot, slot.generation);
    for (const auto& [owner, cq] : cqs_)
      if (slot.cq[0] == 0 && owner.context == spec.owner.context && owner.number == spec.send_cqn)
        slot.cq[0] = static_cast<uint16_t>(cq.reader->spec().slot);
    if (slot.ring_addr == 0) {
      slot.doorbell_addr = spec.doorbell_addr;
      slot.entries = spec.blocks;
      slot.stride = kWqeBlockBytes;
      store_shared(slot.ring_addr, static_cast<__u64>(spec.ring_addr));
    }
  }
  sends_[spec.owner] = std::move(send);
  interval_.used(spec.blocks, spec.since_ns);
  changed_ = true;
}

ProcessReader::Copies& ProcessReader::send_copies(uint32_t slot, uint32_t generation) {
  Copies& copies = send_copies_[slot];
  if (copies.generation != generation) copies = {generation, 0};
  return copies;
}

void ProcessReader::open(const CqSpec& found, RecordBuffer& out) {
  CqSpec spec = found;
  spec.polls_probed = policy_.polls_probed;
  close_cq(spec.owner, spec.since_ns, out);
  Completion cq;
  cq.reader = std::make_unique<CqReader>(
      spec, cq_lives_[spec.owner]++,
      [this, owner = spec.owner](uint32_t qp_num) { return find_send(owner, qp_num); });
  cq.read_ns = spec.unread_since_ns != 0 ? spec.unread_since_ns : spec.since_ns;
  if (spec.first != 0 || spec.consumed != 0) cq.reader->start_at(spec.first, spec.consumed);
  cq.gap_at = looks_ + 1;
  cq.opened_look = looks_;
  cq.reader->begin(out);
  if (slots_ != nullptr && spec.slot != 0) {
    sigma_ring_slot& slot = slots_[spec.slot];
    if (slot.ring_addr == 0) {
      slot.doorbell_addr = spec.doorbell_addr;
      slot.entries = spec.ring.collapsed ? 1 : spec.ring.entries;
      slot.stride = spec.ring.entry_bytes;
      store_shared(slot.ring_addr, static_cast<__u64>(spec.ring_addr));
    }
  }
  cqs_[spec.owner] = std::move(cq);
  if (policy_.read_completions && !spec.ring.collapsed) interval_.used(spec.ring.entries, spec.since_ns);
  changed_ = true;
}

void ProcessReader::resize(const RingOwner& owner, const CqSpec& spec) {
  const auto it = cqs_.find(owner);
  if (it == cqs_.end()) return;
  it->second.reader->on_resized(spec);
  if (const uint32_t number = it->second.reader->spec().slot; slots_ != nullptr && number != 0) {
    sigma_ring_slot& slot = slots_[number];
    store_shared(slot.next, static_cast<__u64>(SIGMA_RING_PLACE(spec.slot_life, it->second.reader->next())));
  }
  changed_ = true;
}

void ProcessReader::resume_send(const RingOwner& owner, uint64_t now_ns, RecordBuffer& out) {
  auto ending = ending_sends_.extract(owner);
  if (ending.empty()) return;
  ending.mapped().reader->resume(send_lives_[owner]++, now_ns, out);
  sends_.insert(std::move(ending));
  changed_ = true;
}

void ProcessReader::resume_cq(const RingOwner& owner, uint64_t now_ns, RecordBuffer& out) {
  if (auto ending = ending_cqs_.extract(owner); !ending.empty()) {
    ending.mapped().reader->resume(cq_lives_[owner]++, now_ns, out);
    ending.mapped().gap_at = looks_ + 1;
    cqs_.insert(std::move(ending));
    changed_ = true;
    return;
  }
  const auto it = cqs_.find(owner);
  if (it == cqs_.end() || slots_ == nullptr) return;
  // Unless it has ended since.
  __u16 resize = SIGMA_DRAIN_RESIZE;
  if (const uint32_t slot = it->second.reader->spec().slot; slot != 0)
    __atomic_compare_exchange_n(&slots_[slot].dead, &resize, __u16{0}, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

void ProcessReader::close_send(const RingOwner& owner, uint64_t at_ns, RecordBuffer& out) {
  ending_sends_.erase(owner);
  const auto it = sends_.find(owner);
  if (it == sends_.end()) return;
  it->second.reader->end(at_ns, SIGMA_GAP_ENDED, false, out);
  sends_.erase(it);
  changed_ = true;
}

void ProcessReader::close_cq(const RingOwner& owner, uint64_t at_ns, RecordBuffer& out) {
  ending_cqs_.erase(owner);
  const auto it = cqs_.find(owner);
  if (it == cqs_.end()) return;
  it->second.reader->end(at_ns, out);
  cqs_.erase(it);
  changed_ = true;
}

void ProcessReader::end(uint64_t at_ns, bool seen, RecordBuffer& out) {
  for (auto& [owner, cq] : cqs_) cq.reader->end(at_ns, out);
  for (auto& [owner, send] : sends_) send.reader->end(at_ns, SIGMA_GAP_ENDED, seen, out);
  sends_.clear();
  cqs_.clear();
  ending_sends_.clear();
  ending_cqs_.clear();
  changed_ = true;
}

void ProcessReader::on_drain(const sigma_ring_drain& drain, std::span<const std::byte> bytes,
                             RecordBuffer& out) {
  const std::pair key{drain.slot, drain.h.tid};
  Pieces& pieces = pieces_[key];
  if (drain.last == 0) {
    if (!pieces.any) pieces.first = drain.first;
    pieces.any = true;
    pieces.bytes.insert(pieces.bytes.end(), bytes.begin(), bytes.end());
    return;
  }
  const Pieces whole = std::move(pieces);
  pieces_.erase(key);
  const RingBytes copy{std::span<const std::byte>(whole.bytes)};
  const uint64_t at_ns = drain.h.time_ns;
  const auto times = [&](const auto& ring) {
    return LookTimes{std::min(at_ns, ring.read_ns), at_ns};
  };
  if (drain.kind == SIGMA_RING_SEND) ++send_copies(drain.slot, drain.generation).taken;
  // The command may fail yet; at a process's end there is none.
  const bool exits = drain.reason == SIGMA_DRAIN_EXIT;
  for (auto it = sends_.begin(); it != sends_.end(); ++it) {
    SendReader& reader = *it->second.reader;
    if (reader.spec().slot != drain.slot || drain.kind != SIGMA_RING_SEND) continue;
    if (slots_[drain.slot].generation != drain.generation) break;
    if (drain.counted != 0)
      reader.on_last(whole.first, copy, static_cast<uint16_t>(drain.posted), bounds_at_end(it->second, drain),
                     times(it->second), out);
    else
      reader.end(at_ns, SIGMA_GAP_ENDED, false, out);
    it->second.read_ns = it->second.told_ns = at_ns;
    if (exits)
      sends_.erase(it);
    else
      ending_sends_.insert(sends_.extract(it));
    changed_ = true;
    break;
  }
  for (auto it = cqs_.begin(); it != cqs_.end(); ++it) {
    CqReader& reader = *it->second.reader;
    if (reader.spec().slot != drain.slot || drain.kind != SIGMA_RING_CQ) continue;
    if (slots_[drain.slot].generation != drain.generation) break;
    if (drain.counted != 0) reader.on_last(whole.first, copy, drain.consumer, times(it->second), out);
    ++it->second.looks;
    store_shared(slots_[drain.slot].next, static_cast<__u64>(SIGMA_RING_PLACE(reader.spec().slot_life, reader.next())));
    if (drain.reason != SIGMA_DRAIN_DESTROY && !exits) break;
    reader.end(at_ns, out);
    it->second.read_ns = at_ns;
    if (exits)
      cqs_.erase(it);
    else
      ending_cqs_.insert(cqs_.extract(it));
    changed_ = true;
    break;
  }
}

bool ProcessReader::set_gpu_initiated(uint64_t ring_addr, uint32_t qp_num, uint64_t now_ns,
                                      RecordBuffer& out) {
  for (auto& [owner, send] : sends_) {
    if (owner.number != qp_num || send.reader->spec().ring_addr != ring_addr) continue;
    send.reader->set_gpu_initiated(now_ns, out);
    return true;
  }
  return false;
}

void ProcessReader::explain(const RingOwner& owner, uint16_t index, uint32_t blocks,
                            bool same_thread) {
  if (const auto it = sends_.find(owner); it != sends_.end())
    it->second.reader->explain(index, blocks, same_thread);
}

void ProcessReader::told_until(uint64_t ns) {
  for (auto& [owner, send] : sends_) send.reader->told_until(ns);
}

void ProcessReader::set_pressed(bool pressed, uint64_t now_ns, RecordBuffer& out) {
  if (pressed == pressed_) return;
  pressed_ = pressed;
  const char* reason = pressed ? "observer cpu" : "";
  for (auto& [owner, send] : sends_) send.reader->set_mode(mode(), reason, now_ns, out);
  for (auto& [owner, cq] : cqs_) cq.reader->set_counted(pressed, reason, now_ns, out);
}

void ProcessReader::set_probed(bool probed, const char* reason, uint64_t now_ns,
                               RecordBuffer& out) {
  policy_.read_posts = true;
  policy_.probes_tell = probed;
  for (auto& [owner, send] : sends_) send.reader->set_probes_tell(probed);
  if (probed) return;
  for (auto& [owner, send] : sends_) send.reader->set_mode(mode(), reason, now_ns, out);
}

// BPF says that the ring is not to be read: it has ended, its last look is on its way, or it is in
// another buffer.
bool ProcessReader::is_stopped(const CqSpec& spec, uint32_t looks) const {
  if (slots_ == nullptr || spec.slot == 0) return false;
  const sigma_ring_slot& slot = slots_[spec.slot];
  return load_shared(slot.dead) != 0 || load_shared(slot.looks) != looks || load_shared(slot.life) != spec.slot_life;
}
// Likewise, or a RESET has passed of which we have not been told yet: another life is in the ring.
bool ProcessReader::is_stopped(const Send& send) const {
  if (send.copies == nullptr) return false;
  const SendSpec& spec = send.reader->spec();
  const sigma_ring_slot& slot = slots_[spec.slot];
  return load_shared(slot.dead) != 0 || load_shared(slot.looks) != send.copies->taken ||
         load_shared(slot.life) != spec.slot_life;
}

// What had been posted when a command ended the ring. The completions since the last look are still on their way
// then: only their owner's index tells more than the time does. Where it is not kept (UCX), a round is thought
// possible only if nobody has looked for longer than any reader in time leaves alone (an idle ring: 5 ms): in
// less, a round is over 3.3 M blocks/s by one queue that ends at once behind it.
PostedBounds ProcessReader::bounds_at_end(const Send& send, const sigma_ring_drain& drain) const {
  constexpr uint64_t kUnwatchedNs = 20'000'000;
  const uint64_t elapsed_ns = drain.h.time_ns - std::min<uint64_t>(drain.h.time_ns, send.told_ns);
  const auto doorbell = static_cast<uint16_t>(drain.posted);
  RingOwner owner = send.reader->spec().owner;
  owner.number = send.reader->spec().send_cqn;
  const auto cq = cqs_.find(owner);
  CompletionLook look;
  if (cq != cqs_.end())
    look = {cq->second.reader.get(), {}, {}, drain.consumer, cq->second.consumed, cq->second.users > 1};
  const PostedBounds bounds =
      posted_bounds(*send.reader, doorbell, elapsed_ns, 0, cq != cqs_.end() ? &look : nullptr);
  if (bounds.only(doorbell) || elapsed_ns > kUnwatchedNs) return bounds;
  return PostedBounds::within_a_round(send.reader->posted());
}

// For BPF's last look: what we have.
void ProcessReader::publish() {
  if (slots_ == nullptr) return;
  for (const auto& [owner, send] : sends_) {
    const uint32_t slot = send.reader->spec().slot;
    if (slot == 0) continue;
    const uint32_t life = send.reader->spec().slot_life;
    store_shared(slots_[slot].posted, static_cast<__u64>(SIGMA_RING_PLACE(life, send.reader->posted())));
    store_shared(slots_[slot].next, static_cast<__u64>(SIGMA_RING_PLACE(life, send.reader->next())));
  }
  for (const auto& [owner, cq] : cqs_)
    if (const uint32_t slot = cq.reader->spec().slot; slot != 0)
      store_shared(slots_[slot].next,
                   static_cast<__u64>(SIGMA_RING_PLACE(cq.reader->spec().slot_life, cq.reader->next())));
}

// A copy failed. Rings that have ended may be gone before we were told; one whose memory has gone
// without a command is given up. False: nothing explains it, and that often.
bool ProcessReader::still_reads(RecordBuffer& out) {
  bool explained = false;
  const auto readable = [&](uint64_t address, uint64_t bytes) {
    std::vector<std::byte> buffer(bytes);
    iovec local{buffer.data(), bytes}, remote{reinterpret_cast<void*>(address), bytes};
    return process_vm_readv(static_cast<pid_t>(pid_), &local, 1, &remote, 1, 0) ==
           static_cast<ssize_t>(bytes);
  };
  const uint64_t now_ns = monotonic_now_ns();
  std::erase_if(sends_, [&](auto& entry) {
    const SendSpec& spec = entry.second.reader->spec();
    if (readable(spec.doorbell_addr, 8) &&
        (spec.blocks == 0 || readable(spec.ring_addr, uint64_t{spec.blocks} * kWqeBlockBytes)))
      return false;
    explained = true;
    if (is_stopped(entry.second)) return false;  // BPF has seen it end
    entry.second.reader->end(now_ns, SIGMA_GAP_UNREADABLE, false, out);
    return changed_ = true;
  });
  std::erase_if(cqs_, [&](auto& entry) {
    const CqSpec& spec = entry.second.reader->spec();
    if (readable(spec.ring_addr, uint64_t{spec.ring.entries} * spec.ring.entry_bytes) &&
        (spec.doorbell_addr == 0 || readable(spec.doorbell_addr, 8)))
      return false;
    explained = true;
    if (is_stopped(spec, entry.second.looks)) return false;
    entry.second.reader->end(now_ns, out);
    return changed_ = true;
  });
  return explained || ++failures_ < kMaxFailures;
}

}  // namespace sigma
