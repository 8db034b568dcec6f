// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Real libraries, damaged where their tables are: the resolver neither crashes nor hangs, and
// whatever it would probe lies within the file's code.
#include <fstream>
#include <iterator>
#include <string>

#include "catch.h"
#include "fuzzer.h"
#include "resolve/library_plan.h"

using namespace sigma;

namespace {

Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  INFO(path);
  REQUIRE(file);
  std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

// Mutates a window that lies in the tables (the first pages, and the relocated data at the end) or
// anywhere.
Bytes damage(const Bytes& sample, std::mt19937& random) {
  constexpr size_t kWindow = 2048;
  size_t last = sample.size() - kWindow;
  size_t at = random() % 3 == 0 ? random() % last
              : random() % 2    ? random() % kWindow * 6 % last
                                : last;
  auto begin = sample.begin() + static_cast<std::ptrdiff_t>(at);
  Bytes window = mutate(Bytes(begin, begin + kWindow), random);
  // A cut or a repetition moves what follows, or not: both are tried.
  if (random() % 2) window.resize(kWindow);
  Bytes bytes(sample.begin(), begin);
  bytes.insert(bytes.end(), window.begin(), window.end());
  bytes.insert(bytes.end(), begin + kWindow, sample.end());
  bytes.shrink_to_fit();
  return bytes;
}

}  // namespace

TEST_CASE("damaged libraries do no harm") {
  const std::string directory = ELF_FUZZ_LIBDIR;
  auto ibverbs = ElfFile::open(directory + "/libibverbs.so.1");
  REQUIRE(ibverbs.ok());
  Code ibverbs_code(*ibverbs);
  auto order = derive_ops_order(ibverbs_code);
  REQUIRE(order.ok());
  // Libraries are too large to be kept: their windows are mutated afresh, without a corpus.
  Fuzzer clock("elf");
  std::mt19937& random = clock.random();
  size_t parsed = 0, probed = 0;
  std::vector<Bytes> samples;
  for (const char* name : {"/libibverbs.so.1", "/libmana.so.1", "/libefa.so.1"})
    samples.push_back(read_file(directory + name));
  // On a machine that is too busy for more, at least so many.
  constexpr size_t kLeast = 400;
  for (size_t round = 0; round < kLeast || !clock.is_over(); ++round) {
    auto elf = ElfFile::parse(damage(samples[round % samples.size()], random), "damaged");
    if (!elf) continue;
    ++parsed;
    Code code(*elf);
    (void)derive_ops_order(code);
    SymbolNames names = load_symbol_names(*elf, "/nonexistent");
    for (const LibraryPlan& plan :
         {plan_provider(code, names, &*order, {}), plan_libibverbs(code, names)})
      for (const ResolvedFunction& function : plan.functions) {
        ++probed;
        if (function.site.file_offset >= elf->bytes().size()) FAIL("a site beyond the file");
        if (!elf->executable(function.address)) FAIL("a function outside the code");
        if (!function.return_site.return_valid) FAIL("a return probe where it would do harm");
      }
  }
  CHECK(parsed > 50);
  CHECK(probed > 50);
}
