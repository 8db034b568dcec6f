// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What Capture holds; for its own sources: capture.cpp and capture_links.cpp.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "attach/attach_plan.h"
#include "attach/capture.h"
#include "attach/links.h"
#include "bpf/ring_slots.h"

// The generated skeleton names the types of config.h.
#include "sigmatrace_bpf.skel.h"

namespace sigma {

constexpr size_t kRingSlotsBytes = SIGMA_RING_SLOTS * sizeof(sigma_ring_slot);

struct SkeletonDeleter {
  void operator()(sigmatrace_bpf* skeleton) const { sigmatrace_bpf__destroy(skeleton); }
};
using SkeletonPtr = std::unique_ptr<sigmatrace_bpf, SkeletonDeleter>;

struct BpfLinkDeleter {
  void operator()(bpf_link* link) const { bpf_link__destroy(link); }
};
using BpfLinkPtr = std::unique_ptr<bpf_link, BpfLinkDeleter>;

struct Capture::Impl {
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (ring_slots != nullptr) munmap(ring_slots, kRingSlotsBytes);
  }

  Features features;
  LinkForms forms = {LinkForm::perf, LinkForm::perf};
  sigma_config config = {};
  SkeletonPtr skeleton;
  sigma_ring_slot* ring_slots = nullptr;  // mapped, once asked for

  // One probe is placed once, however often the caller asks: (device, inode, offset, pid, program).
  using Place = std::tuple<dev_t, ino_t, uint64_t, pid_t, const char*>;
  struct HeldLink {
    UprobeLink link;
    pid_t pid;
    bool data_path;
    std::vector<Place> places;
  };
  std::vector<HeldLink> links;
  std::set<Place> places;
  std::vector<BpfLinkPtr> kernel_links;
  std::vector<BpfLinkPtr> control_links;  // the hook on uverbs commands
  bool kernel_control = false;
  uint32_t changes = 0;

  int program_fd(const char* name) const {
    return bpf_program__fd(bpf_object__find_program_by_name(skeleton->obj, name));
  }
  pid_t link_pid(LinkForm form, pid_t pid) const {
    return form == LinkForm::perf || features.multi_pid_filter ? pid : 0;
  }

  // By its number in the map `cq_layouts`, from 1; as many as providers are probed.
  std::vector<sigma_cq_layout> cq_layouts;
  uint64_t number_of(const sigma_cq_layout& layout);

  struct Group;
  std::vector<int> attach_group(const Group& group);
  void close_if(const std::function<bool(const HeldLink&)>& which);
  // Whether every command of every process is seen in the kernel; BPF relies on it.
  void set_kernel_control(bool seen) {
    kernel_control = seen;
    std::atomic_ref(skeleton->bss->kernel_control).store(seen);
  }
  // What BPF remembers of queue pairs is to be looked at again (see epoch and generation in
  // maps.h).
  void new_generation() { std::atomic_ref(skeleton->data->generation).fetch_add(1); }
  void new_epoch() {
    std::atomic_ref(skeleton->data->epoch).fetch_add(1);
    new_generation();
  }

  enum class Change { add, pause, resume, probes };
  Status change_target(pid_t pid, Change change);
  Status attach_program(bpf_program* program, std::vector<BpfLinkPtr>& links);
  Status keep(bpf_program* program, bpf_link* link, std::vector<BpfLinkPtr>& links);
};

// Probes of one program in one file, by one link where the form allows.
struct Capture::Impl::Group {
  const char* program;
  LinkForm form;
  bool at_return;
  const std::string* path;
  dev_t device;
  ino_t inode;
  pid_t pid;
  std::vector<const PlannedProbe*> probes;
};

}  // namespace sigma
