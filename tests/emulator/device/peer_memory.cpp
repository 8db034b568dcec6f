// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of other devices (see peer_memory.h), and the doorbells that these ring.
#include "peer_memory.h"

#include <endian.h>

#include "clock.h"
#include "nic.h"

namespace connectx {
namespace {

std::atomic<const SigmaPeerMemory*> client_{nullptr};

// Doorbells wait here for the NIC thread, which alone looks at queue pairs. Never destroyed: both
// sides outlive static destruction.
struct Rung {
  uint64_t where, value, time_ns;
};
struct Waiting {
  std::mutex lock;
  std::vector<Rung> rung, taken;
};
Waiting& waiting() {
  static Waiting* const instance = new Waiting;
  return *instance;
}

// Numbers of queue pairs repeat across devices: of several, the one whose UAR page was written.
Qp* rung_queue(const Rung& doorbell, uint32_t qpn) {
  Qp* found = nullptr;
  for (const auto& device : nic().devices) {
    Qp* candidate = device->qp(qpn);
    if (!candidate || !candidate->devx) continue;
    const auto page = device->uar_by_number.find(candidate->uar_page);
    const bool here = page != device->uar_by_number.end() &&
                      *reinterpret_cast<const volatile uint64_t*>(
                          page->second + doorbell.where % 4096 / 8 * 8) == doorbell.value;
    if (here) return candidate;
    if (!found) found = candidate;
  }
  return found;
}

void take(const Rung& doorbell) {
  // The first 8 bytes of a control segment: index << 8, number << 8, each big-endian.
  const auto low = static_cast<uint32_t>(doorbell.value),
             high = static_cast<uint32_t>(doorbell.value >> 32);
  const uint32_t qpn = be32toh(high) >> 8;
  const auto index = static_cast<uint16_t>(be32toh(low) >> 8);
  Qp* qp = rung_queue(doorbell, qpn);
  if (!qp) {
    complain("a doorbell for QP %#x, which there is not", qpn);
    return;
  }
  qp->rung = index;
  qp->was_rung = true;
  OracleDoorbell record{};
  record.header = oracle_header(*qp->device, doorbell.time_ns);
  record.qpn = qpn;
  record.life = qp->entry->life.load(std::memory_order_relaxed);
  record.offset = static_cast<uint32_t>(doorbell.where % 4096);
  record.index = index;
  record.record_index =
      qp->doorbell ? static_cast<uint16_t>(be32toh(qp->doorbell[1])) : uint16_t{0};
  oracle_log(OracleType::doorbell, record);
}

}  // namespace

bool reach(uint64_t& address, uint64_t bytes) {
  const SigmaPeerMemory* client = client_.load();
  uint8_t* found = nullptr;
  switch (client ? client->by_address(address, bytes, &found) : SIGMA_PEER_NOT_MINE) {
    case SIGMA_PEER_OK:
      address = reinterpret_cast<uint64_t>(found);
      return true;
    case SIGMA_PEER_NOT_MINE:
      return true;
    default:
      return false;
  }
}

bool reach_descriptor(int fd, uint64_t offset, uint64_t bytes, uint64_t& address) {
  const SigmaPeerMemory* client = client_.load();
  uint8_t* found = nullptr;
  if (!client || client->by_descriptor(fd, offset, bytes, &found) != SIGMA_PEER_OK) return false;
  address = reinterpret_cast<uint64_t>(found);
  return true;
}

void take_doorbells() {
  Waiting& doorbells = waiting();
  {
    std::lock_guard<std::mutex> hold(doorbells.lock);
    doorbells.taken.swap(doorbells.rung);
  }
  for (const Rung& doorbell : doorbells.taken) take(doorbell);
  doorbells.taken.clear();
}

}  // namespace connectx

extern "C" {

__attribute__((visibility("default"))) void connectx_register_peer_memory(
    const SigmaPeerMemory* client) {
  connectx::client_ = client;
}

__attribute__((visibility("default"))) void connectx_doorbell(const volatile void* where,
                                                              uint64_t value) {
  if (!connectx::nic_running()) return;
  {
    connectx::Waiting& doorbells = connectx::waiting();
    std::lock_guard<std::mutex> hold(doorbells.lock);
    doorbells.rung.push_back({reinterpret_cast<uint64_t>(where), value, connectx::monotonic_ns()});
  }
  connectx::wake_process(*connectx::nic().fabric, connectx::nic().process);
}
}
