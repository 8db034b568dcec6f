// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// meta.json of a trace, mutated: an error or a value, and what it says is written and read again as
// the same.
#include <cstring>
#include <string_view>

#include "catch.h"
#include "fuzzer.h"
#include "trace/trace_meta.h"

using namespace sigma;

namespace {

Bytes sample_meta() {
  TraceMeta meta;
  meta.info.node = {"node1", "b007", "6.18.0"};
  meta.info.tool_version = "0.1.0";
  meta.info.command_line = {"sigmatrace", "attach"};
  meta.info.remarks = {"a remark"};
  meta.info.end_clock = ClockPair{2, 3, 4};
  meta.info.libraries = {{"libibverbs",
                          "/lib/x.so",
                          "abcd",
                          {{"post_send", "ops_table", "push rbp", "multi", 0x12, 7, true}},
                          {{"poll_cq", "no"}}}};
  meta.attacher.records_dropped = 3;
  const std::string text = trace_meta_json(meta);
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

}  // namespace

TEST_CASE("mutated meta files do no harm") {
  Fuzzer fuzzer("trace_meta", {sample_meta()});
  size_t parsed = 0, refused = 0;
  while (fuzzer.next()) {
    const std::string_view text(reinterpret_cast<const char*>(fuzzer.bytes().data()),
                                fuzzer.bytes().size());
    const auto meta = parse_trace_meta(text);
    ++(meta.ok() ? parsed : refused);
    if (!meta.ok()) continue;
    const auto again = parse_trace_meta(trace_meta_json(*meta));
    if (!again.ok()) FAIL("what was read cannot be written: " << again.error().what);
    if (again->uuid != meta->uuid || again->records != meta->records) FAIL("it changed");
  }
  CHECK(parsed > 0);
  CHECK(refused > 50);
}
