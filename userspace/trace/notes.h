// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Notes: records that only a trace holds. They answer what Session asks its surroundings while it
// runs (the device behind a uverbs node, the name of a process), and carry what report needs beside
// operations. Same header, same table (schema.h) as the records of bpf/records.h; never given to
// Session.
//
// A note's h.time_ns is the order time of the record before it, so that a replay which has reached
// that record knows the answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bpf/records.h"

namespace sigma {

// Apart from enum sigma_record_type, which grows from 1.
enum NoteType : uint16_t {
  kNoteDevice = 0x4000,
  kNoteComm,
  kNoteFact,
  kNoteMark,
  kNoteCounter,
  kNoteTypesEnd,
};

// Session's device_of_node(rdev) answered this.
struct NoteDevice {
  sigma_header h;
  uint32_t rdev;
  uint32_t reserved;
  char device[64];
};
SIGMA_SIZE(NoteDevice, 96);

// Session's comm_of(pid) answered this.
struct NoteComm {
  sigma_header h;
  uint32_t of_pid;
  uint32_t reserved;
  char comm[16];
};
SIGMA_SIZE(NoteComm, 48);

// One fact of a process by an allow-list, never the whole environment: "slurm_job_id", "rank",
// "cgroup", "container".
struct NoteFact {
  sigma_header h;
  uint32_t of_pid;
  uint32_t reserved;
  char key[32];
  char value[256];
};
SIGMA_SIZE(NoteFact, 320);

enum MarkReason : uint32_t { kMarkUser = 1, kMarkError, kMarkHang };

// "Look here": for a recorder that runs all day.
struct NoteMark {
  sigma_header h;
  uint32_t reason;  // MarkReason
  uint32_t reserved;
  char text[64];
};
SIGMA_SIZE(NoteMark, 96);

// A sample of a port's counter in sysfs, as it reads there: cumulative.
struct NoteCounter {
  sigma_header h;
  uint64_t value;
  uint32_t port;
  uint32_t reserved;
  char device[64];
  char counter[48];
};
SIGMA_SIZE(NoteCounter, 152);

std::string_view name_of(MarkReason reason);  // "user", "error", "hang"; "" for unknown ones

}  // namespace sigma
