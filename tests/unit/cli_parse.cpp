// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "cli/parse.h"

#include <CLI/CLI.hpp>

#include "catch.h"
#include "cli/attach_options.h"

using namespace sigma;

namespace {

// The options of a command line, or nothing when the parser refuses it.
std::optional<AttachOptions> parsed(std::vector<std::string> words) {
  AttachOptions options;
  CLI::App app;
  add_attach_options(app, options);
  std::reverse(words.begin(), words.end());  // what CLI11 wants
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError&) {
    return std::nullopt;
  }
  return options;
}

}  // namespace

TEST_CASE("durations have units, and a bare number is seconds") {
  CHECK(parse_duration("10") == 10'000'000'000u);
  CHECK(parse_duration("1.5s") == 1'500'000'000u);
  CHECK(parse_duration("500ms") == 500'000'000u);
  CHECK(parse_duration("2m") == 120'000'000'000u);
  CHECK(parse_duration("1h") == 3'600'000'000'000u);
  for (const char* bad : {"", "0", "-1", "s", "1 s", "1d", "inf", "nan", "1e3", "0x10",
                          "99999999999999999999h", "1s1"}) {
    INFO(bad);
    CHECK_FALSE(parse_duration(bad));
  }
}

TEST_CASE("sizes are in powers of 1024") {
  CHECK(parse_size("65536") == 65'536u);
  CHECK(parse_size("64K") == 65'536u);
  CHECK(parse_size("8MiB") == 8u << 20);
  CHECK(parse_size("1G") == 1u << 30);
  for (const char* bad : {"", "-1", "8m", "8MB", "K", "1T", "999999999999G"}) {
    INFO(bad);
    CHECK_FALSE(parse_size(bad));
  }
}

TEST_CASE("process ids are a list of positive numbers, each kept once") {
  CHECK(parse_pids("1") == std::vector<pid_t>{1});
  CHECK(parse_pids("12,13,12") == std::vector<pid_t>{12, 13});
  for (const char* bad :
       {"", ",", "1,", ",1", "0", "-1", "1 2", "x", "1x", "4194305", "99999999999"}) {
    INFO(bad);
    CHECK_FALSE(parse_pids(bad));
  }
}

TEST_CASE("attach takes its options, and has the documented defaults") {
  const auto plain = parsed({"--pid", "5"});
  REQUIRE(plain);
  CHECK(plain->pids == std::vector<pid_t>{5});
  CHECK(plain->output.empty());
  CHECK_FALSE(plain->duration_ns);
  CHECK_FALSE(plain->follow_forks);
  CHECK(plain->check_posts);
  CHECK(plain->budget_percent == 10);
  CHECK(plain->ring_bytes == 8u << 20);

  const auto full = parsed({"--pid", "5,6", "--pid", "7", "-o", "-", "--duration", "2s",
                            "--follow-forks", "--no-post-check", "--posts", "probe",
                            "--completions", "off", "--budget", "off", "--ring-size", "16K"});
  REQUIRE(full);
  CHECK(full->pids == std::vector<pid_t>{5, 6, 7});
  CHECK(full->output == "-");
  CHECK(full->duration_ns == 2'000'000'000u);
  CHECK(full->follow_forks);
  CHECK_FALSE(full->check_posts);
  CHECK(full->posts == AttachOptions::Posts::probe);
  CHECK(full->completions == AttachOptions::Completions::off);
  CHECK_FALSE(full->budget_percent);
  CHECK(full->ring_bytes == 16'384);

  const auto percent = parsed({"--pid", "5", "--budget", "2.5%"});
  REQUIRE(percent);
  CHECK(percent->budget_percent == 2.5);
}

TEST_CASE("attach refuses what it cannot mean") {
  const std::vector<std::vector<std::string>> lines{
      {},
      {"--pid"},
      {"--pid", "abc"},
      {"--pid", "0"},
      {"--pid", "5", "extra"},
      {"--pid", "5", "--bogus"},
      {"--pid", "5", "--duration", "soon"},
      {"--pid", "5", "--posts", "magic"},
      {"--pid", "5", "--completions", "nic"},
      {"--pid", "5", "--budget", "0"},
      {"--pid", "5", "--budget", "101"},
      {"--pid", "5", "--ring-size", "15K"},
      {"--pid", "5", "--ring-size", "2G"},
  };
  for (const auto& line : lines) {
    INFO(line.size() << " words, last: " << (line.empty() ? "" : line.back()));
    CHECK_FALSE(parsed(line));
  }
}
