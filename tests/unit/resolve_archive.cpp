// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "resolve_archive.h"

#include <algorithm>
#include <sstream>

#include "catch.h"
#include "resolve_support.h"

namespace {

// "mov    0x280(%rdi),%r14d" counts as "mov" and "mov 0x280": registers are the compiler's whim.
void count_words(const std::string& instruction, Signature& signature) {
  std::string mnemonic = instruction.substr(0, instruction.find(' '));
  if (mnemonic.starts_with("nop") || mnemonic == "xchg" || mnemonic == "data16" || mnemonic == "cs")
    return;
  ++signature[mnemonic];
  size_t symbol = instruction.find('<');
  if (symbol != instruction.npos) {  // a destination: only its name would say something
    size_t plt = instruction.find("@plt>");
    if (plt != instruction.npos)
      ++signature["call " + instruction.substr(symbol + 1, plt - symbol - 1)];
    return;
  }
  for (size_t at = instruction.find("0x"); at != instruction.npos;
       at = instruction.find("0x", at + 2)) {
    size_t end = instruction.find_first_not_of("0123456789abcdef", at + 2);
    ++signature[mnemonic + " " + instruction.substr(at, end - at)];
  }
}

}  // namespace

double likeness(const Signature& a, const Signature& b) {
  double common = 0, all = 0;
  for (const auto& [word, count] : a) {
    auto other = b.find(word);
    int theirs = other == b.end() ? 0 : other->second;
    common += std::min(count, theirs);
    all += std::max(count, theirs);
  }
  for (const auto& [word, count] : b)
    if (!a.count(word)) all += count;
  return all > 0 ? common / all : 0;
}

std::map<std::string, Signature> archive_signatures(const std::string& path) {
  std::map<std::string, Signature> functions;
  std::istringstream lines(output_of("objdump -dr --no-show-raw-insn " + path));
  Signature* current = nullptr;
  for (std::string line; std::getline(lines, line);) {
    size_t tab = line.find('\t');
    if (line.ends_with(">:")) {
      size_t name = line.find('<');
      current = &functions[line.substr(name + 1, line.size() - name - 3)];
    } else if (size_t call = line.find("R_X86_64_PLT32\t"); current && call != line.npos) {
      ++(*current)["call " + line.substr(call + 15, line.find_last_of("-+") - call - 15)];
    } else if (current && tab != line.npos && line.find("R_X86_64") == line.npos) {
      count_words(line.substr(tab + 1), *current);
    }
  }
  REQUIRE(functions.size() > 10);
  return functions;
}

Listing::Listing(const std::string& library) {
  std::istringstream lines(output_of("objdump -d --no-show-raw-insn " + library));
  for (std::string line; std::getline(lines, line);) {
    size_t tab = line.find('\t'), colon = line.find(':');
    if (tab != line.npos && colon < tab)
      lines_[std::stoull(line.substr(0, colon), nullptr, 16)] = line.substr(tab + 1);
  }
}

Signature Listing::signature(uint64_t start, uint64_t end) const {
  Signature signature;
  for (auto line = lines_.lower_bound(start); line != lines_.end() && line->first < end; ++line)
    count_words(line->second, signature);
  return signature;
}

int words(const Signature& signature) {
  int count = 0;
  for (const auto& [word, times] : signature) count += times;
  return count;
}
