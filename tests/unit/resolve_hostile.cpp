// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Damaged and hostile files: nothing may crash, hang or grow without bound. Meant for ASan and
// UBSan; without them a crash shows all the same.
#include <cstring>
#include <functional>
#include <random>

#include "catch.h"
#include "resolve/classify.h"
#include "resolve/library_plan.h"
#include "resolve_support.h"

using namespace sigma;

namespace {

using Bytes = std::vector<std::byte>;

// All that the resolver does with a file. Gives the number of functions, so that it is not
// optimised out.
size_t exercise(const Bytes& bytes) {
  auto elf = ElfFile::parse(bytes, "hostile");
  if (!elf) return 0;
  Code code(*elf);
  auto order = derive_ops_order(code);
  OpsOrder known;
  for (const char* name : {"alloc_pd", "create_cq", "create_qp", "destroy_qp", "poll_cq",
                           "post_recv", "post_send", "post_srq_recv"})
    known.names.push_back(name);
  known.derived = true;
  SymbolNames names = load_symbol_names(*elf, "/nonexistent");
  classify_elf(*elf);
  LivePointer live[] = {{SIGMA_FN_POST_SEND, 0x1100}};
  size_t found = plan_libibverbs(code, names).functions.size();
  const OpsOrder* orders[] = {&known, order ? &*order : nullptr};
  for (const OpsOrder* candidate : orders) {
    LibraryPlan plan = plan_provider(code, names, candidate, "none");
    apply_live(plan, code, names, live);
    found += plan.functions.size();
  }
  return found;
}

template <typename T>
T& at(Bytes& bytes, size_t offset) {
  REQUIRE(offset + sizeof(T) <= bytes.size());
  return *reinterpret_cast<T*>(bytes.data() + offset);
}

Elf64_Phdr& program(Bytes& bytes, uint32_t type) {
  auto& header = at<Elf64_Ehdr>(bytes, 0);
  for (size_t i = 0; i < header.e_phnum; ++i) {
    auto& p = at<Elf64_Phdr>(bytes, header.e_phoff + i * sizeof(Elf64_Phdr));
    if (p.p_type == type) return p;
  }
  FAIL("no such program header");
  return at<Elf64_Phdr>(bytes, 0);
}

Elf64_Dyn& dynamic(Bytes& bytes, int64_t tag) {
  auto& p = program(bytes, PT_DYNAMIC);
  for (size_t i = 0; i < p.p_filesz / sizeof(Elf64_Dyn); ++i) {
    auto& entry = at<Elf64_Dyn>(bytes, p.p_offset + i * sizeof(Elf64_Dyn));
    if (entry.d_tag == tag) return entry;
  }
  FAIL("no such dynamic entry");
  return at<Elf64_Dyn>(bytes, 0);
}

// A section's place, by the intact parser.
Section section(const std::string& file, const char* name) {
  auto elf = open_elf(file);
  const Section* found = elf.section(name);
  REQUIRE(found);
  return *found;
}

}  // namespace

TEST_CASE("files cut off at every boundary do no harm") {
  auto bytes = bytes_of(fixture("gcc_o2.so"));
  CHECK(exercise(bytes) > 0);
  std::vector<size_t> cuts;
  for (size_t cut = 0; cut < 1024; ++cut) cuts.push_back(cut);
  for (size_t cut = 1024; cut < bytes.size(); cut += 61) cuts.push_back(cut);
  auto elf = open_elf(fixture("gcc_o2.so"));
  for (const Section& s : elf.sections())
    for (int64_t delta = -9; delta <= 9; ++delta)
      for (uint64_t edge : {s.offset, s.offset + s.size})
        if (auto cut = static_cast<size_t>(static_cast<int64_t>(edge) + delta); cut < bytes.size())
          cuts.push_back(cut);
  for (size_t cut : cuts)
    exercise(Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(cut)));
}

TEST_CASE("flipped bytes do no harm") {
  for (const char* name : {"gcc_o2.so", "clang_lld.so", "gcc_embedded.so", "libibverbs.so.1"}) {
    auto intact = bytes_of(fixture(name));
    auto elf = open_elf(fixture(name));
    // Tables that steer the parser are hit more often than code.
    std::vector<std::pair<size_t, size_t>> regions{{0, 0x400}, {0, intact.size()}};
    for (const Section& s : elf.sections())
      if (s.size && s.type != SHT_NOBITS && s.offset + s.size <= intact.size())
        regions.push_back({s.offset, s.size});
    std::mt19937_64 random(20240501);
    for (int round = 0; round < 600; ++round) {
      Bytes bytes = intact;
      size_t flips = 1 + random() % 12;
      for (size_t i = 0; i < flips; ++i) {
        auto [offset, size] = regions[random() % regions.size()];
        std::byte& byte = bytes[offset + random() % size];
        static constexpr unsigned kNasty[] = {0, 1, 0x7f, 0x80, 0xff};
        byte = random() % 2 ? std::byte(kNasty[random() % 5]) : std::byte(random());
      }
      exercise(bytes);
    }
  }
}

