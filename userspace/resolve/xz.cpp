// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "resolve/xz.h"

#include <lzma.h>

#include <algorithm>
#include <memory>

namespace sigma {
namespace {

constexpr uint64_t kMaxWorkMemory = 64u << 20;
constexpr size_t kStep = 128u << 10;

struct EndStream {
  void operator()(lzma_stream* stream) const { lzma_end(stream); }
};

}  // namespace

Result<std::vector<std::byte>> unxz(std::span<const std::byte> packed, size_t max_bytes) {
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, kMaxWorkMemory, 0) != LZMA_OK)
    return Error{"no memory to unpack .xz data"};
  const std::unique_ptr<lzma_stream, EndStream> ended(&stream);
  stream.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  stream.avail_in = packed.size();

  std::vector<std::byte> out;
  for (;;) {
    // One byte beyond the limit tells a stream that ends there from one that goes on.
    const size_t done = out.size();
    const size_t room = std::min(kStep, max_bytes + 1 - done);
    out.resize(done + room);
    stream.next_out = reinterpret_cast<uint8_t*>(out.data() + done);
    stream.avail_out = room;
    const lzma_ret result = lzma_code(&stream, LZMA_FINISH);
    out.resize(done + room - stream.avail_out);
    if (out.size() > max_bytes) return Error{"the .xz data is larger than it may be when unpacked"};
    if (result == LZMA_STREAM_END) return out;
    if (result != LZMA_OK || out.size() == done)
      return Error{result == LZMA_MEMLIMIT_ERROR ? "the .xz data needs too much memory to unpack"
                                                 : "the .xz data is damaged"};
  }
}

}  // namespace sigma
