// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What libbpf prints while a ListenToLibbpf lives; otherwise it writes to standard error.
#pragma once

#include <bpf/libbpf.h>

#include <string>

namespace sigma {

class ListenToLibbpf {
 public:
  ListenToLibbpf();
  ~ListenToLibbpf() { libbpf_set_print(previous_); }
  ListenToLibbpf(const ListenToLibbpf&) = delete;
  ListenToLibbpf& operator=(const ListenToLibbpf&) = delete;

  // The last lines that libbpf printed in this thread: the verifier's reason for a refusal.
  static const std::string& said();

 private:
  libbpf_print_fn_t previous_;
};

}  // namespace sigma
