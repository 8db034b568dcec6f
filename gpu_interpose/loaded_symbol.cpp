// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A reference to dlsym would be bound to our own, and the version that it carries would tie the
// library to one glibc (dlsym moved from libdl, GLIBC_2.2.5, to libc, GLIBC_2.34). So the dynamic
// sections are read as the loader reads them: hash table, symbols, strings.
#include "gpu_interpose/loaded_symbol.h"

#include <elf.h>
#include <link.h>

#include "gpu_interpose/text.h"

namespace sigma::gpu {
namespace {

struct DynamicTables {
  const char* strings = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  const uint32_t* gnu_hash = nullptr;
};

// The loader relocates these addresses in place, except in objects that it cannot write (the vDSO).
template <typename T>
const T* at(ElfW(Addr) base, ElfW(Addr) address) {
  return reinterpret_cast<const T*>(address < base ? base + address : address);
}

DynamicTables tables_of(const dl_phdr_info& object) {
  DynamicTables tables;
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    if (object.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* entry =
        reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + object.dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_STRTAB) tables.strings = at<char>(object.dlpi_addr, entry->d_un.d_ptr);
      if (entry->d_tag == DT_SYMTAB)
        tables.symbols = at<ElfW(Sym)>(object.dlpi_addr, entry->d_un.d_ptr);
      if (entry->d_tag == DT_GNU_HASH)
        tables.gnu_hash = at<uint32_t>(object.dlpi_addr, entry->d_un.d_ptr);
    }
  }
  return tables;
}

uint32_t gnu_hash_of(const char* name) {
  uint32_t hash = 5381;
  for (; *name; ++name) hash = hash * 33 + static_cast<uint8_t>(*name);
  return hash;
}

// DT_GNU_HASH: bucket count, first symbol, Bloom words, shift; then the Bloom filter, the buckets,
// and a chain of hashes, whose lowest bit marks the end of a bucket.
void* find_in(const DynamicTables& tables, ElfW(Addr) base, const char* name) {
  if (!tables.strings || !tables.symbols || !tables.gnu_hash) return nullptr;
  const uint32_t buckets = tables.gnu_hash[0], first = tables.gnu_hash[1];
  const auto* bloom = reinterpret_cast<const ElfW(Addr)*>(tables.gnu_hash + 4);
  const auto* bucket = reinterpret_cast<const uint32_t*>(bloom + tables.gnu_hash[2]);
  const uint32_t* chain = bucket + buckets;
  const uint32_t hash = gnu_hash_of(name);
  if (buckets == 0) return nullptr;
  uint32_t index = bucket[hash % buckets];
  if (index < first) return nullptr;
  for (;; ++index) {
    const uint32_t each = chain[index - first];
    const ElfW(Sym)& symbol = tables.symbols[index];
    if ((each | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF &&
        ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
        same_text(tables.strings + symbol.st_name, name))
      return reinterpret_cast<void*>(base + symbol.st_value);
    if (each & 1) return nullptr;
  }
}

struct Search {
  const char* name;
  bool after_us = false;
  void* found = nullptr;
};

bool holds(const dl_phdr_info& object, const void* address) {
  const auto wanted = reinterpret_cast<ElfW(Addr)>(address);
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& segment = object.dlpi_phdr[i];
    const ElfW(Addr) begin = object.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && wanted >= begin && wanted - begin < segment.p_memsz)
      return true;
  }
  return false;
}

int look(dl_phdr_info* object, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  if (!search.after_us) {
    search.after_us = holds(*object, reinterpret_cast<const void*>(&next_definition));
    return 0;
  }
  search.found = find_in(tables_of(*object), object->dlpi_addr, search.name);
  return search.found != nullptr;
}

}  // namespace

void* next_definition(const char* name) {
  Search search{name};
  dl_iterate_phdr(look, &search);
  return search.found;
}

}  // namespace sigma::gpu
