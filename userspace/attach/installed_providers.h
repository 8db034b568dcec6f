// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The verbs libraries that are installed below a root: probes bind to files, so that a probe on a
// known file is there before any process loads it.
#pragma once

#include <string>
#include <vector>

namespace sigma {

// libibverbs and the provider libraries below `root` ("/", "/proc/PID/root"), as paths that begin
// with `root`; each file once, whatever links to it. Looks where distributions put them, without
// asking ld.so: the usual library directories, their libibverbs/ folders, and absolute names in
// etc/libibverbs.d/*.driver. Symbolic links are followed inside the root. Not found: libraries in
// other places (conda, MLNX_OFED below /opt, wheels); processes that load these show them.
std::vector<std::string> installed_providers(const std::string& root);

}  // namespace sigma
