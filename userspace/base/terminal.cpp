// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace sigma {

std::string Style::wrap(std::string_view code, std::string_view text) const {
  if (!colour || text.empty()) return std::string(text);
  return "\033[" + std::string(code) + "m" + std::string(text) + "\033[0m";
}

void put(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

bool is_terminal(int fd) {
  return isatty(fd) == 1;
}

Style style_for(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool capable = term && std::string_view(term) != "dumb";
  return {is_terminal(fd) && capable && !(no_color && *no_color)};
}

unsigned terminal_width(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace sigma
