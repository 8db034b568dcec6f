// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// .dynamic by addresses alone, so that files without section headers work too.
#include <algorithm>

#include "resolve/elf_parts.h"

namespace sigma {
namespace {

// libmlx5 has 4 thousand, libtorch half a million.
constexpr size_t kMaxRelocations = 4u << 20;
constexpr uint64_t kMaxSymbols = 4u << 20;
constexpr uint64_t kVersionHidden = 0x8000;  // sym@VER: superseded (glibc's ld.so and GNU ld)

enum class RelocationKind { relative, symbol, symbol_addend, other };

RelocationKind kind_of(uint16_t machine, uint32_t type) {
  if (machine == EM_X86_64) switch (type) {
      case R_X86_64_RELATIVE:
        return RelocationKind::relative;
      case R_X86_64_GLOB_DAT:
      case R_X86_64_JUMP_SLOT:
        return RelocationKind::symbol;
      case R_X86_64_64:
        return RelocationKind::symbol_addend;
    }
  if (machine == EM_AARCH64) switch (type) {
      case R_AARCH64_RELATIVE:
        return RelocationKind::relative;
      case R_AARCH64_GLOB_DAT:
      case R_AARCH64_JUMP_SLOT:
      case R_AARCH64_ABS64:
        return RelocationKind::symbol_addend;
    }
  return RelocationKind::other;
}

}  // namespace

void ElfDynamic::parse() {
  auto dynamic = file_.slice(file_.dynamic_offset_, file_.dynamic_size_);
  uint64_t strings = 0, strings_size = 0, soname = 0;
  uint64_t rela = 0, rela_size = 0, plt_rela = 0, plt_rela_size = 0, relr = 0, relr_size = 0;
  std::vector<uint64_t> needed;
  for (size_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic.size(); at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    std::memcpy(&entry, dynamic.data() + at, sizeof entry);
    uint64_t value = entry.d_un.d_val;
    if (entry.d_tag == DT_NULL) break;
    switch (entry.d_tag) {
      case DT_STRTAB:
        strings = value;
        break;
      case DT_STRSZ:
        strings_size = value;
        break;
      case DT_SONAME:
        soname = value;
        break;
      case DT_NEEDED:
        if (needed.size() < 1024) needed.push_back(value);
        break;
      case DT_SYMTAB:
        symbols_ = value;
        break;
      case DT_HASH:
        hash_ = value;
        break;
      case DT_GNU_HASH:
        gnu_hash_ = value;
        break;
      case DT_VERSYM:
        versions_ = value;
        break;
      case DT_VERDEF:
        defined_versions_ = value;
        break;
      case DT_VERNEED:
        needed_versions_ = value;
        break;
      case DT_RELA:
        rela = value;
        break;
      case DT_RELASZ:
        rela_size = value;
        break;
      case DT_JMPREL:
        plt_rela = value;
        break;
      case DT_PLTRELSZ:
        plt_rela_size = value;
        break;
      case 36 /* DT_RELR, not in every elf.h */:
        relr = value;
        break;
      case 35 /* DT_RELRSZ */:
        relr_size = value;
        break;
      default:
        break;
    }
  }
  strings_ = file_.at(strings, strings_size);
  file_.soname_ = soname ? string_at(strings_, soname) : std::string_view();
  for (uint64_t offset : needed)
    if (auto name = string_at(strings_, offset); !name.empty()) file_.needed_.push_back(name);

  parse_symbols();
  parse_rela(rela, rela_size);
  parse_rela(plt_rela, plt_rela_size);
  parse_relr(relr, relr_size);
  auto& relocations = file_.relocations_;
  std::stable_sort(relocations.begin(), relocations.end(),
                   [](const Relocation& a, const Relocation& b) { return a.address < b.address; });
  auto duplicates =
      std::unique(relocations.begin(), relocations.end(),
                  [](const Relocation& a, const Relocation& b) { return a.address == b.address; });
  relocations.erase(duplicates, relocations.end());
}

// .dynsym has no size of its own: the section header says it, else the hash tables bound it.
uint64_t ElfDynamic::symbol_count() const {
  for (const Section& section : file_.sections_)
    if (section.type == SHT_DYNSYM && section.address == symbols_)
      return section.size / sizeof(Elf64_Sym);
  if (hash_)
    if (auto chains = file_.read<uint32_t>(hash_ + 4)) return *chains;
  if (!gnu_hash_) return 0;

  auto buckets = file_.read<uint32_t>(gnu_hash_);
  auto first = file_.read<uint32_t>(gnu_hash_ + 4);
  auto bloom_words = file_.read<uint32_t>(gnu_hash_ + 8);
  if (!buckets || !first || !bloom_words || *buckets > kMaxSymbols) return 0;
  uint64_t bucket_table = gnu_hash_ + 16 + uint64_t{*bloom_words} * 8;
  uint64_t chain_table = bucket_table + uint64_t{*buckets} * 4;
  uint64_t last = 0;
  for (uint64_t i = 0; i < *buckets; ++i) {
    auto bucket = file_.read<uint32_t>(bucket_table + i * 4);
    if (!bucket) return 0;
    last = std::max<uint64_t>(last, *bucket);
  }
  if (last < *first) return *first;
  for (; last < kMaxSymbols; ++last) {
    auto chain = file_.read<uint32_t>(chain_table + (last - *first) * 4);
    if (!chain || *chain & 1) break;
  }
  return last + 1;
}

void ElfDynamic::parse_symbols() {
  auto table = file_.from(symbols_);
  uint64_t count =
      std::min({symbol_count(), uint64_t{table.size()} / sizeof(Elf64_Sym), kMaxSymbols});
  auto versions = version_names();
  file_.dynamic_symbols_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    Elf64_Sym entry;
    std::memcpy(&entry, table.data() + i * sizeof entry, sizeof entry);
    Symbol symbol;
    symbol.name = string_at(strings_, entry.st_name);
    symbol.value = entry.st_value;
    symbol.size = entry.st_size;
    symbol.type = ELF64_ST_TYPE(entry.st_info);
    symbol.defined = entry.st_shndx != SHN_UNDEF;
    if (versions_)
      if (auto version = file_.read<uint16_t>(versions_ + i * 2)) {
        uint16_t index = *version & 0x7fff;
        if (index < versions.size()) symbol.version = versions[index];
        symbol.is_default = (*version & kVersionHidden) == 0 && index != VER_NDX_LOCAL;
      }
    file_.dynamic_symbols_.push_back(symbol);  // kept even when nameless: relocations go by index
  }
}

