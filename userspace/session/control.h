// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Control: what uverbs commands say, applied to the objects.
#pragma once

#include "base/counters.h"
#include "decode/devx.h"
#include "session/objects.h"

namespace sigma {

class Control {
 public:
  Control(Objects& objects, Counters& counters) : objects_(objects), counters_(counters) {}

  // `record` is 8-byte aligned and begins with a sigma_uverbs.
  void on_uverbs(std::span<const std::byte> record);

 private:
  void on_qp(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns);
  void create_qp(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns);
  void modify_qp(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns);
  void on_cq(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns);
  void on_srq(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns);
  void on_mr(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns, uint64_t enter_ns);
  void add_srq(HandleSpace& space, const UverbsFacts& facts, uint64_t now_ns);
  void on_ah(HandleSpace& space, const UverbsFacts& facts);
  void on_devx(HandleSpace& space, const DevxFacts& facts, uint64_t now_ns);

  Objects& objects_;
  Counters& counters_;
};

}  // namespace sigma
