// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Traces that were cut, bit-flipped or made to deceive: a clear error or a description, no crash,
// and what is whole is read.
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <random>
#include <string_view>

#include "catch.h"
#include "csv_support.h"
#include "trace_support.h"

using namespace sigma;
using namespace sigma::test;
namespace fs = std::filesystem;

namespace {

constexpr size_t kRecords = 3000;

// Small packets: a flush each 100 records.
void write_trace(const std::string& path) {
  auto writer = make_writer(path);
  RecordMaker maker(1);
  for (size_t i = 0; i < kRecords; ++i) {
    writer->on_record(maker.next());
    if (i % 100 == 0) writer->flush();
  }
  REQUIRE(writer->finish(trace_meta().info, {}).ok());
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Records that were written, without the pauses for what is missing.
struct Outcome {
  uint64_t records = 0;
  TraceDamage damage;
};
Outcome read_trace(const std::string& path) {
  auto reader = TraceReader::open(path);
  if (!reader.ok()) FAIL(reader.error().what);
  struct Visitor final : TraceVisitor {
    uint64_t records = 0;
    size_t digest = 0;  // of everything that it is given, in order
    void add(size_t value) { digest = digest * 1'000'003 + value; }
    void on_record(std::span<const std::byte> record) override {
      sigma_header header;
      std::memcpy(&header, record.data(), sizeof header);
      records += header.type != SIGMA_WINDOW || header.pid != 0;
      add(std::hash<std::string_view>()(
          {reinterpret_cast<const char*>(record.data()), record.size()}));
    }
    void on_note(std::span<const std::byte> note) override { on_record(note); }
    void on_hole(uint64_t begin_ns, uint64_t end_ns, uint64_t count) override {
      for (const uint64_t value : {begin_ns, end_ns, count}) add(value);
    }
  } visitor, again;
  (*reader)->replay(visitor);
  const TraceDamage damage = (*reader)->damage();
  // Decoded ahead by several threads, it is the same.
  (*reader)->replay(again, 3);
  CHECK(again.digest == visitor.digest);
  CHECK((*reader)->damage().missing == damage.missing);
  CHECK((*reader)->damage().skipped_bytes == damage.skipped_bytes);
  CHECK((*reader)->damage().descriptions == damage.descriptions);
  return {visitor.records, damage};
}

std::string damaged_copy(const std::string& text, size_t from, const std::string& with) {
  std::string copy = text;
  copy.replace(from, with.size(), with);
  return copy;
}

}  // namespace

TEST_CASE("a torn end is skipped, reported, and its records are counted") {
  TemporaryFolder folder;
  write_trace(folder / "t");
  const fs::path stream = folder / "t/ctf/control";
  const auto size = fs::file_size(stream);
  const size_t cut = GENERATE(1, 50, 83, 84, 85, 1000, 20'000);
  fs::resize_file(stream, size - cut);
  const Outcome outcome = read_trace(folder / "t");
  CHECK(outcome.records < kRecords);
  CHECK(outcome.records > kRecords / 2);
  CHECK(outcome.records + outcome.damage.missing == kRecords);
  CHECK(outcome.damage.skipped_bytes > 0);
  REQUIRE(outcome.damage.descriptions.size() == 1);
  CHECK_THAT(outcome.damage.descriptions[0],
             ContainsSubstring("control: a torn packet at its end"));
}

TEST_CASE("a missing stream's records are counted") {
  TemporaryFolder folder;
  write_trace(folder / "t");
  fs::remove(folder / "t/ctf/cpu2");
  const Outcome outcome = read_trace(folder / "t");
  CHECK(outcome.records + outcome.damage.missing == kRecords);
  CHECK(outcome.damage.missing > 100);
}

TEST_CASE("a stream of another trace is not read") {
  TemporaryFolder folder;
  write_trace(folder / "t");
  write_trace(folder / "other");
  fs::copy_file(folder / "other/ctf/cpu1", folder / "t/ctf/cpu9");
  const Outcome outcome = read_trace(folder / "t");
  CHECK(outcome.records == kRecords);
  REQUIRE_FALSE(outcome.damage.descriptions.empty());
  CHECK_THAT(outcome.damage.descriptions[0], ContainsSubstring("belongs to another trace"));
}

TEST_CASE("the same stream twice gives each record once") {
  TemporaryFolder folder;
  write_trace(folder / "t");
  fs::copy_file(folder / "t/ctf/cpu1", folder / "t/ctf/cpu7");
  const Outcome outcome = read_trace(folder / "t");
  CHECK(outcome.records == kRecords);
}

TEST_CASE("a damaged packet costs its own records only") {
  TemporaryFolder folder;
  write_trace(folder / "t");
  const fs::path stream = folder / "t/ctf/cpu0";
  const std::string text = read_file(stream);
  // Heads: the empty packet's, then that of the first one with events.
  const size_t second = sizeof(PacketHead);
  const std::string ones(8, '\xff');
  size_t offset = 0;
  std::string with;
  SECTION("magic") {
    offset = second, with = "xxxx";
  }
  SECTION("stream") {
    offset = second + offsetof(PacketHead, stream_id), with = "xxxx";
  }
  SECTION("huge size") {
    offset = second + offsetof(PacketHead, packet_bits), with = ones;
  }
  SECTION("size zero") {
    offset = second + offsetof(PacketHead, packet_bits), with = std::string(8, '\0');
  }
  SECTION("huge count") {
    offset = second + offsetof(PacketHead, events), with = ones;
  }
  SECTION("begin after end") {
    offset = second + offsetof(PacketHead, timestamp_begin), with = ones;
  }
  SECTION("type of the first event") {
    offset = second + sizeof(PacketHead) + offsetof(EventHead, id), with = "\x50";
  }
  SECTION("size of the first event") {
    offset = second + sizeof(PacketHead) + offsetof(EventHead, size), with = "\xff\xff";
  }
  SECTION("time of the first event") {
    offset = second + sizeof(PacketHead) + offsetof(EventHead, timestamp_ns), with = ones;
  }
  write_file(stream, damaged_copy(text, offset, with));
  const Outcome outcome = read_trace(folder / "t");
  CHECK(outcome.records + outcome.damage.missing == kRecords);
  CHECK(outcome.damage.missing > 0);
  CHECK(outcome.damage.missing < 200);
  CHECK_FALSE(outcome.damage.descriptions.empty());
}

TEST_CASE("bit flips anywhere in the streams do no harm") {
  TemporaryFolder folder;
  write_trace(folder / "t");
  std::mt19937 random(1);
  for (const char* name : {"control", "cpu0"}) {
    const fs::path stream = folder / (std::string("t/ctf/") + name);
    const std::string text = read_file(stream);
    for (int round = 0; round < 300; ++round) {
      std::string copy = text;
      for (int flip = 0; flip < 1 + round % 8; ++flip)
        copy[random() % copy.size()] ^= static_cast<char>(1 << random() % 8);
      if (round % 5 == 0) copy.resize(random() % copy.size());
      write_file(stream, copy);
      read_trace(folder / "t");
    }
    write_file(stream, text);
  }
}

TEST_CASE("a meta.json that is not one gives a clear error") {
  TemporaryFolder folder;
  write_trace(folder / "t");
  const fs::path path = folder / "t/meta.json";
  const std::string text = read_file(path);
  std::string expected;
  SECTION("empty") {
    write_file(path, "");
    expected = "is not that of a trace";
  }
  SECTION("cut") {
    write_file(path, text.substr(0, text.size() / 2));
    expected = "is not that of a trace";
  }
  SECTION("other JSON") {
    write_file(path, "[1, 2, 3]");
    expected = "is not that of a trace";
  }
  SECTION("nested deeply") {
    write_file(path, std::string(1'000'000, '['));
    expected = "is not that of a trace";
  }
  SECTION("only its beginning") {
    write_file(path, std::string(kTraceMetaBegin) + "\n}\n");
    expected = "no beginning";
  }
  SECTION("a later format") {
    write_file(path, std::string(kTraceMetaBegin) + ", \"format_version\": 77}");
    expected = "format 77";
  }
  SECTION("wrong types") {
    write_file(path, std::string(kTraceMetaBegin) + ", \"format_version\": 2, \"record_version\": " +
                         std::to_string(SIGMA_RECORD_VERSION) + R"(, "uuid": 5, "clocks": []})");
    expected = "no valid uuid";
  }
  SECTION("gone") {
    fs::remove(path);
    expected = "there is no meta.json in it";
  }
  SECTION("a FIFO, which would block") {
    fs::remove(path);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    expected = "is not that of a trace";
  }
  const auto reader = TraceReader::open(folder / "t");
  REQUIRE_FALSE(reader.ok());
  CHECK_THAT(reader.error().what, ContainsSubstring(expected));
}

TEST_CASE("no folder, or one without streams") {
  TemporaryFolder folder;
  const auto missing = TraceReader::open(folder / "nothing");
  REQUIRE_FALSE(missing.ok());
  CHECK_FALSE(missing.error().hint.empty());
  write_trace(folder / "t");
  fs::remove_all(folder / "t/ctf");
  CHECK_FALSE(TraceReader::open(folder / "t").ok());
}
