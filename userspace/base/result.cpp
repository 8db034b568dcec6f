// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "base/result.h"

#include <cstring>

namespace sigma {

std::string errno_text(int errnum) {
  char buffer[128];
  return strerror_r(errnum, buffer, sizeof buffer);  // the GNU variant returns the text
}

}  // namespace sigma
