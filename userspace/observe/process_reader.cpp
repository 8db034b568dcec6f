// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The looks. Which rings there are: ring_lives.cpp.
#include "observe/process_reader.h"

#include <unistd.h>

#include <algorithm>
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
constexpr uint32_t kMostUnsure = 8;  // copies of a ring that certify nothing
// A copy of few ranges that takes longer was held up.
constexpr size_t kFewRanges = 256;
constexpr uint64_t kHeldUpNs = 70'000;

uint32_t be32_at(const std::byte* bytes) {
  Be32 value;
  std::memcpy(static_cast<void*>(&value), bytes, sizeof(value));
  return value;
}

}  // namespace

ProcessReader::ProcessReader(uint32_t pid, const ReaderPolicy& policy, sigma_ring_slot* slots)
    : pid_(pid), policy_(policy), slots_(slots) {}

SendReader::Mode ProcessReader::mode() const {
  return pressed_ || !policy_.read_posts ? SendReader::Mode::counted : SendReader::Mode::read;
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

}  // namespace sigma
