// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The text in a fixed field of a record: up to the first NUL, or all of it.
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>

namespace sigma {

template <size_t N>
std::string_view text_of(const char (&field)[N]) {
  return {field, strnlen(field, N)};
}

}  // namespace sigma
