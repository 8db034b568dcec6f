// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// RowFile: where text rows go. Whatever happens, a regular file holds whole rows only.
//
//   SIGMA_ASSIGN(RowFile file, RowFile::create("ops.csv"));   // or "-"
//   file.write_header("x,y\r\n");
//   file.buffer() += "1,2\r\n";  file.row_done();
//   file.flush();
//
// Rows are collected and written in pieces of 256 KiB. After the first failure (full disk, closed
// pipe, file size limit) the file is cut back to its last whole row, and all further rows are
// counted as lost; error() says why. SIGPIPE and SIGXFSZ must be ignored by the program.
// Single-threaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace sigma {

class RowFile {
 public:
  static Result<RowFile> create(const std::string& path);
  RowFile(Fd fd, std::string name);

  // At once, so that an output that cannot be written is noticed at the start. Not counted as a
  // row.
  void write_header(std::string_view line);

  // Append one row here, '\n' at its end and nowhere else, then call row_done().
  std::string& buffer() { return buffer_; }
  void row_done() {
    ++buffered_rows_;
    if (buffer_.size() >= kPiece) flush();
  }

  void flush();
  // Flushes and closes, and notices what only close() reports (NFS, quotas).
  void finish();

  bool is_regular() const;

  uint64_t rows_written() const {
    return rows_written_;
  }  // on their way to the kernel: after flush()
  uint64_t rows_lost() const { return rows_lost_; }
  const std::optional<Error>& error() const { return error_; }

 private:
  static constexpr size_t kPiece = 256 * 1024;

  void fail(int errnum);
  void cut_back(size_t torn_bytes);

  Fd fd_;
  std::string name_;
  std::string buffer_;
  uint64_t buffered_rows_ = 0;
  uint64_t rows_written_ = 0;
  uint64_t rows_lost_ = 0;
  std::optional<Error> error_;
};

}  // namespace sigma
