// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Records of uverbs commands, mutated: their attributes lie within them, whatever they claim.
#include <infiniband/verbs.h>

#include <cstring>

#include "../unit/decode_uverbs_record.h"
#include "catch.h"
#include "decode/uverbs.h"
#include "fuzzer.h"

using namespace sigma;

namespace {

std::vector<Bytes> samples() {
  std::vector<UverbsRecord> records = {
      UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE)
          .handle(UVERBS_ATTR_CREATE_QP_HANDLE, 41)
          .in(UVERBS_ATTR_CREATE_QP_USER_HANDLE, uint64_t{0x5000})
          .in(UVERBS_ATTR_CREATE_QP_TYPE, uint64_t{IBV_QPT_RC})
          .in(UVERBS_ATTR_CREATE_QP_CAP, ib_uverbs_qp_cap{128, 512, 1, 1, 64})
          .out(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, uint32_t{17}),
      UverbsRecord::write(IB_USER_VERBS_CMD_MODIFY_QP, ib_uverbs_modify_qp{}),
      UverbsRecord::write(IB_USER_VERBS_CMD_CREATE_AH, ib_uverbs_create_ah{},
                          ib_uverbs_create_ah_resp{15}),
      UverbsRecord::write(IB_USER_VERBS_CMD_REG_MR, ib_uverbs_reg_mr{}, ib_uverbs_reg_mr_resp{})};
  std::vector<Bytes> out;
  for (UverbsRecord& record : records) {
    const auto bytes = record.bytes();
    out.emplace_back(bytes.begin(), bytes.end());
  }
  return out;
}

}  // namespace

TEST_CASE("mutated uverbs commands do no harm") {
  Fuzzer fuzzer("uverbs", samples());
  size_t parsed = 0, decoded = 0;
  while (fuzzer.next()) {
    const auto command = UverbsCommand::parse(fuzzer.bytes());
    if (!command) continue;
    ++parsed;
    bool undecoded = false;
    decoded += decode_uverbs(*command, &undecoded).has_value();
  }
  CHECK(parsed > 50);
  CHECK(decoded > 50);
}
