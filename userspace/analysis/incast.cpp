// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/incast.h"

#include <algorithm>

namespace sigma {

void Incast::on_operation(size_t row, size_t sender, size_t receiver, uint64_t post_ns,
                          uint64_t complete_ns) {
  if (row >= lanes_.size()) lanes_.resize(std::max(row + 1, 2 * lanes_.size()));
  Lane& lane = lanes_[row];
  if (lane.known && post_ns <= lane.until_ns) {
    lane.post_ns = std::max(lane.post_ns, post_ns);
    lane.until_ns = std::max(lane.until_ns, complete_ns);
    return;
  }
  if (!lane.known) {
    Receiver& to = receivers_[receiver];
    const auto [known, is_new] = to.senders.try_emplace(sender, to.senders.size());
    if (is_new) to.busy_rows.push_back(0);
    to.lanes.push_back(row);
    lane = {receiver, known->second, post_ns, complete_ns, true};
    return add(receiver, {post_ns, false, lane.sender});
  }
  const Change end{lane.until_ns, true, lane.sender};
  lane.post_ns = post_ns;
  lane.until_ns = complete_ns;
  add(receiver, end);
  add(receiver, {post_ns, false, lane.sender});
}

void Incast::add(size_t receiver, const Change& change) {
  Receiver& to = receivers_[receiver];
  to.changes.push(change);
  ++waiting_;
  if (to.changes.size() < to.limit && waiting_ < kMaxChanges) return;
  uint64_t known_ns = UINT64_MAX;
  for (const size_t row : to.lanes) known_ns = std::min(known_ns, lanes_[row].post_ns);
  count_through(receiver, known_ns, 0);
  if (waiting_ >= kMaxChanges) count_through(receiver, UINT64_MAX, to.changes.size() / 2);
  to.limit = std::max<size_t>(1024, 2 * to.changes.size());
}

// In order of time, what lies before `until_ns`, but for the newest `keep`.
void Incast::count_through(size_t number, uint64_t until_ns, size_t keep) {
  Receiver& to = receivers_[number];
  IncastReceiver& total = totals_[number];
  while (to.changes.size() > keep && to.changes.top().time_ns < until_ns) {
    const Change change = to.changes.top();
    to.changes.pop();
    --waiting_;
    const uint64_t time_ns = std::max(change.time_ns, to.now_ns);
    if (to.busy_senders > 0) {
      total.busy_ns += time_ns - to.now_ns;
      total.sender_ns += (time_ns - to.now_ns) * to.busy_senders;
    }
    to.now_ns = time_ns;
    uint32_t& rows = to.busy_rows[change.sender];
    if (change.ends) {
      if (--rows == 0) --to.busy_senders;
    } else if (++rows == 1 && ++to.busy_senders > total.most) {
      total.most = to.busy_senders;
      total.most_ns = time_ns;
    }
  }
}

void Incast::finish_trace() {
  for (Lane& lane : lanes_)
    if (lane.known) {
      receivers_[lane.receiver].changes.push({lane.until_ns, true, lane.sender});
      ++waiting_;
    }
  for (auto& [number, receiver] : receivers_) {
    count_through(number, UINT64_MAX, 0);
    totals_[number].senders += receiver.senders.size();
  }
  lanes_.clear();
  receivers_.clear();
  waiting_ = 0;
}

}  // namespace sigma
