// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which device a node's number meant, when it is asked late. The tree is sysfs's as uverbs_main.c makes it.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "attach/rdma_sysfs.h"
#include "catch.h"

using namespace sigma;

namespace {

namespace fs = std::filesystem;

class Sysfs {
 public:
  Sysfs() {
    char name[] = "/tmp/sigma-sysfs-XXXXXX";
    root_ = mkdtemp(name);
    setenv("SIGMATRACE_SYSFS", root_.c_str(), 1);
  }
  ~Sysfs() {
    unsetenv("SIGMATRACE_SYSFS");
    fs::remove_all(root_);
  }
  // A device and its node with the number 231:`minor`. Nothing is removed before: another inode.
  void add(const std::string& device, const std::string& node, int minor) {
    fs::create_directories(root_ / "class/infiniband" / device);
    const fs::path at = root_ / "class/infiniband_verbs" / node;
    if (fs::exists(at)) fs::rename(at, root_ / ("old" + std::to_string(olds_++)));
    fs::create_directories(at);
    std::ofstream(at / "dev") << "231:" << minor << "\n";
    name(node, device + "\n");
  }
  void name(const std::string& node, const std::string& text) {
    std::ofstream(root_ / "class/infiniband_verbs" / node / "ibdev") << text;
  }
  void remove(const std::string& device, const std::string& node) {
    fs::remove_all(root_ / "class/infiniband" / device);
    fs::rename(root_ / "class/infiniband_verbs" / node, root_ / ("old" + std::to_string(olds_++)));
  }

 private:
  fs::path root_;
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
