// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Function ranges from the unwind tables, which survive every strip. .eh_frame_hdr has a sorted
// table of (start, FDE); where a linker left it out, .eh_frame is walked. Format: LSB 5.0,
// chapter 10.6.
#include <algorithm>

#include "resolve/elf_parts.h"

namespace sigma {
namespace {

constexpr uint8_t kAbsolute = 0x00, kUdata4 = 0x03, kUdata8 = 0x04, kSdata4 = 0x0b, kSdata8 = 0x0c;
constexpr uint8_t kRelativeToPlace = 0x10, kRelativeToHeader = 0x30, kIndirect = 0x80;
constexpr uint8_t kFormatMask = 0x0f, kBaseMask = 0x70;
constexpr size_t kMaxFunctions = 4u << 20;

// Skips one LEB128 number; false at the end of the data.
bool skip_leb(std::span<const std::byte>& data) {
  for (size_t i = 0; i < data.size() && i < 10; ++i)
    if ((data[i] & std::byte{0x80}) == std::byte{0}) {
      data = data.subspan(i + 1);
      return true;
    }
  return false;
}

}  // namespace

void ElfFrames::parse() {
  if (!parse_table()) parse_linear();
  auto& functions = file_.functions_;
  std::sort(functions.begin(), functions.end(), [](const FunctionRange& a, const FunctionRange& b) {
    return a.start != b.start ? a.start < b.start : a.size > b.size;
  });
  auto duplicates = std::unique(
      functions.begin(), functions.end(),
      [](const FunctionRange& a, const FunctionRange& b) { return a.start == b.start; });
  functions.erase(duplicates, functions.end());
}

bool ElfFrames::parse_table() {
  auto header = file_.at(file_.frame_header_, std::min<uint64_t>(file_.frame_header_size_, 12));
  if (header.size() < 12 || header[0] != std::byte{1}) return false;
  auto frame_encoding = std::to_integer<uint8_t>(header[1]);
  // All linkers write a 4-byte count and a table of header-relative 4-byte pairs, or no table.
  if ((frame_encoding & kFormatMask) != kSdata4 || header[2] != std::byte{kUdata4} ||
      header[3] != std::byte{kRelativeToHeader | kSdata4})
    return false;
  uint32_t count;
  std::memcpy(&count, header.data() + 8, sizeof count);
  auto table = file_.from(file_.frame_header_ + 12);
  uint64_t entries = std::min<uint64_t>({count, table.size() / 8, kMaxFunctions});
  for (uint64_t i = 0; i < entries; ++i) {
    int32_t frame;
    std::memcpy(&frame, table.data() + i * 8 + 4, sizeof frame);
    add_entry(file_.frame_header_ + static_cast<uint64_t>(int64_t{frame}));
  }
  return !file_.functions_.empty();
}

void ElfFrames::parse_linear() {
  const Section* frames = file_.section(".eh_frame");
  if (!frames) return;
  uint64_t at = frames->address, end = frames->address + frames->size;
  for (size_t budget = kMaxFunctions; at < end && budget; --budget) {
    auto next = add_entry(at);
    if (!next || *next <= at) return;
    at = *next;
  }
}

// Adds the FDE at `address` (a CIE adds nothing); gives the next entry's address.
std::optional<uint64_t> ElfFrames::add_entry(uint64_t address) {
  auto length = file_.read<uint32_t>(address);
  auto cie_distance = file_.read<uint32_t>(address + 4);
  if (!length || !cie_distance || *length < 4 || *length >= 0xfffffff0) return std::nullopt;
  uint64_t next = address + 4 + *length;
  if (*cie_distance == 0) return next;
  auto encoding = pointer_encoding(address + 4 - *cie_distance);
  if (!encoding) return next;
  uint64_t size_of_start = 0, size_of_range = 0;
  auto start = pointer(address + 8, *encoding, &size_of_start);
  auto range = pointer(address + 8 + size_of_start, *encoding & kFormatMask, &size_of_range);
  if (start && range && *range != 0 && file_.executable(*start) &&
      !file_.at(*start, *range).empty())
    file_.functions_.push_back({*start, *range});
  return next;
}

// The 'R' of a CIE's augmentation: how its FDEs write addresses.
std::optional<uint8_t> ElfFrames::pointer_encoding(uint64_t cie) {
  if (cie == last_cie_ && last_encoding_) return last_encoding_;
  auto length = file_.read<uint32_t>(cie);
  auto id = file_.read<uint32_t>(cie + 4);
  if (!length || !id || *id != 0 || *length < 8 || *length > 4096) return std::nullopt;
  auto body = file_.at(cie + 8, *length - 4);
  if (body.empty()) return std::nullopt;
  auto version = std::to_integer<uint8_t>(body[0]);
  std::string_view augmentation = string_at(body, 1);
  if ((version != 1 && version != 3) || 2 + augmentation.size() > body.size()) return std::nullopt;
  body = body.subspan(2 + augmentation.size());

  uint8_t encoding = kAbsolute;
  if (!augmentation.empty()) {
    if (augmentation[0] != 'z') return std::nullopt;
    if (!skip_leb(body) || !skip_leb(body)) return std::nullopt;             // alignment factors
    if (version == 1 ? body.empty() : !skip_leb(body)) return std::nullopt;  // return register
    if (version == 1) body = body.subspan(1);
    if (!skip_leb(body)) return std::nullopt;  // augmentation length
    for (char letter : augmentation.substr(1)) {
      if (letter == 'S' || letter == 'B') continue;  // signal frame, AArch64 key: no data
      if (body.empty()) return std::nullopt;
      auto byte = std::to_integer<uint8_t>(body[0]);
      body = body.subspan(1);
      if (letter == 'R') {
        encoding = byte;
        break;
      }
      if (letter == 'L') continue;
      if (letter != 'P') return std::nullopt;
      size_t personality = (byte & kFormatMask) == kUdata8 || (byte & kFormatMask) == kSdata8 ||
                                   (byte & kFormatMask) == kAbsolute
                               ? 8
                               : 4;
      if (body.size() < personality) return std::nullopt;
      body = body.subspan(personality);
    }
  }
  last_cie_ = cie;
  last_encoding_ = encoding;
  return encoding;
}

std::optional<uint64_t> ElfFrames::pointer(uint64_t address, uint8_t encoding,
                                           uint64_t* length) const {
  uint64_t value = 0;
  switch (encoding & kFormatMask) {
    case kSdata4:
    case kUdata4: {
      auto word = file_.read<uint32_t>(address);
      if (!word) return std::nullopt;
      bool extend = (encoding & kFormatMask) == kSdata4;
      value = extend ? static_cast<uint64_t>(int64_t{static_cast<int32_t>(*word)}) : *word;
      *length = 4;
      break;
    }
    case kAbsolute:
    case kUdata8:
    case kSdata8: {
      auto word = file_.read<uint64_t>(address);
      if (!word) return std::nullopt;
      value = *word;
      *length = 8;
      break;
    }
    default:
      return std::nullopt;
  }
  if (encoding & kIndirect) return std::nullopt;
  switch (encoding & kBaseMask) {
    case kAbsolute:
      return value;
    case kRelativeToPlace:
      return address + value;
    case kRelativeToHeader:
      return file_.frame_header_ + value;
    default:
      return std::nullopt;
  }
}

}  // namespace sigma
