// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What kind of library a file is, by a few reads of its dynamic section.
#pragma once

#include <string>
#include <string_view>

#include "resolve/elf_file.h"
#include "resolve/resolve.h"

namespace sigma {

// `other` for what is no readable 64-bit ELF file.
LibraryKind classify_file(const std::string& path);

// The same verdict for a file already parsed.
LibraryKind classify_elf(const ElfFile& elf);

// Whether a program has libibverbs linked in, by a message of libibverbs that stands in it. Reads the file's
// constants: up to 64 MiB of it.
bool has_verbs_linked_in(const std::string& path);

// "libmlx5" of libmlx5.so.1.24.44.0, "librxe" of librxe-rdmav34.so.
std::string library_name(std::string_view path);

}  // namespace sigma
