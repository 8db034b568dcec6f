// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// sigmatrace export: a trace in another form. CSV is what attach -o x.csv would have written.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/text_field.h"
#include "cli/commands.h"
#include "output/csv.h"
#include "output/perfetto.h"
#include "trace/copy.h"
#include "trace/csv_tables.h"
#include "trace/replay.h"
#include "trace/trace_reader.h"

namespace sigma {
namespace {

struct ExportOptions {
  std::string trace;
  std::string format;
  std::string output;
  std::string table = "ops";
};

// One thread that decodes packets ahead of the one that matches and writes.
unsigned decoders() {
  return std::thread::hardware_concurrency() > 1 ? 1 : 0;
}

class NoSink final : public OperationSink {
  void on_operation(const Operation&) override {}
};

Status export_ops(TraceReader& reader, const std::string& output) {
  const TraceInfo& recorded = reader.meta().info;
  SIGMA_ASSIGN(const auto sink,
               CsvSink::create(output, {recorded.node.node, UtcClock(recorded.start_clock)}));
  std::optional<MetaFile> side_file;
  if (sink->has_side_file()) {
    SIGMA_ASSIGN(MetaFile meta, MetaFile::create(output, recorded));
    side_file = std::move(meta);
  }
  Replay replay(reader, *sink);
  replay.run(decoders());
  sink->finish();
  TraceInfo info = replay.info();
  info.counters.rows_written = sink->rows_written();
  info.counters.rows_lost = sink->rows_lost();
  if (side_file) SIGMA_CHECK(side_file->write(info));
  if (sink->error()) return *sink->error();
  return {};
}

Status export_table(TraceReader& reader, const ExportOptions& options) {
  const TraceInfo& recorded = reader.meta().info;
  const TableContext context{recorded.node.node, UtcClock(recorded.start_clock)};
  SIGMA_ASSIGN(RowFile file, RowFile::create(options.output));
  NoSink sink;
  Replay replay(reader, sink);
  const bool counters = options.table == "counters";
  if (counters) {
    write_counters_header(file);
    replay.set_on_counter([&](const NoteCounter& sample) { write_counter(file, context, sample); });
  }
  replay.run(decoders());
  const TraceInfo info = replay.info();
  if (options.table == "qps") write_qps(file, context, info.queue_pairs);
  if (options.table == "mrs") write_mrs(file, context, info.memory_regions);
  if (options.table == "cqs") write_cqs(file, context, info.completion_queues);
  if (options.table == "gaps") write_gaps(file, context, replay.gaps());
  file.finish();
  if (file.error()) return *file.error();
  return {};
}

Status export_perfetto(TraceReader& reader, const std::string& output) {
  const TraceInfo& recorded = reader.meta().info;
  SIGMA_ASSIGN(const auto sink,
               PerfettoSink::create(output, {recorded.node.node, recorded.start_clock}));
  Replay replay(reader, *sink);
  replay.set_on_counter([&](const NoteCounter& sample) {
    sink->on_counter(sample.h.time_ns, text_of(sample.device), sample.port, text_of(sample.counter),
                     sample.value);
  });
  replay.run(decoders());
  uint64_t dropped = 0;
  for (const TraceGap& gap : replay.gaps()) {
    sink->on_gap(gap.begin_ns, gap.end_ns, to_string(gap.kind), gap.records);
    if (gap.kind == TraceGap::Kind::dropped) sink->on_drops(gap.end_ns, dropped += gap.records);
  }
  for (const NoteMark& mark : replay.marks())
    sink->on_mark(mark.h.time_ns, name_of(static_cast<MarkReason>(mark.reason)),
                  text_of(mark.text));
  sink->finish();
  if (sink->error()) return *sink->error();
  return {};
}

Result<int> run(const ExportOptions& options) {
  SIGMA_ASSIGN(const auto reader, TraceReader::open(options.trace));
  if (options.format == "ctf") {
    if (options.output == "-") return Error{"a CTF copy is a folder", "name it: -o DIR"};
    SIGMA_CHECK(copy_trace(*reader, options.output));
  } else if (options.format == "perfetto") {
    SIGMA_CHECK(export_perfetto(*reader, options.output));
  } else if (options.table == "ops") {
    SIGMA_CHECK(export_ops(*reader, options.output));
  } else {
    SIGMA_CHECK(export_table(*reader, options));
  }
  for (const std::string& description : reader->damage().descriptions)
    fmt::print(stderr, "sigmatrace: the trace is damaged: {}\n", description);
  return 0;
}

}  // namespace

Command add_export(CLI::App& app) {
  CLI::App* parser =
      app.add_subcommand("export", "A trace as CSV, as a clean CTF copy, for Perfetto");
  auto options = std::make_shared<ExportOptions>();
  options->output = "-";
  parser->add_option("TRACE", options->trace, "Folder that attach -o DIR wrote")->required();
  parser->add_option("--format", options->format, "csv, ctf or perfetto")
      ->required()
      ->check(CLI::IsMember({"csv", "ctf", "perfetto"}));
  parser->add_option("-o", options->output,
                     "File, or folder for ctf; - is standard output (default)");
  parser->add_option("--table", options->table, "csv: ops, qps, mrs, cqs, gaps, counters")
      ->check(CLI::IsMember({"ops", "qps", "mrs", "cqs", "gaps", "counters"}));
  return {parser, [options] { return run(*options); }};
}

}  // namespace sigma
