// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Attributes of queue pairs are a table: a difference among those of one node and type is worth a
// look, since one library made them all.
#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <algorithm>

#include "analysis/report.h"
#include "output/names.h"

namespace sigma {
namespace {

template <auto Member>
std::optional<std::string> value_of(const QueuePair& qp) {
  const auto& value = qp.*Member;
  return value ? std::optional(fmt::format("{}", *value)) : std::nullopt;
}

struct Attribute {
  std::string_view name;
  std::optional<std::string> (*value)(const QueuePair&);
  bool by_device;  // numbers of one device mean nothing on another
};

constexpr Attribute kAttributes[] = {
    {"sgid_index", value_of<&QueuePair::sgid_index>, true},
    {"traffic_class", value_of<&QueuePair::traffic_class>, false},
    {"sl", value_of<&QueuePair::sl>, false},
    {"path_mtu_bytes", value_of<&QueuePair::path_mtu>, false},
    {"timeout", value_of<&QueuePair::timeout>, false},
    {"retry_cnt", value_of<&QueuePair::retry_cnt>, false},
    {"rnr_retry", value_of<&QueuePair::rnr_retry>, false},
    {"min_rnr_timer", value_of<&QueuePair::min_rnr_timer>, false},
    {"max_rd_atomic", value_of<&QueuePair::max_rd_atomic>, false},
    {"hop_limit", value_of<&QueuePair::hop_limit>, false},
    {"static_rate", value_of<&QueuePair::static_rate>, false},
    {"pkey_index", value_of<&QueuePair::pkey_index>, false},
};

}  // namespace

uint16_t udp_source_port(uint32_t flow_label) {
  const uint32_t low = (flow_label & 0x03fff) ^ ((flow_label & 0xfc000) >> 14);
  return static_cast<uint16_t>(low | 0xc000);
}

std::vector<ConfigDifference> compare_config(
    const std::vector<std::string>& nodes,
    const std::vector<std::pair<uint32_t, std::shared_ptr<const QueuePair>>>& queue_pairs) {
  std::vector<ConfigDifference> differences;
  for (const Attribute& attribute : kAttributes) {
    std::map<std::string, std::map<std::string, ConfigDifference::Value>> by_place;
    for (const auto& [node, qp] : queue_pairs) {
      if (qp->type != IBV_QPT_RC && qp->type != IBV_QPT_UC) continue;
      const auto value = attribute.value(*qp);
      if (!value) continue;
      std::string where = node < nodes.size() ? nodes[node] : "";
      if (attribute.by_device) where += "/" + qp->device;
      where += fmt::format(" {}", qp_type_name(*qp->type));
      auto& entry = by_place[where][*value];
      entry.text = *value;
      ++entry.queue_pairs;
      if (entry.examples.size() < 4)
        entry.examples.push_back(fmt::format("{}/{}", qp->device, qp->qp_num));
    }
    for (auto& [where, values] : by_place) {
      if (values.size() < 2) continue;
      ConfigDifference difference{where, std::string(attribute.name), {}};
      for (auto& [text, value] : values) difference.values.push_back(std::move(value));
      std::stable_sort(difference.values.begin(), difference.values.end(),
                       [](const auto& a, const auto& b) { return a.queue_pairs > b.queue_pairs; });
      differences.push_back(std::move(difference));
    }
  }
  return differences;
}

std::string_view meaning_of(uint32_t status) {
  switch (status) {
    case IBV_WC_LOC_LEN_ERR:
      return "the message is longer than the receive buffer, or than the path allows";
    case IBV_WC_LOC_QP_OP_ERR:
      return "the request does not fit the queue pair: opcode, state or address of an element";
    case IBV_WC_LOC_PROT_ERR:
      return "a local buffer is not covered by its lkey: freed, or registered differently";
    case IBV_WC_WR_FLUSH_ERR:
      return "flushed: an earlier error, or a tear-down, had stopped the queue";
    case IBV_WC_MW_BIND_ERR:
      return "a memory window could not be bound: access rights or range";
    case IBV_WC_BAD_RESP_ERR:
      return "the responder answered what was not asked: firmware, or a foreign packet";
    case IBV_WC_LOC_ACCESS_ERR:
      return "a local buffer may not be written by the peer: access flags";
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer refused the request: receive buffer too small, or operation not enabled";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote address and rkey do not match: freed or stale registration, or access flags";
    case IBV_WC_REM_OP_ERR:
      return "the peer could not complete the request: its own memory or receive queue failed";
    case IBV_WC_RETRY_EXC_ERR:
      return "no answer after all retries: peer gone, path down, or packets lost (PFC, ECN, MTU)";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer had no receive posted for too long: it is slow or stopped";
    case IBV_WC_REM_INV_RD_REQ_ERR:
      return "the peer refused a read: more at once than it allows";
    case IBV_WC_REM_ABORT_ERR:
      return "the peer aborted the request";
    case IBV_WC_FATAL_ERR:
      return "the device failed: look at the kernel log";
    case IBV_WC_RESP_TIMEOUT_ERR:
      return "the peer did not answer in time";
    case IBV_WC_GENERAL_ERR:
      return "an error of the device or its driver: look at vendor_err";
    default:
      return "";
  }
}

}  // namespace sigma
