// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/incast.h"

#include <algorithm>

namespace sigma {

void Incast::on_span(size_t number, size_t sender, size_t receiver, const Lane::Span& span) {
  if (number >= rows_.size()) rows_.resize(std::max(number + 1, 2 * rows_.size()));
  Row& row = rows_[number];
  if (!row.known) {
    Receiver& to = receivers_[receiver];
    const auto [known, is_new] = to.senders.try_emplace(sender, to.senders.size());
    if (is_new) to.busy_rows.push_back(0);
    to.rows.push_back(number);
    row = {receiver, known->second, span.post_ns, true};
    return add(receiver, {span.post_ns, false, row.sender});
  }
  row.post_ns = std::max(row.post_ns, span.post_ns);
  if (span.ended_ns == 0) return;
  add(receiver, {span.ended_ns, true, row.sender});
  add(receiver, {span.post_ns, false, row.sender});
}

void Incast::on_last(size_t number, uint64_t until_ns) {
  if (number >= rows_.size() || !rows_[number].known) return;
  receivers_[rows_[number].receiver].changes.push({until_ns, true, rows_[number].sender});
  ++waiting_;
}

void Incast::add(size_t receiver, const Change& change) {
  Receiver& to = receivers_[receiver];
  to.changes.push(change);
  ++waiting_;
  if (to.changes.size() < to.limit && waiting_ < kMaxChanges) return;
  uint64_t known_ns = UINT64_MAX;
  for (const size_t row : to.rows) known_ns = std::min(known_ns, rows_[row].post_ns);
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
  for (auto& [number, receiver] : receivers_) {
    count_through(number, UINT64_MAX, 0);
    totals_[number].senders += receiver.senders.size();
  }
  rows_.clear();
  receivers_.clear();
  waiting_ = 0;
}

}  // namespace sigma
