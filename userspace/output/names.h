// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The words that all outputs use for enums and addresses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "session/operation.h"

namespace sigma {

// enum ibv_wc_status without its prefix, in lower case: "success", "retry_exc_err"; for values that
// rdma-core had not yet: "" (see status_text).
std::string_view status_name(uint32_t status);
// The same, with "status_N" for the unnamed.
std::string status_text(uint32_t status);
inline constexpr uint32_t kStatusSuccess = 0;
inline constexpr uint32_t kStatusFlushed = 5;  // IBV_WC_WR_FLUSH_ERR
constexpr bool is_first_error(uint32_t status) {
  return status != kStatusSuccess && status != kStatusFlushed;
}

std::string_view qp_type_name(uint8_t type);    // "rc", "ud"; "" for unknown ones
std::string_view qp_state_name(uint8_t state);  // "rts", "err"; "" for unknown ones

std::string_view name_of(CompleteSource source);  // "" for none
std::string_view name_of(Source source);
std::string_view name_of(Initiator initiator);  // "" for unknown
std::string_view name_of(Queue queue);

// The GID as IPv6 text (RFC 5952; IPv4-mapped as ::ffff:a.b.c.d), else the LID in decimal, else "".
std::string address_text(const Address& address);

std::string_view ring_origin_name(uint8_t origin);  // enum sigma_ring_origin
std::string_view ring_mode_name(uint8_t mode);      // enum sigma_ring_mode
std::string_view ring_kind_name(uint8_t kind);      // enum sigma_ring_kind
std::string_view gap_reason_name(uint8_t reason);   // enum sigma_gap_reason

}  // namespace sigma
