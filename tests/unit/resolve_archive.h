// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Names for the functions of an installed, stripped library: the distribution also ships the same
// source, by the same compiler, as static archives with symbols. The code differs in detail
// (archives are built with other flags), so a function is recognised by likeness: its instructions,
// the constants and structure offsets in them, and the functions that it calls. All by objdump.
#pragma once

#include <cstdint>
#include <map>
#include <string>

// How often each word occurs in a function's listing.
using Signature = std::map<std::string, int>;

// Functions of the archive by name.
std::map<std::string, Signature> archive_signatures(const std::string& path);

class Listing {
 public:
  explicit Listing(const std::string& library);
  Signature signature(uint64_t start, uint64_t end) const;

 private:
  std::map<uint64_t, std::string> lines_;
};

// How alike two functions are, of 1.
double likeness(const Signature& a, const Signature& b);
int words(const Signature& signature);
