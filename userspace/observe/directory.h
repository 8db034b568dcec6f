// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Directory: which rings there are, from the uverbs commands of the traced processes.
//
// Verbs objects: the driver's part of the create command (struct mlx5_ib_create_qp, _cq) has the
// buffer, the doorbell record and the sizes. DevX objects: the firmware's command has them as places
// in pieces of memory that were registered before. A ring's life begins with its create command's
// return, or with INIT after a RESET; its end BPF sees first (bpf/rings.h).
//
// Keeps tables only; acts through Events. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>

#include "decode/devx.h"
#include "observe/ring_specs.h"

namespace sigma {

class Directory {
 public:
  class Events {
   public:
    virtual ~Events() = default;
    virtual void on_send(const SendSpec& spec) = 0;
    virtual void on_cq(const CqSpec& spec) = 0;
    virtual void on_resize(const RingOwner& owner, const CqSpec& spec) = 0;
    // A command that was to end it, or to move it, has failed.
    virtual void on_resume_send(const RingOwner& owner, uint64_t at_ns) = 0;
    virtual void on_resume_cq(const RingOwner& owner, uint64_t at_ns) = 0;
    virtual void on_end_send(const RingOwner& owner, uint64_t at_ns) = 0;
    virtual void on_end_cq(const RingOwner& owner, uint64_t at_ns) = 0;
    // A command made this queue pair, whether its ring could be placed or not.
    virtual void on_made(const RingOwner& owner, uint64_t at_ns) = 0;
    // A command has destroyed an object of which nothing was known here. `context`: as commands name it.
    virtual void on_unknown_gone(uint32_t pid, uint64_t context, ObjectKind kind, uint32_t handle) = 0;
  };
  explicit Directory(Events& events) : events_(events) {}

  // A sigma_uverbs record, 8-byte aligned. `device_initiates`: a GPU may be the writer.
  void on_uverbs(std::span<const std::byte> record);
  void on_process_end(uint32_t pid);
  // Queues that were there before are named by their context; where commands name a file, by which.
  void add_file(uint32_t pid, uint64_t file, uint64_t context);
  void add_context(uint32_t pid, uint64_t context, const std::string& device);
  std::string device_of(uint32_t pid, uint64_t context) const;  // of an older context; empty: none
  void add_found(const SendSpec& spec, uint32_t handle, uint64_t qp_ptr);
  void add_found(const CqSpec& spec, uint32_t handle);
  // A queue pair that a probe names by its structure, as the readers name it.
  const RingOwner* find(uint32_t pid, uint64_t qp_ptr, uint32_t qp_num) const;

  // A queue pair that a command made, and none has destroyed. `context`: as commands name it.
  bool has_heard_of(uint32_t pid, uint64_t context, uint32_t qp_num) const;

  // Queues whose place could not be told: made by an unknown command, or in memory of a device.
  uint64_t unplaced() const;
  // The preloaded library tells of a ring itself (`kind`: enum sigma_ring_kind): it is none of these.
  void on_told_inside(uint32_t pid, uint8_t kind, uint32_t number);
  // A GPU posts to this queue, also in the lives that it has after a reset.
  void on_gpu_ring(uint32_t pid, uint64_t ring_addr, uint32_t number);

 private:
  struct File {
    uint32_t pid = 0;
    uint64_t ucontext = 0;
    auto operator<=>(const File&) const = default;
  };
  struct Handle {
    File file;
    uint32_t handle = 0;
    auto operator<=>(const Handle&) const = default;
  };
  struct Qp {
    SendSpec spec;
    uint64_t qp_ptr = 0;
    bool reset = false;
  };
  struct Umem {
    uint32_t id = 0;
    uint64_t addr = 0, length = 0;
  };

  void on_qp(const File& file, const sigma_uverbs& header, const UverbsFacts& facts);
  void on_cq(const File& file, const sigma_uverbs& header, const UverbsFacts& facts);
  void on_devx(const File& file, const sigma_uverbs& header, const DevxFacts& facts);
  void create_devx_qp(const Handle& key, const sigma_uverbs& header, const PrmFacts& prm);
  void create_devx_cq(const Handle& key, const sigma_uverbs& header, const PrmFacts& prm);
  void on_state(Qp& qp, uint8_t state, uint64_t now_ns);
  void on_failed(const Handle& key, UverbsAction action, std::optional<uint8_t> state, uint64_t now_ns);
  void add_qp(const Handle& key, Qp qp);
  void add_unplaced(const RingOwner& owner, uint8_t kind);
  void remove_qp(std::map<Handle, Qp>::iterator it, uint64_t now_ns);
  uint64_t address_of(const File& file, const std::optional<UmemPlace>& place,
                      uint64_t bytes) const;
  static RingOwner owner_of(const File& file, const sigma_uverbs& header, uint32_t number);
  void note_file(const File& file, const sigma_uverbs& header);
  Handle key_of(const File& file, uint32_t handle) const;
  uint32_t cqn_of(const File& file, std::optional<uint32_t> handle) const;

  Events& events_;
  std::map<Handle, Qp> qps_;
  std::map<Handle, CqSpec> cqs_;
  std::map<Handle, Umem> umems_;
  std::map<Handle, uint32_t> targets_;  // numbers of DCTs made by DevX: they have no ring of their own
  std::map<std::pair<uint32_t, uint64_t>, Handle> by_pointer_;  // pid, struct ibv_qp *
  std::map<File, std::string> older_contexts_;  // device, by pid and struct ibv_context *
  std::map<File, File> files_;  // by pid and struct file *: its older context
  // By kind and number, per process; beyond kMostUnplaced they are only counted.
  static constexpr size_t kMostUnplaced = 1 << 14;
  using Unplaced = std::multiset<std::pair<uint8_t, uint32_t>>;
  std::map<uint32_t, Unplaced> unplaced_;
  uint64_t unplaced_beyond_ = 0;  // and those of processes that have ended
};

}  // namespace sigma
