// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "output/row_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/private_file.h"

namespace sigma {

Result<RowFile> RowFile::create(const std::string& path) {
  if (path != "-") {
    SIGMA_ASSIGN(Fd fd, create_private_file(path));
    return RowFile(std::move(fd), path);
  }
  // A duplicate, so that closing it reports errors and leaves the program its standard output.
  Fd fd(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  if (!fd) return Error{fmt::format("cannot write to standard output: {}", errno_text(errno))};
  return RowFile(std::move(fd), "standard output");
}

RowFile::RowFile(Fd fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)) {
  buffer_.reserve(kPiece + 4096);
}

bool RowFile::is_regular() const {
  struct stat info {};
  return fstat(fd_.get(), &info) == 0 && S_ISREG(info.st_mode);
}

void RowFile::write_header(std::string_view line) {
  int errnum = 0;
  const size_t written = write_all(fd_.get(), line, &errnum);
  if (!errnum) return;
  cut_back(written);
  fail(errnum);
}

void RowFile::flush() {
  if (error_) {
    rows_lost_ += buffered_rows_;
  } else if (!buffer_.empty()) {
    int errnum = 0;
    const std::string_view rows = buffer_;
    const std::string_view written = rows.substr(0, write_all(fd_.get(), rows, &errnum));
    uint64_t whole_rows = buffered_rows_;
    if (errnum) {
      whole_rows = static_cast<uint64_t>(std::count(written.begin(), written.end(), '\n'));
      const size_t end = written.rfind('\n');
      cut_back(written.size() - (end == std::string_view::npos ? 0 : end + 1));
      fail(errnum);
    }
    rows_written_ += whole_rows;
    rows_lost_ += buffered_rows_ - whole_rows;
  }
  buffer_.clear();
  buffered_rows_ = 0;
}

void RowFile::finish() {
  flush();
  const int fd = fd_.release();
  if (fd >= 0 && close(fd) != 0 && errno != EINTR && !error_) fail(errno);
}

void RowFile::fail(int errnum) {
  Error error{fmt::format("cannot write to {}: {}", name_, errno_text(errnum))};
  if (errnum == ENOSPC || errnum == EDQUOT)
    error.hint = "free some space, or choose another file system: -o PATH";
  if (errnum == EFBIG) error.hint = "raise the file size limit: ulimit -f unlimited";
  if (errnum == EPIPE) error = {fmt::format("{} was closed by its reader", name_)};
  error_ = std::move(error);
}

// Takes a torn row's bytes off the end, if they are the end: standard output may be a file that
// others append to, too.
void RowFile::cut_back(size_t torn_bytes) {
  struct stat info {};
  if (torn_bytes == 0 || fstat(fd_.get(), &info) != 0 || !S_ISREG(info.st_mode)) return;
  const off_t position = lseek(fd_.get(), 0, SEEK_CUR);
  const auto torn = static_cast<off_t>(torn_bytes);
  if (position != info.st_size || position < torn) return;
  if (ftruncate(fd_.get(), position - torn) == 0) lseek(fd_.get(), position - torn, SEEK_SET);
}

}  // namespace sigma
