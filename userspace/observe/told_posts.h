// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Send posts that probes have told of, a record each, put together to calls: where in its ring each
// stands, and how many blocks it takes.
//
// All records of a call name the index that the call found. They need not come in one piece: the ring
// buffer may be read in the middle of a list, and those of other CPUs' calls stand between them. What comes
// later stands behind what has come.
// No I/O. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "bpf/records.h"
#include "observe/ring_specs.h"

namespace sigma {

class ToldPosts {
 public:
  // `blocks` of this request; 0: not known.
  void add(const RingOwner& owner, const sigma_post& post, uint32_t blocks) {
    const bool open = blocks == 0 && !(post.flags & SIGMA_POST_LIST_TRUNCATED);
    if (post.position > 0 && !calls_.empty()) {
      Call& last = calls_.back();
      if (last.owner == owner && last.call_ns == post.call_ns && last.tid == post.h.tid) {
        last.blocks += blocks;
        // Behind a list that was cut short stands what no probe tells of.
        last.open = (last.open || open) && !(post.flags & SIGMA_POST_LIST_TRUNCATED);
        return;
      }
    }
    calls_.push_back({.owner = owner,
                      .call_ns = post.call_ns,
                      .blocks = blocks,
                      .tid = post.h.tid,
                      .index = static_cast<uint16_t>(post.index),
                      .continues = post.position > 0,
                      .open = open});
  }

  // Calls f(owner, index, blocks, same_thread) for each piece since the last time, as SendReader::explain()
  // takes it: `blocks` 0 where not all of its requests' sizes are known.
  template <typename F>
  void give(F&& f) {
    for (const Call& call : calls_) {
      Poster& last = posters_[call.owner];
      const bool same_thread = last.tid == 0 || last.tid == call.tid;
      const bool continues = call.continues && last.tid == call.tid && last.call_ns == call.call_ns;
      if (!continues) last = {call.call_ns, call.tid, 0, false};
      if (last.open) continue;  // where it stands is not known; the next call tells
      f(call.owner, static_cast<uint16_t>(call.index + last.blocks), call.open ? 0 : call.blocks, same_thread);
      last.blocks += call.blocks;
      last.open = call.open;
    }
    calls_.clear();
  }

  // Its ring has ended.
  void forget(const RingOwner& owner) { posters_.erase(owner); }
  void forget_process(uint32_t pid) {
    std::erase_if(posters_, [&](const auto& entry) { return entry.first.pid == pid; });
  }

 private:
  struct Call {
    RingOwner owner;
    uint64_t call_ns;
    uint32_t blocks;
    uint32_t tid;
    uint16_t index;
    bool continues;  // it is not the beginning of the call
    bool open;       // where it ends is not known
  };
  struct Poster {
    uint64_t call_ns = 0;
    uint32_t tid = 0;
    uint32_t blocks = 0;  // of its call, so far
    bool open = false;
  };

  std::vector<Call> calls_;
  std::map<RingOwner, Poster> posters_;
};

}  // namespace sigma
