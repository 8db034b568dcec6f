// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A trace folder copied record by record: what was torn or damaged stays behind, and the copy says so.
#pragma once

#include <string>

#include "base/result.h"
#include "trace/trace_reader.h"

namespace sigma {

// `output`: the new folder, as TraceWriter::create takes it. Fails where that or finish() fails.
Status copy_trace(TraceReader& reader, const std::string& output);

}  // namespace sigma
