// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/libbpf_log.h"

#include <cstdarg>
#include <cstdio>

namespace sigma {
namespace {

thread_local std::string lines;

int remember_libbpf(enum libbpf_print_level level, const char* format, va_list arguments) {
  if (level != LIBBPF_WARN) return 0;
  // The verifier's log comes as one message, its reason at the end.
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(nullptr, 0, format, again);
  va_end(again);
  if (length <= 0) return 0;
  std::string line(static_cast<size_t>(length), '\0');
  vsnprintf(line.data(), line.size() + 1, format, arguments);
  constexpr size_t kKeep = 2048;
  lines += line;
  if (lines.size() > kKeep) lines.erase(0, lines.size() - kKeep);
  return 0;
}

}  // namespace

ListenToLibbpf::ListenToLibbpf() : previous_(libbpf_set_print(remember_libbpf)) { lines.clear(); }

const std::string& ListenToLibbpf::said() { return lines; }

}  // namespace sigma
