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
#include "trace/packet_decoder.h"
#include "trace/trace_dir.h"

namespace sigma {
namespace {

constexpr off_t kMaxMetaBytes = 256 << 20;
constexpr size_t kMaxDescriptions = 16;
constexpr const char* kWhichFolder = "name the folder that `sigmatrace attach -o DIR` wrote";

Error cannot_read(const std::string& path, int errnum) {
  if (errnum == ENOTDIR)
    return {fmt::format("{} is not a trace: traces are folders", path), kWhichFolder};
  Error error{fmt::format("cannot read the trace {}: {}", path, errno_text(errnum))};
  if (errnum == ENOENT) error.hint = kWhichFolder;
  if (errnum == EACCES) error.hint = "traces are readable by the user who recorded them only";
  return error;
}

Result<std::string> read_file(int folder, const char* name, const std::string& path) {
  const Fd fd(openat(folder, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!fd && errno == ENOENT)
    return Error{fmt::format("{} is not a trace: there is no {} in it", path, name), kWhichFolder};
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

}  // namespace

// Goes through a file's events.
class TraceReader::Cursor {
 public:
  Cursor(TraceReader& reader, PacketDecoder& decoder, size_t number)
      : reader_(reader), decoder_(decoder), number_(number) {
    next_packet();
  }

  bool at_end() const { return packet_ == nullptr; }
  const DecodedEvent& event() const { return packet_->events[index_]; }
  void next() {
    if (++index_ == packet_->events.size()) next_packet();
  }

 private:
  void next_packet();

  TraceReader& reader_;
  PacketDecoder& decoder_;
  size_t number_;  // of the file
  std::unique_ptr<DecodedPacket> packet_;
  size_t index_ = 0;
  uint64_t last_ns_ = 0, next_sequence_ = 0;
};

// What is wrong with a packet is told when its sound part is done.
void TraceReader::Cursor::next_packet() {
  const File& file = reader_.files_[number_];
  for (;;) {
    if (packet_) {
      if (!packet_->damage.empty()) reader_.damaged(file, packet_->damaged_bytes, packet_->damage);
      if (!packet_->events.empty()) {
        last_ns_ = packet_->events.back().timestamp_ns;
        next_sequence_ = packet_->events.back().sequence + 1;
      }
    }
    packet_ = decoder_.take(number_, std::move(packet_));
    index_ = 0;
    if (!packet_) return;
    if (packet_->events.empty()) continue;
    const DecodedEvent& first = packet_->events.front();
    if (first.timestamp_ns >= last_ns_ && first.sequence >= next_sequence_) return;
    packet_->events.clear();
    packet_->damaged_bytes = packet_->encoded_bytes;
    packet_->damage = "a damaged packet";
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
  for (File& file : reader->files_) reader->index(file);
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

void TraceReader::index(File& file) {
  StreamIndex index = index_stream(file.bytes, meta_.uuid);
  file.sound = std::move(index.sound);
  for (const StreamIndex::Damage& damage : index.damages) damaged(file, damage.bytes, damage.what);
  damage_.discarded += index.discarded;
  discards_.insert(discards_.end(), index.discards.begin(), index.discards.end());
  cpus_ = std::max(cpus_, index.cpus);
  if (index.first_ns) first_ns_ = first_ns_ ? std::min(first_ns_, index.first_ns) : index.first_ns;
  last_ns_ = std::max(last_ns_, index.last_ns);
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

void TraceReader::replay(TraceVisitor& visitor, unsigned threads) {
  damage_ = indexed_;
  std::vector<PacketSource> sources;
  for (const File& file : files_) sources.emplace_back(file.sound, meta_.uuid);
  PacketDecoder decoder(std::move(sources), threads);
  std::vector<std::unique_ptr<Cursor>> cursors;
  struct Head {
    uint64_t sequence;
    Cursor* cursor;
    bool operator>(const Head& other) const { return sequence > other.sequence; }
  };
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
  for (size_t i = 0; i < files_.size(); ++i) {
    cursors.push_back(std::make_unique<Cursor>(*this, decoder, i));
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
      const DecodedEvent& event = cursor.event();
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
