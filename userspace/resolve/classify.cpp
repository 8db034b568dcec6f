// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// libibverbs says so in its SONAME. A provider needs libibverbs and calls verbs_set_ops or
// registers by verbs_register_driver_NN, whose names then stand in its string table: users of
// libibverbs (UCX, librdmacm, perftest) have neither. A process maps hundreds of files, some of
// gigabytes: string tables are read only of those that need libibverbs.
#include "resolve/classify.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/fd.h"

namespace sigma {
namespace {

constexpr std::string_view kLibibverbs = "libibverbs.so.1";
constexpr std::string_view kGpuLibrary = "libsigmatrace_gpu.so";
constexpr size_t kMaxProgramHeaders = 256;
constexpr uint64_t kMaxDynamicBytes = 64u << 10;
constexpr uint64_t kMaxStringBytes = 16u << 20;

bool driver_name(std::string_view name) {
  return name == "verbs_set_ops" || name.starts_with("verbs_register_driver");
}

class Probe {
 public:
  explicit Probe(int fd) : fd_(fd) {}

  LibraryKind kind() {
    Elf64_Ehdr header;
    if (!read(0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_phnum > kMaxProgramHeaders || header.e_phentsize != sizeof(Elf64_Phdr))
      return LibraryKind::other;
    programs_.resize(header.e_phnum);
    if (!read(header.e_phoff, programs_.data(), programs_.size() * sizeof(Elf64_Phdr)))
      return LibraryKind::other;
    auto dynamic = std::find_if(programs_.begin(), programs_.end(),
                                [](const Elf64_Phdr& p) { return p.p_type == PT_DYNAMIC; });
    if (dynamic == programs_.end() || dynamic->p_filesz > kMaxDynamicBytes)
      return LibraryKind::other;
    std::vector<Elf64_Dyn> entries(dynamic->p_filesz / sizeof(Elf64_Dyn));
    if (!read(dynamic->p_offset, entries.data(), entries.size() * sizeof(Elf64_Dyn)))
      return LibraryKind::other;

    uint64_t strings = 0, strings_size = 0;
    for (const Elf64_Dyn& entry : entries) {
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_STRTAB) strings = offset_of(entry.d_un.d_val);
      if (entry.d_tag == DT_STRSZ) strings_size = entry.d_un.d_val;
    }
    if (strings == 0) return LibraryKind::other;
    bool uses_libibverbs = false;
    for (const Elf64_Dyn& entry : entries) {
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag != DT_NEEDED && entry.d_tag != DT_SONAME) continue;
      if (entry.d_tag == DT_SONAME && is(kGpuLibrary, strings + entry.d_un.d_val))
        return LibraryKind::gpu_library;
      if (!is(kLibibverbs, strings + entry.d_un.d_val)) continue;
      if (entry.d_tag == DT_SONAME) return LibraryKind::libibverbs;
      uses_libibverbs = true;
    }
    if (!uses_libibverbs || strings_size > kMaxStringBytes) return LibraryKind::other;
    std::string table(strings_size, '\0');
    if (!read(strings, table.data(), table.size())) return LibraryKind::other;
    for (std::string_view name : {std::string_view("\0verbs_set_ops\0", 15),
                                  std::string_view("\0verbs_register_driver", 22)})
      if (table.find(name) != table.npos) return LibraryKind::provider;
    return LibraryKind::other;
  }

 private:
  bool read(uint64_t offset, void* into, size_t size) const {
    return offset <= INT64_MAX &&
           pread(fd_, into, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
  }
  uint64_t offset_of(uint64_t address) const {
    for (const Elf64_Phdr& p : programs_)
      if (p.p_type == PT_LOAD && address >= p.p_vaddr && address - p.p_vaddr < p.p_filesz)
        return p.p_offset + (address - p.p_vaddr);
    return 0;
  }
  bool is(std::string_view wanted, uint64_t offset) const {
    std::string name(wanted.size() + 1, '\0');
    return read(offset, name.data(), name.size()) && name.back() == '\0' &&
           std::string_view(name).starts_with(wanted);
  }

  int fd_;
  std::vector<Elf64_Phdr> programs_;
};

}  // namespace

LibraryKind classify_file(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (!fd || fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return LibraryKind::other;
  return Probe(fd.get()).kind();
}

// "libibverbs: Warning: ..." is in every libibverbs (init.c: no driver found for a device; 1.1 to 59).
bool has_verbs_linked_in(const std::string& path) {
  constexpr std::string_view kMessage = "libibverbs: Warning: ";
  constexpr size_t kChunk = 256u << 10, kMaxBytes = 64u << 20;
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (!fd || fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  std::string text;  // a chunk, behind the end of the one before
  for (size_t read = 0; read < kMaxBytes;) {
    const size_t kept = std::min(text.size(), kMessage.size() - 1);
    text.erase(0, text.size() - kept);
    text.resize(kept + kChunk);
    const ssize_t got = ::pread(fd.get(), text.data() + kept, kChunk, static_cast<off_t>(read));
    if (got <= 0) return false;
    text.resize(kept + static_cast<size_t>(got));
    if (text.find(kMessage) != text.npos) return true;
    read += static_cast<size_t>(got);
  }
  return false;
}

LibraryKind classify_elf(const ElfFile& elf) {
  if (elf.soname() == kLibibverbs) return LibraryKind::libibverbs;
  if (elf.soname() == kGpuLibrary) return LibraryKind::gpu_library;
  const auto& needed = elf.needed();
  if (std::find(needed.begin(), needed.end(), kLibibverbs) == needed.end())
    return LibraryKind::other;
  for (const Symbol& symbol : elf.dynamic_symbols())
    if (!symbol.defined && driver_name(symbol.name)) return LibraryKind::provider;
  return LibraryKind::other;
}

std::string library_name(std::string_view path) {
  std::string_view name = path.substr(path.rfind('/') + 1);
  name = name.substr(0, name.find(".so"));
  return std::string(name.substr(0, name.find("-rdmav")));
}

}  // namespace sigma
