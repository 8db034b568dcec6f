// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Walking completion rings against a model of a device, an owner that consumes (and unzips in place, as UCX does),
// and a reader, that take turns at every 16 bytes.
#include <array>
#include <random>
#include <vector>

#include "catch.h"
#include "completion_device.h"

using namespace sigma;

namespace {

struct Counts {
  uint64_t seen = 0, lost = 0, wrong = 0, unstable = 0, no_bytes = 0, in_runs = 0;
};

// `pace`: turns of device and owner between two samples, at most; `during`: the same per 16 bytes
// copied.
Counts run_model(uint32_t seed, const CompletionRing& ring, bool counts_laps, unsigned pace,
                 unsigned during_copy) {
  std::mt19937 random(seed);
  CompletionDevice device(ring, seed % 2, random);
  device.publishes = counts_laps;
  device.unzips = seed / 2 % 2;
  CompletionCursor cursor;
  Counts counts;
  const auto run = [&](unsigned most) {
    for (unsigned n = random() % (most + 1); n > 0; --n)
      random() % 5 < 3 ? device.write() : device.consume(random() % 4 == 0);
  };
  const auto copy = [&](uint64_t from, uint32_t entries, unsigned most) {
    std::vector<std::byte> bytes(size_t{entries} * ring.entry_bytes);
    for (size_t at = 0; at < bytes.size(); at += 16) {
      const size_t source = (from * ring.entry_bytes + at) % device.memory().size();
      std::memcpy(bytes.data() + at, device.memory().data() + source, 16);
      run(most);
    }
    return bytes;
  };

  // What a run gives is what comes one by one.
  const auto take_run = [&](uint64_t from, const std::vector<std::byte>& first,
                            const std::vector<std::byte>& again) {
    CompletionCursor one = cursor;
    std::array<Cqe, 3> run;
    const size_t taken = next_run(ring, cursor, from, RingBytes(first), RingBytes(again), run);
    for (size_t i = 0; i < taken; ++i) {
      const uint64_t position = one.next;
      Cqe cqe;
      uint64_t lost = 0;
      CHECK(next_completion(ring, one, from, RingBytes(first), RingBytes(again), cqe, lost) ==
            CqNext::completion);
      CHECK(cqe == run[i]);
      ++counts.seen;
      ++counts.in_runs;
      counts.wrong += !device.is(run[i], position);
    }
    CHECK(one.next == cursor.next);
    CHECK(one.anchor_at == cursor.anchor_at);
    CHECK(one.anchor == cursor.anchor);
  };

  constexpr int kSamples = 500, kDrains = 50;  // the last ones without a writer
  for (int sample = 0; sample < kSamples + kDrains; ++sample) {
    const unsigned during = sample < kSamples ? during_copy : 0;
    if (sample < kSamples) run(pace);
    if (sample == kSamples)  // what is on its way
      for (int i = 0; i < 1'000; ++i) device.write();
    if (sample >= kSamples)
      for (int i = 0; i < 200; ++i) device.consume(true);
    const uint64_t from = copy_from(ring, cursor);
    const auto entries =
        static_cast<uint32_t>(std::min(ring.entries, kMaxSession) + cursor.next - from);
    const auto first = copy(from, entries, during);
    const auto again = copy(from, entries, during);
    if (counts_laps) counts.lost += consumed_to(ring, cursor, device.doorbell());
    for (bool more = true; more;) {
      Cqe cqe;
      uint64_t lost = 0;
      const uint64_t position = cursor.next;
      switch (next_completion(ring, cursor, from, RingBytes(first), RingBytes(again), cqe, lost)) {
        case CqNext::completion:
          ++counts.seen;
          counts.wrong += !device.is(cqe, position);
          counts.no_bytes += !cqe.has_bytes;
          CHECK(cursor.next == position + 1);
          take_run(from, first, again);
          break;
        case CqNext::lost:
          counts.lost += lost;
          CHECK(lost > 0);
          CHECK(cursor.next == position + lost);
          break;
        case CqNext::unstable:
          ++counts.unstable;
          more = false;
          break;
        default:
          more = false;
      }
    }
    CHECK(cursor.next <= device.produced());
    CHECK(counts.seen + counts.lost == cursor.next);
  }
  // A compressed ring may end within what only its owner understands.
  if (ring.layout == CqLayout::plain) CHECK(cursor.next == device.produced());
  return counts;
}

}  // namespace

TEST_CASE("model: completions of plain rings") {
  Counts total;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    const Counts counts =
        run_model(seed, {8u << seed % 4, 64u << seed % 2}, true, 4u << seed % 9, seed % 3);
    total.seen += counts.seen, total.lost += counts.lost;
    total.wrong += counts.wrong, total.unstable += counts.unstable;
    total.in_runs += counts.in_runs;
  }
  CHECK(total.wrong == 0);
  CHECK(total.seen > 10'000);
  CHECK(total.in_runs > 5'000);
  CHECK(total.lost > 1'000);
  CHECK(total.unstable > 100);
}

TEST_CASE("model: completions of compressed rings, also unzipped in place") {
  for (const CqLayout layout : {CqLayout::compressed_basic, CqLayout::compressed_enhanced})
    for (const bool counts_laps : {true, false}) {
      if (layout == CqLayout::compressed_basic && !counts_laps)
        continue;  // not in turns of 16 bytes
      INFO("enhanced " << (layout == CqLayout::compressed_enhanced) << " index " << counts_laps);
      Counts total;
      for (uint32_t seed = 1; seed <= 40; ++seed) {
        const uint32_t smallest = layout == CqLayout::compressed_basic ? 256 : 32;
        const CompletionRing ring{smallest << seed % 3, 64u << seed % 2, layout};
        const Counts counts = run_model(seed, ring, counts_laps, 16u << seed % 5, seed % 2);
        total.seen += counts.seen, total.lost += counts.lost, total.wrong += counts.wrong;
        total.no_bytes += counts.no_bytes;
      }
      CHECK(total.wrong == 0);
      CHECK(total.seen > 10'000);
      CHECK(total.lost > 500);
      // What UCX's mark stands over, in the basic layout only
      CHECK((total.no_bytes > 0) == (layout == CqLayout::compressed_basic));
      CHECK(total.no_bytes < total.seen / 8);
    }
}
