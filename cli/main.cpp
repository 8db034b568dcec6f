// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <csignal>
#include <cstdio>
#include <new>
#include <vector>

#include "base/human.h"
#include "base/terminal.h"
#include "cli/commands.h"

namespace {

// In the order of the help.
constexpr std::array kCommands = {sigma::add_attach, sigma::add_run,  sigma::add_report, sigma::add_export,
                                  sigma::add_list,   sigma::add_demo, sigma::add_doctor};

constexpr int kUsage = 2;

constexpr const char* kExamples = R"(EXAMPLES
  sudo sigmatrace attach --pid 4711 -o ops.csv
      One CSV row for each RDMA operation of process 4711, until it ends or Ctrl-C.
  sudo sigmatrace attach --pid 4711,4712 --duration 10s
      Ten seconds of two processes; the summary at the end only.
  sudo sigmatrace run -o trace -- ib_write_bw -d mlx5_0 peer
      A command from its first operation on, for report and export.
  sudo sigmatrace demo
      The whole thing on this machine, no RDMA hardware needed.
  sudo sigmatrace doctor
      What this machine can trace, what is missing, and how to mend it.

Each subcommand has its own help: sigmatrace attach --help
)";

// The subcommand that the user was at, for the hint: "sigmatrace attach".
std::string parsed_name(const CLI::App& app, const std::vector<sigma::Command>& commands) {
  for (const auto& command : commands)
    if (command.parser->parsed()) return app.get_name() + " " + command.parser->get_name();
  return app.get_name();
}

}  // namespace

void sigma::print_error(const Error& error) {
  put(stderr, fmt::format("sigmatrace: {}\n", error.what));
  if (!error.hint.empty()) put(stderr, fmt::format("  hint: {}\n", error.hint));
}

int main(int argc, char** argv) {
  // A closed pipe and a file size limit are write errors, which outputs report, and not deaths.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);

  CLI::App app("See every RDMA operation of a running, unmodified job.", "sigmatrace");
  app.set_version_flag("--version", "sigmatrace " SIGMA_VERSION);
  app.require_subcommand(0, 1);  // that there is one is checked below: after what was misspelt

  std::vector<sigma::Command> commands;
  for (const auto add : kCommands) commands.push_back(add(app));
  app.footer(kExamples);  // last: subcommands inherit it

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::string first = argc > 1 ? argv[1] : "";
    if (!first.empty() && first[0] != '-' && app.get_subcommands().empty()) {
      sigma::print_error({fmt::format("there is no subcommand '{}'", sigma::printable(first)),
                          app.get_name() + " --help"});
      return kUsage;
    }
    sigma::print_error({error.what(), parsed_name(app, commands) + " --help"});
    return kUsage;
  }

  for (const auto& command : commands) {
    if (!command.parser->parsed()) continue;
    try {
      const auto status = command.run();
      if (status.ok()) return *status;
      sigma::print_error(status.error());
    } catch (const std::bad_alloc&) {
      sigma::print_error(
          {"out of memory", "raise the limit (ulimit -v, the cgroup's), or trace less at once"});
    }
    return 1;
  }
  sigma::print_error({"a subcommand is required", app.get_name() + " --help"});
  return kUsage;
}
