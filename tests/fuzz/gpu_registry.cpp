// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The registry that a process says is the preloaded library's, mutated: no more entries than it may
// have, and each one whole.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "attach/gpu_registry.h"
#include "catch.h"
#include "fuzzer.h"

using namespace sigma;

namespace {

constexpr size_t kRegionBytes = 64 << 10;

// A head and three entries behind it; `queues` is an offset in the region until it is put there.
Bytes sample() {
  Bytes bytes(sizeof(sigma_gpu_registry) + 3 * sizeof(sigma_gpu_queue));
  sigma_gpu_registry head{};
  head.magic = SIGMA_GPU_REGISTRY_MAGIC;
  head.version = SIGMA_GPU_REGISTRY_VERSION;
  head.head_bytes = sizeof head;
  head.queue_bytes = sizeof(sigma_gpu_queue);
  head.capacity = head.used = 3;
  head.queues = reinterpret_cast<sigma_gpu_queue*>(sizeof head);
  std::memcpy(bytes.data(), &head, sizeof head);
  for (uint32_t i = 0; i < 3; ++i) {
    sigma_gpu_queue queue{};
    queue.sequence = 2;
    queue.state = SIGMA_GPU_QUEUE_LIVE;
    queue.flags = SIGMA_GPU_INITIATED | SIGMA_GPU_HAS_PATH;
    queue.qp_num = 0x100 + i;
    queue.peer_qp_num = 0x200 + i;
    std::strcpy(queue.device, "mlx5_0");
    std::memcpy(bytes.data() + sizeof head + i * sizeof queue, &queue, sizeof queue);
  }
  return bytes;
}

}  // namespace

TEST_CASE("mutated GPU registries do no harm") {
  auto* region = static_cast<std::byte*>(
      mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  REQUIRE(region != MAP_FAILED);
  const auto memory = RemoteMemory::open(getpid());
  REQUIRE(memory.ok());
  const auto address = reinterpret_cast<uint64_t>(region);
  Fuzzer fuzzer("gpu_registry", {sample()});
  size_t refused = 0, read = 0, told = 0;
  while (fuzzer.next()) {
    const Bytes& bytes = fuzzer.bytes();
    std::memset(region, 0, kRegionBytes);
    if (!bytes.empty()) std::memcpy(region, bytes.data(), std::min(bytes.size(), kRegionBytes));
    auto* head = reinterpret_cast<sigma_gpu_registry*>(region);
    // Small numbers are offsets; others stay what they are, which leads anywhere.
    if (const auto offset = reinterpret_cast<uint64_t>(head->queues); offset < kRegionBytes)
      head->queues = reinterpret_cast<sigma_gpu_queue*>(address + offset);
    const auto queues = read_gpu_registry(*memory, address);
    if (!queues.ok()) {
      ++refused;
      continue;
    }
    ++read;
    if (queues->size() > SIGMA_GPU_MAX_QUEUES) FAIL("more queues than a registry has");
    if (gpu_tiers(*queues).size() > queues->size()) FAIL("more queues read than there are");
    for (const sigma_qp_peer& peer : to_peer_records(*queues, 1)) {
      if (peer.h.size != sizeof peer || memchr(peer.device, 0, sizeof peer.device) == nullptr)
        FAIL("a record that is none");
      ++told;
    }
  }
  munmap(region, kRegionBytes);
  CHECK(refused > 50);
  CHECK(read > 50);
  CHECK(told > 50);
}
