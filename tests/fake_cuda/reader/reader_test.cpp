// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The reader of queues in device memory: what it says against what was posted.
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "reader/observed.h"
#include "reader/rig.h"

using namespace rig;
using sigma::gpu::SamplerOptions;

TEST_CASE("all requests are told when they come no faster than they are read") {
  const Driver driver;
  const uint64_t first = GENERATE(uint64_t{0}, uint64_t{65'500});
  const uint32_t entries = GENERATE(0u, 256u);
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().completions.clear();
  DeviceQueue queue({.blocks = 128, .cq_entries = entries, .first_index = first});
  auto random = random_numbers(3);
  Observed observed(patient());
  observed.add(queue);
  observed.refresh(first ? 2 : 0);  // a queue whose index is not 0 has been used before
  observed.look();
  for (int round = 0; round < 200; ++round) {
    for (unsigned i = random() % 16; i > 0; --i) queue.post(random() % 4 == 0);
    queue.ring_doorbell();
    observed.look();
    for (unsigned i = random() % 16; i > 0; --i) queue.complete_next();
    if (!queue.has_room() || queue.posted - queue.completed > 90) queue.complete_all();
    observed.look();
  }
  queue.complete_all();
  observed.look();
  observed.look();
  observed.end_all();
  const Verdict verdict = compare(queue);
  CHECK(verdict.missed == 0);
  CHECK(verdict.seen == posted_of(queue));
  CHECK(queue.posted > first + 1500);
  if (entries) {
    // Each request has its completion.
    const auto truth = queue.truth();
    const auto& told = Records::get().completions;
    REQUIRE(told.size() == truth.size());
    for (size_t i = 0; i < told.size(); ++i) {
      CHECK(told[i].status == 0);
      CHECK(told[i].wqe_counter == (truth[i].index & 0xffff));
      CHECK(told[i].nic_stamp == 1'000'000 + i);
    }
  }
}

TEST_CASE("nothing false is told of a queue that laps the reader, whose copies stall") {
  auto random = random_numbers(11);
  const std::string seed = std::to_string(random());
  const Driver driver({{"SIGMA_CUDA_STALL", "0.02:3"},
                       {"SIGMA_CUDA_COPY_US", "3"},
                       {"SIGMA_CUDA_JITTER_US", "40"},
                       {"SIGMA_CUDA_SEED", seed.c_str()}});
  const uint32_t entries = GENERATE(0u, 256u);
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().completions.clear();
  const sigma_gpu_stack stack = GENERATE(SIGMA_GPU_STACK_UNKNOWN, SIGMA_GPU_STACK_DOCA);
  INFO("CQ entries " << entries << ", stack " << stack);
  DeviceQueue queue({.blocks = 128, .cq_entries = entries, .stack = stack});
  SamplerOptions options;
  options.most_posts_per_s = 100'000;  // of the rig, which shares two cores
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  observed.start();
  // In bursts of less than what an index tells apart, each waited for: all counts are exact then.
  for (int burst = 0; burst < 24; ++burst) {
    post_freely(queue, 100 + random() % 3000, random, 1 + random() % 24);
    const uint64_t posted = queue.posted;
    while (observed.told_of(0) < posted - queue.shape().first_index) usleep(1000);
  }
  observed.stop();
  observed.end_all();
  const Verdict verdict = compare(queue);
  CHECK(verdict.seen + verdict.missed == posted_of(queue));
  CHECK(verdict.seen > 0);
  CHECK(verdict.missed > 0);
  // The n-th completion has the stamp 1,000,000 + n.
  const auto truth = queue.truth();
  uint64_t last = 0;
  for (const auto& completion : Records::get().completions) {
    CHECK(completion.nic_stamp > last);
    last = completion.nic_stamp;
    REQUIRE(last - 1'000'000 < truth.size());
    CHECK(completion.wqe_counter == (truth[last - 1'000'000].index & 0xffff));
  }
}

TEST_CASE("a queue in use is taken up where its completions stand") {
  const Driver driver;
  DeviceQueue queue({.blocks = 128});
  for (int i = 0; i < 300; ++i) {
    queue.post();
    queue.complete_next();
  }
  for (int i = 0; i < 7; ++i) queue.post();
  queue.ring_doorbell();
  Observed observed(patient());
  observed.add(queue);
  observed.refresh(2);  // made before anybody listened
  observed.look();
  observed.end_all();
  const Verdict verdict = compare(queue, 300);
  CHECK(verdict.seen == 7);
  CHECK(verdict.missed == 0);
  for (const auto& post : Records::get().posts) CHECK(post.post_ns == 0);  // nobody saw when
  CHECK(Records::get().completions.empty());
}

TEST_CASE("a queue that was reset counts from 0, and nothing of the life before is told again") {
  const Driver driver;
  const uint32_t entries = GENERATE(0u, 64u);
  const bool doorbell_record = GENERATE(true, false);
  const int before = GENERATE(10, 300);  // less than a ring, whose slots then have the same indices
  INFO("CQ entries " << entries << ", record " << doorbell_record << ", before " << before);
  Records& records = Records::get();
  const auto clear = [&] {
    records.posts.clear(), records.gaps.clear(), records.completions.clear(), records.rings.clear();
  };
  clear();
  DeviceQueue queue({.blocks = 128, .cq_entries = entries, .doorbell_record = doorbell_record});
  Observed observed(patient());
  observed.add(queue);
  observed.refresh();
  const auto post = [&](int count) {
    for (int i = 0; i < count; ++i) {
      queue.post(i % 8 == 7 && doorbell_record);
      if (i % 5 == 4) queue.ring_doorbell(), queue.complete_all(), observed.look();
    }
    queue.ring_doorbell();
    queue.complete_all();
  };
  for (int life = 0; life < 3; ++life) {
    post(life == 1 ? before + 5 : before);
    const size_t posted = queue.truth().size();
    CHECK(posted > 0);
    // What is not told yet is told at the reset.
    const auto truth = queue.truth();
    queue.reset();
    observed.reset(0, queue);
    observed.look();
    CHECK(records.posts.size() == truth.size());
    CHECK(records.completions.size() >= (entries ? truth.size() : 1));
    for (size_t i = 0; i < truth.size() && i < records.posts.size(); ++i) {
      CHECK(records.posts[i].index == truth[i].index);
      CHECK(records.posts[i].remote_addr == truth[i].remote_addr);
      CHECK(records.posts[i].life == static_cast<uint32_t>(life));
    }
    for (const auto& completion : records.completions)
      CHECK(completion.life == static_cast<uint32_t>(life));
    CHECK(records.gaps.empty());
    clear();
    // In memory it looks as it did: nothing is told of that.
    for (int i = 0; i < 3; ++i) observed.look();
    CHECK(records.posts.empty());
    CHECK(records.gaps.empty());
    CHECK(records.completions.empty());
  }
}

TEST_CASE("mapped memory is read without a copy, also after a free beside it") {
  const Driver driver({{"SIGMA_CUDA_HANG_AFTER", "0"}});
  const uint32_t entries = GENERATE(0u, 64u);
  Records& records = Records::get();
  records.posts.clear(), records.gaps.clear(), records.completions.clear(), records.rings.clear();
  DeviceQueue queue({.blocks = 128, .cq_entries = entries});
  auto other = std::make_unique<DeviceQueue>(Shape{.blocks = 128, .qp_num = 0x4712});
  {
    Observed observed(patient(), true);
    observed.add(queue);
    observed.add(*other);
    observed.refresh();
    for (int round = 0; round < 40; ++round) {
      if (round == 20) other = nullptr;  // freed, in pages that both share
      for (int i = 0; i < 7; ++i) queue.post(i == 3);
      queue.ring_doorbell();
      queue.complete_all();
      observed.look();
    }
    observed.look();
    observed.end_all();
  }
  const Verdict verdict = compare(queue);
  CHECK(verdict.missed == 0);
  CHECK(verdict.seen == posted_of(queue));
  for (const sigma_ring& ring : records.rings)
    if (ring.kind == SIGMA_RING_SEND && ring.number == queue.shape().qp_num) CHECK(ring.tier == 2);
}

TEST_CASE("sixteen queues with a completion queue in common") {
  const Driver driver;
  std::vector<std::unique_ptr<DeviceQueue>> queues;
  Observed observed(patient());
  for (uint32_t i = 0; i < 16; ++i) {
    queues.push_back(std::make_unique<DeviceQueue>(Shape{.blocks = 64, .qp_num = 0x100 + i}));
    observed.add(*queues.back());
  }
  observed.refresh();
  auto random = random_numbers(13);
  for (int round = 0; round < 100; ++round) {
    for (auto& queue : queues) {
      for (unsigned i = random() % 10; i > 0; --i) queue->post(random() % 8 == 0);
      queue->ring_doorbell();
    }
    observed.look();
    for (auto& queue : queues) queue->complete_all();
    observed.look();
  }
  observed.end_all();
  for (auto& queue : queues) CHECK(compare(*queue).missed == 0);
}
