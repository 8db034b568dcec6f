// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The reader of queues in device memory: what it says against what was posted, and what it does to
// a job whose driver is slow, stuck or gone.
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "reader/observed.h"
#include "reader/rig.h"

using namespace rig;
using sigma::gpu::SamplerOptions;

namespace {

// Beside the driver's options a test draws its own numbers: always the same, and printed.
std::mt19937 random_numbers(unsigned seed) {
  if (const char* text = getenv("SIGMA_TEST_SEED")) seed = static_cast<unsigned>(atoi(text));
  WARN("seed " << seed << " (SIGMA_TEST_SEED changes it)");
  return std::mt19937(seed);
}

// GPU threads and NIC in one: posts until so many blocks, completing what it must.
void post_freely(DeviceQueue& queue, uint64_t blocks, std::mt19937& random, unsigned batch) {
  const uint64_t end = queue.posted + blocks;
  while (queue.posted < end) {
    for (unsigned i = 1 + random() % batch; i > 0; --i) {
      if (!queue.has_room()) break;
      queue.post(random() % 4 == 0);
    }
    queue.ring_doorbell();
    if (!queue.has_room() || random() % 3 == 0)
      for (unsigned i = random() % 32; i > 0; --i) queue.complete_next();
    if (random() % 64 == 0) std::this_thread::yield();
  }
  queue.complete_all();
}

uint64_t posted_of(const DeviceQueue& queue) {
  return queue.posted - queue.shape().first_index;
}

}  // namespace

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

TEST_CASE("after a pause counts are modulo 65,536 only where so many may have been posted") {
  const Driver driver;
  struct Case {
    uint32_t entries;  // of the completion queue; 0: collapsed
    bool posts, modulo;
    uint32_t blocks = 128;
  };
  const Case each =
      GENERATE(Case{256, true, false}, Case{0, false, false}, Case{0, true, true},
               Case{0, true, false, 1024});  // its ring shows that it is in its first lap
  CAPTURE(each.entries, each.posts);
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  DeviceQueue queue({.blocks = each.blocks, .cq_entries = each.entries});
  SamplerOptions options = patient();
  options.most_posts_per_s = 1'000'000'000'000'000;  // every look comes after a pause
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  const auto post = [&] {
    for (int i = 0; i < 20; ++i) queue.post(i % 4 == 0);
    queue.ring_doorbell();
    queue.complete_all();
  };
  for (int round = 0; round < 5; ++round) {
    if (each.posts) post();
    observed.look();
    observed.look();
  }
  observed.end_all();
  CHECK(compare(queue).missed == 0);
  bool modulo = false;
  for (const sigma_ring& ring : Records::get().rings)
    modulo |= (ring.flags & SIGMA_RING_MODULO) != 0;
  CHECK(modulo == each.modulo);
}

