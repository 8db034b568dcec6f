// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace models {

// Ends the program: what a model finds wrong is a fault of the rig.
inline void __attribute__((format(printf, 2, 3))) require(bool good, const char* format, ...) {
  if (good) return;
  va_list arguments;
  va_start(arguments, format);
  fputs("FAILED: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  _Exit(1);
}
inline void require(const void* good, const char* what) {
  require(good != nullptr, "%s", what);
}

}  // namespace models
