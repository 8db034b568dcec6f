// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A sampler on queues of the test's own, and its records against the truth.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bpf/records.h"
#include "catch.h"
#include "gpu_interpose/sampler_options.h"
#include "reader/device_queue.h"

namespace rig {

struct Records {
  std::mutex lock;
  std::vector<sigma_ring> rings;
  std::vector<sigma_ring_post> posts;
  std::vector<sigma_ring_completion> completions;
  std::vector<sigma_ring_gap> gaps;

  static Records& get() {
    static Records records;
    return records;
  }
  template <typename T>
  static void take(std::vector<T>& into, const uint8_t* at) {
    T record;
    memcpy(&record, at, sizeof record);
    into.push_back(record);
  }
  static void emit(const void* batch, uint32_t bytes) {
    Records& self = get();
    const std::lock_guard hold(self.lock);
    const auto* at = static_cast<const uint8_t*>(batch);
    for (const uint8_t* end = at + bytes; at < end;) {
      const auto& header = *reinterpret_cast<const sigma_header*>(at);
      switch (header.type) {
        case SIGMA_RING:
          take(self.rings, at);
          break;
        case SIGMA_RING_POST:
          take(self.posts, at);
          break;
        case SIGMA_RING_COMPLETION:
          take(self.completions, at);
          break;
        case SIGMA_RING_GAP:
          take(self.gaps, at);
          break;
        default:
          FAIL("a record of type " << header.type);
      }
      at += header.size;
    }
  }
  bool has_state(const std::string& reason) {
    const std::lock_guard hold(lock);
    for (const sigma_ring& ring : rings)
      if (reason == ring.reason) return true;
    return false;
  }
};

class Observed {
 public:
  // `mapped`: by our libgdrapi.so.2.
  explicit Observed(const sigma::gpu::SamplerOptions& options = {}, bool mapped = false);
  ~Observed();

  void add(const DeviceQueue& queue);
  void look();
  // Queues made before that are taken up in use.
  void refresh(uint64_t attached_ns = 0);
  void end_all();
  // The queue at this place is another life from now on.
  void reset(uint32_t i, const DeviceQueue& queue);
  // The queue at this place was destroyed, as the registry says; the sampler has not been told.
  void destroyed(uint32_t i);
  void leave_device(int device);
  // Blocks of the i-th queue that were told, or said to be missed.
  uint64_t told_of(uint32_t i) const;
  // What the i-th queue's producer index turned out to be, if anything was said of it.
  sigma_gpu_index_state index_of(uint32_t i) const;
  // On a thread of its own, as in the library.
  void start();
  void stop();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

struct Verdict {
  uint64_t seen = 0, missed = 0;
};

// What was told is what was posted, each once, in order, and the rest is declared.
inline Verdict compare(const DeviceQueue& queue, uint64_t from = 0) {
  Records& records = Records::get();
  const std::lock_guard hold(records.lock);
  std::map<uint64_t, Posted> truth;
  uint64_t end = queue.shape().first_index;
  for (const Posted& each : queue.truth()) {
    truth[each.index] = each;
    end = each.index + each.blocks;
  }
  Verdict verdict;
  std::map<uint64_t, uint64_t> covered;  // begin to end
  for (const sigma_ring_post& post : records.posts) {
    if (post.number != queue.shape().qp_num) continue;
    const auto found = truth.find(post.index);
    INFO("index " << post.index);
    REQUIRE(found != truth.end());
    CHECK(post.remote_addr == found->second.remote_addr);
    CHECK(post.bytes == found->second.bytes);
    CHECK(post.blocks == found->second.blocks);
    CHECK(post.initiator == SIGMA_INITIATOR_GPU);
    // Of a stack that is not known the doorbell may be rung as soon as the request is written.
    if (post.post_ns != 0) CHECK(post.post_ns - post.post_error_ns <= found->second.written_ns);
    CHECK(covered.emplace(post.index, post.index + post.blocks).second);
    verdict.seen += post.blocks;
  }
  for (const sigma_ring_gap& gap : records.gaps) {
    if (gap.number != queue.shape().qp_num || gap.kind != SIGMA_RING_SEND) continue;
    INFO("gap at " << gap.first << " of " << gap.count);
    CHECK(covered.emplace(gap.first, gap.first + gap.count).second);
    verdict.missed += gap.count;
  }
  uint64_t at = std::max(from, queue.shape().first_index);
  for (const auto& [begin, until] : covered) {
    CHECK(begin == at);
    at = until;
  }
  for (const sigma_ring& ring : records.rings)
    if (*ring.reason) UNSCOPED_INFO("queue " << ring.number << ": " << ring.reason);
  CHECK(at == end);
  return verdict;
}

}  // namespace rig
