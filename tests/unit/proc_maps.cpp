// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// /proc/PID/maps: the text as the kernel writes it, and as a hostile process can make it look.
#include "resolve/proc_maps.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/fd.h"
#include "catch.h"
#include "temporary_folder.h"

using namespace sigma;

namespace {

// One character per property: r w x, s shared or p private, d deleted.
std::string properties(const Mapping& m) {
  return fmt::format("{}{}{}{}{}", m.readable ? "r" : "-", m.writable ? "w" : "-",
                     m.executable ? "x" : "-", m.shared ? "s" : "p", m.deleted ? "d" : "-");
}

struct Case {
  const char* line;
  uint64_t start, end, offset, inode;
  const char* flags;
  const char* path;
};

const Case kCases[] = {
    {"00400000-00401000 r-xp 00001000 fe:01 131081                             /usr/bin/cat",
     0x400000, 0x401000, 0x1000, 131081, "r-xp-", "/usr/bin/cat"},
    {"7ffd3c5e2000-7ffd3c603000 rw-p 00000000 00:00 0                          [stack]",
     0x7ffd3c5e2000, 0x7ffd3c603000, 0, 0, "rw-p-", "[stack]"},
    {"7f0000000000-7f0000021000 rw-p 00000000 00:00 0 ", 0x7f0000000000, 0x7f0000021000, 0, 0,
     "rw-p-", ""},
    {"7f0000000000-7f0000021000 rw-p 00000000 00:00 0", 0x7f0000000000, 0x7f0000021000, 0, 0,
     "rw-p-", ""},
    {"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]",
     0xffffffffff600000, 0xffffffffff601000, 0, 0, "--xp-", "[vsyscall]"},
    {"7f0000000000-7f0000001000 r--s 00000000 00:05 4                          "
     "/dev/infiniband/uverbs0",
     0x7f0000000000, 0x7f0000001000, 0, 4, "r--s-", "/dev/infiniband/uverbs0"},
    {"7f0000000000-7f0000001000 r-xp 00000000 fe:01 7                          /lib/a b  c.so "
     "(deleted)",
     0x7f0000000000, 0x7f0000001000, 0, 7, "r-xpd", "/lib/a b  c.so"},
    {"7f0000000000-7f0000001000 r-xp 00000000 fe:01 7    /tmp/x (deleted) (deleted)",
     0x7f0000000000, 0x7f0000001000, 0, 7, "r-xpd", "/tmp/x (deleted)"},
    {"7f0000000000-7f0000001000 r-xp 00000000 fe:01 7    /tmp/a\\012b", 0x7f0000000000,
     0x7f0000001000, 0, 7, "r-xp-", "/tmp/a\nb"},
    {"7f0000000000-7f0000001000 r-xp 00000000 fe:01 7    /tmp/a\\01", 0x7f0000000000,
     0x7f0000001000, 0, 7, "r-xp-", "/tmp/a\\01"},
    {"7f0000000000-7f0000001000 r-xp ffffffffffffffff ffffffff:fffff 18446744073709551615 /x",
     0x7f0000000000, 0x7f0000001000, UINT64_MAX, UINT64_MAX, "r-xp-", "/x"},
};

const char* const kRejected[] = {
    "",
    "7f0000000000",
    "7f0000000000-",
    "7f0000001000-7f0000000000 r-xp 00000000 fe:01 7 /end/before/start",
    "7f0000000000-7f0000000000 r-xp 00000000 fe:01 7 /empty",
    "7f0000000000-7f0000001000 r-x",
    "7f0000000000-7f0000001000 r-xp 00000000 fe01 7 /no/colon",
    "7f0000000000-7f0000001000 r-xp 00000000 fe:01 x /no/inode",
    "7f0000000000-7f0000001000 r-xp 00000000 1ffffffff:01 7 /device/too/large",
    "1ffffffffffffffff-2ffffffffffffffff r-xp 00000000 fe:01 7 /address/too/large",
    "-7f0000000000-7f0000001000 r-xp 00000000 fe:01 7 /negative",
    " 7f0000000000-7f0000001000 r-xp 00000000 fe:01 7 /leading/blank",
    "rubbish",
};

struct TemporaryFile {
  explicit TemporaryFile(const std::string& name) : path(folder / name) { folder.write(name, std::string(8192, 'x')); }
  test::TemporaryFolder folder;
  std::string path;
};

// A mapping of `path` in this process, and what maps says of it.
struct MappedFile {
  explicit MappedFile(const std::string& path) {
    Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    address = ::mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    REQUIRE(address != MAP_FAILED);
  }
  ~MappedFile() { ::munmap(address, 8192); }
  Mapping mapping() const {
    auto maps = read_maps(::getpid());
    REQUIRE(maps.ok());
    const Mapping* found = find_mapping(*maps, reinterpret_cast<uint64_t>(address));
    REQUIRE(found);
    return *found;
  }
  void* address;
};

ino_t inode_of(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace

TEST_CASE("maps lines are parsed") {
  for (const Case& c : kCases) {
    INFO(c.line);
    auto maps = parse_maps(c.line);
    REQUIRE(maps.size() == 1);
    CHECK(maps[0].start == c.start);
    CHECK(maps[0].end == c.end);
    CHECK(maps[0].offset == c.offset);
    CHECK(maps[0].inode == c.inode);
    CHECK(properties(maps[0]) == c.flags);
    CHECK(maps[0].path == c.path);
  }
}

TEST_CASE("maps lines that make no sense are left out") {
  std::string text;
  for (const char* line : kRejected) {
    INFO(line);
    CHECK(parse_maps(line).empty());
    text += line;
    text += '\n';
  }
  text += "00400000-00401000 r-xp 00001000 fe:01 131081 /after/the/rubbish\n";
  auto maps = parse_maps(text);
  REQUIRE(maps.size() == 1);
  CHECK(maps[0].path == "/after/the/rubbish");
  CHECK(maps[0].device == makedev(0xfe, 1));
}

TEST_CASE("an address is found in its mapping and nowhere else") {
  auto maps = parse_maps(
      "1000-2000 r--p 0 0:0 0\n"
      "2000-3000 r-xp 0 0:0 0\n"
      "5000-6000 rw-p 0 0:0 0\n");
  REQUIRE(maps.size() == 3);
  CHECK(find_mapping(maps, 0xfff) == nullptr);
  CHECK(find_mapping(maps, 0x1000) == &maps[0]);
  CHECK(find_mapping(maps, 0x1fff) == &maps[0]);
  CHECK(find_mapping(maps, 0x2000) == &maps[1]);
  CHECK(find_mapping(maps, 0x3000) == nullptr);
  CHECK(find_mapping(maps, 0x5fff) == &maps[2]);
  CHECK(find_mapping(maps, 0x6000) == nullptr);
  CHECK(find_mapping({}, 0x1000) == nullptr);
}

TEST_CASE("the maps of this process hold its own code") {
  auto maps = read_maps(::getpid());
  REQUIRE(maps.ok());
  const Mapping* code = find_mapping(*maps, reinterpret_cast<uint64_t>(&::inode_of));
  REQUIRE(code);
  CHECK(code->executable);
  CHECK(code->path == std::filesystem::read_symlink("/proc/self/exe").string());
}

TEST_CASE("the maps of a process that does not exist are an error") {
  auto maps = read_maps(0x3fffffff);
  REQUIRE_FALSE(maps.ok());
  CHECK_THAT(maps.error().what, ContainsSubstring("does not exist"));
}

TEST_CASE("a mapped file is reached by its name") {
  for (const char* name : {"plain", "with blanks", "new\nline"}) {
    TemporaryFile file(name);
    MappedFile mapped(file.path);
    auto path = reachable_path(::getpid(), mapped.mapping());
    REQUIRE(path.ok());
    CHECK(*path == fmt::format("/proc/{}/root{}", ::getpid(), file.path));
    CHECK(inode_of(*path) == inode_of(file.path));
  }
}

TEST_CASE("a mapped file is reached after it was deleted, replaced or hidden behind a link") {
  TemporaryFile file("gone"), kept("kept");
  const ino_t inode = inode_of(file.path);
  MappedFile mapped(file.path);
  Mapping mapping = mapped.mapping();

  SECTION("deleted") {
    REQUIRE(::unlink(file.path.c_str()) == 0);
    mapping = mapped.mapping();
    CHECK(mapping.deleted);
    CHECK(mapping.path == file.path);
  }
  SECTION("replaced since the maps were read") {
    REQUIRE(::rename(kept.path.c_str(), file.path.c_str()) == 0);
  }
  SECTION("replaced by a symbolic link") {
    REQUIRE(::unlink(file.path.c_str()) == 0);
    REQUIRE(::symlink(kept.path.c_str(), file.path.c_str()) == 0);
  }
  auto path = reachable_path(::getpid(), mapping);
  REQUIRE(path.ok());
  CHECK_THAT(*path, ContainsSubstring("/map_files/"));
  CHECK(inode_of(*path) == inode);
}

TEST_CASE("what is not a file, or is no longer mapped, is not reachable") {
  Mapping stack{.start = 0x1000, .end = 0x2000, .path = "[stack]"};
  CHECK_FALSE(reachable_path(::getpid(), stack).ok());

  Mapping gone{.start = 0x1000, .end = 0x2000, .inode = 1, .path = "/no/such/file"};
  auto path = reachable_path(::getpid(), gone);
  REQUIRE_FALSE(path.ok());
  CHECK_THAT(path.error().what, ContainsSubstring("/no/such/file"));
  CHECK_FALSE(path.error().hint.empty());
}