TEST_CASE("huge counts and sizes do no harm") {
  auto intact = bytes_of(fixture("gcc_o2.so"));
  const std::string path = fixture("gcc_o2.so");
  const uint64_t huge[] = {0xffffffff, 0x7fffffffffffffff, UINT64_MAX, UINT64_MAX - 7, 1ull << 40};
  struct {
    const char* what;
    std::function<void(Bytes&, uint64_t)> damage;
  } rows[] = {
      {"program headers", [](Bytes& b, uint64_t) { at<Elf64_Ehdr>(b, 0).e_phnum = 0xffff; }},
      {"program header offset", [](Bytes& b, uint64_t v) { at<Elf64_Ehdr>(b, 0).e_phoff = v; }},
      {"section headers", [](Bytes& b, uint64_t) { at<Elf64_Ehdr>(b, 0).e_shnum = 0xffff; }},
      {"section header offset", [](Bytes& b, uint64_t v) { at<Elf64_Ehdr>(b, 0).e_shoff = v; }},
      {"segment size", [](Bytes& b, uint64_t v) { program(b, PT_LOAD).p_filesz = v; }},
      {"segment memory", [](Bytes& b, uint64_t v) { program(b, PT_LOAD).p_memsz = v; }},
      {"segment address", [](Bytes& b, uint64_t v) { program(b, PT_LOAD).p_vaddr = v; }},
      {"segment offset", [](Bytes& b, uint64_t v) { program(b, PT_LOAD).p_offset = v; }},
      {"dynamic size", [](Bytes& b, uint64_t v) { program(b, PT_DYNAMIC).p_filesz = v; }},
      {"notes", [](Bytes& b, uint64_t v) { program(b, PT_NOTE).p_filesz = v; }},
      {"note offset", [](Bytes& b, uint64_t v) { program(b, PT_NOTE).p_offset = v; }},
      {"string table", [](Bytes& b, uint64_t v) { dynamic(b, DT_STRTAB).d_un.d_val = v; }},
      {"string size", [](Bytes& b, uint64_t v) { dynamic(b, DT_STRSZ).d_un.d_val = v; }},
      {"symbols", [](Bytes& b, uint64_t v) { dynamic(b, DT_SYMTAB).d_un.d_val = v; }},
      {"hash", [](Bytes& b, uint64_t v) { dynamic(b, DT_GNU_HASH).d_un.d_val = v; }},
      {"versions", [](Bytes& b, uint64_t v) { dynamic(b, DT_VERSYM).d_un.d_val = v; }},
      {"needed versions", [](Bytes& b, uint64_t v) { dynamic(b, DT_VERNEED).d_un.d_val = v; }},
      {"relocations", [](Bytes& b, uint64_t v) { dynamic(b, DT_RELA).d_un.d_val = v; }},
      {"relocation size", [](Bytes& b, uint64_t v) { dynamic(b, DT_RELASZ).d_un.d_val = v; }},
      {"frame header", [](Bytes& b, uint64_t v) { program(b, PT_GNU_EH_FRAME).p_vaddr = v; }},
      {"frame count",
       [&](Bytes& b, uint64_t v) {
         at<uint32_t>(b, section(path, ".eh_frame_hdr").offset + 8) = static_cast<uint32_t>(v);
       }},
      {"hash buckets",
       [&](Bytes& b, uint64_t v) {
         at<uint32_t>(b, section(path, ".gnu.hash").offset) = static_cast<uint32_t>(v);
       }},
      {"hash chain start",
       [&](Bytes& b, uint64_t v) {
         at<uint32_t>(b, section(path, ".gnu.hash").offset + 4) = static_cast<uint32_t>(v);
       }},
  };
  for (const auto& row : rows) {
    INFO(row.what);
    for (uint64_t value : huge)
      for (bool sections : {true, false}) {
        Bytes bytes = intact;
        row.damage(bytes, value);
        // Without section headers the hash table has to say how many symbols there are.
        if (!sections) at<Elf64_Ehdr>(bytes, 0).e_shoff = 0;
        exercise(bytes);
      }
  }
}

