// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Netlink answers, mutated: no read beyond the buffer, an end, and no more objects than bytes for
// them.
#include "../unit/netlink_builder.h"
#include "attach/rdma_netlink.h"
#include "catch.h"
#include "fuzzer.h"

using namespace sigma;

TEST_CASE("mutated netlink answers do no harm") {
  Fuzzer fuzzer("netlink", {qp_list(), qp_list(NLA_F_NESTED)});
  constexpr size_t kSmallestEntry = 12;  // RES_QP_ENTRY { RES_LQPN }
  size_t parsed = 0, malformed = 0;
  while (fuzzer.next()) {
    const Bytes& bytes = fuzzer.bytes();
    std::vector<RdmaDevice> devices;
    std::vector<RdmaQp> qps;
    std::vector<RdmaMr> mrs;
    malformed += parse_devices(bytes, 7, devices).malformed;
    malformed += parse_qps(bytes, 7, qps).malformed;
    malformed += parse_mrs(bytes, 7, mrs).malformed;
    std::vector<RdmaQpDump> dumps;
    malformed += parse_qp_dumps(bytes, 7, dumps).malformed;
    if (qps.size() > bytes.size() / kSmallestEntry) FAIL("more queue pairs than fit");
    parsed += qps.size();
  }
  // Both happened: the mutations reach the parser's inside and its refusals.
  CHECK(parsed > 50);
  CHECK(malformed > 50);
}
