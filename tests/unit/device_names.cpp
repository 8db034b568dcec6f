// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which device a node's number meant, when it is asked late. The tree is sysfs's as uverbs_main.c makes it.
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "attach/rdma_sysfs.h"
#include "catch.h"
#include "temporary_folder.h"

using namespace sigma;

namespace {

namespace fs = std::filesystem;

class Sysfs : test::TemporaryFolder {
 public:
  Sysfs() { setenv("SIGMATRACE_SYSFS", path().c_str(), 1); }
  ~Sysfs() { unsetenv("SIGMATRACE_SYSFS"); }
  // A device and its node with the number 231:`minor`. Nothing is removed before: another inode.
  void add(const std::string& device, const std::string& node, int minor) {
    fs::create_directories(path() / "class/infiniband" / device);
    if (fs::exists(path() / at(node))) move_away(node);
    write(at(node) + "/dev", "231:" + std::to_string(minor) + "\n");
    name(node, device + "\n");
  }
  void name(const std::string& node, const std::string& text) { write(at(node) + "/ibdev", text); }
  void remove(const std::string& device, const std::string& node) {
    fs::remove_all(path() / "class/infiniband" / device);
    move_away(node);
  }

 private:
  static std::string at(const std::string& node) { return "class/infiniband_verbs/" + node; }
  void move_away(const std::string& node) { fs::rename(path() / at(node), path() / ("old" + std::to_string(olds_++))); }

  int olds_ = 0;
};

constexpr uint32_t node(uint32_t minor) { return 231u << 20 | minor; }

}  // namespace

TEST_CASE("a device's name is known while it goes, and after") {
  Sysfs sysfs;
  sysfs.add("rxe0", "uverbs0", 192);
  sysfs.add("rxe1", "uverbs1", 193);
  DeviceNames names;
  sysfs.name("uverbs0", "");  // ib_uverbs has let go of it
  CHECK(names.of_node(node(192)) == "rxe0");
  sysfs.remove("rxe0", "uverbs0");
  CHECK(names.of_node(node(192)) == "rxe0");
  CHECK(names.of_node(node(193)) == "rxe1");
  CHECK(names.of_node(node(194)).empty());
}

TEST_CASE("a node's number can serve another device, and a device can get another name") {
  Sysfs sysfs;
  sysfs.add("rxe0", "uverbs0", 192);
  DeviceNames names;
  sysfs.remove("rxe0", "uverbs0");
  sysfs.add("siw0", "uverbs0", 192);
  CHECK(names.of_node(node(192)) == "siw0");
  sysfs.name("uverbs0", "iwarp\n");
  fs::create_directories(sysfs_root() + "/class/infiniband/iwarp");
  CHECK(names.of_node(node(192)) == "iwarp");
  sysfs.add("mlx5_0", "uverbs1", 193);
  CHECK(names.of_node(node(193)) == "mlx5_0");
}
