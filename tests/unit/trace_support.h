// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// For tests of traces: records of every type from a seed, and the trace as others see it.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bpf/records.h"
#include "trace/trace_reader.h"
#include "trace/trace_writer.h"

namespace sigma::test {

using Bytes = std::vector<std::byte>;

template <typename Record>
Bytes bytes_of(const Record& record) {
  const auto span = std::as_bytes(std::span(&record, 1));
  return {span.begin(), span.end()};
}

// Random bytes in every field but those that give the record its shape.
class RecordMaker {
 public:
  explicit RecordMaker(uint32_t seed) : random_(seed) {}

  // One of the types; time goes up by up to 100 ns a record, on one of `cpus`.
  Bytes next(uint32_t cpus = 4) {
    const auto type = static_cast<uint16_t>(1 + random_() % (SIGMA_RECORD_TYPES - 1));
    return next_of(type, random_() % cpus);
  }

  Bytes next_of(uint16_t type, uint32_t cpu) {
    static constexpr std::array<size_t, SIGMA_RECORD_TYPES> kSizes = {0,
                                                                      sizeof(sigma_post),
                                                                      sizeof(sigma_post_result),
                                                                      sizeof(sigma_completion),
                                                                      sizeof(sigma_uverbs),
                                                                      sizeof(sigma_qp_seen),
                                                                      sizeof(sigma_context),
                                                                      sizeof(sigma_process),
                                                                      sizeof(sigma_mr_seen),
                                                                      sizeof(sigma_qp_peer),
                                                                      sizeof(sigma_window),
                                                                      sizeof(sigma_clock_sample),
                                                                      sizeof(sigma_ring),
                                                                      sizeof(sigma_ring_post),
                                                                      sizeof(sigma_ring_completion),
                                                                      sizeof(sigma_ring_gap)};
    size_t size = kSizes[type];
    sigma_uverbs uverbs{};
    if (type == SIGMA_UVERBS) {
      uverbs.num_attrs = static_cast<uint16_t>(random_() % SIGMA_UVERBS_MAX_ATTRS);
      uverbs.payload_bytes = static_cast<uint16_t>(random_() % 4000);
      size += uverbs.num_attrs * sizeof(sigma_uverbs_attr) + uverbs.payload_bytes;
    }
    Bytes record(size);
    for (std::byte& byte : record) byte = static_cast<std::byte>(random_());
    if (type == SIGMA_UVERBS) {
      std::memcpy(record.data() + offsetof(sigma_uverbs, num_attrs), &uverbs.num_attrs, 2);
      std::memcpy(record.data() + offsetof(sigma_uverbs, payload_bytes), &uverbs.payload_bytes, 2);
    }
    // Texts of processes may be anything, but babeltrace2 prints them.
    if (type == SIGMA_CONTEXT) set_text(record, offsetof(sigma_context, device), 64);
    if (type == SIGMA_PROCESS) set_text(record, offsetof(sigma_process, comm), 16);
    if (type == SIGMA_QP_PEER) set_text(record, offsetof(sigma_qp_peer, device), 64);
    if (type == SIGMA_CLOCK_SAMPLE) set_text(record, offsetof(sigma_clock_sample, device), 64);
    if (type == SIGMA_RING) set_text(record, offsetof(sigma_ring, reason), 24);
    time_ns_ += random_() % 100;
    const sigma_header header{time_ns_,
                              type,
                              static_cast<uint16_t>(size),
                              cpu,
                              static_cast<uint32_t>(random_()),
                              static_cast<uint32_t>(random_())};
    std::memcpy(record.data(), &header, sizeof header);
    return record;
  }

  uint64_t time_ns() const { return time_ns_; }

 private:
  void set_text(Bytes& record, size_t offset, size_t size) {
    std::memset(record.data() + offset, 0, size);
    std::memcpy(record.data() + offset, "mlx5_0", 6);
  }

  std::mt19937 random_;
  uint64_t time_ns_ = 1'000'000'000;
};

inline TraceMeta trace_meta() {
  TraceMeta meta;
  meta.info.tool_version = "0.1.0";
  meta.info.node = {"node1", "b007", "6.18.0"};
  meta.info.start_clock = {1'000'000'000, 1'700'000'000'000'000'000, 50};
  return meta;
}

inline std::unique_ptr<TraceWriter> make_writer(const std::string& path,
                                                const TraceWriterOptions& options = {.cpus = 4}) {
  auto writer = TraceWriter::create(path, trace_meta(), options);
  if (!writer.ok()) throw std::runtime_error(writer.error().what);
  return *std::move(writer);
}

struct Collected final : TraceVisitor {
  std::vector<Bytes> records, notes;
  void on_record(std::span<const std::byte> record) override {
    records.emplace_back(record.begin(), record.end());
  }
  void on_note(std::span<const std::byte> note) override {
    notes.emplace_back(note.begin(), note.end());
  }
};

// Runs a program; its standard output. Throws when it fails.
inline std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(("{ " + command + "; } 2>&1").c_str(), "r");
  if (!pipe) throw std::runtime_error("popen");
  std::string text;
  std::array<char, 4096> part;
  for (size_t size; (size = std::fread(part.data(), 1, part.size(), pipe)) > 0;)
    text.append(part.data(), size);
  const int status = pclose(pipe);
  if (status != 0) throw std::runtime_error(command + " failed: " + text.substr(0, 2000));
  return text;
}

// What babeltrace2, which shares no code with us, counts in a trace.
struct Counted {
  uint64_t events = 0, discarded = 0;
};
inline Counted count_by_babeltrace2(const std::string& path) {
  Counted counted;
  const std::string totals =
      output_of("babeltrace2 " + path + " --component sink:sink.utils.counter");
  const size_t at = totals.rfind(" Event message");  // it counts aloud
  if (at == std::string::npos) throw std::runtime_error("no events in: " + totals);
  counted.events = std::stoull(totals.substr(totals.rfind('\n', at) + 1));
  // "WARNING: Tracer discarded 5 events between ..." on standard error.
  const std::string said = output_of("exec 3>&1; babeltrace2 " + path + " 2>&3 >/dev/null");
  const std::string words = "racer discarded ";
  for (size_t i = said.find(words); i != std::string::npos; i = said.find(words, i + 1))
    counted.discarded += std::stoull(said.substr(i + words.size()));
  return counted;
}

}  // namespace sigma::test
