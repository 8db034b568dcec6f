// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "cli/attach_options.h"

#include <fmt/format.h>

#include <pwd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <utility>

#include "cli/parse.h"
#include "trace/trace_writer.h"

namespace sigma {
namespace {

constexpr const char* kExamples = R"(EXAMPLES
  sudo sigmatrace attach --pid 4711 -o ops.csv
      One CSV row for each operation, until the process ends or Ctrl-C.
  sudo sigmatrace attach --pid 4711 --duration 10s -o - | head
      The first rows of ten seconds.
  sudo sigmatrace attach --pid 4711 -o trace --max-size 2G
      A flight recorder: the newest 2 GiB, for report and export.
  sudo sigmatrace attach --pid $(pgrep -d, ib_write_bw) --budget off
      All of several processes, whatever it costs them; the summary only.
  sudo sigmatrace attach --all --duration 1m -o trace
      Whatever does RDMA on this machine in the next minute.
  sudo sigmatrace attach --comm python3 --uid alice -o ops.csv
      Alice's python3 processes, those that run and those to come.
)";

[[noreturn]] void refuse(std::string_view option, std::string_view text,
                         std::string_view expected) {
  throw CLI::ValidationError(std::string(option), fmt::format("'{}' is not {}", text, expected));
}

// An option whose text `parse` turns into a value.
template <typename Parse, typename Store>
CLI::Option* add_parsed(CLI::App& parser, const std::string& name, const Parse& parse,
                        const Store& store, const std::string& expected, const std::string& help) {
  return parser.add_option_function<std::string>(
      name,
      [=](const std::string& text) {
        const auto value = parse(text);
        if (!value) refuse(name, text, expected);
        store(*value);
      },
      help);
}

template <typename Enum>
CLI::Option* add_choice(CLI::App& parser, const std::string& name, Enum& target,
                        const std::vector<std::pair<std::string, Enum>>& choices,
                        const std::string& help) {
  const auto find = [choices](const std::string& text) -> std::optional<Enum> {
    for (const auto& [word, value] : choices)
      if (word == text) return value;
    return std::nullopt;
  };
  std::string words;
  for (const auto& [word, value] : choices) words += (words.empty() ? "" : "|") + word;
  return add_parsed(
             parser, name, find, [&target](Enum value) { target = value; }, "one of " + words, help)
      ->type_name(words);
}

// --budget: a percentage, or "off".
std::optional<std::optional<double>> parse_budget(std::string_view text) {
  if (text == "off") return std::optional<double>();
  const auto percent = parse_percent(text);
  if (!percent) return std::nullopt;
  return percent;
}

// --uid: a number, or a user's name.
std::optional<uid_t> parse_user(std::string_view text) {
  uid_t uid = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), uid);
  if (parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size()) return uid;
  const passwd* user = getpwnam(std::string(text).c_str());
  return user ? std::optional(user->pw_uid) : std::nullopt;
}

std::optional<std::string> parse_comm(std::string_view text) {
  // The kernel keeps 15 bytes of a name; more could match nothing.
  return !text.empty() && text.size() <= 15 ? std::optional(std::string(text)) : std::nullopt;
}

std::optional<uint64_t> parse_ring(std::string_view text) {
  const auto bytes = parse_size(text);
  return bytes && *bytes >= kMinRingBytes && *bytes <= kMaxRingBytes ? bytes : std::nullopt;
}

std::optional<uint64_t> parse_trace_size(std::string_view text) {
  const auto bytes = parse_size(text);
  return bytes && *bytes >= kMinTraceSize ? bytes : std::nullopt;
}

// --hang-after: a duration, or "off".
std::optional<std::optional<uint64_t>> parse_hang(std::string_view text) {
  if (text == "off") return std::optional<uint64_t>();
  const auto ns = parse_duration(text);
  if (!ns) return std::nullopt;
  return ns;
}

void add_target_options(CLI::App& parser, AttachOptions& options) {
  parser.footer(kExamples);
  constexpr const char* kTarget = "What to trace";
  add_parsed(
      parser, "--pid", parse_pids,
      [&options](const std::vector<pid_t>& pids) {
        for (const pid_t pid : pids)
          if (std::find(options.pids.begin(), options.pids.end(), pid) == options.pids.end())
            options.pids.push_back(pid);
      },
      "a list of process ids", "running processes; those that use no RDMA yet are waited for")
      ->type_name("P[,P...]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->trigger_on_parse()
      ->group(kTarget);
  parser
      .add_flag("--all", options.all,
                "every process of this machine that does RDMA, running and to come")
      ->group(kTarget);
  add_parsed(
      parser, "--comm", parse_comm,
      [&options](std::string comm) { options.comm = std::move(comm); },
      "a name of at most 15 bytes, as `ps -o comm` shows it", "those with this command name")
      ->type_name("NAME")
      ->group(kTarget);
  parser
      .add_option("--cgroup", options.cgroup,
                  "those in this cgroup (version 2): a container, a job, a service")
      ->type_name("PATH")
      ->group(kTarget);
  add_parsed(
      parser, "--uid", parse_user, [&options](uid_t uid) { options.uid = uid; }, "a user",
      "those of this user; with the others it narrows them")
      ->type_name("USER")
      ->group(kTarget);
  parser
      .add_flag("--follow-forks", options.follow_forks,
                "trace children that the processes make as well")
      ->group(kTarget);
}

}  // namespace

