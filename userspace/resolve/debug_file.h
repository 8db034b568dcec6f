// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Names of a stripped library's functions: its own symbol tables, a separate debug file, or the
// packed symbols within it (.gnu_debugdata).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "resolve/elf_file.h"
#include "resolve/resolve.h"

namespace sigma {

class SymbolNames {
 public:
  // All names of the function that starts at `address` (identical functions may be folded into
  // one).
  const std::vector<std::string>& at(uint64_t address) const;
  const std::map<uint64_t, std::vector<std::string>>& all() const { return names_; }
  bool complete() const { return complete_; }  // local functions are named, not exported ones alone
  Route source() const { return source_; }     // symbols, debug_file or debug_data
  const std::string& note() const { return note_; }  // what was found and not used; may be empty

 private:
  friend SymbolNames load_symbol_names(const ElfFile&, const std::string&);
  void add(const Symbol& symbol);
  std::map<uint64_t, std::vector<std::string>> names_;
  bool complete_ = false;
  Route source_ = Route::symbols;
  std::string note_;
};

// Looks in the file, then below `root` (the container's root, "" for our own) in
// /usr/lib/debug/.build-id and, by .gnu_debuglink with its CRC, beside the library's directory; at
// last in .gnu_debugdata.
SymbolNames load_symbol_names(const ElfFile& elf, const std::string& root = {});

// CRC-32 as .gnu_debuglink has it (IEEE 802.3, reflected).
uint32_t debug_link_crc(std::span<const std::byte> bytes);

}  // namespace sigma
