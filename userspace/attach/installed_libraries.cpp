// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/installed_libraries.h"

#include "attach/installed_providers.h"
#include "resolve/classify.h"

namespace sigma {

InstalledLibraries installed_libraries(const std::string& root) {
  InstalledLibraries installed;
  for (const std::string& path : installed_providers(root)) {
    switch (classify_file(path)) {
      case LibraryKind::libibverbs:
        if (installed.libibverbs.empty()) installed.libibverbs = path;
        break;
      case LibraryKind::provider:
        installed.providers.push_back(path);
        break;
      case LibraryKind::gpu_library:  // nothing maps it but those who are told to
      case LibraryKind::other:
        break;
    }
  }
  return installed;
}

}  // namespace sigma
