// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Incast: how many senders had something under way to one receiver at once.
//
// A sender is a process; it is busy towards a receiver while a send-queue operation of any of its
// queue pairs to it is outstanding. Operations of one row (queue pair and peer) come in posting
// order, so a Lane, which the row keeps, joins them to spans in which the row was busy, and the row is
// known up to its last post. Where spans begin and end goes into a heap of the receiver's changes, which
// is counted through in order of time up to where all rows are known.
//
// Memory: at most kMaxChanges changes wait in all. Beyond that the oldest are counted through
// before all rows are known; a row that then brings an earlier time counts from there on only.
// Several traces, whose operations come one after another: the most at once are those of the same
// trace, for a trace ends with finish_trace().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <queue>
#include <unordered_map>
#include <vector>

namespace sigma {

struct IncastReceiver {
  size_t senders = 0;      // in all
  uint32_t most = 0;       // at once
  uint64_t most_ns = 0;    // when first
  uint64_t busy_ns = 0;    // with at least one
  uint64_t sender_ns = 0;  // summed over the senders
  double mean() const {    // while there was one
    return busy_ns ? static_cast<double>(sender_ns) / static_cast<double>(busy_ns) : 0;
  }
};

// The spans of one row.
class Lane {
 public:
  struct Span {
    uint64_t ended_ns = 0;  // the span before; 0: there was none, or it goes on
    uint64_t post_ns = 0;   // this one's begin; of one that goes on, the newest post
  };
  // What an operation adds: a new span, or now and then news of one that goes on.
  std::optional<Span> add(uint64_t post_ns, uint64_t complete_ns) {
    if (known_ && post_ns <= until_ns_) {
      post_ns_ = std::max(post_ns_, post_ns);
      until_ns_ = std::max(until_ns_, complete_ns);
      if (++quiet_ < kNews) return std::nullopt;
      quiet_ = 0;
      return Span{0, post_ns_};
    }
    const Span span{known_ ? until_ns_ : 0, post_ns};
    known_ = true;
    quiet_ = 0;
    post_ns_ = post_ns;
    until_ns_ = complete_ns;
    return span;
  }
  // When the last span ends; nullopt: there was none.
  std::optional<uint64_t> until_ns() const { return known_ ? std::optional(until_ns_) : std::nullopt; }

 private:
  static constexpr uint32_t kNews = 64;  // operations
  uint64_t post_ns_ = 0, until_ns_ = 0;
  uint32_t quiet_ = 0;
  bool known_ = false;
};

class Incast {
 public:
  static constexpr size_t kMaxChanges = 1 << 18;

  // What Lane::add said of `row`: `sender` and `receiver` are the caller's numbers, the same in each call
  // for a row. Rows' spans come in the order of the operations that brought them.
  void on_span(size_t row, size_t sender, size_t receiver, const Lane::Span& span);
  // The row's last span ends then. Of every row, before finish_trace().
  void on_last(size_t row, uint64_t until_ns);
  void finish_trace();

  // After finish_trace(): by the caller's number.
  const std::map<size_t, IncastReceiver>& receivers() const { return totals_; }

 private:
  struct Row {
    size_t receiver = 0, sender = 0;  // sender: index in Receiver::busy_rows
    uint64_t post_ns = 0;             // it is known up to there
    bool known = false;
  };
  struct Change {
    uint64_t time_ns;
    bool ends;
    size_t sender;
    // At one time, what ends makes room for what begins.
    bool operator>(const Change& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : ends < other.ends;
    }
  };
  struct Receiver {
    std::priority_queue<Change, std::vector<Change>, std::greater<>> changes;
    std::vector<size_t> rows;
    std::unordered_map<size_t, size_t> senders;  // the caller's number to the index
    std::vector<uint32_t> busy_rows;             // of each sender
    uint32_t busy_senders = 0;
    uint64_t now_ns = 0;
    size_t limit = 1024;
  };

  void add(size_t receiver, const Change& change);
  void count_through(size_t number, uint64_t until_ns, size_t keep);

  std::vector<Row> rows_;
  std::unordered_map<size_t, Receiver> receivers_;
  std::map<size_t, IncastReceiver> totals_;
  size_t waiting_ = 0;
};

}  // namespace sigma
