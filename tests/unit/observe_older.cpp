// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The observer and a queue pair that was there before it, in this process's own memory: one that has not posted, of
// a library whose layout nobody knows.
#include <rdma/mlx5-abi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "observe/observer.h"
#include "observe_rig.h"
#include "unit/decode_uverbs_record.h"

using namespace observe_rig;

namespace {

constexpr uint64_t kContext = 0x5000;
constexpr uint32_t kBlocks = 64, kOlder = 5, kNewer = 6;  // handles

struct alignas(64) Doorbell {
  std::byte bytes[64] = {};
};
struct alignas(64) Memory {
  std::byte ring[kBlocks * 64] = {};
  Doorbell doorbell;
  std::array<uint64_t, 0x600 / 8> object = {};  // the library's structure

  // The number's next request. What stood here before is another's, or nothing.
  void post(Ring& ring_of) {
    ring_of.post();
    std::memcpy(ring, ring_of.memory.data(), sizeof(ring));
    put32(doorbell.bytes + 4, ring_of.doorbell());
  }
};

uint64_t address_of(const void* at) { return reinterpret_cast<uint64_t>(at); }

sigma::LiveObjects live_with(Memory& memory) {
  memory.object[0x2b8 / 8] = address_of(memory.ring);
  memory.object[0x2d8 / 8] = uint64_t{kBlocks} << 32;
  memory.object[0x300 / 8] = address_of(memory.ring) + sizeof(memory.ring);
  memory.object[0x310 / 8] = address_of(memory.doorbell.bytes);
  sigma::LiveObjects live;
  live.pid = getpid();
  sigma::LiveContext& context = live.contexts.emplace_back();
  context.address = kContext;
  context.device = "mlx5_0";
  context.post_send = reinterpret_cast<uint64_t>(&live_with);  // of no provider's file: it may be linked in
  sigma::LiveQp& qp = live.qps.emplace_back();
  qp.address = address_of(memory.object.data());
  qp.context = kContext;
  qp.handle = kOlder;
  qp.qp_num = kQp;
  qp.type = 2;  // IBV_QPT_RC
  return live;
}

UverbsRecord destroy(uint32_t handle) {
  return UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY)
      .driver(RDMA_DRIVER_MLX5)
      .handle(UVERBS_ATTR_DESTROY_QP_HANDLE, handle);
}

UverbsRecord create(uint32_t handle, const Memory& memory) {
  mlx5_ib_create_qp uhw{};
  uhw.buf_addr = address_of(memory.ring);
  uhw.db_addr = address_of(memory.doorbell.bytes);
  uhw.sq_wqe_count = kBlocks;
  return UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE)
      .driver(RDMA_DRIVER_MLX5)
      .handle(UVERBS_ATTR_CREATE_QP_HANDLE, handle)
      .in(UVERBS_ATTR_CREATE_QP_USER_HANDLE, address_of(memory.object.data()))
      .in(UVERBS_ATTR_CREATE_QP_TYPE, uint64_t{2})
      .in(UVERBS_ATTR_UHW_IN, uhw)
      .out(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, uint32_t{kQp});
}

struct Observed {
  Observed() {
    sigma::ObserverOptions options;
    options.policy = {.read_posts = true, .probes_tell = false};
    observer = std::make_unique<sigma::Observer>(options);
  }
  void command(UverbsRecord record) {
    observer->on_uverbs(record.from(sigma::monotonic_now_ns(), static_cast<uint32_t>(getpid()), kContext).bytes());
  }
  // Until the ring has told of so many posts, and for some looks more.
  void hear(size_t posts) {
    for (int i = 0; i < 1000 && heard.posts.size() < posts; ++i) take();
    for (int i = 0; i < 20; ++i) take();
    observer->stop([&](RecordBuffer::Run& run) { hear_run(run); });
  }
  void take() {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    observer->take([&](RecordBuffer::Run& run) { hear_run(run); }, 0);
  }
  void hear_run(const RecordBuffer::Run& run) {
    RecordBuffer::for_each(run.bytes, [&](auto record) { heard.hear(record); });
  }
  size_t begins(uint8_t origin) const {
    return static_cast<size_t>(std::ranges::count_if(heard.states, [&](const sigma_ring& ring) {
      return ring.event == SIGMA_RING_BEGIN && ring.origin == origin;
    }));
  }

  std::unique_ptr<sigma::Observer> observer;
  Heard heard;
};

}  // namespace

TEST_CASE("observe: an older queue pair that is destroyed is not found in the memory of the next one") {
  const auto memory = std::make_unique<Memory>();
  Ring ring(kBlocks);
  Observed observed;
  const auto older = observed.observer->add_older(live_with(*memory), sigma::monotonic_now_ns());
  REQUIRE(older.placed == 0);
  REQUIRE(older.unplaced == 1);
  SECTION("it posts: now it is found") {
    memory->post(ring);
    observed.hear(1);
    CHECK(observed.begins(SIGMA_RING_BY_SCAN) == 1);
    CHECK(observed.heard.posts.size() == 1);
    CHECK(observed.observer->statements().empty());
  }
  SECTION("likewise where the command has failed, or is another object's") {
    observed.command(destroy(kOlder).result(-EBUSY));
    observed.command(destroy(kNewer));
    memory->post(ring);
    observed.hear(1);
    CHECK(observed.begins(SIGMA_RING_BY_SCAN) == 1);
    CHECK(observed.heard.posts.size() == 1);
  }
  SECTION("it is destroyed, and one of the same number made in its place") {
    observed.command(destroy(kOlder));
    observed.command(create(kNewer, *memory));
    for (int i = 0; i < 3; ++i) memory->post(ring);
    observed.hear(3);
    CHECK(observed.begins(SIGMA_RING_BY_SCAN) == 0);
    CHECK(observed.begins(SIGMA_RING_BY_COMMAND) == 1);
    CHECK(observed.heard.posts.size() == 3);
    CHECK(observed.heard.missed == 0);
    // That nothing was seen of the older one is said all the same.
    CHECK(observed.observer->statements().size() == 1);
  }
}
