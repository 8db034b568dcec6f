// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// --hosts FILE: who is behind an address. One line each:
//
//   # address           host     rank (optional)
//   fe80::1             node1    0
//   ::ffff:10.0.0.2     node2    1
//   17                  node3         (a LID)
//
// Addresses are those of reports and CSV: GIDs as IPv6 text in any of its spellings, LIDs in
// decimal.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "session/operation.h"

namespace sigma {

struct Host {
  std::string name;
  std::optional<uint32_t> rank;
};

class Hosts {
 public:
  static Result<Hosts> read(const std::string& path);
  static Result<Hosts> parse(std::string_view text, const std::string& name);

  // nullptr: unknown. A GID is looked for before a LID.
  const Host* find(const Address& address) const;
  bool empty() const { return hosts_.empty(); }

 private:
  std::map<std::string, Host, std::less<>> hosts_;  // by address_text
};

}  // namespace sigma
