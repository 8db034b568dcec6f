// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The text of /proc/PID/maps, mutated: what is parsed is sane, whatever the text.
#include <cstring>
#include <string_view>

#include "catch.h"
#include "fuzzer.h"
#include "resolve/proc_maps.h"

using namespace sigma;

namespace {

constexpr std::string_view kSample =
    "00400000-00401000 r-xp 00001000 fe:01 131081                 /usr/bin/a b\\012c (deleted)\n"
    "00e0a000-00e2b000 rw-p 00000000 00:00 0                      [heap]\n"
    "7f0000000000-7f0000021000 rw-s 00000000 00:05 4              /dev/infiniband/uverbs0\n"
    "7f0000021000-7f0004000000 ---p 00000000 00:00 0 \n"
    "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0      [vsyscall]\n";

}  // namespace

TEST_CASE("mutated maps files do no harm") {
  Bytes sample(kSample.size());
  std::memcpy(sample.data(), kSample.data(), kSample.size());
  size_t parsed = 0, left_out = 0;
  Fuzzer fuzzer("maps", {sample});
  while (fuzzer.next()) {
    const Bytes& bytes = fuzzer.bytes();
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    auto maps = parse_maps(text);
    for (const Mapping& mapping : maps) {
      if (mapping.start >= mapping.end) FAIL("an empty mapping");
      if (mapping.path.size() > text.size()) FAIL("a path longer than the text");
    }
    parsed += maps.size();
    left_out += maps.size() < 5;
  }
  CHECK(parsed > 50);
  CHECK(left_out > 50);
}
