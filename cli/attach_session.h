// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// AttachSession: one trace of running processes, from their ids to the summary.
//
//   return AttachSession(options).run();
//
// The order is that of the file: check what may fail before anything is touched, open the outputs
// as the calling user, attach, give up what is no longer needed, then turn records into rows until
// there is a reason to end. Ending is one path, whatever the reason: probes out, ring drained,
// pending operations closed, outputs completed.
//
// Used once, by one thread, which loses the capabilities that tracing does not need.
#pragma once

#include <signal.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "attach/features.h"
#include "attach/node_lock.h"
#include "attach/rdma_sysfs.h"
#include "attach/tracer.h"
#include "base/fd.h"
#include "base/result.h"
#include "cli/attach_options.h"
#include "cli/screen.h"
#include "cli/trace_notes.h"
#include "output/csv.h"
#include "output/meta.h"
#include "output/summary.h"
#include "output/tee.h"
#include "session/session.h"
#include "trace/trace_writer.h"

namespace sigma {

class AttachSession {
 public:
  // The options must outlive the session; run() reads them. `on_attached` is called once, when the
  // probes are in: for callers that hold their processes back until then.
  explicit AttachSession(const AttachOptions& options,
                         std::function<Status()> on_attached = nullptr)
      : options_(options), on_attached_(std::move(on_attached)) {}

  // Privileges and kernel, at once and touching nothing. From here on SIGINT, SIGTERM and SIGHUP
  // wait for run(), which ends by them. run() does it where the caller did not.
  Status check();
  // One of those signals has come, and run() has not yet seen it.
  static bool signal_waits();
  static sigset_t ending_signals();

  Result<int> run();  // the exit status

  // Why it ended: "interrupted", "targets ended", "duration", "output failed: ...".
  const std::string& end_reason() const { return info_.end_reason; }
  // The signal by which it was interrupted; 0: none.
  int end_signal() const { return end_signal_; }

 private:
  Status check_processes() const;
  std::optional<Selection> selection() const;
  TracerOptions tracer_options() const;
  Status open_outputs();
  Status open_trace_directory();
  void note_facts(const sigma_header& header);
  bool on_signal();
  SessionOptions session_options();
  void on_record(std::span<const std::byte> record);
  void flush_outputs();
  std::optional<Error> output_error() const;
  Status trace();
  LiveTotals totals() const;
  Status finish();

  const AttachOptions& options_;
  std::function<Status()> on_attached_;
  std::optional<Features> features_;
  std::optional<NodeLock> lock_;  // of a system-wide trace
  Screen screen_;
  Fd signals_;
  int end_signal_ = 0;
  TraceInfo info_;
  std::unique_ptr<CsvSink> csv_;
  std::optional<MetaFile> meta_;
  std::unique_ptr<TraceWriter> trace_writer_;
  std::unique_ptr<TraceNotes> trace_notes_;
  uint32_t last_pid_ = 0;  // whose facts are known
  std::unique_ptr<SummarySink> summary_;
  std::unique_ptr<TeeSink> tee_;
  DeviceNames device_names_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Tracer> tracer_;
};

}  // namespace sigma
