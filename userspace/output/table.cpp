// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "output/table.h"

#include <algorithm>
#include <cstdint>

namespace sigma {
namespace {

// Code points, which for the names that occur here are columns.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string Table::text(const Style& style) const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  for (size_t i = 0; i < columns_.size(); ++i)
    if (widths[i] > 0) widths[i] = std::max(widths[i], width_of(columns_[i].title));

  const auto line = [&](const auto& cell_of) {
    std::string out;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (widths[i] == 0) continue;
      const std::string_view cell = cell_of(i);
      const std::string padding(widths[i] - width_of(cell), ' ');
      out += "  ";
      if (columns_[i].align == Align::right)
        out.append(padding).append(cell);
      else
        out.append(cell).append(padding);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out;
  };

  std::string out = style.dim(line([&](size_t i) { return columns_[i].title; })) + "\n";
  for (const auto& row : rows_)
    out += line([&](size_t i) { return std::string_view(row[i]); }) + "\n";
  return out;
}

}  // namespace sigma
