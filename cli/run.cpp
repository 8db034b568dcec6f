// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// sigmatrace run: a command under the tracer, from its first instruction on, and what it starts.
//
// Our exit status is the command's. Signals of the terminal reach the command by themselves; those
// sent to us alone are passed on. Either ends the trace, and we wait for the command then.
#include <poll.h>
#include <signal.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/terminal.h"
#include "cli/attach_options.h"
#include "cli/attach_session.h"
#include "cli/commands.h"
#include "cli/gpu_preload.h"
#include "cli/job.h"

namespace sigma {
namespace {

struct RunOptions {
  AttachOptions attach;
  std::string gpu;  // of --gpu: empty, "observe" or "lossless"
  std::vector<std::string> command;
};

GpuMode mode_of(const std::string& word) {
  if (word.empty()) return GpuMode::none;
  return word == "lossless" ? GpuMode::lossless : GpuMode::observe;
}

constexpr const char* kExamples = R"(EXAMPLES
  sudo sigmatrace run -o ops.csv -- ib_write_bw -d mlx5_0 peer
      One CSV row for each operation of the command, from its first one on.
  sudo sigmatrace run --gpu -o trace -- ./nvshmem_job
      With the operations that GPU kernels post themselves.
  sudo sigmatrace run -o trace -- sudo -u alice mpirun -np 8 ./job
      As another user, with all that it starts on this machine.
)";

// What was sent to us since the trace has ended, the command gets; until it has ended.
int wait_for(Job& job, const AttachSession& session) {
  const sigset_t ours = AttachSession::ending_signals();
  const auto pass_on = [&](int number) {
    if (number == SIGTERM || number == SIGHUP) job.signal(number);
  };
  pass_on(session.end_signal());
  while (!job.ended()) {
    const timespec pause{0, 20'000'000};
    pass_on(sigtimedwait(&ours, nullptr, &pause));
  }
  return job.exit_status();
}

Result<int> run_command(RunOptions& options) {
  int refused;
  if (const auto found = Job::find(options.command.front(), refused); !found.ok()) {
    print_error(found.error());
    return refused;
  }
  SIGMA_ASSIGN(const GpuPreload gpu,
               gpu_preload(mode_of(options.gpu),
                           [](const char* name) -> const char* { return std::getenv(name); }));
  sigset_t mask;
  sigprocmask(SIG_BLOCK, nullptr, &mask);
  std::unique_ptr<Job> job;
  Status began;
  AttachSession session(options.attach, [&]() -> Status { return began = job->go(); });
  SIGMA_CHECK(session.check());
  for (const std::string& note : gpu.notes) put(stderr, note + "\n");
  SIGMA_ASSIGN(job, Job::start(options.command, gpu.environment, mask));
  options.attach.pids = {job->pid()};
  const auto traced = session.run();
  if (!traced.ok() && !job->began()) return traced.error();
  const int status = wait_for(*job, session);
  if (traced.ok()) return status;
  // The command is not to be blamed, but whoever asked for the trace must learn that it lacks.
  print_error(traced.error());
  return status != 0 ? status : 1;
}

}  // namespace

Command add_run(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("run", "Start a command under the tracer");
  auto options = std::make_shared<RunOptions>();
  options->attach.follow_forks = true;
  add_attach_options(*parser, options->attach, false);
  parser
      ->add_flag(
          "--gpu", options->gpu,
          "preload the library that sees what GPU kernels post; =lossless: also set the "
          "communication libraries' own switches with which least goes unseen, and say which")
      ->type_name("[=lossless]")
      ->check(CLI::Validator(
          [](const std::string& word) {
            // Without a value it is "true".
            const bool known = word == "true" || word == "observe" || word == "lossless";
            return known ? std::string() : "no value, =observe or =lossless";
          },
          "", "mode"))
      ->group("What to trace");
  parser->add_option("COMMAND", options->command, "the command and its arguments, behind --")
      ->required()
      ->type_name("");
  parser->footer(kExamples);
  return {parser, [options] { return run_command(*options); }};
}

}  // namespace sigma
