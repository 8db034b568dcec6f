// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "cli/attach_session.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "attach/capabilities.h"
#include "attach/probe_table.h"
#include "attach/process_facts.h"
#include "attach/rdma_sysfs.h"
#include "base/clock.h"
#include "base/terminal.h"
#include "output/coverage.h"

namespace sigma {
namespace {

constexpr uint64_t kFlushEveryNs = 250'000'000;
constexpr uint64_t kLiveEveryNs = 1'000'000'000;
constexpr uint64_t kLookEveryNs = 1'000'000'000;  // at hangs and ports' counters
constexpr size_t kMaxProcessesWithFacts = 1 << 16;

std::vector<std::string> own_command_line() {
  std::ifstream in("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
  return words;
}

// For tests of loss: a reader that is made slow on purpose.
std::chrono::milliseconds drain_delay() {
  const char* text = std::getenv("SIGMATRACE_DRAIN_DELAY_MS");
  return std::chrono::milliseconds(text != nullptr ? std::clamp(std::atoi(text), 0, 10'000) : 0);
}

LibraryInfo describe(const TracedLibrary& library) {
  LibraryInfo info{library.plan->name, library.mapped_as, library.plan->build_id, {}, {}};
  for (const AttachedProbe& probe : library.report.attached) {
    ProbeInfo row{std::string(to_string(probe.function)),
                  "",
                  "",
                  std::string(to_string(probe.form)),
                  probe.file_offset,
                  0,
                  probe.at_return};
    for (const ResolvedFunction& function : library.plan->functions) {
      for (const ProbeSite* site : {&function.site, &function.return_site}) {
        if (function.function != probe.function || site->file_offset != probe.file_offset) continue;
        row.route = route_name(function.route);
        row.instruction = site->instruction;
        row.expected_ns = site->expected_ns;
      }
    }
    info.probes.push_back(std::move(row));
  }
  for (const UnresolvedFunction& function : library.plan->unresolved)
    info.uncovered.push_back({std::string(to_string(function.function)), function.reason});
  for (const FailedProbe& probe : library.report.failed)
    info.uncovered.push_back({std::string(to_string(probe.function)), probe.reason});
  return info;
}

// As readable events: those that end the trace, and the one that marks it.
Result<Fd> open_signals() {
  sigset_t set = AttachSession::ending_signals();
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  Fd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return Error{"cannot wait for signals: " + errno_text(errno)};
  return fd;
}

}  // namespace

Status AttachSession::check() {
  SIGMA_ASSIGN(const CapabilitySet held, effective_capabilities());
  SIGMA_CHECK(require_capabilities(held));
  const Features features = Features::probe();
  SIGMA_CHECK(require_features(features));
  SIGMA_ASSIGN(signals_, open_signals());
  features_ = features;
  return {};
}

sigset_t AttachSession::ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

bool AttachSession::signal_waits() {
  const sigset_t ours = ending_signals();
  sigset_t pending;
  sigpending(&pending);
  sigandset(&pending, &pending, &ours);
  return !sigisemptyset(&pending);
}

Result<int> AttachSession::run() {
  SIGMA_CHECK(check_processes());
  if (!features_) SIGMA_CHECK(check());
  if (selection()) {
    SIGMA_ASSIGN(NodeLock lock, NodeLock::take());
    lock_.emplace(std::move(lock));
  }
  SIGMA_CHECK(open_outputs());

  SIGMA_ASSIGN(tracer_, Tracer::start(
                            tracer_options(), *features_,
                            [this](std::span<const std::byte> record) { on_record(record); },
                            [this](std::string_view line) { screen_.say(line); }));
  SIGMA_CHECK(limit_capabilities(capabilities_while_tracing()));
  if (trace_notes_) trace_notes_->start();
  if (on_attached_) SIGMA_CHECK(on_attached_());
  const Status traced = trace();
  const Status ended = finish();
  SIGMA_CHECK(traced);
  SIGMA_CHECK(ended);
  return 0;
}

// Before any output is touched: a mistyped pid must not cost the last trace.
Status AttachSession::check_processes() const {
  for (const pid_t pid : options_.pids)
    if (kill(pid, 0) != 0 && errno == ESRCH)
      return Error{fmt::format("there is no process {}", pid), "`ps -e` shows what runs"};
  for (const pid_t pid : options_.pids)
    if (const auto uid = uid_of(pid); options_.uid && uid != options_.uid)
      return Error{fmt::format("process {} is not of user {}", pid, *options_.uid), "leave out --uid, or the process"};
  return {};
}

std::optional<Selection> AttachSession::selection() const {
  if (!options_.pids.empty()) return std::nullopt;
  return Selection{options_.comm, options_.cgroup, options_.uid};
}

TracerOptions AttachSession::tracer_options() const {
  TracerOptions options;
  options.pids = options_.pids;
  options.selection = selection();
  options.follow_forks = options_.follow_forks;
  options.check_posts = options_.check_posts;
  options.posts = options_.posts;
  options.completions = options_.completions;
  options.observer_cpu = options_.observer_cpu_percent / 100;
  options.ring_bytes = options_.ring_bytes;
  options.budget = options_.budget_percent.value_or(0) / 100;
  options.drain_delay = drain_delay();
  return options;
}

Status AttachSession::open_outputs() {
  info_.tool_version = SIGMA_VERSION;
  info_.command_line = own_command_line();
  info_.node = NodeInfo::read();
  info_.start_clock = sample_clocks();
  const UtcClock clock(info_.start_clock);
  summary_ = std::make_unique<SummarySink>(SummaryOptions{.clock = clock});
  std::vector<OperationSink*> sinks{summary_.get()};
  if (writes_trace_directory(options_)) {
    SIGMA_CHECK(open_trace_directory());
    sinks.push_back(trace_notes_.get());
  } else if (!options_.output.empty()) {
    SIGMA_ASSIGN(csv_, CsvSink::create(options_.output, {info_.node.node, clock}));
    sinks.push_back(csv_.get());
    if (csv_->has_side_file()) {
      SIGMA_ASSIGN(MetaFile meta, MetaFile::create(options_.output, info_));
      meta_ = std::move(meta);
    }
  }
  tee_ = std::make_unique<TeeSink>(std::move(sinks));
  session_ = std::make_unique<Session>(*tee_, session_options());
  return {};
}

// Opens every file of it now, before the capabilities go.
Status AttachSession::open_trace_directory() {
  TraceMeta meta;
  meta.info = info_;
  SIGMA_ASSIGN(trace_writer_, TraceWriter::create(options_.output, std::move(meta),
                                                  {.max_size_bytes = options_.max_size_bytes}));
  const bool sees_completions = options_.completions != AttachOptions::Completions::off;
  trace_notes_ = std::make_unique<TraceNotes>(
      *trace_writer_,
      TraceNotesOptions{.hang_ns = sees_completions ? options_.hang_ns.value_or(0) : 0,
                        .say = [this](std::string_view line) { screen_.say(line); }});
  return {};
}

// What the session asks of this machine goes into the trace as well, so that a replay need not.
SessionOptions AttachSession::session_options() {
  return {.limits = {},
          .device_of_node =
              [this](uint32_t rdev) {
                std::string name = device_names_.of_node(rdev);
                if (trace_writer_) trace_writer_->note_device(rdev, name);
                return name;
              },
          .comm_of =
              [this](uint32_t pid) {
                std::string name = tracer_ ? tracer_->name_of(static_cast<pid_t>(pid)) : std::string();
                if (trace_writer_) trace_writer_->note_comm(pid, name);
                return name;
              }};
}

// A process's environment is that of its exec; what it is asked for, before it may be gone.
void AttachSession::note_facts(const sigma_header& header) {
  const bool is_new = header.type == SIGMA_PROCESS || header.pid != last_pid_;
  if (!is_new || header.pid == 0) return;
  last_pid_ = header.pid;
  const auto known = info_.facts.find(header.pid);
  const bool again = header.type == SIGMA_PROCESS;
  if ((known != info_.facts.end() && !again) || info_.facts.size() >= kMaxProcessesWithFacts)
    return;
  ProcessFacts facts = process_facts(static_cast<pid_t>(header.pid));
  if (known != info_.facts.end() && (facts.empty() || facts == known->second)) return;
  if (trace_writer_)
    for (const auto& [key, value] : facts) trace_writer_->note_fact(header.pid, key, value);
  info_.facts[header.pid] = std::move(facts);
}

// The session first: its questions' answers then stand before the record that raised them.
void AttachSession::on_record(std::span<const std::byte> record) {
  note_facts(*reinterpret_cast<const sigma_header*>(record.data()));
  session_->on_record(record);
  if (trace_writer_) trace_writer_->on_record(record);
}

void AttachSession::flush_outputs() {
  if (csv_) csv_->flush();
  if (!trace_writer_) return;
  trace_writer_->note_dropped(totals().dropped);
  trace_writer_->flush();
}

std::optional<Error> AttachSession::output_error() const {
  if (csv_ && csv_->error()) return csv_->error();
  if (trace_writer_ && trace_writer_->error()) return trace_writer_->error();
  return std::nullopt;
}

// Whether it ends the trace.
bool AttachSession::on_signal() {
  signalfd_siginfo signal{};
  if (read(signals_.get(), &signal, sizeof signal) != sizeof signal) return false;
  if (signal.ssi_signo != SIGUSR1) {
    end_signal_ = static_cast<int>(signal.ssi_signo);
    return true;
  }
  if (trace_notes_)
    trace_notes_->mark_by_user();
  else
    screen_.say("SIGUSR1 marks a trace directory (-o DIR), and this output is none");
  return false;
}

// Until there is a reason to end; which one, info_.end_reason says.
Status AttachSession::trace() {
  const uint64_t start_ns = monotonic_now_ns();
  uint64_t flushed_ns = start_ns, shown_ns = start_ns, looked_ns = start_ns;
  while (info_.end_reason.empty()) {
    const auto interval = tracer_->interval();
    const timespec timeout{0, static_cast<long>(interval.count())};
    pollfd waiter{signals_.get(), POLLIN, 0};
    if (ppoll(&waiter, 1, &timeout, nullptr) > 0 && on_signal()) info_.end_reason = "interrupted";
    SIGMA_CHECK(tracer_->poll());
    const uint64_t now_ns = monotonic_now_ns();
    if (now_ns - flushed_ns >= kFlushEveryNs) {
      flush_outputs();
      flushed_ns = now_ns;
    }
    if (trace_notes_ && now_ns - looked_ns >= kLookEveryNs) {
      trace_notes_->look(*session_, now_ns);
      looked_ns = now_ns;
    }
    if (now_ns - shown_ns >= kLiveEveryNs) {
      screen_.live(totals(), now_ns);
      shown_ns = now_ns;
    }
    if (const auto error = output_error())
      info_.end_reason = "output failed: " + error->what;
    else if (tracer_->ended())
      info_.end_reason = "targets ended";
    else if (options_.duration_ns && now_ns - start_ns >= *options_.duration_ns)
      info_.end_reason = "duration";
  }
  return {};
}

LiveTotals AttachSession::totals() const {
  LiveTotals totals = summary_->totals();
  Counters counters;
  tracer_->add_to(counters);
  totals.dropped = counters.records_dropped;
  return totals;
}

Status AttachSession::finish() {
  tracer_->stop();
  session_->finish(monotonic_now_ns());
  if (csv_) csv_->finish();
  if (trace_notes_) trace_notes_->finish();
  if (trace_writer_) flush_outputs();
  info_.end_clock = sample_clocks();
  info_.complete = true;
  info_.processes = session_->processes();
  info_.queue_pairs = session_->queue_pairs();
  info_.completion_queues = session_->completion_queues();
  info_.memory_regions = session_->memory_regions();
  for (const TracedLibrary& library : tracer_->libraries())
    info_.libraries.push_back(describe(library));
  info_.counters = session_->counters();
  tracer_->add_to(info_.counters);
  if (csv_) {
    info_.counters.rows_written = csv_->rows_written();
    info_.counters.rows_lost = csv_->rows_lost();
  }
  if (trace_writer_) info_.counters.trace_overwritten = trace_writer_->records_overwritten();
  info_.remarks = tracer_->statements();
  for (std::string& line : ring_statements(info_.queue_pairs)) info_.remarks.push_back(std::move(line));
  Status written;
  if (meta_) written = meta_->write(info_);
  if (trace_writer_) {
    Counters attacher;
    tracer_->add_to(attacher);
    trace_writer_->note_dropped(attacher.records_dropped);
    written = trace_writer_->finish(info_, attacher);
  }

  screen_.clear();
  const SummaryContext context{
      .counters = info_.counters,
      .remarks = info_.remarks,
      .duration_ns = info_.end_clock->monotonic_ns - info_.start_clock.monotonic_ns,
      .colour = style_for(STDERR_FILENO).colour};
  put(stderr, summary_->text(context));
  if (const auto error = output_error()) return *error;
  return written;
}

}  // namespace sigma