bool writes_trace_directory(const AttachOptions& options) {
  return !options.output.empty() && options.output != "-" && !options.output.ends_with(".csv");
}

namespace {

void check_output(const AttachOptions& options) {
  if (options.max_size_bytes && !writes_trace_directory(options))
    throw CLI::ValidationError("--max-size", "bounds a trace directory: -o DIR is missing");
}

// What to trace is told, without contradiction; what was not given depends on that.
void check_targets(const CLI::App& parser, AttachOptions& options) {
  const bool conditions = !options.comm.empty() || !options.cgroup.empty();
  if (options.pids.empty() && !options.all && !conditions && !options.uid)
    throw CLI::RequiredError("--pid, --all, --comm, --cgroup or --uid");
  if (!options.pids.empty() && (options.all || conditions))
    throw CLI::ValidationError("--pid",
                               "names the processes: not together with --all, --comm or --cgroup");
  if (options.all && conditions)
    throw CLI::ValidationError("--all", "is every process: not together with --comm or --cgroup");
  const bool sweep = options.pids.empty() && !conditions;
  if (sweep && parser.count("--budget") == 0) options.budget_percent = kSweepBudgetPercent;
}

}  // namespace

void add_attach_options(CLI::App& parser, AttachOptions& options, bool of_running) {
  if (of_running) add_target_options(parser, options);
  parser.callback([&parser, &options, of_running] {
    check_output(options);
    if (of_running) check_targets(parser, options);
  });

  constexpr const char* kOutput = "Output";
  parser
      .add_option(
          "-o", options.output,
          "NAME.csv: a CSV file, with NAME.csv.meta.json beside it; `-`: CSV on standard output; "
          "anything else: a trace directory for report and export. Replaced if it is there. "
          "Without it: live totals and the summary")
      ->type_name("PATH")
      ->group(kOutput);
  add_parsed(
      parser, "--duration", parse_duration, [&options](uint64_t ns) { options.duration_ns = ns; },
      "a duration (10, 10s, 500ms, 2m)",
      "end after this time; without it at Ctrl-C, or with the last process")
      ->type_name("S")
      ->group(kOutput);

  add_parsed(
      parser, "--max-size", parse_trace_size,
      [&options](uint64_t bytes) { options.max_size_bytes = bytes; }, "a size from 4M",
      "flight recorder: keep the newest part of the trace directory within this size, all day long. It is "
      "marked at errors, hangs and SIGUSR1")
      ->type_name("BYTES")
      ->group(kOutput);
  add_parsed(
      parser, "--hang-after", parse_hang,
      [&options](std::optional<uint64_t> ns) { options.hang_ns = ns; }, "a duration, or off",
      "mark a trace directory when a queue pair has requests posted and none complete for this long "
      "(default 10s)")
      ->type_name("S|off")
      ->group(kOutput);

  constexpr const char* kMethod = "How to trace";
  using Posts = AttachOptions::Posts;
  using Completions = AttachOptions::Completions;
  add_choice<Posts>(parser, "--posts", options.posts,
                    {{"auto", Posts::automatic}, {"probe", Posts::probe}, {"ring", Posts::ring}},
                    "how posts are seen: by probes, or in the queues' memory (mlx5). auto: by probes, and "
                    "in memory what no probe sees")
      ->group(kMethod);
  add_choice<Completions>(
      parser, "--completions", options.completions,
      {{"auto", Completions::automatic},
       {"ring", Completions::ring},
       {"probe", Completions::probe},
       {"both", Completions::both},
       {"off", Completions::off}},
      "how completions are seen: in the queues' memory (mlx5), or by a probe on polls. auto: "
      "ring; both: in memory, and polls tell how long each lay in its queue before the job picked it up, which costs "
      "the job what probe does (a trap at each poll, also an empty one); off: operations end as unfinished")
      ->group(kMethod);
  parser
      .add_flag_callback(
          "--no-post-check", [&options] { options.check_posts = false; },
          "save the return probe of posts: refused posts may appear then, and all are marked "
          "unverified")
      ->group(kMethod);

  constexpr const char* kCost = "Cost";
  add_parsed(
      parser, "--budget", parse_budget,
      [&options](std::optional<double> percent) { options.budget_percent = percent; },
      "a percentage above 0 and up to 100, or off",
      "the most that probes may cost each process, in percent of a core (default 10; 2 with --all, or --uid "
      "alone). Beyond it tracing pauses, and says so; off never pauses")
      ->type_name("PERCENT|off")
      ->group(kCost);
  add_parsed(
      parser, "--observer-cpu", parse_percent,
      [&options](double percent) { options.observer_cpu_percent = percent; },
      "a percentage above 0 and up to 100",
      "the most that reading queues in memory may take, in percent of a core (default 30). Beyond it "
      "posts are counted and not read, and the coverage statement says so")
      ->type_name("PERCENT")
      ->group(kCost);
  add_parsed(
      parser, "--ring-size", parse_ring, [&options](uint64_t bytes) { options.ring_bytes = bytes; },
      "a size from 16K to 1G",
      "buffer between kernel and tracer (default 8M); raise it when records are dropped")
      ->type_name("BYTES")
      ->group(kCost);
}

}  // namespace sigma
