// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "resolve/debug_file.h"

#include <fmt/format.h>

#include <array>

#include "resolve/xz.h"

namespace sigma {
namespace {

constexpr std::string_view kDebugRoot = "/usr/lib/debug";
// Unpacked; those of rdma-core's providers have less than 100 KB.
constexpr size_t kMaxMiniDebugInfo = 32u << 20;

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320u : 0);
    table[i] = crc;
  }
  return table;
}();

bool has_local_functions(const ElfFile& elf) {
  for (const Symbol& symbol : elf.local_symbols())
    if (symbol.type == STT_FUNC) return true;
  return false;
}

// The directory of the library as seen within its root.
std::string directory_below(const std::string& path, const std::string& root) {
  std::string inner = !root.empty() && path.starts_with(root) ? path.substr(root.size()) : path;
  size_t slash = inner.rfind('/');
  return slash == std::string::npos ? std::string(".") : inner.substr(0, slash);
}

// Fedora's and RHEL's libraries carry an ELF file of the symbols that stripping took
// ("MiniDebuginfo"), packed, within themselves.
Result<ElfFile> mini_debug_info(const ElfFile& elf, std::span<const std::byte> packed) {
  SIGMA_ASSIGN(auto bytes, unxz(packed, kMaxMiniDebugInfo));
  SIGMA_ASSIGN(ElfFile names, ElfFile::parse(std::move(bytes), elf.path() + " (.gnu_debugdata)"));
  if (names.machine() != elf.machine()) return Error{"it is of another machine"};
  if (!names.build_id().empty() && names.build_id() != elf.build_id())
    return Error{"it belongs to another build"};
  if (!has_local_functions(names)) return Error{"it names no functions"};
  return names;
}

}  // namespace

uint32_t debug_link_crc(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (std::byte byte : bytes)
    crc = (crc >> 8) ^ kCrcTable[(crc ^ std::to_integer<uint32_t>(byte)) & 0xff];
  return ~crc;
}

const std::vector<std::string>& SymbolNames::at(uint64_t address) const {
  static const std::vector<std::string> kNone;
  auto found = names_.find(address);
  return found == names_.end() ? kNone : found->second;
}

void SymbolNames::add(const Symbol& symbol) {
  if (!symbol.defined || symbol.type != STT_FUNC || symbol.name.empty()) return;
  auto& names = names_[symbol.value];
  for (const std::string& name : names)
    if (name == symbol.name) return;
  if (names.size() < 32) names.emplace_back(symbol.name);
}

SymbolNames load_symbol_names(const ElfFile& elf, const std::string& root) {
  SymbolNames out;
  for (const Symbol& symbol : elf.dynamic_symbols()) out.add(symbol);
  if (has_local_functions(elf)) {
    for (const Symbol& symbol : elf.local_symbols()) out.add(symbol);
    out.complete_ = true;
    return out;
  }

  auto use = [&](const std::string& path, const DebugLink* link) {
    auto debug = ElfFile::open(path);
    if (!debug) return false;
    if (link ? debug_link_crc(debug->bytes()) != link->crc : debug->build_id() != elf.build_id()) {
      out.note_ = fmt::format("{} belongs to another build", path);
      return false;
    }
    if (debug->machine() != elf.machine() || !has_local_functions(*debug)) return false;
    for (const Symbol& symbol : debug->local_symbols()) out.add(symbol);
    out.complete_ = true;
    out.source_ = Route::debug_file;
    out.note_.clear();
    return true;
  };
  std::string_view id = elf.build_id();
  if (id.size() > 2 && use(fmt::format("{}{}/.build-id/{}/{}.debug", root, kDebugRoot,
                                       id.substr(0, 2), id.substr(2)),
                           nullptr))
    return out;
  if (const auto& link = elf.debug_link()) {
    std::string directory = directory_below(elf.path(), root);
    for (const std::string& path :
         {fmt::format("{}{}/{}", root, directory, link->file),
          fmt::format("{}{}/.debug/{}", root, directory, link->file),
          fmt::format("{}{}{}/{}", root, kDebugRoot, directory, link->file)})
      if (use(path, &*link)) return out;
  }
  if (const Section* section = elf.section(".gnu_debugdata")) {
    auto names = mini_debug_info(elf, elf.contents(*section));
    if (!names.ok()) {
      out.note_ = ".gnu_debugdata is of no use: " + names.error().what;
      return out;
    }
    for (const Symbol& symbol : names->local_symbols()) out.add(symbol);
    out.complete_ = true;
    out.source_ = Route::debug_data;
  }
  return out;
}

}  // namespace sigma
