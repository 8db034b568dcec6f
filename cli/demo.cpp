// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// sigmatrace demo: a job of four processes on emulated devices, traced as any job is.
//
// The one place that knows of the emulator (tests/emulator), and only where it is and how it is
// started. Its launcher makes the run directory, ends the job and removes the directory: when asked
// to (SIGTERM), and when we are gone, however we went. So nothing here needs to clean up files.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/terminal.h"
#include "cli/attach_session.h"
#include "cli/commands.h"

namespace sigma {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRanks = 4;
constexpr int kRounds = 60;  // 45 operations each
constexpr uint64_t kStartLimitNs = 60'000'000'000;
constexpr uint64_t kEndLimitNs = 60'000'000'000;

struct Emulator {
  fs::path launcher, library, job;
};

// In the build directory, else where `cmake --install` puts it.
Result<Emulator> find_emulator() {
  std::error_code error;
  const fs::path root = fs::read_symlink("/proc/self/exe", error).parent_path().parent_path();
  const fs::path installed = root / "libexec/sigmatrace/connectx";
  const std::array places = {
      Emulator{root / "connectx/connectx-run", root / "lib/libsigma_connectx.so",
               root / "tests/workloads/alltoall"},
      Emulator{installed / "connectx-run", installed / "libsigma_connectx.so",
               installed / "alltoall"}};
  const fs::path* missing = nullptr;  // of the first place that has anything
  for (const Emulator& place : places) {
    const std::array files = {&place.launcher, &place.library, &place.job};
    const auto absent = std::find_if(files.begin(), files.end(), [&](const fs::path* file) {
      return !fs::exists(*file, error);
    });
    if (absent == files.end()) return place;
    if (missing == nullptr) missing = *absent;
  }
  return Error{"the emulated device that the demo runs on is not here: no " + missing->string(),
               "`scripts/build` builds it, and build/bin/sigmatrace finds it"};
}

// The job, from its start until it has ended and its directory is gone.
class DemoJob {
 public:
  DemoJob() = default;
  DemoJob(const DemoJob&) = delete;
  DemoJob& operator=(const DemoJob&) = delete;
  ~DemoJob() {
    if (launcher_ > 0) kill(launcher_, SIGTERM);
    reap(0);
  }

  // Returns when all ranks are there, held at the gate.
  Status start(const Emulator& emulator);
  Status open_gate() const;
  // Waits for the job's own end, and fails when the job did.
  Status finish();

  const std::string& directory() const { return directory_; }
  const std::vector<pid_t>& pids() const { return pids_; }

 private:
  Status launch(const Emulator& emulator);
  void on_line(std::string_view line);
  bool reap(int flags);
  Status failed() const;

  pid_t launcher_ = -1;
  int status_ = 0;
  Fd output_;  // of the launcher and the job
  Fd hold_;    // as long as it is open the devices outlive the job: the trace ends with what they counted
  std::string directory_;
  std::vector<pid_t> pids_;
};

// In the child, between fork and exec. The launcher gets a session of its own: Ctrl-C is for us to
// pass on, after the trace has ended. Should we be killed, it is told to end.
[[noreturn]] void become_launcher(const std::vector<char*>& arguments, int input, int output, pid_t parent) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  execv(arguments[0], arguments.data());
  _exit(127);
}

