// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// For tests of outputs: an RFC 4180 parser that shares nothing with the writer, and folders that go away.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "temporary_folder.h"

namespace sigma::test {

using CsvRow = std::vector<std::string>;

// RFC 4180, strictly: CRLF after each record, quotes doubled in quoted fields and nowhere else.
inline std::vector<CsvRow> parse_csv(const std::string& text) {
  std::vector<CsvRow> rows;
  CsvRow row;
  size_t at = 0;
  while (at < text.size()) {
    std::string field;
    if (text[at] == '"') {
      for (++at;; ++at) {
        if (at >= text.size()) throw std::runtime_error("unterminated quote");
        if (text[at] == '"') {
          if (at + 1 < text.size() && text[at + 1] == '"')
            ++at;
          else
            break;
        }
        field += text[at];
      }
      ++at;
    } else {
      for (; at < text.size() && text[at] != ',' && text[at] != '\r'; ++at) {
        if (text[at] == '"' || text[at] == '\n') throw std::runtime_error("stray quote or newline");
        field += text[at];
      }
    }
    row.push_back(std::move(field));
    if (at >= text.size()) throw std::runtime_error("record without an end");
    if (text[at] == ',') {
      ++at;
    } else if (text.compare(at, 2, "\r\n") == 0) {
      at += 2;
      rows.push_back(std::move(row));
      row.clear();
    } else {
      throw std::runtime_error("text after a quoted field");
    }
  }
  if (!row.empty()) throw std::runtime_error("record without an end");
  return rows;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace sigma::test
