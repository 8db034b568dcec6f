// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A table of text for terminals: columns as wide as their widest cell, two spaces between.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/terminal.h"

namespace sigma {

class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string_view title;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }

  // Each line indented by two spaces; the titles dimmed. Columns whose cells are all empty are left
  // out.
  std::string text(const Style& style) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sigma
