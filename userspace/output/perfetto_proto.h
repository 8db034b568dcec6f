// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Protobuf's wire format, as far as Perfetto's trace needs it: varints, fixed 64-bit values,
// strings and nested messages, appended to a string. Encoding:
// protobuf.dev/programming-guides/encoding. Field numbers: perfetto's protos/perfetto/trace/
// trace_packet.proto, clock_snapshot.proto, track_event/*.proto, interned_data/interned_data.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sigma::proto {

inline void put_varint(std::string& out, uint64_t value) {
  // Most are of one byte. Others are put together first: each append looks for room.
  if (value < 0x80) {
    out += static_cast<char>(value);
    return;
  }
  char bytes[10];
  size_t count = 0;
  for (; value >= 0x80; value >>= 7) bytes[count++] = static_cast<char>(value | 0x80);
  bytes[count++] = static_cast<char>(value);
  out.append(bytes, count);
}

inline void put_uint(std::string& out, uint32_t field, uint64_t value) {
  put_varint(out, uint64_t{field} << 3);
  put_varint(out, value);
}

inline void put_fixed64(std::string& out, uint32_t field, uint64_t value) {
  put_varint(out, uint64_t{field} << 3 | 1);
  char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  out.append(bytes, sizeof bytes);
}

// A string, or a message that is already encoded.
inline void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_varint(out, uint64_t{field} << 3 | 2);
  put_varint(out, bytes.size());
  out += bytes;
}

// Trace
inline constexpr uint32_t kTracePacket = 1;
// TracePacket
inline constexpr uint32_t kClockSnapshot = 6, kTimestamp = 8, kSequenceId = 10, kTrackEvent = 11,
                          kInternedData = 12, kSequenceFlags = 13, kTimestampClock = 58,
                          kTrackDescriptor = 60;
inline constexpr uint64_t kStateCleared = 1, kNeedsState = 2;  // of sequence_flags
// ClockSnapshot and its Clock
inline constexpr uint32_t kClocks = 1, kPrimaryClock = 2, kClockId = 1, kClockTime = 2;
inline constexpr uint64_t kClockRealtime = 1, kClockMonotonic = 3, kClockBoottime = 6;
// TrackDescriptor, ProcessDescriptor, CounterDescriptor
inline constexpr uint32_t kUuid = 1, kTrackName = 2, kProcess = 3, kParentUuid = 5, kCounter = 8;
inline constexpr uint32_t kProcessPid = 1, kProcessName = 6;
inline constexpr uint32_t kCounterUnit = 3;
inline constexpr uint64_t kUnitCount = 2, kUnitBytes = 3;
// TrackEvent
inline constexpr uint32_t kCategoryIid = 3, kAnnotation = 4, kEventType = 9, kNameIid = 10,
                          kTrackUuid = 11, kCounterValue = 30, kFlowId = 47, kEndingFlowId = 48;
inline constexpr uint64_t kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounterEvent = 4;
// DebugAnnotation
inline constexpr uint32_t kAnnotationNameIid = 1, kAnnotationUint = 3, kAnnotationString = 6,
                          kAnnotationPointer = 7;
// InternedData; its messages are {iid, name}
inline constexpr uint32_t kInternedCategory = 1, kInternedName = 2, kInternedAnnotation = 3;
inline constexpr uint32_t kIid = 1, kInternedText = 2;

}  // namespace sigma::proto
