// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include <algorithm>

#include "catch.h"
#include "resolve/ops_order.h"
#include "resolve_support.h"

using namespace sigma;

TEST_CASE("the order of the fixture's table is read off its verbs_set_ops") {
  auto elf = open_elf(fixture("libibverbs.so.1"));
  Code code(elf);
  auto order = derive_ops_order(code);
  INFO((order ? "" : order.error().what));
  REQUIRE(order.ok());
  CHECK(order->derived);
  CHECK(order->names.size() == 37);  // as ops.h lists them
  CHECK(order->index("alloc_mw") == 1);
  CHECK(order->index("create_qp") == 11);
  CHECK(order->index("poll_cq") == 24);
  CHECK(order->index("post_recv") == 25);
  CHECK(order->index("post_send") == 26);
  CHECK(order->index("post_srq_recv") == 28);
  CHECK(order->names[0].empty());  // alloc_dmah: not public, so without a name
}

TEST_CASE("the installed libibverbs has an order that some release had") {
  auto elf = open_elf(RESOLVE_LIBDIR "/libibverbs.so.1");
  Code code(elf);
  auto order = derive_ops_order(code);
  REQUIRE(order.ok());
  CHECK(order->derived);
  // rdma-core's driver.h: slots, poll_cq, post_recv, post_send, post_srq_recv.
  std::vector<int> seen{static_cast<int>(order->names.size()), order->index("poll_cq"),
                        order->index("post_recv"), order->index("post_send"),
                        order->index("post_srq_recv")};
  std::vector<std::vector<int>> releases{
      {72, 52, 53, 54, 56}, {73, 52, 53, 54, 56}, {75, 53, 54, 55, 57}, {76, 53, 54, 55, 57},
      {79, 55, 56, 57, 59}, {81, 56, 57, 58, 60}, {83, 58, 59, 60, 62}, {93, 62, 63, 64, 66}};
  CHECK(std::count(releases.begin(), releases.end(), seen) == 1);
}

TEST_CASE("a file without verbs_set_ops has no order") {
  auto elf = open_elf(fixture("sites.so"));
  Code code(elf);
  auto order = derive_ops_order(code);
  REQUIRE(!order.ok());
  CHECK_THAT(order.error().what, ContainsSubstring("does not export verbs_set_ops"));
}

TEST_CASE("a known order stands in only when its number of slots is seen") {
  // verbs_set_ops of the installed libibverbs made into a bare return.
  std::string path = RESOLVE_LIBDIR "/libibverbs.so.1";
  auto bytes = bytes_of(path);
  auto intact = open_elf(path);
  auto offset = intact.offset_of(intact.exported("verbs_set_ops")->value);
  REQUIRE(offset);
  bytes[*offset] = std::byte{0xc3};
  auto elf = ElfFile::parse(bytes, "altered");
  REQUIRE(elf.ok());
  Code code(*elf);
  auto order = derive_ops_order(code);
  REQUIRE(order.ok());
  CHECK(!order->derived);
  Code intact_code(intact);
  auto derived = derive_ops_order(intact_code);
  REQUIRE(derived.ok());
  for (const char* name : {"create_qp", "poll_cq", "post_recv", "post_send", "post_srq_recv"})
    CHECK(order->index(name) == derived->index(name));
}
