// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/stragglers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sigma {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double deviation(std::span<const double> values, double median_value) {
  std::vector<double> distances;
  distances.reserve(values.size());
  for (const double value : values) distances.push_back(std::abs(value - median_value));
  return 1.4826 * median(std::move(distances));
}

std::vector<Outlier> find_outliers(std::span<const double> values, Direction bad,
                                   const OutlierRule& rule) {
  if (values.size() < rule.min_members) return {};
  const double typical = median({values.begin(), values.end()});
  const double allowed = rule.deviations * deviation(values, typical);
  std::vector<Outlier> outliers;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    const double distance = bad == Direction::high ? value - typical : typical - value;
    const bool by_factor =
        bad == Direction::high ? value >= rule.factor * typical : value * rule.factor <= typical;
    if (by_factor && distance > allowed && distance >= rule.min_difference)
      outliers.push_back({i, value, typical});
  }
  if (2 * outliers.size() >= values.size()) return {};
  return outliers;
}

std::optional<Decline> find_decline(const Series& series) {
  constexpr size_t kMinSteps = 4;         // on either side
  constexpr uint64_t kMinOperations = 4;  // in a step, for its rate to mean something
  constexpr double kFall = 0.7;
  std::vector<double> rates;
  std::vector<uint64_t> times;
  for (size_t i = 0; i < Series::kSteps; ++i) {
    const auto& step = series.steps()[i];
    if (step.operations < kMinOperations || step.busy_ns == 0 || step.bytes == 0) continue;
    rates.push_back(static_cast<double>(step.bytes) * 1e9 / static_cast<double>(step.busy_ns));
    times.push_back(series.begin_ns() + i * series.width_ns());
  }
  if (rates.size() < 2 * kMinSteps) return std::nullopt;
  std::optional<Decline> best;
  double best_share = 0;
  for (size_t split = kMinSteps; split + kMinSteps <= rates.size(); ++split) {
    const auto middle = rates.begin() + static_cast<ptrdiff_t>(split);
    const double before = median({rates.begin(), middle});
    const double after = median({middle, rates.end()});
    if (after > kFall * before) continue;
    // Both sides must keep to themselves: a few slow steps, or ups and downs, are no fall.
    const double between = (before + after) / 2;
    const auto high = std::count_if(rates.begin(), middle, [&](double r) { return r > between; });
    const auto low = std::count_if(middle, rates.end(), [&](double r) { return r < between; });
    const double share = static_cast<double>(high + low) / static_cast<double>(rates.size());
    const auto after_count = static_cast<double>(rates.size() - split);
    if (share < 0.9 || static_cast<double>(low) < 0.9 * after_count || share <= best_share)
      continue;
    best_share = share;
    best = Decline{times[split], before, after};
  }
  return best;
}

std::optional<Skew> skew_of(std::span<const double> values) {
  if (values.size() < 2) return std::nullopt;
  const auto [smallest, largest] = std::minmax_element(values.begin(), values.end());
  if (*smallest <= 0) return std::nullopt;
  const double mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return Skew{*largest / mean, *largest / *smallest, static_cast<size_t>(largest - values.begin()),
              static_cast<size_t>(smallest - values.begin())};
}

}  // namespace sigma
