// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// TeeSink: one stream of operations into several sinks. Owns none of them.
#pragma once

#include <utility>
#include <vector>

#include "session/operation.h"

namespace sigma {

class TeeSink final : public OperationSink {
 public:
  explicit TeeSink(std::vector<OperationSink*> sinks) : sinks_(std::move(sinks)) {}
  void on_operation(const Operation& operation) override {
    for (OperationSink* sink : sinks_) sink->on_operation(operation);
  }
  void on_pick_up(const PickUp& pick_up) override {
    for (OperationSink* sink : sinks_) sink->on_pick_up(pick_up);
  }

 private:
  std::vector<OperationSink*> sinks_;
};

}  // namespace sigma
