// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Libraries that a process loads after the watch began. Needs the privilege to watch (label
// native).
#include "attach/library_watch.h"

#include <linux/perf_event.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "catch.h"
#include "child_process.h"
#include "resolve/proc_maps.h"

using namespace sigma;

namespace {

LibraryWatch open_watch(const LibraryWatchOptions& options = {}) {
  auto watch = LibraryWatch::open(options);
  if (!watch.ok()) FAIL(watch.error().what);
  return *std::move(watch);
}

// The events of one process: others on this machine load libraries as well.
std::vector<LibraryEvent> events_of(LibraryWatch& watch, pid_t pid) {
  std::vector<LibraryEvent> events;
  watch.read([&](const LibraryEvent& event) {
    if (event.pid == pid) events.push_back(event);
  });
  return events;
}

std::vector<LibraryEvent> only_path(const std::vector<LibraryEvent>& events,
                                    const std::string& path) {
  std::vector<LibraryEvent> some;
  for (const LibraryEvent& event : events)
    if (event.path == path) some.push_back(event);
  return some;
}

struct stat stat_of(const char* path) {
  struct stat status {};
  REQUIRE(::stat(path, &status) == 0);
  return status;
}

bool is_readable(int fd) {
  pollfd poll_fd{fd, POLLIN, 0};
  return ::poll(&poll_fd, 1, 0) == 1;
}

}  // namespace

TEST_CASE("a library that a running process loads is reported with its inode") {
  ChildProcess child({SIGMA_LIBRARY_WATCH_TARGET});
  child.read_until("ready");
  LibraryWatch watch = open_watch();
  CHECK(events_of(watch, child.pid()).empty());

  child.say("load " SIGMA_WATCHED_LIBRARY);
  child.read_until("loaded");
  CHECK(is_readable(watch.fd()));
  auto events = only_path(events_of(watch, child.pid()), SIGMA_WATCHED_LIBRARY);
  REQUIRE(events.size() == 1);
  CHECK(events[0].inode == stat_of(SIGMA_WATCHED_LIBRARY).st_ino);
  CHECK(events[0].time_ns > 0);
  CHECK(events[0].build_id.empty());

  // The event is the mapping that maps shows.
  auto maps = read_maps(child.pid());
  REQUIRE(maps.ok());
  const Mapping* mapping = find_mapping(*maps, events[0].address);
  REQUIRE(mapping);
  CHECK(mapping->path == SIGMA_WATCHED_LIBRARY);
  CHECK(mapping->executable);
  CHECK(mapping->start == events[0].address);
  CHECK(mapping->end - mapping->start == events[0].length);
  CHECK(mapping->offset == events[0].offset);
  CHECK(mapping->device == events[0].device);
  CHECK(watch.lost() == 0);
}

TEST_CASE("a process that starts is reported with its program, and data mappings are not") {
  LibraryWatch watch = open_watch();
  ChildProcess child({SIGMA_LIBRARY_WATCH_TARGET});
  child.read_until("ready");
  child.say("data " SIGMA_WATCHED_LIBRARY);
  child.read_until("mapped");
  auto events = events_of(watch, child.pid());
  CHECK(only_path(events, SIGMA_LIBRARY_WATCH_TARGET).size() == 1);
  CHECK(only_path(events, SIGMA_WATCHED_LIBRARY).empty());
}

TEST_CASE("a library is reported by its build-id when that is asked for") {
  ChildProcess child({SIGMA_LIBRARY_WATCH_TARGET});
  child.read_until("ready");
  LibraryWatch watch = open_watch({.build_ids = true});
  child.say("load " SIGMA_WATCHED_LIBRARY);
  child.read_until("loaded");
  auto events = only_path(events_of(watch, child.pid()), SIGMA_WATCHED_LIBRARY);
  REQUIRE(events.size() == 1);
  CHECK(events[0].build_id == SIGMA_WATCHED_BUILD_ID);
}

TEST_CASE("libraries that found the ring full are counted: none is lost silently") {
  ChildProcess child({SIGMA_LIBRARY_WATCH_TARGET});
  child.read_until("ready");
  LibraryWatch watch = open_watch({.ring_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE))});
  // The kernel reports a loss with the next event that finds room, on the same CPU.
  for (int round = 0; round < 100 && watch.lost() == 0; ++round) {
    child.say("cycle 200 " SIGMA_WATCHED_LIBRARY);
    child.read_until("cycled");
    events_of(watch, child.pid());
  }
  CHECK(watch.lost() > 0);
}

TEST_CASE("perf records that are cut or of another kind are no library") {
  struct {
    perf_event_header header{PERF_RECORD_MMAP2, 0, 0};
    uint32_t pid = 5, tid = 6;
    uint64_t address = 0x1000, length = 0x2000, offset = 0x3000;
    uint32_t major = 8, minor = 1;
    uint64_t inode = 42, generation = 0;
    uint32_t protection = 5, flags = 2;
    char name[16] = "/lib/libx.so";
    uint32_t sample_pid = 5, sample_tid = 6;
    uint64_t time = 99;
    uint64_t cpu = 0;
  } record;
  auto bytes = [&] { return std::as_bytes(std::span(&record, 1)); };
  LibraryEvent event;
  REQUIRE(parse_mmap_record(bytes(), event));
  CHECK(event.path == "/lib/libx.so");
  CHECK(event.pid == 5);
  CHECK(event.tid == 6);
  CHECK(event.inode == 42);
  CHECK(event.time_ns == 99);

  for (size_t size = 0; size < sizeof record; ++size) {
    std::vector<std::byte> cut(bytes().begin(), bytes().begin() + static_cast<ptrdiff_t>(size));
    if (parse_mmap_record(cut, event)) CHECK(event.path.size() < sizeof record.name);
  }
  std::strcpy(record.name, "//anon");
  CHECK_FALSE(parse_mmap_record(bytes(), event));
  std::strcpy(record.name, "[vdso]");
  CHECK_FALSE(parse_mmap_record(bytes(), event));
  std::memset(record.name, 'x', sizeof record.name);
  record.name[0] = '/';
  CHECK_FALSE(parse_mmap_record(bytes(), event));
  record.header.type = PERF_RECORD_COMM;
  std::strcpy(record.name, "/lib/libx.so");
  CHECK_FALSE(parse_mmap_record(bytes(), event));
}

TEST_CASE("a ring of an impossible size is refused") {
  for (size_t size : {size_t{0}, size_t{100}, size_t{12288}}) {
    auto watch = LibraryWatch::open({.ring_bytes = size});
    REQUIRE_FALSE(watch.ok());
    CHECK_THAT(watch.error().what, ContainsSubstring("power of two"));
  }
}
