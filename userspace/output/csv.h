// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Operations as CSV: RFC 4180, one row per work request, the columns of kCsvColumns.
//
//   SIGMA_ASSIGN(auto sink, CsvSink::create("ops.csv", {node, clock}));   // or "-"
//   session calls sink->on_operation(operation) ...
//   sink->flush();    // now and then, so that readers see rows while the job runs
//   sink->finish();
//
// Integers in decimal, addresses and keys in hex (0x...), enums by name; an empty field is an
// unknown value, never 0. Names of other processes are made printable and quoted. Bounded memory;
// single-threaded. What the file cannot take is counted and told by error(): see output/row_file.h.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "output/row_file.h"
#include "session/operation.h"

namespace sigma {

// Only ever appended to: scripts count on the order.
// clang-format off
inline constexpr auto kCsvColumns = std::to_array<std::string_view>({
    "time_ns", "time_error_ns", "complete_ns", "latency_ns", "complete_source",
    "node", "pid", "tid", "comm",
    "device", "port", "qp_num", "qp_type", "peer_qp_num", "peer",
    "queue", "opcode", "bytes", "sge_count", "signaled", "inline", "wr_id",
    "local_addr", "lkey", "remote_addr", "rkey", "imm",
    "status", "vendor_err", "initiator", "source", "index", "complete_error_ns", "tier", "flags",
});
// clang-format on

struct CsvOptions {
  std::string node;  // this machine's name
  UtcClock clock;
};

class CsvSink final : public OperationSink {
 public:
  static Result<std::unique_ptr<CsvSink>> create(const std::string& path,
                                                 const CsvOptions& options);
  CsvSink(RowFile file, const CsvOptions& options);

  void on_operation(const Operation& operation) override;

  void flush() { file_.flush(); }
  void finish() { file_.finish(); }

  // Whether x.csv.meta.json belongs beside it: not beside pipes and devices.
  bool has_side_file() const { return file_.is_regular() && !is_stdout_; }

  uint64_t rows_written() const { return file_.rows_written(); }
  uint64_t rows_lost() const { return file_.rows_lost(); }
  const std::optional<Error>& error() const { return file_.error(); }

 private:
  // Text of the last peer: operations come in runs to one peer, and inet_ntop costs as much as ten
  // integers.
  std::string_view peer_text(const Address& address);

  RowFile file_;
  UtcClock clock_;
  std::string node_field_;
  bool is_stdout_ = false;
  Address last_peer_;
  std::string last_peer_text_;
};

// `text` made printable, quoted where RFC 4180 asks for it.
std::string csv_field(std::string_view text);

}  // namespace sigma
