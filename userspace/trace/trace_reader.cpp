// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "trace/trace_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <queue>

#include "base/fd.h"
#include "trace/trace_dir.h"

namespace sigma {
namespace {

constexpr off_t kMaxMetaBytes = 256 << 20;
constexpr size_t kMaxDescriptions = 16;
constexpr size_t kMaxDiscards = 1 << 16;
constexpr uint32_t kMaxCpus = 8192;  // of Linux

Error cannot_read(const std::string& path, int errnum) {
  Error error{fmt::format("cannot read the trace {}: {}", path, errno_text(errnum))};
  if (errnum == ENOENT || errnum == ENOTDIR)
    error.hint = "name the folder that `sigmatrace attach -o DIR` wrote";
  if (errnum == EACCES) error.hint = "traces are readable by the user who recorded them only";
  return error;
}

Result<std::string> read_file(int folder, const char* name, const std::string& path) {
  const Fd fd(openat(folder, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0) return cannot_read(path, errno);
  if (!S_ISREG(info.st_mode) || info.st_size > kMaxMetaBytes)
    return Error{fmt::format("{}/{} is not that of a trace", path, name)};
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = read(fd.get(), text.data() + done, text.size() - done);
    if (count < 0) return cannot_read(path, errno);
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

// Why these bytes are not the beginning of a packet; nullptr: they are.
const char* reject(std::span<const std::byte> bytes, const Uuid& uuid, PacketHead* head) {
  if (bytes.size() < sizeof *head) return "torn";
  std::memcpy(head, bytes.data(), sizeof *head);
  if (head->magic != kCtfMagic) return "no packet begins here";
  if (head->uuid != uuid) return "belongs to another trace";
  if (head->stream_id != kStreamCpu && head->stream_id != kStreamControl) return "unknown stream";
  const uint64_t size = head->packet_bits / 8;
  if (head->packet_bits % 8 || head->content_bits != head->packet_bits || size < sizeof *head)
    return "impossible size";
  if (size > bytes.size()) return "torn";
  if (head->timestamp_end < head->timestamp_begin) return "ends before it begins";
  if (head->events > (size - sizeof *head) / sizeof(EventHead)) return "impossible count of events";
  return nullptr;
}

}  // namespace

// Goes through a file's events. What is wrong ends the packet.
class TraceReader::Cursor {
 public:
  Cursor(TraceReader& reader, const File& file) : reader_(reader), file_(file) { next(); }

  bool at_end() const { return ended_; }
  const Event& event() const { return event_; }
  void next();

 private:
  bool begin_packet();

  TraceReader& reader_;
  const File& file_;
  size_t next_region_ = 0;             // in file_.sound
  std::span<const std::byte> region_;  // what is left of the one before
  Packet packet_{};
  bool in_packet_ = false, ended_ = false;
  size_t offset_ = 0;    // of the next event in the packet
  uint64_t events_ = 0;  // taken from it
  uint64_t last_ns_ = 0;
  bool any_ = false;
  Event event_;
  std::unique_ptr<RecordBuffer> buffer_ = std::make_unique<RecordBuffer>();
};

// Heads are looked at again, rather than kept: memory must not grow with the trace.
bool TraceReader::Cursor::begin_packet() {
  for (;;) {
    if (region_.empty()) {
      if (next_region_ == file_.sound.size()) return false;
      region_ = file_.sound[next_region_++];
    }
    PacketHead head;
    if (reject(region_, reader_.meta_.uuid, &head)) {
      reader_.damaged(file_, region_.size(), "changed while it was read");
      region_ = {};
      continue;
    }
    const size_t size = head.packet_bits / 8;
    packet_ = {region_.subspan(sizeof head, size - sizeof head), head.timestamp_begin,
               head.timestamp_end, head.events};
    region_ = region_.subspan(size);
    offset_ = 0;
    events_ = 0;
    return true;
  }
}

void TraceReader::Cursor::next() {
  for (;; in_packet_ = false) {
    if (!in_packet_ && !begin_packet()) {
      ended_ = true;
      return;
    }
    in_packet_ = true;
    const auto rest = packet_.events.subspan(offset_);
    if (rest.empty() && events_ == packet_.count) continue;
    const auto event = read_event(rest, *buffer_);
    const bool sound = event && events_ < packet_.count &&
                       event->timestamp_ns >= packet_.begin_ns &&
                       event->timestamp_ns <= packet_.end_ns && event->timestamp_ns >= last_ns_ &&
                       (!any_ || event->sequence > event_.sequence);
    if (!sound) {
      reader_.damaged(file_, rest.size(), "a damaged packet");
      continue;
    }
    event_ = *event;
    last_ns_ = event->timestamp_ns;
    any_ = true;
    offset_ += event->encoded_bytes;
    ++events_;
    return;
  }
}

Result<std::unique_ptr<TraceReader>> TraceReader::open(const std::string& path) {
  const Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return cannot_read(path, errno);
  SIGMA_ASSIGN(const std::string text, read_file(folder.get(), "meta.json", path));
  std::unique_ptr<TraceReader> reader(new TraceReader);
  auto meta = parse_trace_meta(text);
  if (!meta.ok())
    return Error{fmt::format("cannot read the trace {}: {}", path, meta.error().what),
                 meta.error().hint};
  reader->meta_ = *std::move(meta);
  SIGMA_CHECK(reader->open_files(path + "/ctf"));
  for (File& file : reader->files_) reader->index_packets(file);
  reader->indexed_ = reader->damage_;
  return reader;
}

TraceReader::~TraceReader() {
  for (const File& file : files_)
    munmap(const_cast<std::byte*>(file.bytes.data()), file.bytes.size());
}

Status TraceReader::open_files(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(path.c_str()), closedir);
  if (!dir) return cannot_read(path, errno);
  while (const dirent* entry = readdir(dir.get())) {
    if (!is_stream_name(entry->d_name)) continue;
    const Fd fd(
        openat(dirfd(dir.get()), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat info {};
    if (!fd || fstat(fd.get(), &info) != 0)
      return cannot_read(fmt::format("{}/{}", path, entry->d_name), errno);
    if (!S_ISREG(info.st_mode) || info.st_size == 0) continue;
    const auto size = static_cast<size_t>(info.st_size);
    void* const bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (bytes == MAP_FAILED) return cannot_read(fmt::format("{}/{}", path, entry->d_name), errno);
    madvise(bytes, size, MADV_SEQUENTIAL);
    files_.push_back({entry->d_name, {static_cast<const std::byte*>(bytes), size}, {}});
  }
  std::sort(files_.begin(), files_.end(),
            [](const File& a, const File& b) { return a.name < b.name; });
  return {};
}

void TraceReader::index_packets(File& file) {
  std::optional<uint64_t> discarded;
  uint64_t discarded_ns = 0;
  size_t kept = 0;  // offset of what is sound and not yet in file.sound
  const auto keep_until = [&](size_t offset) {
    if (offset > kept) file.sound.push_back(file.bytes.subspan(kept, offset - kept));
  };
  for (auto rest = file.bytes; !rest.empty();) {
    PacketHead head;
    if (const char* reason = reject(rest, meta_.uuid, &head)) {
      // On to the next beginning of a packet: magic and uuid together occur nowhere else.
      std::byte mark[4 + sizeof(Uuid)];
      std::memcpy(mark, &kCtfMagic, 4);
      std::memcpy(mark + 4, meta_.uuid.data(), sizeof(Uuid));
      const auto next = std::search(rest.begin() + 1, rest.end(), std::begin(mark), std::end(mark));
      const auto skipped = static_cast<size_t>(next - rest.begin());
      const std::string_view what = reason;
      damaged(file, skipped,
              what == "torn" && next == rest.end() ? "a torn packet at its end" : what);
      keep_until(file.bytes.size() - rest.size());
      rest = rest.subspan(skipped);
      kept = file.bytes.size() - rest.size();
      continue;
    }
    const size_t size = head.packet_bits / 8;
    if (head.stream_id == kStreamCpu && head.cpu_id < kMaxCpus)
      cpus_ = std::max(cpus_, head.cpu_id + 1);
    if (discarded && head.events_discarded > *discarded) {
      const uint64_t count = head.events_discarded - *discarded;
      damage_.discarded += count;
      if (discards_.size() < kMaxDiscards)
        discards_.push_back({discarded_ns, head.timestamp_end, count});
    }
    discarded = std::max(discarded.value_or(0), head.events_discarded);
    discarded_ns = head.timestamp_end;
    first_ns_ = first_ns_ ? std::min(first_ns_, head.timestamp_begin) : head.timestamp_begin;
    last_ns_ = std::max(last_ns_, head.timestamp_end);
    rest = rest.subspan(size);
  }
  keep_until(file.bytes.size());
}

void TraceReader::damaged(const File& file, uint64_t bytes, std::string_view what) {
  damage_.skipped_bytes += bytes;
  if (damage_.descriptions.size() < kMaxDescriptions)
    damage_.descriptions.push_back(fmt::format("{}: {}: {} bytes skipped", file.name, what, bytes));
}

uint64_t TraceReader::bytes() const {
  uint64_t sum = 0;
  for (const File& file : files_) sum += file.bytes.size();
  return sum;
}

void TraceReader::replay(TraceVisitor& visitor) {
  damage_ = indexed_;
  std::vector<std::unique_ptr<Cursor>> cursors;
  struct Head {
    uint64_t sequence;
    Cursor* cursor;
    bool operator>(const Head& other) const { return sequence > other.sequence; }
  };
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
  for (const File& file : files_) {
    cursors.push_back(std::make_unique<Cursor>(*this, file));
    if (!cursors.back()->at_end())
      heads.push({cursors.back()->event().sequence, cursors.back().get()});
  }

  uint64_t expected = 0, absent = 0, last_ns = first_ns_;
  while (!heads.empty()) {
    Cursor& cursor = *heads.top().cursor;
    heads.pop();
    // A stream's events come in runs: no need to go through the queue for each.
    const uint64_t limit = heads.empty() ? UINT64_MAX : heads.top().sequence;
    do {
      const Event& event = cursor.event();
      if (event.sequence > expected) {
        absent += event.sequence - expected;
        visitor.on_hole(last_ns, event.timestamp_ns, event.sequence - expected);
      }
      if (event.sequence >= expected) {  // else a copy of a stream, which has nothing new to say
        expected = event.sequence + 1;
        last_ns = event.timestamp_ns;
        if (reinterpret_cast<const sigma_header*>(event.record.data())->type < SIGMA_RECORD_TYPES)
          visitor.on_record(event.record);
        else
          visitor.on_note(event.record);
      }
      cursor.next();
    } while (!cursor.at_end() && cursor.event().sequence < limit);
    if (!cursor.at_end()) heads.push({cursor.event().sequence, &cursor});
  }
  if (meta_.records > expected) absent += meta_.records - expected;
  (meta_.max_size_bytes ? damage_.overwritten : damage_.missing) += absent;
}

}  // namespace sigma
