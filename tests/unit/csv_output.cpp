// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where rows go: files of the calling user, and outputs that cannot take them.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/private_file.h"
#include "catch.h"
#include "csv_support.h"
#include "output/csv.h"

using namespace sigma;
using namespace sigma::test;
namespace fs = std::filesystem;

namespace {

const CsvOptions kOptions{"n1", UtcClock({0, 0, 0})};

// Some user that is not root; need not exist.
constexpr uid_t kSomebody = 65534;

Operation numbered(uint64_t wr_id) {
  Operation operation;
  operation.pid = 1;
  operation.wr_id = wr_id;
  return operation;
}

void feed(CsvSink& sink, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) sink.on_operation(numbered(i));
  sink.finish();
}

struct stat stat_of(const std::string& path) {
  struct stat info {};
  REQUIRE(lstat(path.c_str(), &info) == 0);
  return info;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

// Sets a variable of the environment for a scope.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

}  // namespace

TEST_CASE(
    "a CSV file that outgrows its limit ends with a whole row, and the lost rows are counted") {
  const TemporaryFolder folder;
  const std::string path = folder / "ops.csv";
  constexpr uint64_t kRows = 20'000;
  auto sink = CsvSink::create(path, kOptions);
  REQUIRE(sink.ok());
  {
    // No multiple of any row's length, and beyond the first piece that is written.
    const FileSizeLimit limit(600'001);
    feed(**sink, kRows);
  }
  REQUIRE((*sink)->error());
  CHECK_THAT((*sink)->error()->what, ContainsSubstring("File too large"));
  CHECK_FALSE((*sink)->error()->hint.empty());

  const auto rows = parse_csv(read_file(path));
  CHECK(stat_of(path).st_size <= 600'001);
  CHECK(rows.size() - 1 == (*sink)->rows_written());
  CHECK((*sink)->rows_written() > 1000);
  CHECK((*sink)->rows_written() + (*sink)->rows_lost() == kRows);
  const size_t wr_id = 21;
  CHECK(rows.back().at(wr_id) == std::to_string(rows.size() - 2));
}

TEST_CASE("a full device is reported when the CSV is created") {
  const auto sink = CsvSink::create("/dev/full", kOptions);
  REQUIRE_FALSE(sink.ok());
  CHECK_THAT(sink.error().what, ContainsSubstring("No space left on device"));
  CHECK_FALSE(sink.error().hint.empty());
}

TEST_CASE("rows for a full device are counted as lost") {
  CsvSink sink(RowFile(Fd(open("/dev/full", O_WRONLY | O_CLOEXEC)), "/dev/full"), kOptions);
  feed(sink, 5'000);
  CHECK(sink.error());
  CHECK(sink.rows_written() == 0);
  CHECK(sink.rows_lost() == 5'000);
}

TEST_CASE("a closed pipe ends the CSV with an error, and the lost rows are counted") {
  std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  close(ends[0]);
  CsvSink sink(RowFile(Fd(ends[1]), "standard output"), kOptions);
  feed(sink, 10);
  REQUIRE(sink.error());
  CHECK_THAT(sink.error()->what, ContainsSubstring("closed by its reader"));
  CHECK(sink.rows_lost() == 10);
}

TEST_CASE("a CSV file that others append to is not cut back") {
  const TemporaryFolder folder;
  const std::string path = folder / "shared.csv";
  CsvSink sink(RowFile(Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)), path),
               kOptions);
  const auto header_bytes = static_cast<uint64_t>(stat_of(path).st_size);
  REQUIRE(truncate(path.c_str(), 100'000) == 0);
  {
    const FileSizeLimit limit(header_bytes + 100);
    feed(sink, 100);
  }
  CHECK(sink.error());
  CHECK(stat_of(path).st_size == 100'000);
}

TEST_CASE("a CSV file is private, whatever the umask") {
  const TemporaryFolder folder;
  for (const mode_t mask : {0u, 077u, 0277u}) {
    const mode_t before = umask(mask);
    const auto sink = CsvSink::create(folder / "ops.csv", kOptions);
    umask(before);
    REQUIRE(sink.ok());
    CHECK((stat_of(folder / "ops.csv").st_mode & 07777) == 0600);
  }
}

TEST_CASE("an existing file is replaced, and its other names keep what they had") {
  const TemporaryFolder folder;
  write_text(folder / "ops.csv", "old");
  fs::permissions(folder / "ops.csv", fs::perms(0644));
  fs::create_hard_link(folder / "ops.csv", folder / "other");
  auto sink = CsvSink::create(folder / "ops.csv", kOptions);
  REQUIRE(sink.ok());
  feed(**sink, 1);
  CHECK(parse_csv(read_file(folder / "ops.csv")).size() == 2);
  CHECK((stat_of(folder / "ops.csv").st_mode & 07777) == 0600);
  CHECK(read_file(folder / "other") == "old");
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("symbolic links, folders and missing folders are refused, and stay as they are") {
  const TemporaryFolder folder;
  write_text(folder / "victim", "precious");
  fs::create_symlink(folder / "victim", folder / "link.csv");
  fs::create_directory(folder / "sub");

  const auto link = CsvSink::create(folder / "link.csv", kOptions);
  REQUIRE_FALSE(link.ok());
  CHECK_THAT(link.error().what, ContainsSubstring("symbolic link"));
  CHECK(read_file(folder / "victim") == "precious");
  CHECK(fs::is_symlink(folder / "link.csv"));

  for (const char* name : {"sub", "sub/", "missing/ops.csv"}) {
    const auto refused = CsvSink::create(folder / name, kOptions);
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.error().what, ContainsSubstring(name));
    CHECK_FALSE(refused.error().hint.empty());
  }
}

TEST_CASE("standard output is used for -, and stays open") {
  const TemporaryFolder folder;
  const Fd saved(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  const Fd target(open((folder / "out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(dup2(target.get(), STDOUT_FILENO) == STDOUT_FILENO);
  auto sink = CsvSink::create("-", kOptions);
  const bool created = sink.ok();
  if (created) feed(**sink, 3);
  const bool still_open = fcntl(STDOUT_FILENO, F_GETFD) >= 0;
  dup2(saved.get(), STDOUT_FILENO);

  REQUIRE(created);
  CHECK(still_open);
  CHECK_FALSE((*sink)->has_side_file());
  CHECK(parse_csv(read_file(folder / "out")).size() == 4);
}

TEST_CASE("under sudo, files belong to the calling user, and other users' are not replaced") {
  const TemporaryFolder folder;
  const Environment uid("SUDO_UID", std::to_string(kSomebody));
  const Environment gid("SUDO_GID", std::to_string(kSomebody));
  if (geteuid() != 0) {
    // Only root is asked by sudo: for others the variables mean nothing.
    CHECK(calling_user().uid == geteuid());
    REQUIRE(create_private_file(folder / "ops.csv").ok());
    CHECK(stat_of(folder / "ops.csv").st_uid == geteuid());
    return;
  }
  CHECK(calling_user().uid == kSomebody);
  write_text(folder / "roots.csv", "precious");

  // A folder that only root may write, then one of the user's.
  for (const bool users : {false, true}) {
    if (users) REQUIRE(chown(folder.path().c_str(), kSomebody, kSomebody) == 0);
    const std::string path = folder / (users ? "theirs.csv" : "ops.csv");
    for (int round = 0; round < 2; ++round) {  // created, then replaced
      const auto created = create_private_file(path);
      INFO(path << ": " << (created.ok() ? "" : created.error().what));
      REQUIRE(created.ok());
      CHECK(stat_of(path).st_uid == kSomebody);
      CHECK(stat_of(path).st_gid == kSomebody);
      CHECK((stat_of(path).st_mode & 07777) == 0600);
    }
    if (!users) {
      const auto refused = create_private_file(folder / "roots.csv");
      REQUIRE_FALSE(refused.ok());
      CHECK_THAT(refused.error().what, ContainsSubstring("another user"));
      CHECK(read_file(folder / "roots.csv") == "precious");
    }
  }
  CHECK(geteuid() == 0);
  CHECK(create_private_file("/proc/version").ok() == false);
}

TEST_CASE("a broken SUDO_UID is not believed") {
  for (const char* value : {"", "-1", "4294967295", "99999999999", "12x", " 12", "root"}) {
    const Environment uid("SUDO_UID", value);
    const Environment gid("SUDO_GID", "12");
    INFO(value);
    CHECK(calling_user().uid == geteuid());
    CHECK(calling_user().gid == getegid());
  }
}

TEST_CASE("another user's pipe is no place for rows") {
  const TemporaryFolder folder;
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0666) == 0);
  const Environment uid("SUDO_UID", "12345");
  const Environment gid("SUDO_GID", "12345");
  if (geteuid() != 0) {
    // Ours is accepted; a reader keeps the opening from waiting.
    const Fd reader(open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    CHECK(create_private_file(folder / "pipe").ok());
    return;
  }
  fs::permissions(folder.path(), fs::perms(0777));
  REQUIRE(chown((folder / "pipe").c_str(), kSomebody, kSomebody) == 0);
  const auto refused = create_private_file(folder / "pipe");
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(refused.error().what, ContainsSubstring("belongs to another user"));
}
