// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The observer's share of a core, against a machine on which a look costs what the test says.
#include <algorithm>
#include <cstdint>

#include "catch.h"
#include "observe/cpu_bound.h"

using namespace sigma;

namespace {

constexpr double kMost = 0.3;
constexpr uint64_t kCheckNs = 100'000'000;

// Looks at rings as often as the traffic asks for and the bound allows; looks at doorbells cost next to nothing.
struct Machine {
  CpuBound bound{kMost};
  uint64_t now_ns = 1'000'000'000, read_ns = 0;
  double share = 0;

  // One check; `look_ns` is what a look takes, in which what was posted meanwhile may be contained.
  void check(double look_ns, double interval_ns) {
    const double interval = std::max(interval_ns, static_cast<double>(bound.floor_ns()));
    share = bound.pressed() ? 0.001 : std::min(1.0, look_ns / (interval + look_ns));
    if (!bound.pressed()) read_ns += kCheckNs;
    now_ns += kCheckNs;
    bound.used(share, kCheckNs, now_ns);
  }
};

}  // namespace

TEST_CASE("cpu bound: looks that are too many get rarer within a second, and rings are read on") {
  for (const double look_ns : {3'000., 20'000., 100'000., 500'000.}) {
    INFO(look_ns);
    Machine machine;
    for (int i = 0; i < 10; ++i) machine.check(look_ns, 1'000);
    for (int i = 0; i < 100; ++i) {
      machine.check(look_ns, 1'000);
      CHECK(machine.share < kMost * 1.3);
      CHECK_FALSE(machine.bound.pressed());
    }
    // And not rarer than they must be.
    CHECK(machine.share > kMost * 0.5);
    CHECK(machine.bound.pressed_total_ns() == 0);
  }
}

TEST_CASE("cpu bound: doorbells alone where the rarest looks are too many, and ever fewer tries") {
  Machine machine;
  constexpr double kLookNs = 4'000'000;
  int checks = 0;
  while (!machine.bound.pressed() && checks < 100) machine.check(kLookNs, 1'000), ++checks;
  CHECK(checks <= 10);
  machine.read_ns = 0;
  constexpr int kChecks = 1'000;
  for (int i = 0; i < kChecks; ++i) machine.check(kLookNs, 1'000);
  CHECK(machine.read_ns > 0);  // it does try
  CHECK(machine.read_ns < kChecks * kCheckNs / 40);
  CHECK(machine.bound.pressed_total_ns() >= kChecks * kCheckNs - machine.read_ns);
}

TEST_CASE("cpu bound: rings are read again when the load has gone, and a new load is tried as the first was") {
  Machine machine;
  constexpr double kHeavyNs = 4'000'000, kLightNs = 10'000;
  for (int i = 0; i < 300; ++i) machine.check(kHeavyNs, 1'000);
  for (uint64_t waited = 0; waited <= CpuBound::kLongestPressedNs; waited += kCheckNs) machine.check(kLightNs, 200'000);
  for (int i = 0; i < 100; ++i) {
    machine.check(kLightNs, 200'000);
    CHECK_FALSE(machine.bound.pressed());
  }
  CHECK(machine.bound.floor_ns() < 200'000);
  while (!machine.bound.pressed()) machine.check(kHeavyNs, 1'000);
  uint64_t pressed_ns = 0;
  for (; machine.bound.pressed(); pressed_ns += kCheckNs) machine.check(kHeavyNs, 1'000);
  CHECK(pressed_ns <= CpuBound::kPressedNs + 2 * kCheckNs);
}
