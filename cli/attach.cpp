// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// sigmatrace attach: trace running processes to CSV and a summary.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/attach_options.h"
#include "cli/attach_session.h"
#include "cli/commands.h"

namespace sigma {

Command add_attach(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("attach", "Trace running processes, and what they start");
  auto options = std::make_shared<AttachOptions>();
  add_attach_options(*parser, *options);
  return {parser, [options] { return AttachSession(*options).run(); }};
}

}  // namespace sigma
