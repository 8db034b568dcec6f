// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// may_serve: leaves a provider out only where it is sure.
#include "attach/provider_choice.h"

#include "catch.h"

using namespace sigma;

namespace {

SysfsDevice device(const char* driver, bool is_virtual = false) {
  SysfsDevice result;
  result.driver = driver;
  result.is_virtual = is_virtual;
  return result;
}

constexpr const char* kMlx5 = "/usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0";
constexpr const char* kMlx4 = "/usr/lib/x86_64-linux-gnu/libmlx4.so.1.0.44.0";
constexpr const char* kRxe = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so";
constexpr const char* kBnxt = "/usr/lib/x86_64-linux-gnu/libibverbs/libbnxt_re-rdmav34.so";

}  // namespace

TEST_CASE("a device's own provider is chosen and others are left out") {
  const std::vector<SysfsDevice> devices{device("mlx5_core")};
  CHECK(may_serve(kMlx5, devices));
  CHECK_FALSE(may_serve(kMlx4, devices));
  CHECK_FALSE(may_serve(kBnxt, devices));
}

TEST_CASE("software providers are always chosen") {
  CHECK(may_serve(kRxe, std::vector{device("mlx5_core")}));
  CHECK(may_serve(kRxe, std::vector{device("", true)}));
  CHECK_FALSE(may_serve(kMlx5, std::vector{device("", true)}));
}

TEST_CASE("where the devices do not tell, every provider is chosen") {
  CHECK(may_serve(kMlx5, {}));
  CHECK(may_serve(kMlx4, std::vector{device("some_new_driver")}));
  CHECK(may_serve(kMlx4, std::vector{device("", false)}));
  CHECK(may_serve("/opt/lib/libsome_new-rdmav99.so", std::vector{device("mlx5_core")}));
}
