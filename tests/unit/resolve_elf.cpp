// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// ElfFile against what readelf and nm say of the same files.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "catch.h"
#include "resolve/content_key.h"
#include "resolve/debug_file.h"
#include "resolve/xz.h"
#include "resolve_support.h"
#include "temporary_folder.h"

using namespace sigma;

namespace {

std::vector<std::string> all_files() {
  std::vector<std::string> files{fixture("libibverbs.so.1"), RESOLVE_LIBDIR "/libibverbs.so.1",
                                 RESOLVE_LIBDIR "/libmlx5.so.1"};
  for (const std::string& name : fixture_providers()) files.push_back(fixture(name + ".so"));
  return files;
}

}  // namespace

TEST_CASE("of two versions of one name the default is taken") {
  auto elf = open_elf(fixture("libibverbs.so.1"));
  size_t definitions = 0;
  for (const Symbol& symbol : elf.dynamic_symbols())
    definitions += symbol.defined && symbol.name == "ibv_close_device";
  CHECK(definitions == 2);
  const Symbol* symbol = elf.exported("ibv_close_device");
  REQUIRE(symbol);
  CHECK(symbol->version == "IBVERBS_1.1");
  CHECK(symbol->value == nm(fixture("libibverbs.so.1")).at("close_1_1"));
}

TEST_CASE("default versions of the installed libibverbs agree with readelf") {
  std::string path = RESOLVE_LIBDIR "/libibverbs.so.1";
  auto elf = open_elf(path);
  std::istringstream lines(output_of("readelf --dyn-syms -W " + path + " | grep '@@IBVERBS'"));
  size_t compared = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, address, size, type, bind, visibility, section, name;
    words >> number >> address >> size >> type >> bind >> visibility >> section >> name;
    if (type != "FUNC") continue;
    size_t at = name.find("@@");
    const Symbol* symbol = elf.exported(name.substr(0, at));
    INFO(name);
    REQUIRE(symbol);
    CHECK(symbol->value == std::stoull(address, nullptr, 16));
    CHECK(symbol->version == name.substr(at + 2));
    ++compared;
  }
  CHECK(compared > 100);
}

TEST_CASE("function ranges are those of the unwind tables") {
  for (const std::string& path : all_files()) {
    INFO(path);
    auto elf = open_elf(path);
    std::set<std::pair<uint64_t, uint64_t>> expected, seen;
    std::istringstream lines(output_of("readelf --debug-dump=frames " + path +
                                       " 2>/dev/null | grep -o "
                                       "'pc=[0-9a-f]*\\.\\.[0-9a-f]*'"));
    for (std::string line; std::getline(lines, line);) {
      size_t dots = line.find("..");
      uint64_t low = std::stoull(line.substr(3, dots - 3), nullptr, 16);
      expected.insert({low, std::stoull(line.substr(dots + 2), nullptr, 16) - low});
    }
    for (const FunctionRange& function : elf.functions())
      seen.insert({function.start, function.size});
    CHECK(seen == expected);
  }
}

TEST_CASE("relocations are as many as readelf counts, at the same words") {
  for (const std::string& path : all_files()) {
    INFO(path);
    auto elf = open_elf(path);
    std::set<uint64_t> expected, seen;
    std::istringstream lines(
        output_of("readelf -rW " + path +
                  " | grep -E "
                  "'R_X86_64_(RELATIVE|GLOB_DAT|JUMP_SLO|64)|^[0-9]*: +[0-9a-f]{16}'"));
    // RELR lines of binutils 2.40 look like "0000:  0000000000003df8 0000000000003df8 name"
    for (std::string line; std::getline(lines, line);) {
      if (line.find("R_X86_64") == line.npos) continue;
      expected.insert(std::stoull(line.substr(0, 16), nullptr, 16));
    }
    for (const Relocation& relocation : elf.relocations()) seen.insert(relocation.address);
    CHECK(std::includes(seen.begin(), seen.end(), expected.begin(), expected.end()));
    if (path.find("relr") == path.npos && path.find("lld") == path.npos) CHECK(seen == expected);
  }
}

