// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The same records through a session with several sinks: each operation must come out as it does with
// one, those of a queue pair in the same order, the books must be the same, and rounds must hold what
// they promise (SessionOptions::on_round).
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.h"
#include "session/session.h"

// Everything that an operation says, as text: "-" is unknown.
inline std::string text_of(const sigma::Operation& operation) {
  std::ostringstream out;
  const auto put = [&out](const auto& value) {
    if constexpr (requires { value.has_value(); }) {
      if (value)
        out << +*value << ' ';
      else
        out << "- ";
    } else {
      out << +value << ' ';
    }
  };
  out << operation.record << ": ";
  if (operation.qp)
    out << operation.qp->device << '/' << operation.qp->qp_num << '.' << operation.qp->life << ' ';
  put(operation.time_ns), put(operation.time_error_ns), put(operation.complete_ns);
  put(operation.complete_error_ns), put(operation.latency_ns);
  put(static_cast<int>(operation.complete_source)), put(operation.pid), put(operation.tid);
  put(static_cast<int>(operation.queue)), put(static_cast<int>(operation.opcode)), put(operation.bytes);
  put(operation.sge_count), put(operation.signaled), put(operation.is_inline), put(operation.wr_id);
  put(operation.local_addr), put(operation.remote_addr), put(operation.lkey), put(operation.rkey);
  put(operation.imm), put(operation.peer_qp_num), put(operation.peer.lid), put(operation.status);
  put(operation.vendor_err), put(static_cast<int>(operation.initiator));
  put(static_cast<int>(operation.source)), put(operation.index), put(operation.tier), put(operation.flags);
  if (operation.peer.gid)
    for (const uint8_t byte : *operation.peer.gid) put(byte);
  out << operation.comm;
  return out.str();
}

inline std::string text_of(const sigma::QueuePair& qp) {
  std::ostringstream out;
  const auto put = [&out](const auto& value) { value ? out << +*value << ' ' : out << "- "; };
  out << qp.device << ' ' << qp.qp_num << ' ' << qp.life << ' ' << qp.pid << ' ' << qp.qp_ptr << ' ';
  put(qp.type), put(qp.state), put(qp.sq_sig_all), put(qp.peer_qp_num), put(qp.handle), put(qp.created_ns);
  put(qp.destroyed_ns);
  if (qp.observed) out << qp.observed->posted << ' ' << qp.observed->seen << ' ' << qp.observed->missed;
  return out.str();
}

// What an operation said, and of which queue pair; for comparing.
struct SaidOperation {
  uint64_t record;
  std::string queue_pair, text;
};

inline SaidOperation said(const sigma::Operation& operation) {
  std::string name;
  if (operation.qp)
    name = operation.qp->device + "/" + std::to_string(operation.qp->qp_num) + "." +
           std::to_string(operation.qp->life);
  return {operation.record, name, text_of(operation)};
}

// Those of one record and queue pair keep their order.
inline std::vector<std::string> in_order(std::vector<SaidOperation> operations) {
  std::stable_sort(operations.begin(), operations.end(), [](const auto& a, const auto& b) {
    // Of queue pairs without a known device several may have one name.
    const bool anonymous = a.queue_pair.empty() || a.queue_pair[0] == '/';
    return std::tie(a.record, a.queue_pair, anonymous ? a.text : a.queue_pair) <
           std::tie(b.record, b.queue_pair, anonymous ? b.text : b.queue_pair);
  });
  std::vector<std::string> texts;
  for (auto& each : operations) texts.push_back(std::move(each.text));
  return texts;
}

class Twin {
 public:
  using Records = std::vector<std::vector<std::byte>>;

  Twin(uint32_t shards, sigma::SessionOptions options) {
    for (uint32_t i = 0; i < shards; ++i) {
      sinks_.push_back(std::make_unique<Sink>());
      pointers_.push_back(sinks_.back().get());
    }
    options.on_round = [this] { on_round(); };
    session_ = std::make_unique<sigma::Session>(pointers_, std::move(options));
  }

  // The operations, in_order().
  std::vector<std::string> run(const Records& records) {
    for (const auto& record : records) session_->on_record(record);
    session_->finish(0);
    for (const auto& sink : sinks_) CHECK(sink->rounds.empty());
    return in_order(std::move(operations_));
  }
  sigma::Session& session() { return *session_; }

 private:
  // By its thread, and taken from by the caller's: as the session says, without more ado than a lock.
  struct Sink : sigma::OperationSink {
    std::mutex mutex;
    std::vector<SaidOperation> operations;
    std::deque<std::vector<SaidOperation>> rounds;
    void on_operation(const sigma::Operation& operation) override { operations.push_back(said(operation)); }
    void end_round() override {
      const std::lock_guard lock(mutex);
      rounds.push_back(std::exchange(operations, {}));
    }
  };
  void on_round() {
    const uint64_t before = newest_;
    for (const auto& sink : sinks_) {
      const std::lock_guard lock(sink->mutex);
      REQUIRE_FALSE(sink->rounds.empty());
      for (SaidOperation& operation : sink->rounds.front()) {
        if (operation.record < before) FAIL("an operation of a record that was over");
        newest_ = std::max(newest_, operation.record);
        operations_.push_back(std::move(operation));
      }
      sink->rounds.pop_front();
    }
  }

  std::vector<std::unique_ptr<Sink>> sinks_;
  std::vector<sigma::OperationSink*> pointers_;
  std::vector<SaidOperation> operations_;
  uint64_t newest_ = 0;
  std::unique_ptr<sigma::Session> session_;
};

// `session` has had `records` and is finished; `operations`: what its sink got.
inline void check_twin(uint32_t shards, const sigma::SessionOptions& options, const Twin::Records& records,
                       sigma::Session& session, const std::vector<SaidOperation>& operations) {
  Twin twin(shards, options);
  const auto one = in_order(operations), several = twin.run(records);
  INFO(shards << " shards");
  for (size_t i = 0; i < std::min(one.size(), several.size()); ++i)
    if (one[i] != several[i]) {
      INFO(one[i] << "\n" << several[i]);
      FAIL("operation " << i << " differs");
    }
  REQUIRE(one.size() == several.size());
  for (const sigma::CounterInfo& counter : sigma::kCounters) {
    INFO(counter.name);
    CHECK(session.counters().*counter.value == twin.session().counters().*counter.value);
  }
  const auto qps = session.queue_pairs(), twins = twin.session().queue_pairs();
  REQUIRE(qps.size() == twins.size());
  for (size_t i = 0; i < qps.size(); ++i) CHECK(text_of(*qps[i]) == text_of(*twins[i]));
}
