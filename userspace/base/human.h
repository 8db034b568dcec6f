// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Numbers for people: at most four digits and a unit. For terminals; files get plain integers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sigma {

std::string human_bytes(uint64_t bytes);    // "512 B", "1.50 KiB", "3.21 GiB"
std::string human_duration(uint64_t ns);    // "812 ns", "12.3 us", "4.00 s", "2 min 5 s"
std::string human_count(uint64_t count);    // "12,040"
std::string plural(uint64_t count, std::string_view noun);  // "1 gap", "12,040 gaps"
std::string human_rate(double per_second);  // "980", "1.25 k", "3.40 M"

// `text` with control characters and invalid UTF-8 shown as \xNN, so that a name of another
// process can neither drive a terminal nor break a line.
std::string printable(std::string_view text);

}  // namespace sigma