TEST_CASE("a packed relocation table gives the same words as a plain one") {
  // The same objects linked twice: the filled words of the tables must be equally many.
  auto count = [](const std::string& name) {
    auto elf = open_elf(fixture(name));
    return std::count_if(
        elf.relocations().begin(), elf.relocations().end(),
        [&](const Relocation& r) { return r.import.empty() && elf.function_at(r.target); });
  };
  CHECK(count("gcc_relr.so") == count("gcc_o2.so"));
  CHECK(count("gcc_relr.so") >= 30);
}

TEST_CASE("calls of imported functions are named whatever kind of stub they take") {
  for (const std::string& name : fixture_providers()) {
    INFO(name);
    auto elf = open_elf(fixture(name + ".so"));
    Code code(elf);
    auto symbols = nm(fixture(name + ".full.so"));
    auto create = std::find_if(symbols.begin(), symbols.end(),
                               [](const auto& s) { return s.first.starts_with("fake_create_qp"); });
    REQUIRE(create != symbols.end());
    const FunctionRange* function = elf.function_at(create->second);
    REQUIRE(function);
    auto imports = code.exits(*function).imports;
    CHECK(std::count(imports.begin(), imports.end(), "ibv_cmd_create_qp") >= 1);
    CHECK(std::count(imports.begin(), imports.end(), "calloc") == 1);
    CHECK(std::count(imports.begin(), imports.end(), "ibv_cmd_modify_qp") == 0);
  }
}

TEST_CASE("build-ids agree with readelf") {
  for (const std::string& path : all_files()) {
    auto elf = open_elf(path);
    CHECK_THAT(output_of("readelf -n " + path),
               ContainsSubstring("Build ID: " + std::string(elf.build_id()) + "\n"));
  }
}

TEST_CASE("a file without section headers resolves the same") {
  auto bytes = bytes_of(fixture("gcc_o2.so"));
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.e_shoff = 0;
  header.e_shnum = header.e_shstrndx = 0;
  std::memcpy(bytes.data(), &header, sizeof header);
  auto elf = ElfFile::parse(bytes, "sectionless");
  REQUIRE(elf.ok());
  auto intact = open_elf(fixture("gcc_o2.so"));
  CHECK(elf->sections().empty());
  CHECK(elf->functions().size() == intact.functions().size());
  CHECK(elf->dynamic_symbols().size() == intact.dynamic_symbols().size());
  CHECK(elf->relocations().size() == intact.relocations().size());
  CHECK(elf->build_id() == intact.build_id());
}

TEST_CASE("an arm64 file parses") {
  auto bytes = bytes_of(fixture("gcc_o2.so"));
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.e_machine = EM_AARCH64;
  std::memcpy(bytes.data(), &header, sizeof header);
  auto elf = ElfFile::parse(bytes, "arm64");
  REQUIRE(elf.ok());
  CHECK(elf->machine() == EM_AARCH64);
  CHECK(!elf->functions().empty());
  Code code(*elf);
  CHECK(code.body(elf->functions()[0]).empty());
}

TEST_CASE("debug files: by build-id, by debug link with its checksum, and never of another build") {
  const test::TemporaryFolder folder;
  const std::string root = folder.string();
  auto elf = open_elf(fixture("gcc_o2.so"));
  uint64_t post_send = nm(fixture("gcc_o2.full.so")).at("fake_post_send");
  std::string id(elf.build_id());
  std::string by_id = root + "/usr/lib/debug/.build-id/" + id.substr(0, 2);
  std::string library = root + "/lib/fake.so";

  CHECK(!load_symbol_names(elf, root).complete());

  output_of("mkdir -p " + by_id + " " + root + "/lib/.debug");
  output_of("objcopy --only-keep-debug " + fixture("gcc_o2.full.so") + " " + by_id + "/" +
            id.substr(2) + ".debug");
  auto names = load_symbol_names(elf, root);
  CHECK(names.complete());
  CHECK(names.source() == Route::debug_file);
  CHECK(names.at(post_send) == std::vector<std::string>{"fake_post_send"});

  // Another library's debug file under this build-id.
  output_of("objcopy --only-keep-debug " + fixture("clang_o2.full.so") + " " + by_id + "/" +
            id.substr(2) + ".debug");
  names = load_symbol_names(elf, root);
  CHECK(!names.complete());
  CHECK_THAT(names.note(), ContainsSubstring("another build"));

  output_of("rm -r " + root + "/usr");
  std::string debug = root + "/lib/.debug/fake.debug";
  output_of("objcopy --only-keep-debug " + fixture("gcc_o2.full.so") + " " + debug);
  output_of("cd " + root + "/lib/.debug && objcopy --add-gnu-debuglink=fake.debug " +
            fixture("gcc_o2.so") + " " + library);
  auto linked = open_elf(library);
  names = load_symbol_names(linked, root);
  CHECK(names.complete());
  CHECK(names.at(post_send) == std::vector<std::string>{"fake_post_send"});

  std::ofstream(debug, std::ios::app) << "x";  // the checksum no longer fits
  names = load_symbol_names(linked, root);
  CHECK(!names.complete());
  CHECK_THAT(names.note(), ContainsSubstring("another build"));
}

