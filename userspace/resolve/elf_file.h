// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// ElfFile: a 64-bit little-endian ELF file, parsed once, with what the resolver asks of it.
//
// The file is read into memory, not mapped: whoever owns it could truncate it under a mapping and
// kill the tracer by SIGBUS, or change it between a check and a use. Every offset, size and count
// in it is checked; tables that do not fit are treated as absent (a stripped file has few of them
// anyway). Addresses are link-time virtual addresses, offsets are bytes in the file.
//
// Owned by one thread while it is built, immutable afterwards. string_views and spans point into
// the file's bytes and live as long as the ElfFile (moving it keeps them).
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sigma {

struct Segment {
  uint64_t address = 0, memory_size = 0;
  uint64_t offset = 0, file_size = 0;
  bool writable = false, executable = false;
};

struct Section {
  std::string_view name;
  uint32_t type = 0, link = 0;
  uint64_t flags = 0, address = 0, offset = 0, size = 0;
};

struct Symbol {
  std::string_view name;
  std::string_view version;  // empty: unversioned
  uint64_t value = 0, size = 0;
  uint8_t type = 0;  // STT_*
  bool defined = false;
  bool is_default = true;  // sym@@VER or unversioned: what a plain reference binds to
};

// What the loader writes into one 8-byte word.
struct Relocation {
  uint64_t address = 0;
  uint64_t target = 0;      // address pointed at; 0 for an import
  std::string_view import;  // undefined symbol; empty for a pointer into this file
};

// One frame description entry: a function, or a part of one that the compiler moved away.
struct FunctionRange {
  uint64_t start = 0, size = 0;
  uint64_t end() const { return start + size; }
};

struct DebugLink {
  std::string_view file;
  uint32_t crc = 0;
};

class ElfFile {
 public:
  // Libraries of this kind have less than 10 MB, their debug files less than 50.
  static constexpr uint64_t kMaxBytes = 256u << 20;

  static Result<ElfFile> open(const std::string& path);
  static Result<ElfFile> parse(std::vector<std::byte> bytes, std::string name);

  const std::string& path() const { return path_; }
  uint16_t machine() const { return machine_; }  // EM_*
  std::span<const std::byte> bytes() const { return bytes_; }

  const std::vector<Segment>& segments() const { return segments_; }  // PT_LOAD, by address
  const std::vector<Section>& sections() const { return sections_; }  // empty when stripped of them
  const Section* section(std::string_view name) const;
  std::span<const std::byte> contents(const Section& section) const;

  std::optional<uint64_t> offset_of(uint64_t address) const;
  std::optional<uint64_t> address_of(uint64_t offset) const;
  bool executable(uint64_t address) const;
  // The file's bytes at [address, address + size), or nothing when not all of it comes from the
  // file.
  std::span<const std::byte> at(uint64_t address, uint64_t size) const;
  // The bytes from `address` to the end of its segment.
  std::span<const std::byte> from(uint64_t address) const;
  template <typename T>
  std::optional<T> read(uint64_t address) const {
    auto bytes = at(address, sizeof(T));
    if (bytes.empty()) return std::nullopt;
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  std::string_view soname() const { return soname_; }
  const std::vector<std::string_view>& needed() const { return needed_; }
  const std::vector<Symbol>& dynamic_symbols() const { return dynamic_symbols_; }
  // The definition that a plain reference to `name` binds to; never a compat version (sym@VER).
  const Symbol* exported(std::string_view name) const;
  bool imports(std::string_view name) const;
  const std::vector<Relocation>& relocations() const { return relocations_; }  // by address, unique
  const Relocation* relocation(uint64_t address) const;

  const std::vector<FunctionRange>& functions() const { return functions_; }  // by start, unique
  const FunctionRange* function_at(uint64_t start) const;
  const FunctionRange* function_around(uint64_t address) const;

  // Functions and objects of .symtab; empty when stripped.
  std::vector<Symbol> local_symbols() const;
  std::string_view build_id() const { return build_id_; }  // lower-case hex
  const std::optional<DebugLink>& debug_link() const { return debug_link_; }

 private:
  friend class ElfDynamic;
  friend class ElfFrames;
  ElfFile() = default;
  Status parse_headers();
  void parse_sections(const Elf64_Ehdr& header);
  void parse_notes(uint64_t offset, uint64_t size);
  void parse_debug_link();
  template <typename T>
  std::optional<T> read_file(uint64_t offset) const;
  std::span<const std::byte> slice(uint64_t offset, uint64_t size) const;

  std::string path_;
  std::vector<std::byte> bytes_;
  uint16_t machine_ = 0;
  std::vector<Segment> segments_;
  std::vector<Section> sections_;
  uint64_t dynamic_offset_ = 0, dynamic_size_ = 0;
  uint64_t frame_header_ = 0, frame_header_size_ = 0;  // PT_GNU_EH_FRAME
  std::string_view soname_;
  std::vector<std::string_view> needed_;
  std::vector<Symbol> dynamic_symbols_;
  std::vector<Relocation> relocations_;
  std::vector<FunctionRange> functions_;
  std::string build_id_;
  std::optional<DebugLink> debug_link_;
};

// The NUL-terminated string at `offset` of a string table; empty when it is not within the table or
// longer than any name of C code (a file of overlapping strings would make work quadratic).
std::string_view string_at(std::span<const std::byte> table, uint64_t offset);

}  // namespace sigma
