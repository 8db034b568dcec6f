// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "output/names.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include "output/value_names.h"

namespace sigma {

static_assert(kStatusSuccess == IBV_WC_SUCCESS && kStatusFlushed == IBV_WC_WR_FLUSH_ERR);

std::string_view status_name(uint32_t status) {
  return name_in(kWcStatuses, status);
}

std::string status_text(uint32_t status) {
  const std::string_view name = status_name(status);
  return name.empty() ? fmt::format("status_{}", status) : std::string(name);
}

std::string_view qp_type_name(uint8_t type) {
  const std::string_view name = name_in(kQpTypes, type);
  return name.empty() ? name_in(kDcTypes, type) : name;
}

std::string_view qp_state_name(uint8_t state) {
  return name_in(kQpStates, state);
}

std::string_view name_of(CompleteSource source) {
  switch (source) {
    case CompleteSource::nic:
      return "nic";
    case CompleteSource::poll:
      return "poll";
    case CompleteSource::inferred:
      return "inferred";
    case CompleteSource::ring:
      return "ring";
    case CompleteSource::none:
      break;
  }
  return "";
}

std::string_view name_of(Source source) {
  switch (source) {
    case Source::probe:
      return "probe";
    case Source::ring:
      return "ring";
    case Source::gpu:
      return "gpu";
  }
  return "";
}

std::string_view name_of(Initiator initiator) {
  switch (initiator) {
    case Initiator::cpu:
      return "cpu";
    case Initiator::gpu:
      return "gpu";
    case Initiator::unknown:
      break;
  }
  return "";
}

std::string_view name_of(Queue queue) {
  return queue == Queue::send ? "send" : "recv";
}

std::string address_text(const Address& address) {
  if (address.gid) {
    // glibc's inet_ntop writes RFC 5952's form, except that it shows IPv4-compatible addresses
    // (::a.b.c.d) dotted, which no GID is.
    char text[INET6_ADDRSTRLEN];
    return inet_ntop(AF_INET6, address.gid->data(), text, sizeof text) ? text : "";
  }
  return address.lid ? fmt::format("{}", *address.lid) : "";
}

std::string_view ring_origin_name(uint8_t origin) {
  return name_in(kRingOrigins, origin);
}

std::string_view ring_mode_name(uint8_t mode) {
  return name_in(kRingModes, mode);
}

std::string_view ring_kind_name(uint8_t kind) {
  constexpr std::string_view kNames[] = {"", "send", "completion"};
  return kind < std::size(kNames) ? kNames[kind] : "";
}

std::string_view gap_reason_name(uint8_t reason) {
  return name_in(kGapReasons, reason);
}

}  // namespace sigma