TEST_CASE("the packed symbols within a library name its functions") {
  const test::TemporaryFolder folder;
  const std::string root = folder.string(), names_file = root + "/names", library = root + "/f.so";
  const auto pack = [&](const std::string& of) {
    // As find-debuginfo does it: no sections of debugging information, then xz.
    output_of("objcopy --strip-debug " + of + " " + names_file + " && rm -f " + names_file +
              ".xz && xz " + names_file + " && rm -f " + library +
              " && objcopy --add-section .gnu_debugdata=" + names_file + ".xz " +
              fixture("gcc_o2.so") + " " + library);
  };
  const auto expected = load_symbol_names(open_elf(fixture("gcc_o2.full.so")));
  REQUIRE(expected.complete());

  pack(fixture("gcc_o2.full.so"));
  const auto names = load_symbol_names(open_elf(library), root);
  CHECK(names.complete());
  CHECK(names.source() == Route::debug_data);
  CHECK(names.note().empty());
  CHECK(names.all() == expected.all());

  pack(fixture("clang_o2.full.so"));
  auto strangers = load_symbol_names(open_elf(library), root);
  CHECK(!strangers.complete());
  CHECK_THAT(strangers.note(), ContainsSubstring("another build"));

  std::ofstream(names_file + ".xz") << "xz";
  output_of("objcopy --update-section .gnu_debugdata=" + names_file + ".xz " + library);
  const auto damaged = load_symbol_names(open_elf(library), root);
  CHECK(!damaged.complete());
  CHECK_THAT(damaged.note(), ContainsSubstring("damaged"));
}

TEST_CASE("unpacking stops at its limit and at damage") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "zeros";
  output_of("head -c 40000 /dev/zero > " + file + " && xz " + file);
  const auto packed = bytes_of(file + ".xz");
  const auto whole = unxz(packed, 40'000);
  REQUIRE(whole.ok());
  CHECK(whole->size() == 40'000);
  CHECK(!unxz(packed, 39'999).ok());
  for (size_t size = 0; size < packed.size(); size++)
    CHECK(!unxz(std::span(packed).first(size), 50'000).ok());
  for (size_t at = 0; at < packed.size(); at++) {
    auto bent = packed;
    bent[at] ^= std::byte{0x10};
    CHECK(!unxz(bent, 50'000).ok());
  }
}

TEST_CASE("the content key: published vector of SipHash-2-4, and forged build-ids") {
  // Appendix A of the SipHash paper: key 00..0f, input 00..0e.
  std::vector<std::byte> input;
  for (unsigned i = 0; i < 15; ++i) input.push_back(std::byte(i));
  CHECK(siphash({0x0706050403020100, 0x0f0e0d0c0b0a0908}, input) == 0xa129ca6149be45e5);

  ContentHasher hasher;
  auto a = bytes_of(fixture("gcc_o2.so")), b = a;
  b[b.size() / 2] ^= std::byte{1};
  CHECK(hasher.key_of("same", a) == hasher.key_of("same", a));
  CHECK(hasher.key_of("same", a) != hasher.key_of("same", b));
}
