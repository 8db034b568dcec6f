// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The trace directory, written and read by us and by babeltrace2.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <set>

#include "catch.h"
#include "csv_support.h"
#include "trace/schema.h"
#include "trace_support.h"

using namespace sigma;
using namespace sigma::test;
namespace fs = std::filesystem;

namespace {

std::vector<Bytes> write_random(TraceWriter& writer, uint32_t seed, size_t count) {
  RecordMaker maker(seed);
  std::vector<Bytes> records;
  for (size_t i = 0; i < count; ++i) {
    records.push_back(maker.next());
    writer.on_record(records.back());
  }
  return records;
}

std::unique_ptr<TraceReader> open_reader(const std::string& path) {
  auto reader = TraceReader::open(path);
  if (!reader.ok()) FAIL(reader.error().what);
  return *std::move(reader);
}

Collected read_all(const std::string& path) {
  Collected collected;
  open_reader(path)->replay(collected);
  return collected;
}

sigma_header header_of(const Bytes& record) {
  sigma_header header;
  std::memcpy(&header, record.data(), sizeof header);
  return header;
}

}  // namespace

TEST_CASE("a trace gives back the records of all types, in their order") {
  TemporaryFolder folder;
  auto writer = make_writer(folder / "t");
  const auto records = write_random(*writer, 1, 20'000);
  REQUIRE(writer->finish(trace_meta().info, {}).ok());
  CHECK(writer->records_written() == records.size());

  const auto reader = open_reader(folder / "t");
  Collected collected;
  reader->replay(collected);
  CHECK((collected.records == records));
  CHECK(reader->damage().missing == 0);
  CHECK(reader->damage().descriptions.empty());
  CHECK(reader->meta().info.complete);
}

TEST_CASE("records that come late keep their own time and their place") {
  TemporaryFolder folder;
  auto writer = make_writer(folder / "t");
  RecordMaker maker(2);
  std::vector<Bytes> records;
  for (int i = 0; i < 1000; ++i) records.push_back(maker.next_of(SIGMA_POST, i % 4));
  for (int i = 10; i < 1000; i += 10) std::swap(records[i], records[i - 7]);
  for (const Bytes& record : records) writer->on_record(record);
  REQUIRE(writer->finish(trace_meta().info, {}).ok());
  CHECK((read_all(folder / "t").records == records));
  CHECK(count_by_babeltrace2(folder / "t").events == records.size());
}

TEST_CASE("what a record's size class has beyond the record is not kept") {
  TemporaryFolder folder;
  auto writer = make_writer(folder / "t");
  RecordMaker maker(3);
  Bytes record = maker.next_of(SIGMA_UVERBS, 0);
  const Bytes whole = record;
  record.resize(record.size() + 100, std::byte{0xee});
  const auto size = static_cast<uint16_t>(record.size());
  std::memcpy(record.data() + offsetof(sigma_header, size), &size, 2);
  writer->on_record(record);
  REQUIRE(writer->finish(trace_meta().info, {}).ok());
  CHECK((read_all(folder / "t").records == std::vector<Bytes>{whole}));
}

TEST_CASE("what is no record is refused") {
  TemporaryFolder folder;
  auto writer = make_writer(folder / "t");
  RecordMaker maker(4);
  Bytes record = maker.next_of(SIGMA_POST, 0);
  Bytes unknown = record;
  unknown[offsetof(sigma_header, type)] = std::byte{99};
  writer->on_record(unknown);
  writer->on_record(std::span(record).first(50));
  writer->on_record({});
  sigma_uverbs uverbs{};
  uverbs.h = {.time_ns = 1, .type = SIGMA_UVERBS, .size = sizeof uverbs};
  uverbs.num_attrs = 1;
  writer->on_record(bytes_of(uverbs));
  CHECK(writer->refused() == 4);
  CHECK(writer->records_written() == 0);
}

TEST_CASE("babeltrace2 counts the same events and discarded events") {
  TemporaryFolder folder;
  auto writer = make_writer(folder / "t");
  RecordMaker maker(5);
  uint64_t count = 0;
  const auto write = [&](size_t records) {
    for (; records > 0; --records, ++count) writer->on_record(maker.next());
    writer->flush();
  };
  SECTION("nothing dropped") {
    write(5000);
  }
  SECTION("dropped at once") {
    writer->note_dropped(7);
    write(5000);
  }
  SECTION("dropped in the middle") {
    write(2000);
    writer->note_dropped(5);
    write(1000);
    writer->note_dropped(1234);
    write(2000);
  }
  SECTION("dropped at the end") {
    write(5000);
    writer->note_dropped(99);
  }
  REQUIRE(writer->finish(trace_meta().info, {}).ok());
  const Counted counted = count_by_babeltrace2(folder / "t");
  const auto reader = open_reader(folder / "t");
  CHECK(counted.events == count);
  CHECK(counted.discarded == reader->damage().discarded);
  Collected collected;
  reader->replay(collected);
  CHECK(collected.records.size() == count);
}

TEST_CASE("babeltrace2 reads the fields as they are") {
  TemporaryFolder folder;
  auto writer = make_writer(folder / "t");
  sigma_post post{};
  post.h = {.time_ns = 5'000'000'123,
            .type = SIGMA_POST,
            .size = sizeof post,
            .cpu = 3,
            .pid = 42,
            .tid = 43};
  post.wr_id = 18'446'744'073'709'551'615u;
  post.remote_addr = 0xdeadbeef0;
  post.bytes = 65536;
  post.imm = 0x04030201;  // network order: 1, 2, 3, 4
  post.opcode = 4;
  post.queue = SIGMA_QUEUE_SEND;
  post.qp_type = 2;
  writer->on_record(bytes_of(post));
  sigma_post_result result{};
  result.h = {.time_ns = 5'000'000'200, .type = SIGMA_POST_RESULT, .size = sizeof result, .cpu = 3};
  result.error = -12;
  result.outcome = SIGMA_OUTCOME_REFUSED;
  writer->on_record(bytes_of(result));
  sigma_process process{};
  process.h = {.time_ns = 5'000'000'300, .type = SIGMA_PROCESS, .size = sizeof process};
  process.kind = SIGMA_PROCESS_EXEC;
  std::strcpy(process.comm, "a \"name\"");
  writer->on_record(bytes_of(process));
  REQUIRE(writer->finish(trace_meta().info, {}).ok());

  const std::string text = output_of("babeltrace2 --clock-seconds " + (folder / "t"));
  INFO(text);
  // 1.7e9 s of UTC at 1 s of monotonic time.
  CHECK_THAT(text, ContainsSubstring("1700000004.000000123"));
  CHECK_THAT(text, ContainsSubstring("pid = 42, tid = 43"));
  CHECK_THAT(text, ContainsSubstring("wr_id = 18446744073709551615"));
  CHECK_THAT(text, ContainsSubstring("remote_addr = 0xDEADBEEF0"));
  CHECK_THAT(text, ContainsSubstring("imm = 0x1020304"));
  CHECK_THAT(text, ContainsSubstring("opcode = ( \"rdma_read\" : container = 4 )"));
  CHECK_THAT(text, ContainsSubstring("qp_type = ( \"rc\" : container = 2 )"));
  CHECK_THAT(text, ContainsSubstring("error = -12"));
  CHECK_THAT(text, ContainsSubstring("outcome = ( \"refused\" : container = 1 )"));
  CHECK_THAT(text, ContainsSubstring("comm = \"a \\\"name\\\"\""));
}

TEST_CASE("notes are given apart from records") {
  TemporaryFolder folder;
  auto writer = make_writer(folder / "t");
  RecordMaker maker(6);
  writer->on_record(maker.next_of(SIGMA_POST, 0));
  writer->note_device(231u << 20 | 192, "mlx5_0");
  writer->note_device(231u << 20 | 192, "mlx5_0");  // known already
  writer->note_comm(42, "a name that is far too long for a comm");
  writer->note_fact(42, "slurm_job_id", "1234");
  writer->note_mark(kMarkUser, "SIGUSR1");
  writer->note_counter(maker.time_ns() + 5, "mlx5_0", 1, "out_of_sequence", 17);
  writer->on_record(maker.next_of(SIGMA_POST, 1));
  REQUIRE(writer->finish(trace_meta().info, {}).ok());

  const Collected collected = read_all(folder / "t");
  CHECK(collected.records.size() == 2);
  REQUIRE(collected.notes.size() == 5);
  CHECK(header_of(collected.notes[0]).type == kNoteDevice);
  NoteComm comm;
  std::memcpy(&comm, collected.notes[1].data(), sizeof comm);
  CHECK(comm.of_pid == 42);
  CHECK(std::string(comm.comm) == "a name that is ");
  NoteCounter counter;
  std::memcpy(&counter, collected.notes[4].data(), sizeof counter);
  CHECK(counter.value == 17);
  CHECK(std::string(counter.counter) == "out_of_sequence");
  CHECK(count_by_babeltrace2(folder / "t").events == 7);
}

TEST_CASE("meta.json carries over what a replay needs") {
  TemporaryFolder folder;
  auto writer = make_writer(folder / "t");
  TraceInfo info = trace_meta().info;
  info.command_line = {"sigmatrace", "attach", "-o", "t\xff"};
  info.end_reason = "duration";
  info.end_clock = ClockPair{2'000'000'000, 1'700'000'001'000'000'000, 60};
  info.remarks = {"libfoo.so is not covered"};
  info.libraries = {{"libibverbs",
                     "/lib/libibverbs.so.1",
                     "abcd",
                     {{"post_send", "ops_table", "push rbp", "multi", 0x1234, 700, true}},
                     {{"poll_cq", "no safe site"}}}};
  Counters attacher;
  attacher.records_dropped = 3;
  REQUIRE(writer->finish(info, attacher).ok());
  const auto reader = open_reader(folder / "t");
  const TraceInfo& read = reader->meta().info;
  CHECK(read.complete);
  CHECK(read.end_reason == "duration");
  CHECK(read.node.node == "node1");
  CHECK(read.node.boot_id == "b007");
  CHECK(read.command_line.size() == 4);
  CHECK(read.start_clock.utc_ns == info.start_clock.utc_ns);
  REQUIRE(read.end_clock);
  CHECK(read.end_clock->utc_ns == info.end_clock->utc_ns);
  CHECK(read.remarks == info.remarks);
  CHECK(reader->meta().attacher.records_dropped == 3);
  REQUIRE(read.libraries.size() == 1);
  REQUIRE(read.libraries[0].probes.size() == 1);
  CHECK(read.libraries[0].probes[0].file_offset == 0x1234);
  CHECK(read.libraries[0].probes[0].at_return);
  CHECK(read.libraries[0].uncovered[0].reason == "no safe site");
}

TEST_CASE("a killed writer leaves everything up to its last packet") {
  TemporaryFolder folder;
  constexpr size_t kFlushed = 3000;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto writer = make_writer(folder / "t");
    RecordMaker maker(7);
    for (size_t i = 0; i < kFlushed; ++i) writer->on_record(maker.next());
    writer->flush();
    for (size_t i = 0; i < 10; ++i) writer->on_record(maker.next());
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  const auto reader = open_reader(folder / "t");
  CHECK_FALSE(reader->meta().info.complete);
  Collected collected;
  reader->replay(collected);
  CHECK(collected.records.size() == kFlushed);
  CHECK(count_by_babeltrace2(folder / "t").events == kFlushed);
}

TEST_CASE("a file system that takes no more leaves whole packets") {
  TemporaryFolder folder;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // The limit is that of a file, and no multiple of a packet.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1'000'003, 1'000'003};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto writer = make_writer(folder / "t");
    write_random(*writer, 8, 60'000);
    const Status finished = writer->finish(trace_meta().info, {});
    _exit(!finished.ok() && writer->error() && writer->records_lost() > 0 &&
                  writer->records_written() + writer->records_lost() == 60'000
              ? 0
              : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  const auto reader = open_reader(folder / "t");
  CHECK_FALSE(reader->meta().info.complete);
  Collected collected;
  reader->replay(collected);
  CHECK(collected.records.size() > 1000);
  CHECK(reader->damage().skipped_bytes == 0);
  CHECK(reader->damage().missing > 0);
  // babeltrace2 sees what was written, not the pauses that we put in for what is missing.
  uint64_t written = 0;
  for (const Bytes& record : collected.records)
    written += header_of(record).type != SIGMA_WINDOW || header_of(record).pid != 0;
  CHECK(count_by_babeltrace2(folder / "t").events == written);
}

TEST_CASE("only a trace of ours is replaced") {
  TemporaryFolder folder;
  const std::string path = folder / "t";
  const auto create = [&] { return TraceWriter::create(path, trace_meta(), {.cpus = 2}); };
  {
    auto first = make_writer(path);
    write_random(*first, 9, 1000);
  }
  SECTION("a trace, by the next one") {
    auto writer = make_writer(path, {.cpus = 2});
    REQUIRE(writer->finish(trace_meta().info, {}).ok());
    CHECK(read_all(path).records.empty());
    CHECK(count_by_babeltrace2(path).events == 0);
  }
  SECTION("a trace with something else in it") {
    std::ofstream(path + "/notes.txt") << "mine";
    const auto result = create();
    REQUIRE_FALSE(result.ok());
    CHECK_THAT(result.error().what, ContainsSubstring("notes.txt"));
    CHECK(read_all(path).records.size() == 1000);
  }
  SECTION("a trace with something else in its ctf") {
    std::ofstream(path + "/ctf/mine") << "mine";
    CHECK_FALSE(create().ok());
    CHECK(fs::exists(path + "/ctf/mine"));
    CHECK(read_all(path).records.size() == 1000);
  }
  SECTION("a trace whose ctf is a link elsewhere") {
    fs::rename(path + "/ctf", folder / "elsewhere");
    fs::create_directory_symlink(folder / "elsewhere", path + "/ctf");
    CHECK_FALSE(create().ok());
    CHECK(fs::exists(folder / "elsewhere/metadata"));
  }
  SECTION("other things") {
    fs::remove_all(path);
    SECTION("an empty folder") {
      fs::create_directory(path);
    }
    SECTION("a folder") {
      fs::create_directory(path);
      std::ofstream(path + "/meta.json") << "{\"format\": \"something\"}";
    }
    SECTION("a file") {
      std::ofstream(path) << "mine";
    }
    SECTION("a link to a folder") {
      fs::create_directory(folder / "target");
      fs::create_directory_symlink(folder / "target", path);
    }
    std::set<std::string> before, after;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
      before.insert(entry.path());
    const auto result = create();
    REQUIRE_FALSE(result.ok());
    CHECK_THAT(result.error().what, ContainsSubstring("will not replace"));
    for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
      after.insert(entry.path());
    CHECK(before == after);
  }
}

TEST_CASE("a trace is private to its user") {
  TemporaryFolder folder;
  {
    auto writer = make_writer(folder / "t");
    write_random(*writer, 10, 100);
  }
  const auto mode_of = [](const fs::path& path) {
    struct stat info {};
    REQUIRE(stat(path.c_str(), &info) == 0);
    return info.st_mode & 07777;
  };
  CHECK(mode_of(folder / "t") == 0700);
  CHECK(mode_of(folder / "t/ctf") == 0700);
  for (const auto& entry : fs::recursive_directory_iterator(folder / "t"))
    if (entry.is_regular_file()) CHECK(mode_of(entry.path()) == 0600);
}

TEST_CASE("under sudo a trace belongs to the calling user") {
  REQUIRE(geteuid() == 0);
  TemporaryFolder folder;
  fs::permissions(folder.path(), fs::perms::all);
  setenv("SUDO_UID", "65534", 1);
  setenv("SUDO_GID", "65534", 1);
  auto writer = make_writer(folder / "t");
  write_random(*writer, 11, 100);
  const bool finished = writer->finish(trace_meta().info, {}).ok();
  unsetenv("SUDO_UID");
  unsetenv("SUDO_GID");
  CHECK(finished);
  for (const auto& entry : fs::recursive_directory_iterator(folder / "t")) {
    struct stat info {};
    REQUIRE(lstat(entry.path().c_str(), &info) == 0);
    CHECK(info.st_uid == 65534);
    CHECK(info.st_gid == 65534);
  }
}

TEST_CASE("a flight recorder keeps the newest within its bound, and the control plane whole") {
  TemporaryFolder folder;
  constexpr uint64_t kBound = 4u << 20;
  auto writer = make_writer(folder / "t", {.max_size_bytes = kBound, .cpus = 4});
  const uint32_t busy_cpus = GENERATE(1u, 4u);
  // Of a CPU, or read from rings: those come on lanes beyond the CPUs'.
  const auto [type, lane] = GENERATE(std::pair<uint16_t, uint32_t>{SIGMA_POST, 0}, std::pair<uint16_t, uint32_t>{SIGMA_RING_POST, 4});
  RecordMaker maker(12);
  std::vector<Bytes> records;
  uint64_t largest = 0;
  for (int i = 0; i < 200'000; ++i) {
    const bool control = i % 1000 == 0;
    records.push_back(
        maker.next_of(control ? uint16_t{SIGMA_QP_SEEN} : type, lane + static_cast<uint32_t>(i) % busy_cpus));
    writer->on_record(records.back());
    if (i % 5000) continue;
    writer->flush();
    uint64_t size = 0;
    for (const auto& entry : fs::directory_iterator(folder / "t/ctf"))
      if (entry.path().filename() != "metadata") size += entry.file_size();
    largest = std::max(largest, size);
  }
  REQUIRE(writer->finish(trace_meta().info, {}).ok());
  const uint64_t overwritten = writer->records_overwritten();
  CHECK(largest <= kBound);
  CHECK(largest > kBound / 2);

  const auto reader = open_reader(folder / "t");
  Collected collected;
  reader->replay(collected);
  std::vector<Bytes> kept, kept_control, control;
  for (const Bytes& record : collected.records) {
    if (header_of(record).type == type) kept.push_back(record);
    if (header_of(record).type == SIGMA_QP_SEEN) kept_control.push_back(record);
  }
  std::vector<Bytes> posts;
  for (const Bytes& record : records)
    (header_of(record).type == type ? posts : control).push_back(record);
  CHECK((kept_control == control));
  // The newest are there, to the last one, and make up most of the bound.
  REQUIRE(kept.size() * sizeof(sigma_post) > kBound / 2);
  CHECK(std::equal(posts.end() - 5000, posts.end(), kept.end() - 5000, kept.end()));
  CHECK(reader->damage().overwritten == posts.size() - kept.size());
  CHECK(overwritten == posts.size() - kept.size());
  CHECK(reader->damage().missing == 0);
  CHECK(count_by_babeltrace2(folder / "t").events == kept.size() + control.size());
}

TEST_CASE("a flight recorder's control plane is bounded as well, and what is left out is counted") {
  TemporaryFolder folder;
  constexpr uint64_t kBound = 4u << 20;
  auto writer = make_writer(folder / "t", {.max_size_bytes = kBound, .cpus = 2});
  RecordMaker maker(13);
  for (int i = 0; i < 60'000; ++i) writer->on_record(maker.next_of(SIGMA_QP_SEEN, 0));
  REQUIRE(writer->finish(trace_meta().info, {}).ok());
  CHECK(writer->bytes() <= kBound);
  const Counted counted = count_by_babeltrace2(folder / "t");
  CHECK(counted.events + counted.discarded == 60'000);
  CHECK(counted.events > 1000);
}

TEST_CASE("the schema's names are unique") {
  std::set<std::string_view> names;
  for (const RecordSchema& schema : record_schemas()) {
    CHECK(names.insert(schema.name).second);
    std::set<std::string_view> fields;
    for (const Field& field : schema.fields) CHECK(fields.insert(field.name).second);
    CHECK(schema_of(schema.type) == &schema);
  }
  CHECK(schema_of(0) == nullptr);
  CHECK(schema_of(SIGMA_RECORD_TYPES) == nullptr);
  CHECK(schema_of(kNoteTypesEnd) == nullptr);
}
