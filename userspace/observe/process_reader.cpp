// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/process_reader.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/be.h"
#include "base/clock.h"

namespace sigma {
namespace {

constexpr size_t kMaxIovecs = 1024;  // UIO_MAXIOV
constexpr uint64_t kPage = 4096, kCacheLine = 64;
// Since the look before: that completions tell how far queues have come, and that many may have come.
constexpr uint64_t kQuiteLongNs = 150'000;
constexpr uint64_t kLongNs = 1'000'000;
constexpr uint32_t kMaxFailures = 3;
constexpr uint32_t kMostUnsure = 8;  // copies of a ring that certify nothing
// A copy of few ranges that takes longer was held up.
constexpr size_t kFewRanges = 256;
constexpr uint64_t kHeldUpNs = 70'000;

uint32_t be32_at(const std::byte* bytes) {
  Be32 value;
  std::memcpy(static_cast<void*>(&value), bytes, sizeof(value));
  return value;
}

template <typename T>
T load_shared(const T& field) {
  return __atomic_load_n(&field, __ATOMIC_ACQUIRE);
}
template <typename T>
void store_shared(T& field, T value) {
  __atomic_store_n(&field, value, __ATOMIC_RELEASE);
}

}  // namespace

ProcessReader::ProcessReader(uint32_t pid, const ReaderPolicy& policy, sigma_ring_slot* slots)
    : pid_(pid), policy_(policy), slots_(slots) {}

SendReader::Mode ProcessReader::mode() const {
  return pressed_ || !policy_.read_posts ? SendReader::Mode::counted : SendReader::Mode::read;
}

// ---- lives --------------------------------------------------------------------------------------

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

void ProcessReader::open(const CqSpec& spec, RecordBuffer& out) {
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

SendReader* ProcessReader::find_send(const RingOwner& cq, uint32_t qp_num) {
  RingOwner owner = cq;
  owner.number = qp_num;
  Named& named = named_[qp_num % named_.size()];
  if (!changed_ && named.send != nullptr && named.owner == owner) return named.send;
  const auto it = sends_.find(owner);
  if (it == sends_.end()) return nullptr;
  if (!changed_) named = {owner, it->second.reader.get()};
  return it->second.reader.get();
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

// ---- looking ------------------------------------------------------------------------------------

// After rings came or went: where the doorbell records are, a range for each page.
void ProcessReader::rebuild() {
  changed_ = false;
  named_ = {};
  std::vector<uint64_t> addresses;
  for (const auto& [owner, send] : sends_) addresses.push_back(send.reader->spec().doorbell_addr);
  for (const auto& [owner, cq] : cqs_) addresses.push_back(cq.reader->spec().doorbell_addr);
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());

  doorbells_.clear();
  std::vector<std::pair<uint64_t, size_t>> at;  // of each address in the copy
  size_t size = 0;
  for (const uint64_t address : addresses) {
    if (address == 0) continue;
    constexpr uint64_t kBytes = 8;
    if (!doorbells_.empty()) {
      auto& last = doorbells_.back();
      const auto begin = reinterpret_cast<uint64_t>(last.iov_base);
      if (begin / kPage == (address + kBytes - 1) / kPage) {
        const uint64_t grown = std::max<uint64_t>(last.iov_len, address + kBytes - begin);
        at.emplace_back(address, size - last.iov_len + (address - begin));
        size += grown - last.iov_len;
        last.iov_len = grown;
        continue;
      }
    }
    at.emplace_back(address, size);
    doorbells_.push_back({reinterpret_cast<void*>(address), kBytes});
    size += kBytes;
  }
  doorbells_before_.assign(size, std::byte{});
  doorbells_after_.assign(size, std::byte{});
  const auto place = [&](uint64_t address, const std::vector<std::byte>& copy) -> const std::byte* {
    const auto it = std::lower_bound(at.begin(), at.end(), std::pair(address, size_t{0}));
    return it != at.end() && it->first == address ? copy.data() + it->second : nullptr;
  };
  for (auto& [owner, send] : sends_) {
    const SendSpec& spec = send.reader->spec();
    send.before = place(spec.doorbell_addr, doorbells_before_);
    send.after = place(spec.doorbell_addr, doorbells_after_);
  }
  for (auto& [owner, cq] : cqs_) {
    const CqSpec& spec = cq.reader->spec();
    cq.before = place(spec.doorbell_addr, doorbells_before_);
    cq.after = place(spec.doorbell_addr, doorbells_after_);
    cq.users = 0;
  }
  for (const auto& [owner, send] : sends_) {
    RingOwner of = owner;
    of.number = send.reader->spec().send_cqn;
    if (const auto cq = cqs_.find(of); cq != cqs_.end()) ++cq->second.users;
  }
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

void ProcessReader::add_range(std::vector<iovec>& local, std::vector<iovec>& remote, size_t& at,
                              uint64_t ring_addr, uint32_t entries, uint32_t stride,
                              uint64_t first, uint64_t count) {
  // Offsets for now: the buffer's place is known when all have been added.
  while (count > 0) {
    const uint64_t index = first & (entries - 1);
    const uint64_t part = std::min<uint64_t>(count, entries - index);
    local.push_back({reinterpret_cast<void*>(at), part * stride});
    remote.push_back({reinterpret_cast<void*>(ring_addr + index * stride), part * stride});
    at += part * stride;
    first += part;
    count -= part;
  }
}

RingBytes ProcessReader::bytes_of(const std::vector<std::byte>& buffer, size_t at, uint64_t count,
                                  uint32_t stride) {
  return RingBytes{std::span<const std::byte>(buffer).subspan(at, count * stride)};
}

bool ProcessReader::copy(std::vector<iovec>& local, std::vector<iovec>& remote) {
  for (size_t from = 0; from < remote.size(); from += kMaxIovecs) {
    const size_t count = std::min(kMaxIovecs, remote.size() - from);
    size_t wanted = 0;
    for (size_t i = from; i < from + count; ++i) wanted += local[i].iov_len;
    const ssize_t got = process_vm_readv(static_cast<pid_t>(pid_), local.data() + from, count,
                                         remote.data() + from, count, 0);
    if (got != static_cast<ssize_t>(wanted)) return false;
  }
  return true;
}

// What had been posted when this doorbell was read. Mostly the time suffices, at any pace.
PostedBounds ProcessReader::bounds_of(const Send& send, uint16_t doorbell, uint64_t elapsed_ns, uint64_t copy_ns) {
  const PostedBounds bounds = bounds_by_time(send.reader->posted(), elapsed_ns, kMaxWqeBlocks);
  if (bounds.only(doorbell)) return bounds;
  const SendSpec& spec = send.reader->spec();
  RingOwner owner = spec.owner;
  owner.number = spec.send_cqn;
  const auto it = cqs_.find(owner);
  // All of its completions since then have to be among those that are new now.
  const bool all_new =
      it != cqs_.end() && send.told_look + 1 == looks_ &&
      (send.fresh ? !it->second.reader->knows_stranger(spec.owner.number) : it->second.opened_look < send.told_look);
  if (!all_new) return posted_bounds(*send.reader, doorbell, elapsed_ns, copy_ns, nullptr);
  Completion& cq = it->second;
  if (cq.look_number != looks_) {
    cq.look_number = looks_;
    const RingBytes bytes = bytes_of(first_, cq.first_at, cq.wanted.count, cq.reader->spec().ring.entry_bytes);
    cq.look = {cq.reader.get(), cq.wanted, bytes, cq.before != nullptr ? be32_at(cq.before) & 0xffffff : 0,
               cq.consumed, cq.users > 1};
  }
  return posted_bounds(*send.reader, doorbell, elapsed_ns, copy_ns, &cq.look);
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

void ProcessReader::add_doorbells(std::vector<std::byte>& copy) {
  size_t offset = 0;
  for (const iovec& range : doorbells_) {
    local_.push_back({copy.data() + offset, range.iov_len});
    remote_.push_back(range);
    offset += range.iov_len;
  }
}

// The first copies of the completion rings, then the doorbells. False: they cannot be read.
bool ProcessReader::copy_completions(Extent extent) {
  local_.clear();
  remote_.clear();
  size_t at = 0;
  for (auto& [owner, cq] : cqs_) {
    const CqSpec& spec = cq.reader->spec();
    cq.news = cq.checks = false;
    cq.wanted = cq.check = {};
    if (!policy_.read_completions || is_stopped(spec, cq.looks)) continue;
    const bool asks = extent != Extent::expected && cq.before != nullptr;
    const uint32_t consumer = asks ? be32_at(cq.before) & 0xffffff : 0;
    if (cq.reader->is_read())
      cq.wanted = cq.reader->wanted(extent == Extent::generous, consumer);
    else
      cq.check = cq.reader->index_check();
    const CqReader::Wanted& range = cq.reader->is_read() ? cq.wanted : cq.check;
    cq.first_at = at;
    add_range(local_, remote_, at, spec.ring_addr, spec.ring.entries, spec.ring.entry_bytes, range.first,
              range.count);
  }
  if (first_.size() < at) first_.resize(at);
  for (iovec& part : local_)
    part.iov_base = first_.data() + reinterpret_cast<size_t>(part.iov_base);
  add_doorbells(doorbells_before_);
  return copy(local_, remote_);
}

// Whether the first copies show that anything was posted or has completed.
bool ProcessReader::has_moved() const {
  for (const auto& [owner, send] : sends_)
    if (send.before != nullptr && static_cast<uint16_t>(be32_at(send.before + 4)) !=
                                      static_cast<uint16_t>(send.reader->posted()))
      return true;
  for (const auto& [owner, cq] : cqs_)
    if (cq.wanted.count > 0 &&
        cq.reader->has_news(cq.wanted, bytes_of(first_, cq.first_at, cq.wanted.count,
                                                cq.reader->spec().ring.entry_bytes)))
      return true;
  return false;
}

// Whether a first copy ends before the completions do.
bool ProcessReader::is_short() const {
  return std::ranges::any_of(cqs_, [&](const auto& entry) {
    const Completion& cq = entry.second;
    return cq.reader->is_short(cq.wanted, bytes_of(first_, cq.first_at, cq.wanted.count,
                                                   cq.reader->spec().ring.entry_bytes));
  });
}

// 1. completion rings, then doorbells. After a long time more may have come than the looks before suggest, but
// mostly nothing has: that is asked first, and cheap. `begin_ns`: of the copies; `end_ns`: after them.
bool ProcessReader::first_copies(uint64_t& begin_ns, uint64_t& end_ns) {
  const uint64_t since_ns = last_begin_ns_ != 0 ? begin_ns - last_begin_ns_ : kLongNs + 1;
  if (!copy_completions(Extent::expected)) return false;
  Extent extent = Extent::expected;
  // With doorbells alone there is nothing more to copy.
  if (!pressed_ && ((since_ns > kLongNs && has_moved()) || (since_ns > kQuiteLongNs && is_short())))
    extent = Extent::generous;
  if (extent != Extent::expected) {
    begin_ns = monotonic_now_ns();
    if (!copy_completions(extent)) return false;
  }
  end_ns = monotonic_now_ns();
  // The doorbells are to be little younger than the completions: they tell what these have not told yet.
  for (int again = 0; again < 2 && end_ns - begin_ns > kHeldUpNs && local_.size() <= kFewRanges; ++again) {
    begin_ns = end_ns;
    if (has_moved()) extent = Extent::generous;
    if (!copy_completions(extent)) return false;
    end_ns = monotonic_now_ns();
  }
  return true;
}

bool ProcessReader::look(RecordBuffer& out) {
  if (changed_) rebuild();
  const uint64_t begin_ns = monotonic_now_ns();
  ++looks_;

  uint64_t copies_ns = begin_ns, read_ns = begin_ns;
  if (!first_copies(copies_ns, read_ns)) return still_reads(out);
  failures_ = 0;
  // In between the last look at this ring, or its begin, and now.
  const auto times = [&](const auto& ring) {
    return LookTimes{std::min(begin_ns, ring.read_ns), read_ns};
  };

  // 2. what is new, twice where it may still be written, then doorbells again
  local_.clear();
  remote_.clear();
  size_t at = 0;
  bool any = false;
  for (auto& [owner, send] : sends_) {
    const SendSpec& spec = send.reader->spec();
    send.wanted = {};
    send.copied = send.reader->next();
    if (!send.reader->holds()) send.held_since = looks_;
    if (send.before == nullptr || spec.blocks == 0 || is_stopped(send)) continue;
    const auto doorbell = static_cast<uint16_t>(be32_at(send.before + 4));
    const PostedBounds bounds =
        bounds_of(send, doorbell, read_ns - std::min(read_ns, send.told_ns), read_ns - copies_ns);
    if (doorbell != static_cast<uint16_t>(send.reader->posted())) fresh_bytes_ += kCacheLine;
    send.wanted = send.reader->on_doorbell(doorbell, times(send), bounds, out);
    send.told_ns = copies_ns;
    send.told_look = looks_;
    send.fresh = false;
    if (!send.wanted.any()) {
      send.read_ns = begin_ns;
      continue;
    }
    any = true;
    send.at = at;
    add_range(local_, remote_, at, spec.ring_addr, spec.blocks, kWqeBlockBytes, send.wanted.first,
              send.wanted.end - send.wanted.first);
  }
  for (auto& [owner, cq] : cqs_) {
    const CqSpec& spec = cq.reader->spec();
    if (cq.before != nullptr) cq.consumed = cq.reader->consumed(be32_at(cq.before) & 0xffffff);
    if (!policy_.read_completions || is_stopped(spec, cq.looks)) continue;
    if (!cq.reader->is_read() && cq.before != nullptr) {
      const RingBytes check = bytes_of(first_, cq.first_at, cq.check.count, spec.ring.entry_bytes);
      cq.checks = cq.reader->on_counted(be32_at(cq.before) & 0xffffff, check, times(cq), out);
      cq.read_ns = begin_ns;
      if (cq.checks) {
        any = true;
        cq.second_at = at;
        add_range(local_, remote_, at, spec.ring_addr, spec.ring.entries, spec.ring.entry_bytes, cq.check.first,
                  cq.check.count);
      }
    }
    if (cq.wanted.count == 0) continue;
    const RingBytes bytes = bytes_of(first_, cq.first_at, cq.wanted.count, spec.ring.entry_bytes);
    cq.news = cq.reader->has_news(cq.wanted, bytes);
    if (!cq.news) {
      cq.reader->on_nothing(cq.before != nullptr ? be32_at(cq.before) & 0xffffff : 0);
      cq.read_ns = begin_ns;
      continue;
    }
    any = true;
    cq.second_at = at;
    add_range(local_, remote_, at, spec.ring_addr, spec.ring.entries, spec.ring.entry_bytes,
              cq.wanted.first, cq.wanted.count);
  }
  double fill = 0, most_blocks = 0;
  for (const auto& [owner, send] : sends_) {
    if (send.told_look != looks_ || send.reader->last_fill() == 0) continue;
    const uint32_t blocks = send.reader->spec().blocks;
    interval_.used(blocks, begin_ns);
    fill = std::max(fill, send.reader->last_fill());
    most_blocks = std::max(most_blocks, send.reader->last_fill() * blocks);
  }
  if (any) {
    if (second_.size() < at) second_.resize(at);
    for (iovec& part : local_)
      part.iov_base = second_.data() + reinterpret_cast<size_t>(part.iov_base);
    add_doorbells(doorbells_after_);
    if (!copy(local_, remote_)) return still_reads(out);
    fresh_bytes_ += at;
    const uint64_t now_ns = monotonic_now_ns();
    for (auto& [owner, send] : sends_) {
      if (!send.wanted.any() || is_stopped(send)) continue;
      const uint64_t count = send.wanted.end - send.wanted.first;
      // We may have been held up in between, for so long that the doorbell's 16 bits do not say how much was
      // written meanwhile: then these blocks are read once more. Where that is so again and again, a later
      // look decides.
      const auto doorbell = static_cast<uint16_t>(be32_at(send.after + 4));
      const PostedBounds bounds = bounds_after_copy(*send.reader, send.wanted.end, now_ns - copies_ns);
      if (!bounds.only(doorbell) && ++send.unsure < kMostUnsure) continue;
      send.unsure = 0;
      send.reader->on_copy(send.wanted, bytes_of(second_, send.at, count, kWqeBlockBytes), doorbell, bounds,
                           times(send), out);
      send.read_ns = begin_ns;
    }
    for (auto& [owner, cq] : cqs_) {
      const CqSpec& spec = cq.reader->spec();
      if ((!cq.news && !cq.checks) || is_stopped(spec, cq.looks)) continue;
      if (cq.checks) {
        cq.reader->on_index_check(bytes_of(first_, cq.first_at, cq.check.count, spec.ring.entry_bytes),
                                  bytes_of(second_, cq.second_at, cq.check.count, spec.ring.entry_bytes), now_ns, out);
        continue;
      }
      cq.reader->on_copies(
          cq.wanted, bytes_of(first_, cq.first_at, cq.wanted.count, spec.ring.entry_bytes),
          bytes_of(second_, cq.second_at, cq.wanted.count, spec.ring.entry_bytes),
          cq.before != nullptr ? be32_at(cq.before) & 0xffffff : 0,
          {times(cq).before_ns, std::max(read_ns, now_ns)}, out);
      cq.read_ns = begin_ns;
      if (cq.reader->last_fill() > 0 && !spec.ring.collapsed) interval_.used(spec.ring.entries, begin_ns);
      fill = std::max(fill, cq.reader->last_fill());
    }
  }
  settle_unfinished(read_ns, out);
  publish();
  const uint64_t elapsed_ns = last_begin_ns_ != 0 ? begin_ns - last_begin_ns_ : 0;
  last_begin_ns_ = begin_ns;
  if (pressed_ && elapsed_ns != 0)
    interval_.counted(static_cast<uint64_t>(most_blocks), elapsed_ns, begin_ns);
  else
    interval_.looked(fill, begin_ns);
  return true;
}

// What waits for a certificate from looks before this one, by what had not completed when this one began.
// Not where completions were missed: the request's may be among them.
void ProcessReader::settle_unfinished(uint64_t now_ns, RecordBuffer& out) {
  for (auto& [owner, cq] : cqs_) {
    if (cq.reader->missed() != cq.missed) cq.gap_at = looks_;
    cq.missed = cq.reader->missed();
  }
  for (auto& [owner, send] : sends_) {
    if (!send.reader->holds()) continue;
    RingOwner of = owner;
    of.number = send.reader->spec().send_cqn;
    const auto cq = cqs_.find(of);
    if (cq == cqs_.end() || !cq->second.reader->caught_up() || cq->second.reader->spec().ring.collapsed ||
        is_stopped(cq->second.reader->spec(), cq->second.looks) || cq->second.gap_at + 1 >= send.held_since)
      continue;
    send.reader->settle_unfinished(send.copied, now_ns, out);
  }
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
