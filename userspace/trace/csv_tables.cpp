// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Each table is a list of columns: a name, and what of an object stands there. Tables of objects
// have thousands of rows, not millions: strings do.
#include "trace/csv_tables.h"

#include <fmt/format.h>

#include "base/text_field.h"
#include "output/csv.h"
#include "output/names.h"

namespace sigma {
namespace {

using Text = std::string;

template <typename T>
Text number(const std::optional<T>& value) {
  return value ? fmt::format("{}", static_cast<uint64_t>(*value)) : Text();
}
Text number(uint64_t value) {
  return fmt::format("{}", value);
}
template <typename T>
Text hex(const std::optional<T>& value) {
  return value ? fmt::format("{:#x}", *value) : Text();
}
Text hex(uint64_t value) {
  return fmt::format("{:#x}", value);
}
Text yes_no(bool value) {
  return value ? "yes" : "no";
}
Text yes_no(const std::optional<bool>& value) {
  return value ? yes_no(*value) : Text();
}
Text utc(const std::optional<uint64_t>& time_ns, const TableContext& context) {
  return time_ns ? number(context.clock.utc_ns(*time_ns)) : Text();
}

template <typename Object>
struct Column {
  std::string_view name;
  Text (*text)(const Object&, const TableContext&);
};

#define COLUMN(name, expression)                                                               \
  {                                                                                            \
    name, []([[maybe_unused]] const auto& o, [[maybe_unused]] const TableContext& c) -> Text { \
      return expression;                                                                       \
    }                                                                                          \
  }

template <typename Object>
void write_header(RowFile& file, std::span<const Column<Object>> columns) {
  std::string line;
  for (const auto& column : columns) line.append(line.empty() ? "" : ",").append(column.name);
  file.write_header(line + "\r\n");
}

template <typename Object>
void write_row(RowFile& file, const TableContext& context, std::span<const Column<Object>> columns,
               const Object& object) {
  bool first = true;
  for (const auto& column : columns) {
    if (!first) file.buffer() += ',';
    first = false;
    file.buffer() += csv_field(column.text(object, context));
  }
  file.buffer() += "\r\n";
  file.row_done();
}

constexpr Column<QueuePair> kQps[] = {
    COLUMN("node", c.node),
    COLUMN("device", o.device),
    COLUMN("qp_num", number(o.qp_num)),
    COLUMN("life", number(o.life)),
    COLUMN("pid", number(o.pid)),
    COLUMN("handle", number(o.handle)),
    COLUMN("qp_type", Text(o.type ? qp_type_name(*o.type) : "")),
    COLUMN("state", Text(o.state ? qp_state_name(*o.state) : "")),
    COLUMN("port", number(o.port)),
    COLUMN("peer_qp_num", number(o.peer_qp_num)),
    COLUMN("peer", address_text(o.peer)),
    COLUMN("path_mtu_bytes", number(o.path_mtu)),
    COLUMN("sgid_index", number(o.sgid_index)),
    COLUMN("sl", number(o.sl)),
    COLUMN("traffic_class", number(o.traffic_class)),
    COLUMN("flow_label", number(o.flow_label)),
    COLUMN("hop_limit", number(o.hop_limit)),
    COLUMN("static_rate", number(o.static_rate)),
    COLUMN("pkey_index", number(o.pkey_index)),
    COLUMN("qkey", hex(o.qkey)),
    COLUMN("sq_psn", number(o.sq_psn)),
    COLUMN("rq_psn", number(o.rq_psn)),
    COLUMN("timeout", number(o.timeout)),
    COLUMN("retry_cnt", number(o.retry_cnt)),
    COLUMN("rnr_retry", number(o.rnr_retry)),
    COLUMN("min_rnr_timer", number(o.min_rnr_timer)),
    COLUMN("max_rd_atomic", number(o.max_rd_atomic)),
    COLUMN("max_dest_rd_atomic", number(o.max_dest_rd_atomic)),
    COLUMN("sq_sig_all", yes_no(o.sq_sig_all)),
    COLUMN("max_send_wr", number(o.max_send_wr)),
    COLUMN("max_recv_wr", number(o.max_recv_wr)),
    COLUMN("max_send_sge", number(o.max_send_sge)),
    COLUMN("max_recv_sge", number(o.max_recv_sge)),
    COLUMN("max_inline_data", number(o.max_inline_data)),
    COLUMN("send_cq", number(o.send_cq)),
    COLUMN("recv_cq", number(o.recv_cq)),
    COLUMN("has_srq", yes_no(o.has_srq)),
    COLUMN("older_than_attach", yes_no(o.older_than_attach)),
    COLUMN("created_ns", utc(o.created_ns, c)),
    COLUMN("destroyed_ns", utc(o.destroyed_ns, c)),
};

constexpr Column<MemoryRegion> kMrs[] = {
    COLUMN("node", c.node),
    COLUMN("device", o.device),
    COLUMN("pid", number(o.pid)),
    COLUMN("handle", number(o.handle)),
    COLUMN("addr", hex(o.addr)),
    COLUMN("length", number(o.length)),
    COLUMN("lkey", hex(o.lkey)),
    COLUMN("rkey", hex(o.rkey)),
    COLUMN("created_ns", utc(o.created_ns, c)),
    COLUMN("destroyed_ns", utc(o.destroyed_ns, c)),
};

constexpr Column<CompletionQueue> kCqs[] = {
    COLUMN("node", c.node),
    COLUMN("device", o.device),
    COLUMN("pid", number(o.pid)),
    COLUMN("handle", number(o.handle)),
    COLUMN("cqn", number(o.cqn)),
    COLUMN("entries", number(o.entries)),
    COLUMN("created_ns", utc(o.created_ns, c)),
    COLUMN("destroyed_ns", utc(o.destroyed_ns, c)),
};

constexpr Column<TraceGap> kGaps[] = {
    COLUMN("begin_ns", number(c.clock.utc_ns(o.begin_ns))),
    COLUMN("end_ns", number(c.clock.utc_ns(o.end_ns))),
    COLUMN("node", c.node),
    COLUMN("kind", Text(to_string(o.kind))),
    COLUMN("pid", o.pid ? number(o.pid) : Text()),
    COLUMN("records", o.records ? number(o.records) : Text()),
    COLUMN("ring", Text(ring_kind_name(o.ring.kind))),
    COLUMN("number", o.ring.kind ? number(o.ring.number) : Text()),
    COLUMN("first_index", o.ring.kind ? number(o.ring.first) : Text()),
    COLUMN("entries", o.ring.kind ? number(o.ring.entries) : Text()),
    COLUMN("reason", Text(gap_reason_name(o.ring.reason))),
    COLUMN("flags", Text(o.ring.modulo ? "modulo" : "")),
};

constexpr Column<NoteCounter> kCounterColumns[] = {
    COLUMN("time_ns", number(c.clock.utc_ns(o.h.time_ns))),
    COLUMN("node", c.node),
    COLUMN("device", Text(text_of(o.device))),
    COLUMN("port", number(o.port)),
    COLUMN("counter", Text(text_of(o.counter))),
    COLUMN("value", number(o.value)),
};

}  // namespace

void write_qps(RowFile& file, const TableContext& context,
               std::span<const std::shared_ptr<const QueuePair>> queue_pairs) {
  write_header<QueuePair>(file, kQps);
  for (const auto& qp : queue_pairs) write_row<QueuePair>(file, context, kQps, *qp);
}

void write_mrs(RowFile& file, const TableContext& context, std::span<const MemoryRegion> regions) {
  write_header<MemoryRegion>(file, kMrs);
  for (const auto& region : regions) write_row<MemoryRegion>(file, context, kMrs, region);
}

void write_cqs(RowFile& file, const TableContext& context,
               std::span<const CompletionQueue> queues) {
  write_header<CompletionQueue>(file, kCqs);
  for (const auto& queue : queues) write_row<CompletionQueue>(file, context, kCqs, queue);
}

void write_gaps(RowFile& file, const TableContext& context, std::span<const TraceGap> gaps) {
  write_header<TraceGap>(file, kGaps);
  for (const auto& gap : gaps) write_row<TraceGap>(file, context, kGaps, gap);
}

void write_counters_header(RowFile& file) {
  write_header<NoteCounter>(file, kCounterColumns);
}

void write_counter(RowFile& file, const TableContext& context, const NoteCounter& sample) {
  write_row<NoteCounter>(file, context, kCounterColumns, sample);
}

}  // namespace sigma
