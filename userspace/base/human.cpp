// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "base/human.h"

#include <fmt/format.h>

#include <array>

namespace sigma {
namespace {

// Three significant digits: 1.23, 12.3, 123.
std::string significant(double value, std::string_view unit) {
  // Where rounding would add a digit ("9.999" to "10.00") the next form is taken.
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, decimals, unit);
}

// Bytes of the UTF-8 sequence that `text` begins with, or 0 when it is none (RFC 3629: no overlong
// forms, no surrogates, at most U+10FFFF). C1 controls (U+0080..9F) count as none: terminals obey
// them.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const uint8_t second = byte(1);
  if ((lead == 0xc2 && second < 0xa0) || (lead == 0xe0 && second < 0xa0) ||
      (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
      (lead == 0xf4 && second > 0x8f))
    return 0;
  return length;
}

}  // namespace

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<std::string_view, 6> kUnits = {" KiB", " MiB", " GiB",
                                                      " TiB", " PiB", " EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  return significant(value, kUnits[unit]);
}

std::string human_duration(uint64_t ns) {
  if (ns < 1000) return fmt::format("{} ns", ns);
  const double value = static_cast<double>(ns);
  if (value < 999.5e3) return significant(value / 1e3, " us");
  if (value < 999.5e6) return significant(value / 1e6, " ms");
  if (value < 99.95e9) return significant(value / 1e9, " s");
  const uint64_t seconds = ns / 1'000'000'000 + (ns % 1'000'000'000 >= 500'000'000 ? 1 : 0);
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
}

std::string human_count(uint64_t count) {
  std::string digits = fmt::format("{}", count);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string human_rate(double per_second) {
  if (per_second < 999.5) return fmt::format("{:.0f}", per_second);
  if (per_second < 999.5e3) return significant(per_second / 1e3, " k");
  if (per_second < 999.5e6) return significant(per_second / 1e6, " M");
  return significant(per_second / 1e9, " G");
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const uint8_t lead = static_cast<uint8_t>(text[0]);
    const size_t length = lead < 0x20 || lead == 0x7f ? 0 : utf8_length(text);
    if (length > 0)
      out.append(text.substr(0, length));
    else
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", lead);
    text.remove_prefix(length > 0 ? length : 1);
  }
  return out;
}

std::string plural(uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", human_count(count), noun, count == 1 ? "" : "s");
}

}  // namespace sigma
