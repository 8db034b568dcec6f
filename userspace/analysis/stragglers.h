// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who departs from its peers: pure functions over measurements, by robust statistics (median, and
// median absolute deviation), so that the culprits do not hide themselves by moving the mean, and
// the majority is never named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "analysis/tally.h"

namespace sigma {

double median(std::vector<double> values);  // 0 when empty
// Median absolute deviation, scaled to a normal distribution's standard deviation.
double deviation(std::span<const double> values, double median);

enum class Direction : uint8_t { high, low };  // which departure is bad

struct Outlier {
  size_t index = 0;
  double value = 0, typical = 0;
};

// Values that depart by at least kFactor and by more than kDeviations deviations; fewer than half
// of them, else none. At least kMinMembers are needed to tell who is typical.
struct OutlierRule {
  double factor = 1.5;
  double deviations = 6;
  size_t min_members = 3;
  double min_difference = 0;
};
std::vector<Outlier> find_outliers(std::span<const double> values, Direction bad,
                                   const OutlierRule& rule = {});

// A rate that fell and stayed low until the end: the fall's time, and the medians on both sides.
struct Decline {
  uint64_t time_ns = 0;
  double before = 0, after = 0;
};
std::optional<Decline> find_decline(const Series& series);

// How unevenly something is spread.
struct Skew {
  double max_to_mean = 1, max_to_min = 1;
  size_t largest = 0, smallest = 0;  // indices
};
std::optional<Skew> skew_of(std::span<const double> values);  // at least two, all positive

}  // namespace sigma
