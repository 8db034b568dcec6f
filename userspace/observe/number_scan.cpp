// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/number_scan.h"

namespace sigma {

std::map<uint32_t, std::vector<uint64_t>> find_numbers(const RemoteMemory& memory,
                                                       const std::set<uint32_t>& numbers,
                                                       const Surroundings& around,
                                                       const ScanLimits& limits) {
  std::map<uint32_t, std::vector<uint64_t>> places;
  if (numbers.empty()) return places;
  // A bit for each number but those that no queue has: they cost one load for most words.
  const uint32_t low = *numbers.begin(), span = *numbers.rbegin() - low;
  std::vector<bool> wanted(size_t{span} + 1);
  for (const uint32_t number : numbers) wanted[number - low] = true;
  ScanTotals totals;
  memory.scan_writable(limits, totals, [&](uint64_t address, std::span<const uint64_t> words) {
    const auto* halves = reinterpret_cast<const uint32_t*>(words.data());
    for (size_t i = 0; i < words.size() * 2; ++i) {
      if (halves[i] - low > span) [[likely]]
        continue;
      if (!wanted[halves[i] - low]) continue;
      const size_t word = i / 2, before = around.before / 8, after = around.after / 8;
      if (word >= before && words.size() - word >= after &&
          !around.fit(words.subspan(word - before, before + after)))
        continue;
      std::vector<uint64_t>& list = places[halves[i]];
      if (list.size() < kMaxPlaces) list.push_back(address + 4 * i);
    }
  });
  std::erase_if(places, [](const auto& entry) { return entry.second.size() >= kMaxPlaces; });
  return places;
}

}  // namespace sigma
