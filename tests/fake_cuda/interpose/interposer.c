// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Another preloaded library, which asks for what is behind it.
#include <dlfcn.h>

__attribute__((visibility("default"))) void* interposer_next(const char* name) {
  void* volatile found = dlsym(RTLD_NEXT, name);  // no tail call: dlsym goes by its caller
  return found;
}
