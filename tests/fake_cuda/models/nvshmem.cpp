// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// NVSHMEM IBGDA. --mode rc (default) | dci | peermem (umems by address).
#include "nvshmem_device.h"

namespace models {
namespace {

struct Nvshmem : NvshmemHost<NvshmemPoster> {
  static constexpr const char* kName = "nvshmem";
  static constexpr bool kSignalsAll = false, kTrailingNop = true;
  bool signals(uint64_t, bool) const { return true; }  // each call is a group; its last WQE
  static std::initializer_list<Kind> kinds() {
    static constexpr std::initializer_list<Kind> kAll = {
        Kind::write, Kind::write,        Kind::write_inline, Kind::write_long_inline,
        Kind::read,  Kind::masked_add32, Kind::masked_add64, Kind::masked_swap};
    return kAll;
  }
  static uint32_t inline_limit() { return 12; }
  static bool fixed_inline() { return false; }
};

}  // namespace
}  // namespace models

int main(int argc, char** argv) {
  return models::run_model<models::Nvshmem>(argc, argv);
}
