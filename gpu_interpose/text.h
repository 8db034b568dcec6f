// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// String and memory functions of our own, for code that runs inside dlsym: a sanitizer's runtime
// looks for its real strcmp by the very call during which we must not use its interceptor. The
// target is compiled so that the compiler makes no library call of these loops (CMakeLists.txt).
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sigma::gpu {

inline bool same_text(const char* a, const char* b) {
  while (*a && *a == *b) ++a, ++b;
  return *a == *b;
}

inline bool contains_text(const char* text, const char* part) {
  for (; *text; ++text) {
    size_t i = 0;
    while (part[i] && text[i] == part[i]) ++i;
    if (!part[i]) return true;
  }
  return false;
}

inline void copy_bytes(void* to, const void* from, size_t n) {
  auto* out = static_cast<volatile uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  while (n--) *out++ = *in++;
}

// Truncates; always terminates.
inline void copy_text(char* to, size_t size, const char* from) {
  size_t i = 0;
  for (; i + 1 < size && from[i]; ++i) to[i] = from[i];
  for (; i < size; ++i) to[i] = 0;
}

}  // namespace sigma::gpu
