// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completions that the reader of a completion ring has told of, to know one again that comes a second
// time: of receives, and of sends whose queue pair is not observed, or not any more. When a queue pair is destroyed or reset, libmlx5 takes its entries out of the ring and moves
// unpolled ones of others, which stand before them, into their places (rdma-core,
// providers/mlx5/cq.c, __mlx5_cq_clean). One that was read before then stands where another has not
// been read. Where nobody tells the library what was polled, it moves those of queue pairs that are gone,
// too. Sends are known again by their index, which only grows (SendReader); a receive's is a slot that is
// used again and again, so it is known by the device's stamp as well.
//
// Memory: 16 bytes a completion, of the newest kMost at most. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "decode/cqe.h"

namespace sigma {

class ToldCompletions {
 public:
  static constexpr size_t kMost = 1 << 16;

  // True: it was told. Else it is from now on. `entries`: of the ring, which holds no more of them;
  // `life`: of its queue pair's ring, empty if nobody knows it.
  bool again(const Cqe& cqe, std::optional<uint32_t> life, uint32_t entries) {
    // Errors have no stamp: of two lives they may be the same in every bit.
    const bool known = cqe.has_timestamp ? cqe.timestamp != 0 : cqe.status != 0 && life;
    if (!known) return false;
    const Mark mark{cqe.has_timestamp ? cqe.timestamp : *life,
                    uint64_t{is_requester(cqe)} << 49 | uint64_t{cqe.status != 0} << 48 | uint64_t{cqe.qp_num} << 16 | cqe.wqe_counter};
    // The device stamps entries as it writes them: mostly one is newer than all before.
    const bool newest = cqe.has_timestamp && cqe.timestamp > newest_;
    if (newest) newest_ = cqe.timestamp;
    if (!newest && std::find(marks_.begin(), marks_.end(), mark) != marks_.end()) return true;
    note(mark, std::min<size_t>(entries, kMost));
    return false;
  }

 private:
  struct Mark {
    uint64_t stamp;    // of an error, which has none: the life
    uint64_t request;  // whether it is a send, an error; its queue pair, its slot or index
    bool operator==(const Mark&) const = default;
  };

  void note(const Mark& mark, size_t most) {
    if (marks_.size() < most) return marks_.push_back(mark);
    if (next_ >= marks_.size()) next_ = 0;
    marks_[next_++] = mark;
  }

  std::vector<Mark> marks_;
  size_t next_ = 0;  // the oldest, once there are as many as are kept
  uint64_t newest_ = 0;
};

}  // namespace sigma
