// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Trial programs: a handful of instructions, for finding out what the kernel accepts.
#pragma once

#include <cstdint>

#include "base/fd.h"

namespace sigma {

// "return 0" as a kprobe-type program; an empty Fd when refused.
Fd load_empty_program(uint32_t expected_attach_type);

// A kprobe-type program that counts its runs in a map.
struct CountingProgram {
  Fd map;
  Fd program;
  explicit operator bool() const { return static_cast<bool>(program); }
  uint64_t runs() const;
};
CountingProgram load_counting_program(uint32_t expected_attach_type);

}  // namespace sigma