Status DemoJob::launch(const Emulator& emulator) {
  // RoCE: peers have addresses that people recognise. The log of what the devices did is for tests.
  std::vector<std::string> words = {
      emulator.launcher,
      "--devices",
      std::to_string(kRanks),
      "--link",
      "eth",
      "--env",
      "SIGMA_CONNECTX_ORACLE=0",
      "--hold",
      "--",
      "/bin/sh",
      "-c",
      R"(echo "directory $SIGMA_CONNECTX_DIR" && mkdir "$SIGMA_CONNECTX_DIR/job" && )"
      R"(exec "$0" "$SIGMA_CONNECTX_DIR/job" "$@" --gate "$SIGMA_CONNECTX_DIR/gate")",
      emulator.job,
      std::to_string(kRanks),
      std::to_string(kRounds),
      "4096"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  setenv("SIGMA_CONNECTX_LIBRARY", emulator.library.c_str(), 1);
  setenv("PYTHONDONTWRITEBYTECODE", "1", 1);  // no files of root's beside the launcher

  int ends[2], holds[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Error{"cannot make a pipe: " + errno_text(errno)};
  output_.reset(ends[0]);
  const Fd write_end(ends[1]);
  if (pipe2(holds, O_CLOEXEC) != 0) return Error{"cannot make a pipe: " + errno_text(errno)};
  hold_.reset(holds[1]);
  const Fd held(holds[0]);
  const pid_t self = getpid();
  launcher_ = fork();
  if (launcher_ < 0) return Error{"cannot start the job: " + errno_text(errno)};
  if (launcher_ == 0) become_launcher(arguments, held.get(), write_end.get(), self);
  return {};
}

Status DemoJob::start(const Emulator& emulator) {
  SIGMA_CHECK(launch(emulator));
  const uint64_t deadline_ns = monotonic_now_ns() + kStartLimitNs;
  std::string text;
  while (pids_.size() < kRanks) {
    if (AttachSession::signal_waits()) return Error{"interrupted before the job began"};
    if (monotonic_now_ns() > deadline_ns) return Error{"the demo's job does not begin"};
    pollfd waiter{output_.get(), POLLIN, 0};
    if (poll(&waiter, 1, 50) <= 0) continue;
    std::array<char, 512> bytes;
    const ssize_t got = read(output_.get(), bytes.data(), bytes.size());
    if (got < 0) return Error{"cannot read what the job says: " + errno_text(errno)};
    if (got == 0) {
      reap(0);
      return failed();
    }
    text.append(bytes.data(), static_cast<size_t>(got));
    for (size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
      on_line(std::string_view(text).substr(0, end));
  }
  return {};
}

// "directory /dev/shm/connectx-x", then "rank 0 pid 4711" for each.
void DemoJob::on_line(std::string_view line) {
  constexpr std::string_view kDirectory = "directory ", kPid = " pid ";
  if (line.starts_with(kDirectory)) directory_ = line.substr(kDirectory.size());
  const size_t at = line.find(kPid);
  pid_t pid = 0;
  if (line.starts_with("rank ") && at != std::string_view::npos)
    std::from_chars(line.data() + at + kPid.size(), line.data() + line.size(), pid);
  if (pid > 0) pids_.push_back(pid);
}

Status DemoJob::open_gate() const {
  const Fd gate(
      open((directory_ + "/gate").c_str(), O_CREAT | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!gate) return Error{"cannot let the job begin: " + errno_text(errno)};
  return {};
}

Status DemoJob::finish() {
  hold_.reset();
  const uint64_t deadline_ns = monotonic_now_ns() + kEndLimitNs;
  while (!reap(WNOHANG)) {
    if (AttachSession::signal_waits() || monotonic_now_ns() > deadline_ns)
      return Error{"the demo's job does not end"};
    const timespec pause{0, 10'000'000};
    nanosleep(&pause, nullptr);
  }
  return status_ == 0 ? Status() : failed();
}

// True when the launcher has ended; status_ says how.
bool DemoJob::reap(int flags) {
  if (launcher_ <= 0) return true;
  pid_t ended;
  do ended = waitpid(launcher_, &status_, flags);
  while (ended < 0 && errno == EINTR);
  if (ended == 0) return false;
  launcher_ = -1;
  return true;
}

Status DemoJob::failed() const {
  const std::string how = WIFSIGNALED(status_)
                              ? fmt::format("signal {}", WTERMSIG(status_))
                              : fmt::format("exit status {}", WEXITSTATUS(status_));
  return Error{fmt::format("the demo's job failed ({}); what it said stands above", how),
               "the emulator needs python3; `scripts/setup` installs what is missing"};
}

Result<int> run_demo(AttachOptions& options) {
  DemoJob job;  // outlives the session: the probes are out before the job is ended
  AttachSession session(options, [&job] { return job.open_gate(); });
  SIGMA_CHECK(session.check());
  SIGMA_ASSIGN(const Emulator emulator, find_emulator());
  put(stderr, fmt::format("starting {} processes that write to each other, each on an emulated "
                          "ConnectX of its own;\nrank 0 sends rank 1 four times as much as others, "
                          "and mlx5_{} serves requests late\n",
                          kRanks, kRanks - 1));
  SIGMA_CHECK(job.start(emulator));

  options.pids = job.pids();
  options.budget_percent.reset();  // nothing is to be missing
  setenv("SIGMATRACE_SYSFS", (job.directory() + "/sys").c_str(), 1);
  setenv("SIGMATRACE_CLOCK", (job.directory() + "/clock").c_str(), 1);
  SIGMA_ASSIGN(const int status, session.run());
  if (session.end_reason() == "targets ended") SIGMA_CHECK(job.finish());
  if (!options.output.empty() && options.output != "-")
    put(stderr, fmt::format("\neverything is in {}\n", options.output));
  return status;
}

constexpr const char* kExamples = R"(EXAMPLES
  sudo sigmatrace demo
      Live totals, and the summary: who is the skewed pair, who is slow?
  sudo sigmatrace demo -o ops.csv
      One CSV row for each operation as well.
  sudo sigmatrace demo -o trace && sigmatrace report trace
      A trace directory, and what it says.
)";

}  // namespace

Command add_demo(CLI::App& app) {
  CLI::App* parser =
      app.add_subcommand("demo", "Trace a job on emulated devices, no RDMA hardware needed");
  auto options = std::make_shared<AttachOptions>();
  parser->footer(kExamples);
  parser
      ->add_option(
          "-o", options->output,
          "NAME.csv: a CSV file, with NAME.csv.meta.json beside it; `-`: CSV on standard output; "
          "anything else: a trace directory for report and export. Replaced if it is there. "
          "Without it: the summary only")
      ->type_name("PATH");
  return {parser, [options] { return run_demo(*options); }};
}

}  // namespace sigma
