// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// For tests of outputs: an RFC 4180 parser that shares nothing with the writer, and a folder that
// goes away.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

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

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "sigma-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace sigma::test
