// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Whether a stream is a terminal, and the few styles that are used on one.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace sigma {

struct Style {
  bool colour = false;

  std::string bold(std::string_view text) const { return wrap("1", text); }
  std::string dim(std::string_view text) const { return wrap("2", text); }
  std::string good(std::string_view text) const { return wrap("32", text); }
  std::string warn(std::string_view text) const { return wrap("33", text); }
  std::string bad(std::string_view text) const { return wrap("31", text); }

 private:
  std::string wrap(std::string_view code, std::string_view text) const;
};

// Writes and flushes. Never fails: what people would read on a closed terminal or pipe is no reason
// to lose a trace (fmt::print throws there).
void put(std::FILE* stream, std::string_view text);

bool is_terminal(int fd);

// Colours only on a terminal that has them (TERM is not "dumb"), and never with NO_COLOR set.
Style style_for(int fd);

// Columns of the terminal; 80 where it does not say.
unsigned terminal_width(int fd);

}  // namespace sigma
