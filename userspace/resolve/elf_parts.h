// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The two larger parts of ElfFile's parser; used by elf_file.cpp alone.
#pragma once

#include "resolve/elf_file.h"

namespace sigma {

// .dynamic: names, symbols with versions, relocations (RELA, JMPREL, RELR).
class ElfDynamic {
 public:
  explicit ElfDynamic(ElfFile& file) : file_(file) {}
  void parse();

 private:
  uint64_t symbol_count() const;
  void parse_symbols();
  std::vector<std::string_view> version_names() const;
  void parse_rela(uint64_t address, uint64_t size);
  void parse_relr(uint64_t address, uint64_t size);
  void add_relative(uint64_t address);

  ElfFile& file_;
  std::span<const std::byte> strings_;
  uint64_t symbols_ = 0, versions_ = 0, hash_ = 0, gnu_hash_ = 0;
  uint64_t defined_versions_ = 0, needed_versions_ = 0;
};

// .eh_frame_hdr and .eh_frame: where functions begin and end.
class ElfFrames {
 public:
  explicit ElfFrames(ElfFile& file) : file_(file) {}
  void parse();

 private:
  bool parse_table();
  void parse_linear();
  std::optional<uint64_t> add_entry(uint64_t address);
  std::optional<uint8_t> pointer_encoding(uint64_t cie);
  std::optional<uint64_t> pointer(uint64_t address, uint8_t encoding, uint64_t* length) const;

  ElfFile& file_;
  uint64_t last_cie_ = 0;
  std::optional<uint8_t> last_encoding_;
};

}  // namespace sigma
