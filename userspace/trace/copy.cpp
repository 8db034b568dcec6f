// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "trace/copy.h"

#include "trace/trace_writer.h"

namespace sigma {
namespace {

class Copier final : public TraceVisitor {
 public:
  explicit Copier(TraceWriter& writer) : writer_(writer) {}
  void on_record(std::span<const std::byte> record) override { writer_.on_record(record); }
  void on_note(std::span<const std::byte> note) override { writer_.on_record(note); }
  // The copy has no holes of its own.
  void on_hole(uint64_t begin_ns, uint64_t end_ns, uint64_t) override {
    tell_hole(begin_ns, end_ns, [&](std::span<const std::byte> record) { writer_.on_record(record); });
  }

 private:
  TraceWriter& writer_;
};

}  // namespace

Status copy_trace(TraceReader& reader, const std::string& output) {
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

}  // namespace sigma
