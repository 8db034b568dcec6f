// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// require_features: what a kernel lacks is named, with the step that mends it.
#include "attach/features.h"

#include "catch.h"

using namespace sigma;

namespace {

Features complete() {
  Features features;
  for (const FeatureRow& row : feature_table()) features.*row.value = true;
  return features;
}

}  // namespace

TEST_CASE("a kernel with everything is accepted") { CHECK(require_features(complete()).ok()); }

TEST_CASE("each required feature is named when it is missing") {
  for (const FeatureRow& row : feature_table()) {
    Features features = complete();
    features.*row.value = false;
    const Status status = require_features(features);
    INFO(row.name);
    CHECK(status.ok() == !row.required);
    if (!status.ok()) CHECK_THAT(status.error().what, ContainsSubstring(std::string(row.name)));
  }
}

TEST_CASE("one kind of uprobe link is enough, none is not") {
  Features features = complete();
  disable_features(features, "multi,session");
  CHECK(require_features(features).ok());
  disable_features(features, "perf");
  REQUIRE_FALSE(require_features(features).ok());
  CHECK_THAT(require_features(features).error().what, ContainsSubstring("CONFIG_UPROBE_EVENTS"));
}

TEST_CASE("kernel lockdown is named as the cause, with the boot option") {
  Features features = complete();
  features.ring_buffer = false;
  features.lockdown = "confidentiality";
  REQUIRE_FALSE(require_features(features).ok());
  CHECK_THAT(require_features(features).error().hint, ContainsSubstring("lockdown=confidentiality"));
}
