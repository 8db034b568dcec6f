// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/provider_choice.h"

#include <algorithm>
#include <array>

namespace sigma {
namespace {

struct Row {
  std::string_view driver;    // of the device's parent, as /sys/class/infiniband/X/device/driver names it
  std::string_view provider;  // rdma-core's library, without "lib" and what follows the name
};

// From the drivers' module names under drivers/infiniband/hw and drivers/net, and rdma-core's providers/.
constexpr auto kRows = std::to_array<Row>({
    {"mlx5_core", "mlx5"},   {"mlx4_core", "mlx4"},     {"bnxt_en", "bnxt_re"},        {"bnxt_re", "bnxt_re"},
    {"ice", "irdma"},        {"i40e", "irdma"},         {"irdma", "irdma"},            {"hns3", "hns"},
    {"hns_roce", "hns"},     {"efa", "efa"},            {"erdma", "erdma"},            {"mana", "mana"},
    {"qede", "qedr"},        {"cxgb4", "cxgb4"},        {"ib_mthca", "mthca"},         {"be2net", "ocrdma"},
    {"hfi1", "hfi1verbs"},   {"ib_qib", "ipathverbs"},  {"vmw_pvrdma", "vmw_pvrdma"},
});

// Software devices stand on any network device, and may show that one's driver.
constexpr auto kSoftware = std::to_array<std::string_view>({"rxe", "siw"});

bool is_library(std::string_view library, std::string_view provider) {
  if (const size_t slash = library.rfind('/'); slash != library.npos) library.remove_prefix(slash + 1);
  if (!library.starts_with("lib")) return false;
  library.remove_prefix(3);
  if (!library.starts_with(provider)) return false;
  library.remove_prefix(provider.size());
  return library.starts_with(".so") || library.starts_with("-rdmav");
}

}  // namespace

bool may_serve(std::string_view library, std::span<const SysfsDevice> devices) {
  for (const std::string_view provider : kSoftware)
    if (is_library(library, provider)) return true;
  const bool known = std::any_of(kRows.begin(), kRows.end(),
                                 [&](const Row& row) { return is_library(library, row.provider); });
  if (!known || devices.empty()) return true;
  return std::any_of(devices.begin(), devices.end(), [&](const SysfsDevice& device) {
    if (device.driver.empty()) return !device.is_virtual;
    const auto row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.driver == device.driver; });
    return row == kRows.end() || is_library(library, row->provider);
  });
}

}  // namespace sigma