TEST_CASE("overlapping segments do no harm") {
  auto bytes = bytes_of(fixture("gcc_o2.so"));
  auto& header = at<Elf64_Ehdr>(bytes, 0);
  uint64_t address = 0;
  for (size_t i = 0; i < header.e_phnum; ++i) {
    auto& p = at<Elf64_Phdr>(bytes, header.e_phoff + i * sizeof(Elf64_Phdr));
    if (p.p_type != PT_LOAD) continue;
    p.p_vaddr = address;
    p.p_offset = 0;
    p.p_filesz = p.p_memsz = bytes.size();
    p.p_flags = PF_R | PF_X;
    address += 8;
  }
  exercise(bytes);
}

TEST_CASE("version lists that run in circles end") {
  auto bytes = bytes_of(fixture("libibverbs.so.1"));
  auto verdef = section(fixture("libibverbs.so.1"), ".gnu.version_d");
  for (size_t at_entry = 0; at_entry + sizeof(Elf64_Verdef) <= verdef.size; at_entry += 4)
    at<uint32_t>(bytes, verdef.offset + at_entry) = 1;  // every vd_next: one byte on
  exercise(bytes);
}

TEST_CASE("a bomb of packed relocations stays bounded") {
  auto bytes = bytes_of(fixture("clang_lld.so"));
  auto relr = section(fixture("clang_lld.so"), ".relr.dyn");
  // The table is made the whole file, every word a full bitmap.
  size_t from = relr.offset, end = bytes.size();
  dynamic(bytes, 36).d_un.d_val = relr.address;
  dynamic(bytes, 35).d_un.d_val = end - from;
  auto& load = program(bytes, PT_LOAD);
  load.p_filesz = load.p_memsz = bytes.size() - load.p_offset;
  Bytes bomb = bytes;
  bomb.resize(bytes.size() + (2u << 20), std::byte{0xff});
  auto& big = program(bomb, PT_LOAD);
  big.p_filesz = big.p_memsz = bomb.size() - big.p_offset;
  dynamic(bomb, 36).d_un.d_val = bytes.size() - big.p_offset + big.p_vaddr;
  dynamic(bomb, 35).d_un.d_val = 2u << 20;
  // One address, then nothing but bitmaps.
  at<uint64_t>(bomb, bytes.size()) = big.p_vaddr;
  auto elf = ElfFile::parse(bomb, "bomb");
  REQUIRE(elf.ok());
  CHECK(elf->relocations().size() <= bomb.size() / 8 + 1);
  exercise(bytes);
}

TEST_CASE("frame tables that point at themselves end") {
  std::string path = fixture("gcc_o2.so");
  auto header = section(path, ".eh_frame_hdr"), frames = section(path, ".eh_frame");
  auto bytes = bytes_of(path);
  for (size_t i = 12; i + 8 <= header.size; i += 8) at<int32_t>(bytes, header.offset + i + 4) = 0;
  exercise(bytes);
  // Entries of length 4 that name themselves as their CIE, and no search table.
  bytes = bytes_of(path);
  for (size_t i = 0; i + 8 <= frames.size; i += 8) {
    at<uint32_t>(bytes, frames.offset + i) = 4;
    at<uint32_t>(bytes, frames.offset + i + 4) = 4;
  }
  at<uint8_t>(bytes, header.offset + 3) = 0xff;
  exercise(bytes);
}

TEST_CASE("a function table without a binary search table is read from the frames") {
  std::string path = fixture("gcc_o2.so");
  auto bytes = bytes_of(path);
  at<uint8_t>(bytes, section(path, ".eh_frame_hdr").offset + 3) = 0xff;  // DW_EH_PE_omit
  auto elf = ElfFile::parse(bytes, "without table");
  REQUIRE(elf.ok());
  auto intact = open_elf(path);
  REQUIRE(elf->functions().size() == intact.functions().size());
  for (size_t i = 0; i < intact.functions().size(); ++i)
    CHECK(elf->functions()[i].start == intact.functions()[i].start);
}

TEST_CASE("things that are not ELF files are refused with a reason") {
  struct {
    std::string text;
    const char* reason;
  } rows[] = {
      {"", "not an ELF file"},
      {"\x7f"
       "ELF",
       "not an ELF file"},
      {std::string(64, 'x'), "not an ELF file"},
      {std::string("\x7f"
                   "ELF\x01\x01",
                   6) +
           std::string(58, '\0'),
       "not a 64-bit"},
      {std::string("\x7f"
                   "ELF\x02\x02",
                   6) +
           std::string(58, '\0'),
       "not a 64-bit"},
  };
  for (const auto& row : rows) {
    auto* data = reinterpret_cast<const std::byte*>(row.text.data());
    auto elf = ElfFile::parse({data, data + row.text.size()}, "text");
    REQUIRE(!elf.ok());
    CHECK_THAT(elf.error().what, ContainsSubstring(row.reason));
  }
}
