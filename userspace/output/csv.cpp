// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A row is written by one straight pass in the order of kCsvColumns. std::to_chars into a buffer on
// the stack instead of fmt, and one append a row: a row has some 35 fields, and the live target is
// 0.5 M rows/s on a core that also matches posts with completions.
#include "output/csv.h"

#include <algorithm>
#include <charconv>

#include "base/human.h"
#include "output/names.h"

namespace sigma {
namespace {

// Fields of one row; each call adds one and its comma.
class Row {
 public:
  explicit Row(std::string& out) : out_(out) {}

  void number(uint64_t value) {
    make_room(kDigits + 1);
    at_ = std::to_chars(at_, at_ + kDigits, value).ptr;
    *at_++ = ',';
  }
  template <typename T>
  void number(const std::optional<T>& value) {
    value ? number(static_cast<uint64_t>(*value)) : empty();
  }
  template <typename T>
  void hex(const std::optional<T>& value) {
    if (!value) return empty();
    make_room(kDigits + 1);
    *at_++ = '0';
    *at_++ = 'x';
    at_ = std::to_chars(at_, at_ + kDigits - 2, static_cast<uint64_t>(*value), 16).ptr;
    *at_++ = ',';
  }
  void yes_no(const std::optional<bool>& value) { value ? word(*value ? "yes" : "no") : empty(); }
  // Text that needs no quotes: names from our own tables, or made by csv_field.
  void word(std::string_view text) {
    if (text.size() >= kShort) {
      hand_over();
      out_ += text;
      return empty();
    }
    make_room(kShort);
    at_ = std::copy(text.begin(), text.end(), at_);
    *at_++ = ',';
  }
  // Text from elsewhere.
  void text(std::string_view value) { is_plain(value) ? word(value) : word(csv_field(value)); }
  void empty() {
    make_room(1);
    *at_++ = ',';
  }
  // In place of the last comma.
  void end() {
    hand_over();
    out_.back() = '\r';
    out_ += '\n';
  }

 private:
  static constexpr size_t kDigits = 20;  // of 64 bits; in hex 16 and the 0x
  static constexpr size_t kShort = 256;  // longer texts are appended by themselves

  void make_room(size_t bytes) {
    if (static_cast<size_t>(fields_ + sizeof fields_ - at_) < bytes) hand_over();
  }
  void hand_over() {
    out_.append(fields_, at_);
    at_ = fields_;
  }
  static bool is_plain(std::string_view text) {
    for (const char c : text)
      if (c < ' ' || c > '~' || c == ',' || c == '"') return false;
    return true;
  }
  std::string& out_;
  char fields_[1024];  // not yet in out_
  char* at_ = fields_;
};

struct FlagName {
  uint8_t flag;
  std::string_view name;
};
constexpr auto kFlagNames = std::to_array<FlagName>({
    {kUnverified, "unverified"},
    {kAmbiguous, "ambiguous"},
    {kConcurrent, "concurrent"},
    {kTruncated, "truncated"},
    {kModulo, "modulo"},
});

std::string flag_words(uint8_t flags) {
  std::string words;
  for (const auto& [flag, name] : kFlagNames)
    if (flags & flag) words.append(words.empty() ? "" : " ").append(name);
  return words;
}

std::string header() {
  std::string line;
  for (const auto name : kCsvColumns) line.append(line.empty() ? "" : ",").append(name);
  return line + "\r\n";
}

bool known(const Address& address) {
  return address.gid || address.lid;
}

}  // namespace

std::string csv_field(std::string_view text) {
  std::string field = printable(text);
  if (field.find_first_of(",\"") == std::string::npos) return field;
  for (size_t at = field.find('"'); at != std::string::npos; at = field.find('"', at + 2))
    field.insert(at, 1, '"');
  return '"' + field + '"';
}

Result<std::unique_ptr<CsvSink>> CsvSink::create(const std::string& path,
                                                 const CsvOptions& options) {
  SIGMA_ASSIGN(RowFile file, RowFile::create(path));
  auto sink = std::make_unique<CsvSink>(std::move(file), options);
  sink->is_stdout_ = path == "-";
  if (sink->error()) return *sink->error();
  return sink;
}

CsvSink::CsvSink(RowFile file, const CsvOptions& options)
    : file_(std::move(file)), clock_(options.clock), node_field_(csv_field(options.node)) {
  file_.write_header(header());
}

std::string_view CsvSink::peer_text(const Address& address) {
  if (address.gid != last_peer_.gid || address.lid != last_peer_.lid) {
    last_peer_ = address;
    last_peer_text_ = address_text(address);
  }
  return last_peer_text_;
}

void CsvSink::on_operation(const Operation& operation) {
  static const QueuePair kUnknown;
  const bool has_qp = operation.qp != nullptr;
  const QueuePair& qp = has_qp ? *operation.qp : kUnknown;
  const auto utc = [&](const std::optional<uint64_t>& time) {
    return time ? std::optional(clock_.utc_ns(*time)) : std::nullopt;
  };

  Row row(file_.buffer());
  row.number(utc(operation.time_ns));
  row.number(operation.time_error_ns);
  row.number(utc(operation.complete_ns));
  row.number(operation.latency_ns);
  row.word(name_of(operation.complete_source));
  row.word(node_field_);
  row.number(operation.pid);
  operation.tid ? row.number(operation.tid) : row.empty();
  row.text(operation.comm);
  row.text(qp.device);
  row.number(qp.port);
  has_qp ? row.number(qp.qp_num) : row.empty();
  row.word(qp.type ? qp_type_name(*qp.type) : "");
  row.number(operation.peer_qp_num ? operation.peer_qp_num : qp.peer_qp_num);
  row.word(peer_text(known(operation.peer) ? operation.peer : qp.peer));
  row.word(name_of(operation.queue));
  row.word(to_string(operation.opcode));
  row.number(operation.bytes);
  row.number(operation.sge_count);
  row.yes_no(operation.signaled);
  row.yes_no(operation.is_inline);
  row.number(operation.wr_id);
  row.hex(operation.local_addr);
  row.hex(operation.lkey);
  row.hex(operation.remote_addr);
  row.hex(operation.rkey);
  row.number(operation.imm);
  if (!operation.status)
    row.word("unfinished");
  else if (const auto name = status_name(*operation.status); !name.empty())
    row.word(name);
  else
    row.word(status_text(*operation.status));
  row.number(operation.vendor_err);
  row.word(name_of(operation.initiator));
  row.word(name_of(operation.source));
  row.number(operation.index);
  row.number(operation.complete_error_ns);
  row.number(operation.tier);
  row.word(operation.flags ? flag_words(operation.flags) : std::string());
  row.end();
  file_.row_done();
}

}  // namespace sigma
