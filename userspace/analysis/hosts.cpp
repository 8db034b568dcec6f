// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/hosts.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>

#include "output/names.h"

namespace sigma {
namespace {

template <typename T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<Address> address(const std::string& text) {
  Address address;
  std::array<uint8_t, 16> gid;
  if (inet_pton(AF_INET6, text.c_str(), gid.data()) == 1)
    address.gid = gid;
  else if (const auto lid = number<uint16_t>(text))
    address.lid = *lid;
  else
    return std::nullopt;
  return address;
}

}  // namespace

Result<Hosts> Hosts::read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf()))
    return Error{fmt::format("cannot read {}: {}", path, errno_text(errno ? errno : EIO))};
  return parse(text.str(), path);
}

Result<Hosts> Hosts::parse(std::string_view text, const std::string& name) {
  Hosts hosts;
  std::istringstream in{std::string(text)};
  size_t number_of_line = 0;
  for (std::string line; std::getline(in, line);) {
    ++number_of_line;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string where, host, rank, more;
    if (!(words >> where)) continue;
    const auto wrong = [&](std::string_view what) {
      return Error{fmt::format("{}:{}: {}", name, number_of_line, what),
                   "each line: ADDRESS HOST [RANK], where ADDRESS is a GID (as IPv6) or a LID"};
    };
    const auto parsed = address(where);
    if (!parsed) return wrong(fmt::format("\"{}\" is neither a GID nor a LID", where));
    if (!(words >> host)) return wrong("the host is missing");
    Host entry{host, std::nullopt};
    if (words >> rank) {
      entry.rank = number<uint32_t>(rank);
      if (!entry.rank) return wrong(fmt::format("\"{}\" is not a rank", rank));
    }
    if (words >> more) return wrong(fmt::format("\"{}\" is too much", more));
    hosts.hosts_[address_text(*parsed)] = entry;
  }
  return hosts;
}

const Host* Hosts::find(const Address& address) const {
  for (const Address& one :
       {Address{address.gid, std::nullopt}, Address{std::nullopt, address.lid}}) {
    const auto found = hosts_.find(address_text(one));
    if (found != hosts_.end()) return &found->second;
  }
  return nullptr;
}

}  // namespace sigma
