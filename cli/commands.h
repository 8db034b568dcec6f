// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The subcommands: one file each, one row each in main.cpp's table.
//
// A subcommand is a function that registers itself with the parser and returns what runs once the
// command line is parsed. Exit status: 0; 1 for an Error (main prints it) or when the command says
// so; 2 for usage, which the parser and its validators find before anything runs.
#pragma once

#include <functional>

#include "base/result.h"

namespace CLI {
class App;
}

namespace sigma {

struct Command {
  CLI::App* parser;
  std::function<Result<int>()> run;  // the exit status
};

Command add_attach(CLI::App& app);
Command add_demo(CLI::App& app);
Command add_doctor(CLI::App& app);
Command add_export(CLI::App& app);
Command add_list(CLI::App& app);
Command add_report(CLI::App& app);
Command add_run(CLI::App& app);

// "sigmatrace: what", and the hint on a line of its own, to standard error.
void print_error(const Error& error);

}  // namespace sigma
