// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One round of looks at the queues of one GPU: what is copied in which order, and who is told what it
// shows. The copies themselves: sampler_copies.cpp.
#include "gpu_interpose/queue_facts.h"
#include "gpu_interpose/sampler.h"

namespace sigma::gpu {
namespace {

constexpr uint64_t kSnapshotLookNs = 50'000'000;
// A half of the buffer for each of a round's phases; of that, what may be ahead of the posts.
constexpr size_t kPhaseBytes = Copier::kBufferBytes / 2, kAheadBytes = kPhaseBytes / 2;
// Of one queue at a look: what a quarter of that holds twice.
constexpr uint32_t kMostBlocks = kPhaseBytes / 8 / kWqeBlockBytes;

}  // namespace

bool Sampler::due(const Watched& watched, bool last) const {
  if (last) return watched.ending;
  return watched.send.mode() == SIGMA_RING_READ || watched.send.hung ||
         now_ns() - watched.send.looked_ns >= kSnapshotLookNs;
}

bool Sampler::look_at(int device, bool last, double& fill) {
  Gpu& gpu = gpus_[device];
  if (!usable(gpu, device, last) || !gpu.copier.enter()) return false;
  bool done = false;
  limit_ns_ = last ? options_.last_limit_ns : options_.copy_limit_ns;
  if (gpu.waiting) {
    const auto came = gpu.copier.finish(last ? limit_ns_ : 0);
    gpu.waiting = came == Copier::Finish::late;
    if (came == Copier::Finish::failed) give_up(device, "a copy failed");
    if (gpu.waiting && now_ns() - gpu.waiting_since_ns >= options_.give_up_ns)
      give_up(device, "a copy does not end");
  }
  if (!gpu.waiting)
    done = start_queues(gpu, device) && first_phase(gpu, device, last) &&
           second_phase(gpu, device, last, fill);
  gpu.copier.leave();
  if (gpu.faulted) drop_faulted(device);
  return done;
}

// Queues that were in use before: where do they stand?
bool Sampler::start_queues(Gpu& gpu, int device) {
  const uint64_t begin = now_ns();
  for (uint32_t i = 0; i < used_; ++i) {
    Watched& watched = watched_[i];
    if (!sampled(watched, device) || watched.started || (marked(i) && !watched.ending)) continue;
    const sigma_gpu_queue& queue = watched.send.queue();
    CompletionSlot* slot = watched.cq >= 0 ? &completions_[watched.cq] : nullptr;
    const std::byte* pieces[2] = {};
    const uint32_t entries = slot ? (slot->look.collapsed() ? 1 : slot->look.entries()) : 0;
    const bool fits = slot && size_t{entries} * slot->look.entry_bytes() <= kPhaseBytes;
    gpu.copier.rewind(0);
    if (fits &&
        !copy_ring(gpu, slot->window, slot->look.address(), slot->look.collapsed() ? 1 : entries,
                   slot->look.entry_bytes(), 0, entries, pieces))
      return finish(gpu, device) && false;
    if (!read_doorbell(gpu, watched, watched.doorbell, watched.doorbell_value)) {
      if (watched.doorbell_window) return finish(gpu, device) && false;
      watched.started = true;
      lose(i, "doorbell unreadable");
      return finish(gpu, device) && false;
    }
    if (!finish(gpu, device)) return false;
    bool found = false;
    uint16_t counter = 0;
    const auto newest = [&](uint32_t qp_num, uint16_t value) {
      if (qp_num != queue.qp_num) return;
      found = true;
      counter = value;
    };
    if (fits) {
      const RingBytes whole = bytes_of(pieces, entries, slot->look.entry_bytes(), 0, entries);
      if (!slot->started)
        slot->look.start(whole, newest);
      else
        slot->look.newest_of(whole, newest);
      slot->started = true;
    }
    if (watched.doorbell) watched.doorbell_value = send_doorbell(watched.doorbell);
    watched.send.start(watched.doorbell_value, found, counter, begin, out_);
    watched.started = true;
  }
  return true;
}

// So long since the last look that 65,536 blocks may have been posted.
bool Sampler::was_away(const Watched& watched, uint64_t now) const {
  const uint64_t lap_ns = 65'536ull * 1'000'000'000 / options_.most_posts_per_s;
  return now - watched.send.looked_ns > lap_ns;
}

bool Sampler::plan_completions(Gpu& gpu, CompletionSlot& slot, bool all) {
  const uint32_t bytes = slot.look.entry_bytes();
  slot.wanted = slot.look.wanted(all);
  const uint32_t entries = slot.look.collapsed() ? 1 : slot.look.entries();
  size_t needed = slot.wanted.count * size_t{bytes};
  if (all && needed > kPhaseBytes / 2) {
    slot.wanted = slot.look.wanted(false);
    needed = slot.wanted.count * size_t{bytes};
  }
  if (needed > kPhaseBytes / 2) return true;  // a larger queue than this reader can follow
  if (gpu.copier.used() + needed + 2 * size_t{bytes} > kPhaseBytes) return false;
  slot.planned = true;
  if (!copy_ring(gpu, slot.window, slot.look.address(), entries, bytes, slot.wanted.first,
                 slot.wanted.count, slot.one))
    return false;
  slot.two[0] = slot.two[1] = slot.three = slot.anchor[0] = nullptr;
  if (!slot.look.collapsed())
    return slot.look.anchor().count == 0 ||
           copy_ring(gpu, slot.window, slot.look.address(), entries, bytes,
                     slot.look.anchor().first, 1, slot.anchor);
  slot.two[0] = copy(gpu, slot.window, slot.look.address(), bytes);
  slot.three = copy(gpu, slot.window, slot.look.address(), bytes);
  return slot.three != nullptr;
}

void Sampler::copy_ahead(Gpu& gpu, Watched& watched) {
  const sigma_gpu_queue& queue = watched.send.queue();
  const uint32_t blocks = watched.send.blocks_ahead();
  watched.ahead_from = watched.send.posted();
  if (blocks > 0 && copy_ring(gpu, watched.ring_window, queue.ring_addr, queue.ring_entries,
                              kWqeBlockBytes, watched.ahead_from, blocks, watched.ahead))
    watched.ahead_blocks = blocks;
}

void Sampler::judge_ahead(Watched& watched) const {
  if (watched.ahead_blocks == 0) return watched.send.nothing_known_ahead();
  const CompletionSlot* slot = watched.cq >= 0 ? &completions_[watched.cq] : nullptr;
  watched.send.on_ahead(bytes_of(watched.ahead, watched.send.queue().ring_entries, kWqeBlockBytes,
                                 watched.ahead_from, watched.ahead_blocks),
                        watched.ahead_from, round_begin_ns_, watched.doorbell_value,
                        slot && slot->planned && slot->all_seen, watched.has_completion,
                        watched.counter);
}

// Of all queues first what is not posted yet: so what completed, or was posted, before it was
// copied is in the copies that follow.
bool Sampler::first_phase(Gpu& gpu, int device, bool last) {
  round_begin_ns_ = now_ns();
  gpu.copier.rewind(0);
  for (uint32_t i = 0; i < completions_used_; ++i) completions_[i].planned = false;
  for (uint32_t i = 0; i < used_; ++i) {
    Watched& watched = watched_[i];
    watched.doorbell = nullptr;
    watched.looked = watched.has_completion = false;
    watched.wanted = {};
    watched.ahead_blocks = 0;
    watched.index_at[0] = watched.index_at[1] = nullptr;
    watched.last_blocks[0] = watched.last_blocks[1] = nullptr;
    if (!sampled(watched, device) || !due(watched, last) || (!last && marked(i))) continue;
    watched.looked = true;
    if (gpu.copier.used() < kAheadBytes) copy_ahead(gpu, watched);
  }
  bool room = gpu.copier.last_error() == cuda::kSuccess;
  for (uint32_t i = 0; i < used_; ++i) {
    Watched& watched = watched_[i];
    if (!watched.looked) continue;
    watched.looked = false;
    room = room && gpu.copier.used() + kDoorbellBytes + 2 * 64 < kPhaseBytes;
    if (!room) continue;
    // A queue without a doorbell record moves by its completions alone.
    const bool all = last || was_away(watched, round_begin_ns_);
    if (watched.cq >= 0 && (all || watched.send.wants_completions()) &&
        !completions_[watched.cq].planned)
      room = plan_completions(gpu, completions_[watched.cq], all);
    const bool indexed =
        room && watched.index.wanted(all || watched.send.modulo(), watched.send.record());
    if (indexed) room = read_index(gpu, watched, 0);
    if (room && !read_doorbell(gpu, watched, watched.doorbell, watched.doorbell_value)) {
      room = false;
      if (watched.doorbell_window) {  // drop_faulted() says what that means
        room = true;
        continue;
      }
      if (gpu.copier.last_error() == cuda::kSuccess) {
        lose(i, "doorbell unreadable");
        room = true;
        continue;
      }
    }
    if (indexed && room && watched.index_at[0]) room = read_index(gpu, watched, 1);
    watched.looked = room;
    if (room && all && watched.doorbell && watched.send.may_be_in_first_lap() &&
        gpu.copier.used() + kMaxWqeBlocks * kWqeBlockBytes < kPhaseBytes) {
      const sigma_gpu_queue& queue = watched.send.queue();
      room =
          copy_ring(gpu, watched.ring_window, queue.ring_addr, queue.ring_entries, kWqeBlockBytes,
                    queue.ring_entries - kMaxWqeBlocks, kMaxWqeBlocks, watched.last_blocks);
    }
  }
  phase_bytes_ = gpu.copier.used();
  return finish(gpu, device);
}

SendLook::Laps Sampler::laps_of(const Watched& watched, uint64_t now) const {
  const SendLook& send = watched.send;
  const uint32_t entries = send.queue().ring_entries;
  const bool away = was_away(watched, now) &&
                    !send.in_first_lap(bytes_of(watched.last_blocks, entries, kWqeBlockBytes,
                                                entries - kMaxWqeBlocks, kMaxWqeBlocks));
  const CompletionSlot* slot = watched.cq >= 0 ? &completions_[watched.cq] : nullptr;
  if (!slot || !slot->planned) {
    const bool moved = send.queue().doorbell_addr == 0 || send.pending() ||
                       watched.doorbell_value != (send.posted() & 0xffff);
    return {.possible = away && moved};
  }
  // Without a completion no more can have been posted than the ring holds.
  if (slot->look.collapsed()) return {.possible = away && slot->news};
  return {.possible = away && (slot->news || !slot->all_seen),
          .completed = slot->all_seen ? watched.completed : SendLook::kUnknown};
}

bool Sampler::second_phase(Gpu& gpu, int device, bool last, double& fill) {
  const uint64_t now = now_ns();
  for (uint32_t i = 0; i < used_; ++i)
    watched_[i].completed =
        watched_[i].looked ? watched_[i].send.completed_exactly() : SendLook::kUnknown;
  for (uint32_t i = 0; i < completions_used_; ++i) {
    CompletionSlot& slot = completions_[i];
    if (!slot.planned) continue;
    const uint32_t entries = slot.look.collapsed() ? 1 : slot.look.entries();
    slot.news = slot.look.peek(
        slot.wanted,
        bytes_of(slot.one, entries, slot.look.entry_bytes(), slot.wanted.first, slot.wanted.count),
        bytes_of(slot.anchor, entries, slot.look.entry_bytes(), slot.look.anchor().first, 1),
        slot.all_seen, [&](uint32_t qp_num, uint16_t counter) {
          for (uint32_t k = 0; k < used_; ++k) {
            Watched& watched = watched_[k];
            if (!watched.looked || watched.cq != static_cast<int32_t>(i) ||
                watched.send.queue().qp_num != qp_num)
              continue;
            watched.has_completion = true;
            watched.counter = counter;
            // From one to the next there is no more than the ring.
            if (watched.completed == SendLook::kUnknown) continue;
            const uint64_t end = extend16(watched.completed, counter) + 1;
            watched.completed = end - watched.completed <= watched.send.queue().ring_entries + 1ull
                                    ? end
                                    : SendLook::kUnknown;
          }
        });
  }
  for (uint32_t i = 0; i < used_; ++i) {
    Watched& watched = watched_[i];
    if (!watched.looked) continue;
    SendLook& send = watched.send;
    if (watched.reborn && watched.has_completion) {
      if (completions_[watched.cq].news)
        watched.reborn = false;
      else
        watched.has_completion = false;
    }
    if (watched.doorbell)
      watched.doorbell_value = send_doorbell(watched.doorbell);
    else  // of host memory: once more, for the copies are done only now
      read_doorbell(gpu, watched, watched.doorbell, watched.doorbell_value);
    watched.record_value = watched.doorbell_value;
    watched.doorbell_value = send.of_this_life(watched.record_value);
    const uint64_t before = send.posted();
    SendLook::Laps laps = laps_of(watched, now);
    if (laps.possible || send.modulo()) laps.record = record_by_index(watched, now);
    // After a round of 65,536 the slots' indices say nothing of those that were to come.
    const auto is_far = [&](uint64_t at) {
      return at != SendLook::kUnknown && at > before + 32'768;
    };
    if (is_far(laps.completed) || is_far(laps.record))
      send.nothing_known_ahead();
    else
      judge_ahead(watched);
    if (last) send.want_snapshot();
    watched.wanted = send.on_doorbell(watched.doorbell_value, watched.has_completion,
                                      watched.counter, laps, round_begin_ns_);
    judge_index(i, laps, now);
    send.limit(watched.wanted, kMostBlocks);
    const double part = static_cast<double>(send.posted() - before) / send.queue().ring_entries;
    if (part > fill) fill = part;
  }
  // As many queues at a time as the buffer holds.
  uint32_t from = 0;
  size_t planned = 0;
  for (uint32_t i = 0; i <= used_; ++i) {
    size_t bytes = 0;
    if (i < used_ && watched_[i].looked) {
      bytes = 2 * size_t{watched_[i].wanted.blocks()} * kWqeBlockBytes + 512;
      if (watched_[i].cq >= 0) bytes += size_t{completions_[watched_[i].cq].wanted.count + 1} * 128;
    }
    if (i == used_ || planned + bytes > kPhaseBytes) {
      if (planned > 0 && !read_part(gpu, device, from, i, last)) return false;
      from = i;
      planned = 0;
    }
    planned += bytes;
  }
  return true;
}

bool Sampler::copy_slots(Gpu& gpu, Watched& watched) {
  const sigma_gpu_queue& queue = watched.send.queue();
  const SendLook::Wanted& wanted = watched.wanted;
  watched.completion_between = nullptr;
  watched.doorbell_between_value = watched.doorbell_value;
  if (!wanted.any()) return true;
  if (!copy_ring(gpu, watched.ring_window, queue.ring_addr, queue.ring_entries, kWqeBlockBytes,
                 wanted.first, wanted.blocks(), watched.one))
    return false;
  if (watched.cq >= 0 && completions_[watched.cq].look.collapsed()) {
    const CompletionLook& look = completions_[watched.cq].look;
    watched.completion_between =
        copy(gpu, watched.ring_window ? completions_[watched.cq].window : nullptr,
             look.address() + look.entry_bytes() - kCqeBytes, kCqeBytes);
    if (!watched.completion_between) return false;
  }
  // In host memory it is read when the copies are done: later than between them, and so stricter.
  if (!on_host(queue.doorbell_memory) &&
      !read_doorbell(gpu, watched, watched.doorbell_between, watched.doorbell_between_value))
    return false;
  return copy_ring(gpu, watched.ring_window, queue.ring_addr, queue.ring_entries, kWqeBlockBytes,
                   wanted.first, wanted.blocks(), watched.two);
}

// The queues of one part of the table: what is new in them, and in their completion queues.
bool Sampler::read_part(Gpu& gpu, int device, uint32_t from, uint32_t to, bool last) {
  // What the first phase read is still wanted.
  gpu.copier.rewind(phase_bytes_);
  bool copied = true;
  for (uint32_t i = from; i < to && copied; ++i) {
    Watched& watched = watched_[i];
    watched.doorbell_between = nullptr;
    if (!watched.looked) continue;
    copied = copy_slots(gpu, watched);
    if (!copied || watched.cq < 0) continue;
    CompletionSlot& slot = completions_[watched.cq];
    if (!slot.planned || slot.look.collapsed() || !slot.news || slot.two[0]) continue;
    copied = copy_ring(gpu, slot.window, slot.look.address(), slot.look.entries(),
                       slot.look.entry_bytes(), slot.wanted.first, slot.wanted.count, slot.two);
  }
  if (!finish(gpu, device) || !copied) return false;
  const uint64_t now = now_ns();
  for (uint32_t i = from; i < to; ++i) {
    Watched& watched = watched_[i];
    if (!watched.looked) continue;
    SendLook& send = watched.send;
    const sigma_gpu_queue& queue = send.queue();
    if (watched.wanted.any()) {
      SendLook::Copies copies;
      copies.one = bytes_of(watched.one, queue.ring_entries, kWqeBlockBytes, watched.wanted.first,
                            watched.wanted.blocks());
      copies.two = bytes_of(watched.two, queue.ring_entries, kWqeBlockBytes, watched.wanted.first,
                            watched.wanted.blocks());
      if (on_host(queue.doorbell_memory) && queue.doorbell_addr)
        read_doorbell(gpu, watched, watched.doorbell_between, watched.doorbell_between_value);
      copies.doorbell =
          send.of_this_life(watched.doorbell_between ? send_doorbell(watched.doorbell_between)
                                                     : watched.doorbell_between_value);
      if (watched.completion_between) {
        const Cqe cqe = decode_cqe(
            std::span<const std::byte, kCqeBytes>(watched.completion_between, kCqeBytes));
        copies.has_completion = is_requester(cqe) && cqe.qp_num == queue.qp_num && !watched.reborn;
        copies.counter = cqe.wqe_counter;
      }
      copies.last = last;
      send.on_slots(watched.wanted, copies, now, out_);
    }
    send.looked_ns = round_begin_ns_;
    watched.told_whole = last;
  }
  for (uint32_t i = from; i < to; ++i)
    if (watched_[i].looked && watched_[i].cq >= 0)
      tell_completions(completions_[watched_[i].cq], now);
  return true;
}

void Sampler::tell_completions(CompletionSlot& slot, uint64_t now) {
  if (!slot.planned) return;
  slot.planned = false;
  const uint32_t entries = slot.look.collapsed() ? 1 : slot.look.entries();
  const uint32_t bytes = slot.look.entry_bytes();
  if (slot.news && slot.two[0]) {
    const std::byte* const third[2] = {slot.three, nullptr};
    slot.look.on_copies(slot.wanted,
                        bytes_of(slot.one, entries, bytes, slot.wanted.first, slot.wanted.count),
                        bytes_of(slot.two, entries, bytes, slot.wanted.first, slot.wanted.count),
                        bytes_of(third, entries, bytes, 0, 1), {slot.look.looked_ns, now},
                        Sends{*this, slot}, out_);
  }
  slot.look.looked_ns = round_begin_ns_;
}

}  // namespace sigma::gpu
