// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// sigmatrace export: a trace in another form. CSV is what attach -o x.csv would have written.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "cli/commands.h"
#include "output/csv.h"
#include "output/perfetto.h"
#include "trace/csv_tables.h"
#include "trace/replay.h"
#include "trace/trace_reader.h"
#include "trace/trace_writer.h"

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

// Record by record; what was torn or damaged stays behind.
class Copier final : public TraceVisitor {
 public:
  explicit Copier(TraceWriter& writer) : writer_(writer) {}
  void on_record(std::span<const std::byte> record) override { writer_.on_record(record); }
  void on_note(std::span<const std::byte> note) override { writer_.on_record(note); }
  // The copy has no holes of its own: that nothing was traced there is said by a record.
  void on_hole(uint64_t begin_ns, uint64_t end_ns, uint64_t) override {
    sigma_window window{};
    window.h.type = SIGMA_WINDOW;
    window.h.size = sizeof window;
    for (const uint32_t kind : {SIGMA_WINDOW_PAUSE, SIGMA_WINDOW_RESUME}) {
      window.kind = kind;
      window.h.time_ns = kind == SIGMA_WINDOW_PAUSE ? begin_ns : end_ns;
      writer_.on_record(std::as_bytes(std::span(&window, 1)));
    }
  }

 private:
  TraceWriter& writer_;
};

Status export_ctf(TraceReader& reader, const std::string& output) {
  const TraceMeta& meta = reader.meta();
  SIGMA_ASSIGN(const auto writer, TraceWriter::create(output, meta, {.cpus = reader.cpus()}));
  Copier copier(*writer);
  reader.replay(copier);
  writer->note_dropped(reader.damage().discarded);
  // What the damage took away stays in the copy's statement.
  Counters attacher = meta.attacher;
  attacher.trace_missing += reader.damage().missing;
  attacher.trace_overwritten += reader.damage().overwritten;
  TraceInfo info = meta.info;
  for (const std::string& description : reader.damage().descriptions)
    info.remarks.push_back("the original is damaged: " + description);
  return writer->finish(info, attacher);
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
    SIGMA_CHECK(export_ctf(*reader, options.output));
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