TEST_CASE("a round of 65,536 between two looks is counted where the completion queue has it all") {
  const Driver driver;
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  DeviceQueue queue({.blocks = 128, .cq_entries = 2048});
  SamplerOptions options = patient();
  options.most_posts_per_s = 1'000'000'000'000'000;
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  auto random = random_numbers(19);
  for (const uint64_t blocks :
       {uint64_t{20}, 65'536 + random() % 100, 65'536 * 2 + random() % 30'000, uint64_t{30}}) {
    for (const uint64_t end = queue.posted + blocks; queue.posted < end;) {
      queue.post(random() % 8 == 0);
      queue.ring_doorbell();
      while (queue.posted - queue.completed > 100) {
        // Of those that make room, the last one completes.
        for (int i = 0; i < 80 && queue.completed + 2 < queue.posted; ++i)
          queue.complete_unsignaled();
        queue.complete_next();
      }
    }
    observed.look();
    observed.look();
  }
  observed.end_all();
  const Verdict verdict = compare(queue);
  CHECK(verdict.seen + verdict.missed == posted_of(queue));
  CHECK(verdict.missed > 65'536 * 3);
  for (const sigma_ring& ring : Records::get().rings) CHECK_FALSE(ring.flags & SIGMA_RING_MODULO);
}

TEST_CASE("a queue without a doorbell record is followed by its completions") {
  const Driver driver;
  const uint32_t entries = GENERATE(0u, 32u);
  Records::get().posts.clear(), Records::get().gaps.clear();
  DeviceQueue queue({.blocks = 128, .cq_entries = entries, .doorbell_record = false});
  auto random = random_numbers(5);
  Observed observed(patient());
  observed.add(queue);
  observed.refresh();
  for (int round = 0; round < 200; ++round) {
    for (unsigned i = random() % 12; i > 0; --i) queue.post(random() % 4 == 0);
    queue.complete_all();
    observed.look();
  }
  observed.look();
  observed.end_all();
  CHECK(compare(queue).missed == 0);
}

TEST_CASE(
    "a post is bounded by the look that found its slot unwritten, not by the doorbell record") {
  const Driver driver;
  const bool doorbell_record = GENERATE(true, false);
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  const uint32_t entries = GENERATE(0u, 64u);
  DeviceQueue queue({.blocks = 128,
                     .cq_entries = entries,
                     .doorbell_record = doorbell_record,
                     .stack = SIGMA_GPU_STACK_DOCA});
  Observed observed(patient());
  observed.add(queue);
  observed.refresh();
  std::vector<uint64_t> unwritten_ns;
  auto random = random_numbers(17);
  for (int round = 0; round < 100; ++round) {
    observed.look();
    const uint64_t ns = now_ns();
    observed.look();
    for (unsigned i = 1 + random() % 6; i > 0; --i) {
      queue.post(random() % 4 == 0);
      unwritten_ns.push_back(ns);
    }
    // The record and the completion lag by a few looks.
    for (unsigned i = random() % 4; i > 0; --i) observed.look();
    queue.ring_doorbell();
    queue.complete_all();
    observed.look();
  }
  observed.look();
  observed.end_all();
  CHECK(compare(queue).missed == 0);
  const auto& posts = Records::get().posts;
  REQUIRE(posts.size() == unwritten_ns.size());
  for (size_t i = 0; i < posts.size(); ++i) {
    REQUIRE(posts[i].post_ns != 0);
    // No wider than it must be: a look later than that found it unwritten.
    CHECK(posts[i].post_ns - posts[i].post_error_ns >= unwritten_ns[i]);
  }
  for (const sigma_ring& ring : Records::get().rings)
    if (ring.kind == SIGMA_RING_SEND && ring.event == SIGMA_RING_END)
      CHECK(std::string(ring.reason) != SIGMA_RING_END_UNSEEN);
}

TEST_CASE(
    "of a queue without a doorbell record the end is known when nothing is written behind it") {
  const Driver driver;
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  DeviceQueue queue({.blocks = 128, .doorbell_record = false});
  Observed observed(patient());
  observed.add(queue);
  observed.refresh();
  for (int i = 0; i < 10; ++i) queue.post();
  for (int i = 0; i < 7; ++i) queue.complete_next();
  observed.look();
  observed.end_all();
  // Three more stand there: nobody knows whether they were rung for.
  size_t ends = 0;
  for (const sigma_ring& ring : Records::get().rings) {
    if (ring.kind != SIGMA_RING_SEND || ring.event != SIGMA_RING_END) continue;
    ++ends;
    CHECK(ring.posted == 7);
    CHECK(std::string(ring.reason) == "its end was not seen");
  }
  CHECK(ends == 1);
}

TEST_CASE("a completion ring that went round before its first look moves its queue all the same") {
  const Driver driver;
  struct Case {
    uint32_t entries;  // all of them are copied at once, or only what is likely
    bool looked_at;    // before its end, at which all of them are
    uint64_t posted;
  };
  const Case each = GENERATE(Case{16, true, 100}, Case{16, false, 40}, Case{32, true, 100},
                             Case{32, false, 100}, Case{64, false, 70});
  CAPTURE(each.entries, each.looked_at, each.posted);
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  DeviceQueue queue({.blocks = 128, .cq_entries = each.entries, .doorbell_record = false});
  Observed observed(patient());
  observed.add(queue);
  observed.refresh();
  while (queue.posted < each.posted) {
    queue.post(queue.posted % 8 == 3);
    queue.complete_next();
  }
  if (each.looked_at)
    for (int i = 0; i < 3; ++i) observed.look();
  observed.end_all();
  const Verdict verdict = compare(queue);
  CHECK(verdict.seen + verdict.missed == posted_of(queue));
}

TEST_CASE("of a queue that may have been lapped, old slots do not show where it ended") {
  const Driver driver;
  struct Case {
    uint64_t before, lap, after;  // posted: seen at once, while nobody looks, before the end
    bool looked_at;               // between them
    bool known;
  };
  // After a few less than 65,536 the newest completion is one that was told, and the slots behind
  // it are those of a lap ago.
  const Case each = GENERATE(Case{20, 65'530, 0, true, false}, Case{20, 65'530, 0, false, false},
                             Case{20, 65'530, 3, true, false}, Case{20, 65'530, 60, true, true},
                             Case{20, 0, 0, true, true});
  CAPTURE(each.lap, each.after, each.looked_at);
  Records::get().posts.clear(), Records::get().gaps.clear(), Records::get().rings.clear();
  DeviceQueue queue({.blocks = 128, .doorbell_record = false, .stack = SIGMA_GPU_STACK_DOCA});
  SamplerOptions options = patient();
  options.most_posts_per_s = 131'072;  // 65,536 may be posted in half a second
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  const auto post = [&](uint64_t blocks) {
    for (uint64_t i = 0; i < blocks; ++i) {
      queue.post();
      queue.complete_next();
    }
  };
  post(each.before);
  observed.look();
  observed.look();
  const uint64_t looked_ns = now_ns();
  post(each.lap);
  while (now_ns() - looked_ns < 520'000'000) usleep(1000);
  if (each.looked_at) observed.look();
  post(each.after);
  if (each.after) observed.look();
  observed.end_all();
  size_t ends = 0;
  for (const sigma_ring& ring : Records::get().rings) {
    if (ring.kind != SIGMA_RING_SEND || ring.event != SIGMA_RING_END) continue;
    ++ends;
    CHECK((std::string(ring.reason) != SIGMA_RING_END_UNSEEN) == each.known);
    if (each.known) CHECK((queue.posted - ring.posted) % 65'536 == 0);
  }
  CHECK(ends == 1);
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

TEST_CASE("of memory that is gone the reader says whether its queue went with it") {
  const Driver driver;
  const bool with_queue = GENERATE(true, false), mapped = GENERATE(true, false);
  INFO("with its queue " << with_queue << ", mapped " << mapped);
  Records& records = Records::get();
  records.posts.clear(), records.gaps.clear(), records.completions.clear(), records.rings.clear();
  auto queue = std::make_unique<DeviceQueue>(Shape{.blocks = 128});
  const uint32_t number = queue->shape().qp_num;
  Observed observed(patient(), mapped);
  observed.add(*queue);
  observed.refresh();
  for (int i = 0; i < 20; ++i) queue->post();
  queue->ring_doorbell();
  queue->complete_all();
  observed.look();
  queue = nullptr;
  if (with_queue) observed.destroyed(0);
  for (int i = 0; i < 3; ++i) observed.look();
  observed.end_all();
  std::vector<sigma_ring> told;
  for (const sigma_ring& ring : records.rings)
    if (ring.kind == SIGMA_RING_SEND && ring.number == number) told.push_back(ring);
  REQUIRE_FALSE(told.empty());
  CHECK(told.back().event == SIGMA_RING_END);
  CHECK(told.back().tier == (with_queue ? (mapped ? 2 : 3) : 0));
  CHECK(told.back().mode == (with_queue ? SIGMA_RING_READ : SIGMA_RING_SETUP));
  CHECK(std::string(told.back().reason) == SIGMA_RING_END_UNSEEN);
  CHECK(records.has_state("its memory is gone") != with_queue);
  CHECK(records.posts.size() + records.gaps.size() > 0);
}

TEST_CASE("a hang is told with what is pending, and the first error with its syndrome") {
  const Driver driver;
  DeviceQueue queue({.blocks = 128});
  SamplerOptions options = patient();
  options.snapshots_only = GENERATE(false, true);
  options.hang_ns = 50'000'000;
  Records::get().posts.clear(), Records::get().rings.clear(), Records::get().completions.clear();
  Records::get().gaps.clear();
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  for (int i = 0; i < 200; ++i) {
    queue.post();
    queue.complete_next();
    queue.ring_doorbell();
    if (i % 30 == 29) observed.look();
  }
  for (int i = 0; i < 5; ++i) queue.post();
  queue.ring_doorbell();
  while (!Records::get().has_state("hung")) {
    observed.look();
    usleep(1000);
  }
  // A snapshot asks for slots that are quiet: a look or two later.
  while (Records::get().posts.empty() || Records::get().posts.back().index < 204) {
    usleep(1000);
    observed.look();
  }
  queue.fail_next(0x15, 0x81);
  observed.look();
  usleep(60'000);
  observed.look();
  queue.fail_next(0x05, 0);
  usleep(60'000);
  observed.look();
  observed.end_all();
  const Verdict verdict = compare(queue);
  CHECK(verdict.seen + verdict.missed == 205);
  CHECK(verdict.seen >= 100);
  bool last_seen = false;
  for (const auto& post : Records::get().posts) last_seen |= post.index == 204;
  CHECK(last_seen);
  REQUIRE(Records::get().completions.size() >= 2);
  const auto& completions = Records::get().completions;
  const auto& first = completions[completions.size() - 2];
  CHECK(first.vendor_err == 0x81);
  CHECK(first.status == 12);  // IBV_WC_RETRY_EXC_ERR
  CHECK(first.wqe_counter == 200);
  CHECK(completions.back().status == 5);  // IBV_WC_WR_FLUSH_ERR
}

namespace {

// Looks at a hundred requests for three times as long as a hang takes.
void look_at_pending(DeviceQueue& queue, SamplerOptions options, bool they_complete) {
  options.hang_ns = 100'000'000;
  Records::get().rings.clear();
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  for (int i = 0; i < 100; ++i) queue.post();
  queue.ring_doorbell();
  observed.look();
  for (const uint64_t begin = now_ns(); now_ns() - begin < 3 * options.hang_ns; usleep(5000)) {
    if (they_complete) queue.complete_next();
    observed.look();
  }
  CHECK_FALSE(Records::get().has_state(SIGMA_RING_HUNG));
}

}  // namespace

TEST_CASE("a queue whose requests complete does not hang, however long it was not posted to") {
  const Driver driver;
  DeviceQueue queue({.blocks = 128});
  look_at_pending(queue, patient(), true);
}

TEST_CASE("a queue that cannot be looked at is not said to hang") {
  const Driver driver({{"SIGMA_CUDA_HANG_AFTER", "12"}});
  DeviceQueue queue({.blocks = 128});
  SamplerOptions options;
  options.copy_limit_ns = 1'000'000;
  look_at_pending(queue, options, false);
}

TEST_CASE("a reader that gives up says so of the queues that are still there") {
  const Driver driver({{"SIGMA_CUDA_HANG_AFTER", "30"}});
  Records& records = Records::get();
  records.rings.clear();
  DeviceQueue gone({.blocks = 128}), there({.blocks = 128, .qp_num = 0x4712});
  SamplerOptions options;
  options.copy_limit_ns = 1'000'000;
  options.give_up_ns = 50'000'000;
  Observed observed(options);
  observed.add(gone);
  observed.add(there);
  observed.refresh();
  observed.look();
  observed.destroyed(0);
  while (!records.has_state("a copy does not end")) {
    there.post();
    there.ring_doorbell();
    there.complete_all();
    observed.look();
  }
  observed.end_all();
  std::map<uint32_t, sigma_ring> last;
  for (const sigma_ring& ring : records.rings)
    if (ring.kind == SIGMA_RING_SEND) last[ring.number] = ring;
  CHECK(last[0x4711].tier == 3);
  CHECK(last[0x4711].mode == SIGMA_RING_READ);
  CHECK(last[0x4712].tier == 0);
  for (const auto& [number, ring] : last) {
    CHECK(ring.event == SIGMA_RING_END);
    CHECK(std::string(ring.reason) == SIGMA_RING_END_UNSEEN);
  }
}

TEST_CASE("a copy that never ends costs the reader, and no call of the job") {
  const Driver driver({{"SIGMA_CUDA_HANG_AFTER", "40"}});
  DeviceQueue queue({.blocks = 128});
  SamplerOptions options;
  options.give_up_ns = 100'000'000;
  Observed observed(options);
  observed.add(queue);
  observed.refresh();
  observed.start();
  auto random = random_numbers(7);
  while (!Records::get().has_state("a copy does not end")) {
    post_freely(queue, 200, random, 8);
    CUdeviceptr memory;
    CUmodule module;
    REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoD_v2(memory, &memory, 8) == CUDA_SUCCESS);
    REQUIRE(cuMemFree_v2(memory) == CUDA_SUCCESS);
    REQUIRE(cuModuleLoadData(&module, "") == CUDA_SUCCESS);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  }
  observed.stop();
  observed.end_all();
  // What it did say before is true.
  Records& records = Records::get();
  for (const auto& post : records.posts)
    CHECK(post.remote_addr == 0x5000'0000'0000 + post.index * 4096);
  uint8_t mode = 0;
  for (const sigma_ring& ring : records.rings)
    if (ring.kind == SIGMA_RING_SEND) mode = ring.mode;
  CHECK(mode == SIGMA_RING_SETUP);
}

TEST_CASE("a capture of the job goes on while the reader copies") {
  const Driver driver;
  DeviceQueue queue({.blocks = 128});
  Observed observed;
  observed.add(queue);
  observed.refresh();
  observed.start();
  auto random = random_numbers(9);
  CUstream stream;
  REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    REQUIRE(cuStreamBeginCapture_v2(stream, mode) == CUDA_SUCCESS);
    const uint64_t seen = observed.told_of(0);
    do post_freely(queue, 500, random, 4);
    while (observed.told_of(0) <= seen);
    CUgraph graph;
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  }
  observed.stop();
}

TEST_CASE("the reader leaves a context before its end, and comes back to a new one") {
  const Driver driver;
  auto queue = std::make_unique<DeviceQueue>(Shape{.blocks = 128});
  Observed observed(patient());
  observed.add(*queue);
  observed.refresh();
  queue->post();
  queue->ring_doorbell();
  observed.look();
  observed.leave_device(0);
  REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  unsigned flags;
  int active = 1;
  REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);  // no reference of ours kept it
  observed.look();
  REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);  // nor did we make one
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
