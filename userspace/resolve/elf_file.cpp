// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Headers, segments, sections, notes. The dynamic section is in elf_dynamic.cpp, the frame table in
// elf_frames.cpp. Format: System V gABI chapters 4 and 5, and the x86-64 psABI.
#include "resolve/elf_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fd.h"
#include "resolve/elf_parts.h"

namespace sigma {
namespace {

constexpr size_t kMaxName = 4096;
constexpr size_t kMaxProgramHeaders = 256;
constexpr size_t kMaxSegments = 64;  // linkers make 2 to 6; every look-up walks them
constexpr size_t kMaxSections = 65536;

Result<std::vector<std::byte>> read_whole(const std::string& path) {
  // O_NONBLOCK: a path out of a foreign process's maps may have become a FIFO.
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return Error{fmt::format("{}: {}", path, errno_text(errno))};
  struct stat status;
  if (fstat(fd.get(), &status) != 0) return Error{fmt::format("{}: {}", path, errno_text(errno))};
  if (!S_ISREG(status.st_mode)) return Error{fmt::format("{}: not a regular file", path)};
  if (static_cast<uint64_t>(status.st_size) > ElfFile::kMaxBytes)
    return Error{fmt::format("{}: {} bytes, too large for an RDMA library", path, status.st_size)};

  std::vector<std::byte> bytes(static_cast<size_t>(status.st_size));
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t got =
        pread(fd.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{fmt::format("{}: {}", path, errno_text(errno))};
    if (got == 0) break;  // truncated meanwhile: what is there is checked like anything else
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

std::string_view string_at(std::span<const std::byte> table, uint64_t offset) {
  if (offset >= table.size()) return {};
  auto* begin = reinterpret_cast<const char*>(table.data()) + offset;
  size_t room = std::min<size_t>(table.size() - offset, kMaxName);
  auto* end = static_cast<const char*>(std::memchr(begin, 0, room));
  return end ? std::string_view(begin, static_cast<size_t>(end - begin)) : std::string_view();
}

Result<ElfFile> ElfFile::open(const std::string& path) {
  SIGMA_ASSIGN(std::vector<std::byte> bytes, read_whole(path));
  return parse(std::move(bytes), path);
}

Result<ElfFile> ElfFile::parse(std::vector<std::byte> bytes, std::string name) {
  ElfFile file;
  file.path_ = std::move(name);
  file.bytes_ = std::move(bytes);
  SIGMA_CHECK(file.parse_headers());
  ElfDynamic(file).parse();
  ElfFrames(file).parse();
  return file;
}

template <typename T>
std::optional<T> ElfFile::read_file(uint64_t offset) const {
  auto bytes = slice(offset, sizeof(T));
  if (bytes.empty()) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::span<const std::byte> ElfFile::slice(uint64_t offset, uint64_t size) const {
  if (offset > bytes_.size() || size > bytes_.size() - offset) return {};
  return std::span(bytes_).subspan(offset, size);
}

Status ElfFile::parse_headers() {
  auto header = read_file<Elf64_Ehdr>(0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
    return Error{fmt::format("{}: not an ELF file", path_)};
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB)
    return Error{fmt::format("{}: not a 64-bit little-endian ELF file", path_)};
  machine_ = header->e_machine;

  if (header->e_phnum > kMaxProgramHeaders ||
      (header->e_phnum != 0 && header->e_phentsize != sizeof(Elf64_Phdr)))
    return Error{fmt::format("{}: damaged program headers", path_)};
  for (uint64_t i = 0; i < header->e_phnum; ++i) {
    // A sum beyond the file reads as absent; e_phoff near 2^64 wraps into slice()'s check.
    auto program = read_file<Elf64_Phdr>(header->e_phoff + i * sizeof(Elf64_Phdr));
    if (!program) return Error{fmt::format("{}: program headers beyond the file's end", path_)};
    const Elf64_Phdr& p = *program;
    switch (p.p_type) {
      case PT_LOAD:
        if (p.p_memsz > UINT64_MAX - p.p_vaddr ||
            slice(p.p_offset, p.p_filesz).size() != p.p_filesz || p.p_filesz > p.p_memsz ||
            segments_.size() == kMaxSegments)
          break;  // a debug file's segments have no bytes; a damaged one's are not used
        segments_.push_back({p.p_vaddr, p.p_memsz, p.p_offset, p.p_filesz, (p.p_flags & PF_W) != 0,
                             (p.p_flags & PF_X) != 0});
        break;
      case PT_DYNAMIC:
        dynamic_offset_ = p.p_offset;
        dynamic_size_ = p.p_filesz;
        break;
      case PT_GNU_EH_FRAME:
        frame_header_ = p.p_vaddr;
        frame_header_size_ = p.p_filesz;
        break;
      case PT_NOTE:
        parse_notes(p.p_offset, p.p_filesz);
        break;
      default:
        break;
    }
  }
  std::stable_sort(segments_.begin(), segments_.end(),
                   [](const Segment& a, const Segment& b) { return a.address < b.address; });
  parse_sections(*header);
  parse_debug_link();
  return {};
}

void ElfFile::parse_sections(const Elf64_Ehdr& header) {
  if (header.e_shoff == 0 || header.e_shentsize != sizeof(Elf64_Shdr)) return;
  auto first = read_file<Elf64_Shdr>(header.e_shoff);
  if (!first) return;
  // gABI: numbers that do not fit the header's 16 bits are in section 0.
  uint64_t count = header.e_shnum ? header.e_shnum : first->sh_size;
  uint64_t names_index = header.e_shstrndx == SHN_XINDEX ? first->sh_link : header.e_shstrndx;
  if (count > kMaxSections || slice(header.e_shoff, count * sizeof(Elf64_Shdr)).empty()) return;

  std::vector<Elf64_Shdr> headers(count);
  std::memcpy(headers.data(), bytes_.data() + header.e_shoff, count * sizeof(Elf64_Shdr));
  std::span<const std::byte> names;
  if (names_index < count)
    names = slice(headers[names_index].sh_offset, headers[names_index].sh_size);
  sections_.reserve(count);
  for (const Elf64_Shdr& s : headers) {
    sections_.push_back({string_at(names, s.sh_name), s.sh_type, s.sh_link, s.sh_flags, s.sh_addr,
                         s.sh_offset, s.sh_size});
    if (s.sh_type == SHT_NOTE && build_id_.empty()) parse_notes(s.sh_offset, s.sh_size);
  }
}

void ElfFile::parse_notes(uint64_t offset, uint64_t size) {
  auto notes = slice(offset, size);
  while (notes.size() >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes.data(), sizeof note);
    auto padded = [](uint64_t length) { return (length + 3) & ~uint64_t{3}; };
    uint64_t name_at = sizeof note, data_at = name_at + padded(note.n_namesz);
    uint64_t next = data_at + padded(note.n_descsz);
    if (data_at + note.n_descsz > notes.size()) return;
    bool gnu = note.n_namesz == 4 && std::memcmp(notes.data() + name_at, "GNU", 4) == 0;
    if (gnu && note.n_type == NT_GNU_BUILD_ID && note.n_descsz >= 2 && note.n_descsz <= 64) {
      build_id_.clear();
      for (std::byte byte : notes.subspan(data_at, note.n_descsz))
        build_id_ += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
      return;
    }
    if (next >= notes.size()) return;
    notes = notes.subspan(next);
  }
}

void ElfFile::parse_debug_link() {
  const Section* link = section(".gnu_debuglink");
  if (!link) return;
  auto bytes = contents(*link);
  std::string_view name = string_at(bytes, 0);
  size_t crc_at = (name.size() + 1 + 3) & ~size_t{3};
  // The name is joined to directories later: one that has a slash could lead anywhere.
  if (name.empty() || name.find('/') != name.npos || crc_at + 4 > bytes.size()) return;
  DebugLink parsed{name};
  std::memcpy(&parsed.crc, bytes.data() + crc_at, sizeof parsed.crc);
  debug_link_ = parsed;
}

const Section* ElfFile::section(std::string_view name) const {
  for (const Section& section : sections_)
    if (section.name == name) return &section;
  return nullptr;
}

std::span<const std::byte> ElfFile::contents(const Section& section) const {
  if (section.type == SHT_NOBITS || section.type == SHT_NULL) return {};
  return slice(section.offset, section.size);
}

std::optional<uint64_t> ElfFile::offset_of(uint64_t address) const {
  for (const Segment& segment : segments_)
    if (address >= segment.address && address - segment.address < segment.file_size)
      return segment.offset + (address - segment.address);
  return std::nullopt;
}

std::optional<uint64_t> ElfFile::address_of(uint64_t offset) const {
  // The kernel maps whole pages, so an offset may show at two addresses; the executable one counts.
  const Segment* found = nullptr;
  for (const Segment& segment : segments_)
    if (offset >= segment.offset && offset - segment.offset < segment.file_size &&
        (!found || segment.executable))
      found = &segment;
  if (!found) return std::nullopt;
  return found->address + (offset - found->offset);
}

bool ElfFile::executable(uint64_t address) const {
  for (const Segment& segment : segments_)
    if (segment.executable && address >= segment.address &&
        address - segment.address < segment.file_size)
      return true;
  return false;
}

std::span<const std::byte> ElfFile::from(uint64_t address) const {
  for (const Segment& segment : segments_)
    if (address >= segment.address && address - segment.address < segment.file_size)
      return slice(segment.offset, segment.file_size).subspan(address - segment.address);
  return {};
}

std::span<const std::byte> ElfFile::at(uint64_t address, uint64_t size) const {
  auto bytes = from(address);
  return bytes.size() >= size ? bytes.first(size) : std::span<const std::byte>();
}

const Symbol* ElfFile::exported(std::string_view name) const {
  for (const Symbol& symbol : dynamic_symbols_)
    if (symbol.defined && symbol.is_default && symbol.name == name) return &symbol;
  return nullptr;
}

bool ElfFile::imports(std::string_view name) const {
  return std::any_of(dynamic_symbols_.begin(), dynamic_symbols_.end(),
                     [&](const Symbol& symbol) { return !symbol.defined && symbol.name == name; });
}

const Relocation* ElfFile::relocation(uint64_t address) const {
  auto found = std::lower_bound(relocations_.begin(), relocations_.end(), address,
                                [](const Relocation& r, uint64_t a) { return r.address < a; });
  return found != relocations_.end() && found->address == address ? &*found : nullptr;
}

const FunctionRange* ElfFile::function_around(uint64_t address) const {
  auto after = std::upper_bound(functions_.begin(), functions_.end(), address,
                                [](uint64_t a, const FunctionRange& f) { return a < f.start; });
  if (after == functions_.begin()) return nullptr;
  const FunctionRange& candidate = *--after;
  return address - candidate.start < candidate.size ? &candidate : nullptr;
}

const FunctionRange* ElfFile::function_at(uint64_t start) const {
  const FunctionRange* function = function_around(start);
  return function && function->start == start ? function : nullptr;
}

std::vector<Symbol> ElfFile::local_symbols() const {
  std::vector<Symbol> symbols;
  const Section* table = section(".symtab");
  if (!table || table->link >= sections_.size()) return symbols;
  auto entries = contents(*table);
  auto names = contents(sections_[table->link]);
  for (size_t at = 0; at + sizeof(Elf64_Sym) <= entries.size(); at += sizeof(Elf64_Sym)) {
    Elf64_Sym entry;
    std::memcpy(&entry, entries.data() + at, sizeof entry);
    uint8_t type = ELF64_ST_TYPE(entry.st_info);
    if (entry.st_shndx == SHN_UNDEF || (type != STT_FUNC && type != STT_OBJECT)) continue;
    std::string_view name = string_at(names, entry.st_name);
    if (!name.empty())
      symbols.push_back({name, {}, entry.st_value, entry.st_size, type, true, true});
  }
  return symbols;
}

}  // namespace sigma
