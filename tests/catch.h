// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Catch2 2 (Debian 12) and 3 (Debian 13) by one include.
#pragma once

#if SIGMA_CATCH2_MAJOR >= 3
#include <catch2/catch_all.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
#else
#include <catch2/catch.hpp>
inline auto ContainsSubstring(const std::string& text) { return Catch::Matchers::Contains(text); }
#endif
