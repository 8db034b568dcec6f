// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/installed_providers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "catch.h"
#include "temporary_folder.h"

using namespace sigma;
namespace fs = std::filesystem;

namespace {

// A root directory of its own, with empty files in the place of libraries.
struct Root : test::TemporaryFolder {
  void file(const std::string& name, const std::string& text = "") { write(name, text); }
  void link(const std::string& name, const std::string& target) {
    fs::create_directories((path() / name).parent_path());
    fs::create_symlink(target, path() / name);
  }
  std::vector<std::string> found() const {
    std::vector<std::string> names;
    for (const std::string& name : installed_providers(string())) {
      REQUIRE(name.starts_with(string() + "/"));
      names.push_back(name.substr(string().size()));
    }
    std::sort(names.begin(), names.end());
    return names;
  }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("providers are found once each, through links within the root") {
  Root root;
  root.file("usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0");
  root.link("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "libibverbs.so.1.14.44.0");
  root.link("lib", "usr/lib");
  root.file("usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0");
  root.link("usr/lib/x86_64-linux-gnu/libmlx5.so.1", "libmlx5.so.1.24.44.0");
  root.link("usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so", "../libmlx5.so.1");
  root.file("usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so");
  root.file("usr/lib/x86_64-linux-gnu/libibverbs/README");
  // An absolute link means the root's own file, which the host does not have.
  root.file("opt/sigma-vendor/libvendor.so.3");
  root.link("usr/lib64/libibverbs/libvendor-rdmav59.so", "/opt/sigma-vendor/libvendor.so.3");
  CHECK(root.found() == Names{"/opt/sigma-vendor/libvendor.so.3",
                              "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0",
                              "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
                              "/usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0"});
}

TEST_CASE("absolute driver names of libibverbs' configuration are followed") {
  Root root;
  root.file("etc/libibverbs.d/mlx5.driver", "driver mlx5\n");
  root.file("etc/libibverbs.d/vendor.driver",
            "# comment\n\ndriver\t/opt/vendor/lib/libvendor  \ndriver\ndriver /\n");
  root.file("etc/libibverbs.d/vendor.driver.disabled", "driver /opt/vendor/lib/libother\n");
  root.file("opt/vendor/lib/libvendor-rdmav25.so");
  root.file("opt/vendor/lib/libvendor-rdmav34.so");
  root.file("opt/vendor/lib/libvendor.so");
  root.file("opt/vendor/lib/libother-rdmav34.so");
  CHECK(root.found() ==
        Names{"/opt/vendor/lib/libvendor-rdmav25.so", "/opt/vendor/lib/libvendor-rdmav34.so"});
}

TEST_CASE("a root without libraries, or that does not exist, has no providers") {
  Root root;
  CHECK(root.found().empty());
  root.file("usr/lib/libibverbs/librxe-rdmav34.so/is_a_directory");
  root.link("usr/lib/libibverbs.so.1", "/usr/lib/libibverbs.so.1");
  CHECK(root.found().empty());
}

TEST_CASE("this machine's providers are found, also through a process's root") {
  auto here = installed_providers("/");
  auto has = [&](const std::string& part) {
    return std::any_of(here.begin(), here.end(), [&](const std::string& name) {
      return name.find(part) != std::string::npos;
    });
  };
  CHECK(has("/libibverbs.so.1"));
  CHECK(has("/libmlx5"));
  CHECK(installed_providers(fmt::format("/proc/{}/root", ::getpid())).size() == here.size());
}