std::vector<std::string_view> ElfDynamic::version_names() const {
  std::vector<std::string_view> names;
  auto set = [&](uint16_t index, uint64_t name) {
    index &= 0x7fff;
    if (index >= names.size()) names.resize(index + 1);
    names[index] = string_at(strings_, name);
  };
  size_t budget = 65536;  // entries of all lists: in a hostile file they overlap
  for (uint64_t at = defined_versions_; at && budget; --budget) {
    auto definition = file_.read<Elf64_Verdef>(at);
    if (!definition) break;
    if (auto name = file_.read<Elf64_Verdaux>(at + definition->vd_aux))
      set(definition->vd_ndx, name->vda_name);
    at = definition->vd_next ? at + definition->vd_next : 0;
  }
  for (uint64_t at = needed_versions_; at && budget;) {
    auto needed = file_.read<Elf64_Verneed>(at);
    if (!needed) break;
    for (uint64_t aux = at + needed->vn_aux; aux && budget; --budget) {
      auto version = file_.read<Elf64_Vernaux>(aux);
      if (!version) break;
      set(version->vna_other, version->vna_name);
      aux = version->vna_next ? aux + version->vna_next : 0;
    }
    at = needed->vn_next ? at + needed->vn_next : 0;
    --budget;
  }
  return names;
}

void ElfDynamic::parse_rela(uint64_t address, uint64_t size) {
  auto table = file_.at(address, size);
  for (size_t at = 0; at + sizeof(Elf64_Rela) <= table.size(); at += sizeof(Elf64_Rela)) {
    if (file_.relocations_.size() >= kMaxRelocations) return;
    Elf64_Rela entry;
    std::memcpy(&entry, table.data() + at, sizeof entry);
    auto kind = kind_of(file_.machine_, ELF64_R_TYPE(entry.r_info));
    Relocation relocation{entry.r_offset, 0, {}};
    uint64_t addend = static_cast<uint64_t>(entry.r_addend);
    if (kind == RelocationKind::relative) {
      relocation.target = addend;
    } else if (kind == RelocationKind::symbol || kind == RelocationKind::symbol_addend) {
      uint64_t index = ELF64_R_SYM(entry.r_info);
      if (index >= file_.dynamic_symbols_.size()) continue;
      const Symbol& symbol = file_.dynamic_symbols_[index];
      if (symbol.defined)
        relocation.target = symbol.value + (kind == RelocationKind::symbol_addend ? addend : 0);
      else if (!symbol.name.empty())
        relocation.import = symbol.name;
      else
        continue;
    } else {
      continue;
    }
    file_.relocations_.push_back(relocation);
  }
}

// RELR: an even entry relocates the word at that address, an odd one is a bitmap of the 63 words
// that follow the last one.
void ElfDynamic::parse_relr(uint64_t address, uint64_t size) {
  auto table = file_.at(address, size);
  uint64_t next = 0;
  for (size_t at = 0; at + 8 <= table.size(); at += 8) {
    if (file_.relocations_.size() >= kMaxRelocations) return;
    uint64_t entry;
    std::memcpy(&entry, table.data() + at, sizeof entry);
    if ((entry & 1) == 0) {
      add_relative(entry);
      next = entry + 8;
      continue;
    }
    for (unsigned bit = 1; bit < 64; ++bit)
      if (entry >> bit & 1) add_relative(next + 8 * (bit - 1));
    next += 8 * 63;
  }
}

void ElfDynamic::add_relative(uint64_t address) {
  if (auto target = file_.read<uint64_t>(address))
    file_.relocations_.push_back({address, *target, {}});
}

}  // namespace sigma
