// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// RowNames: names of the ends of a row, the same in all tables of a report.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>

#include "analysis/report.h"
#include "base/human.h"
#include "output/names.h"

namespace sigma {

class RowNames {
 public:
  RowNames(const Rows& rows, const ReportContext& context) : rows_(rows), context_(context) {
    std::set<std::string> addresses;
    for (const auto& row : rows.rows())
      if (const auto text = address_text(row->peer); !text.empty()) addresses.insert(text);
    // Where all peers share an address, it tells nobody apart.
    one_address_ = addresses.size() < 2;
  }

  std::string node(const Row& row) const { return rows_.nodes()[row.node]; }
  std::string device(const Row& row) const {
    const std::string device =
        row.qp && !row.qp->device.empty() ? row.qp->device : "unknown device";
    return several_nodes() ? node(row) + "/" + device : device;
  }
  std::string port(const Row& row) const {
    std::string name = device(row);
    if (row.qp && row.qp->port) name += fmt::format("/{}", *row.qp->port);
    return name;
  }
  std::string queue_pair(const Row& row) const {
    if (!row.qp) return device(row) + " shared or unknown queues";
    std::string name = fmt::format("{} qp {}", device(row), row.qp->qp_num);
    if (row.qp->life) name += fmt::format(" life {}", row.qp->life);
    return name;
  }
  // "": unknown.
  std::string peer(const Row& row) const {
    const Host* host = context_.hosts.find(row.peer);
    std::string name = host ? host->name : address_text(row.peer);
    if (host && host->rank) name += fmt::format(" rank {}", *host->rank);
    if (one_address_ && row.peer_qp_num)
      name += fmt::format("{}qp {}", name.empty() ? "" : " ", *row.peer_qp_num);
    return name;
  }
  std::string process(const Row& row) const {
    std::string name = several_nodes() ? node(row) + " " : "";
    if (const auto rank = rank_of(row)) name += fmt::format("rank {} ", *rank);
    return name + fmt::format("{} ({})", row.comm.empty() ? "pid" : printable(row.comm), row.pid);
  }
  std::optional<uint32_t> rank_of(const Row& row) const {
    const auto found = context_.ranks.find({row.node, row.pid});
    return found == context_.ranks.end() ? std::nullopt : std::optional(found->second);
  }
  std::string peer_node(const Row& row) const {
    const Host* host = context_.hosts.find(row.peer);
    return host ? host->name : peer(row);
  }

 private:
  bool several_nodes() const { return rows_.nodes().size() > 1; }

  const Rows& rows_;
  const ReportContext& context_;
  bool one_address_ = false;
};

}  // namespace sigma
