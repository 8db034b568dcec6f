// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The job that a tracer is tested on: what its scenarios share, and the scenarios, by file.
#pragma once

#include <arpa/inet.h>
#include <errno.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bpf/records.h"
#include "provider.h"
#include "truth.h"

template <typename T>
uint64_t address(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

inline void say(const std::string& line) {
  printf("%s\n", line.c_str());
}

// One device with its objects, as an application has them.
struct World {
  ibv_device device = {};
  ibv_context context = {};
  ibv_pd pd = {};
  ibv_cq send_cq = {}, recv_cq = {};
  ibv_srq srq = {};
  ibv_qp_ex qp = {};
  ibv_ah ah = {};
  provider_completions completions = {};
  int complete_result = 0;

  explicit World(const char* name = "sigma_0", ibv_qp_type type = IBV_QPT_RC,
                 uint32_t number = 17) {
    snprintf(device.name, sizeof(device.name), "%s", name);
    context.device = &device;
    context.cmd_fd = 77;
    pd.context = &context;
    send_cq.context = recv_cq.context = &context;
    send_cq.cq_context = &completions;
    srq.context = &context;
    ah.context = &context;
    ah.handle = 4711;
    ibv_qp& base = qp.qp_base;
    base.context = &context;
    base.pd = &pd;
    base.send_cq = &send_cq;
    base.recv_cq = &recv_cq;
    base.srq = nullptr;
    base.handle = 5;
    base.qp_num = number;
    base.state = IBV_QPS_RTS;
    base.qp_type = type;
    base.qp_context = &complete_result;
    provider_make_ex(&qp);
  }

  ibv_qp* plain() { return &qp.qp_base; }
  void say_context(unsigned kind = SIGMA_CONTEXT_SEEN) {
    say(context_text(address(&context), kind, device.name, context.cmd_fd));
  }
  void say_first_sight() {
    say_context();
    say_queue_pair();
  }
  void say_queue_pair() {
    const ibv_qp& base = qp.qp_base;
    say(qp_text(address(&base), address(&context), base.qp_num, base.handle, base.qp_type,
                base.state, address(base.send_cq), address(base.recv_cq), address(base.srq)));
  }
  // What all posts to the QP have in common.
  PostText post(unsigned queue) {
    PostText text;
    text.queue = queue;
    text.queue_ptr = address(plain());
    text.context = address(&context);
    text.qp_num = qp.qp_base.qp_num;
    text.qp_type = qp.qp_base.qp_type;
    return text;
  }
};

// Given by the test where it changes what is expected: flags that every post carries.
unsigned common_flags();
bool checked();           // whether the tracer looks at what a post returns
unsigned walked_limit();  // how many requests of a list the tracer reads

// To a QP of the world's own, all at their defaults.
void plain_post(World& world);

// workload_posts.cpp
void opcodes();
void chain();
void datagrams();
void refusals();
void long_lists();
void unreadable();
// workload_builders.cpp
void builders();
// workload_polls.cpp
void polls();
void extended_polls();
// workload_objects.cpp
void reopen();
void replaced();
void replaced_unseen();
void many_posts();
void commands();
