// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The wire between processes: one shared file, $SIGMA_CONNECTX_DIR/fabric, that is valid when it is
// all zeros. It holds a registry of queue pairs by (device, number), one inbox per process, and the
// devices' counters. Only headers and small payloads travel through it; larger payloads are read
// from and written to the other process by process_vm_readv and process_vm_writev.
//
// Reliability is the requester's: it numbers its requests, the responder acknowledges by a word in
// the requester's registry entry, and whatever is missing is sent again from the work queue.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace connectx {

inline constexpr unsigned kMaxDevices = 8;
inline constexpr unsigned kMaxProcesses = 64;
inline constexpr unsigned kQpsPerDevice = 16384;
inline constexpr uint32_t kFirstQpn = 0x48;
inline constexpr unsigned kMaxSges = 40;
inline constexpr unsigned kInlineBytes = 512;     // payload carried in a request itself
inline constexpr unsigned kDatagramBytes = 4096;  // the MTU
inline constexpr uint32_t kPsnMask = 0xffffff;

enum class Transport : uint8_t { reliable, datagram };

struct Sge {
  uint64_t address;  // in the requester's address space
  uint32_t length;
  uint32_t reserved;
};

struct RequestHeader {
  uint32_t source_process, source_qpn, destination_qpn;
  uint8_t source_device, destination_device;
  uint8_t opcode;  // MLX5_OPCODE_*
  uint8_t solicited;
  uint32_t psn;
  uint32_t source_life;
  uint32_t immediate;  // big-endian, as in the WQE
  uint32_t rkey;
  uint64_t remote_address;
  uint64_t length;
  uint64_t operand, compare, operand_mask, compare_mask;  // atomics
  uint32_t atomic_bytes;
  uint32_t qkey;
  uint32_t sge_count;  // 0 when the payload is inline
  uint16_t source_lid;
  uint8_t service_level, traffic_class;
  uint8_t global_route, carries_payload, connects, reserved[5];
  uint64_t dc_key;
  uint8_t source_gid[16], destination_gid[16];
};

struct Request {
  RequestHeader header;
  union {
    Sge sges[kMaxSges];
    uint8_t payload[kMaxSges * sizeof(Sge)];
  };
  size_t bytes_used() const {
    return sizeof header +
           (header.carries_payload ? header.length : header.sge_count * sizeof(Sge));
  }
};
static_assert(sizeof(Request::payload) >= kInlineBytes);

struct Datagram {
  RequestHeader header;
  uint8_t payload[kDatagramBytes];
  size_t bytes_used() const { return sizeof header + header.length; }
};

// Many producers, one consumer. A cell's turn is 2 * lap when free and 2 * lap + 1 when full.
template <typename T, unsigned kCells>
class Ring {
 public:
  // False when full: the caller keeps its work request and tries again.
  bool push(const T& value) {
    uint64_t position = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[position % kCells];
      const uint64_t free_turn = position / kCells * 2;
      const uint64_t turn = cell.turn.load(std::memory_order_acquire);
      if (turn < free_turn) return false;
      if (turn == free_turn) {
        if (tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
          memcpy(static_cast<void*>(&cell.value), &value, value.bytes_used());
          cell.turn.store(free_turn + 1, std::memory_order_release);
          return true;
        }
      } else {
        position = tail_.load(std::memory_order_relaxed);
      }
    }
  }
  const T* front() const {
    const Cell& cell = cells_[head_ % kCells];
    return cell.turn.load(std::memory_order_acquire) == head_ / kCells * 2 + 1 ? &cell.value
                                                                               : nullptr;
  }
  void pop() {
    cells_[head_ % kCells].turn.store(head_ / kCells * 2 + 2, std::memory_order_release);
    ++head_;
  }
  bool full() const {
    const uint64_t position = tail_.load(std::memory_order_relaxed);
    return cells_[position % kCells].turn.load(std::memory_order_acquire) < position / kCells * 2;
  }

 private:
  struct Cell {
    std::atomic<uint64_t> turn;
    T value;
  };
  alignas(64) std::atomic<uint64_t> tail_;
  alignas(64) uint64_t head_;
  alignas(64) Cell cells_[kCells];
};

// The responder's word: everything before `psn` is done, and what befell `psn` itself.
enum class Nak : uint8_t { none, rnr, sequence, invalid_request, remote_access, remote_operation };
struct Ack {
  uint32_t psn;
  uint16_t life;  // low bits of the requester's life: words for a former life are ignored
  Nak nak;
  uint8_t generation;  // differs between two NAKs of one request
  uint8_t rnr_timer;   // 5 bits

  // psn 24 | nak 4 | rnr_timer 5 | generation 8 | life 16
  uint64_t pack() const {
    return (psn & kPsnMask) | static_cast<uint64_t>(nak) << 24 |
           static_cast<uint64_t>(rnr_timer & 31) << 28 | static_cast<uint64_t>(generation) << 33 |
           static_cast<uint64_t>(life) << 41;
  }
  static Ack unpack(uint64_t word) {
    return {static_cast<uint32_t>(word & kPsnMask), static_cast<uint16_t>(word >> 41),
            static_cast<Nak>(word >> 24 & 15), static_cast<uint8_t>(word >> 33),
            static_cast<uint8_t>(word >> 28 & 31)};
  }
};

inline constexpr uint32_t kAnyPeer = ~0u;  // a DCT
struct alignas(64) QpEntry {
  std::atomic<uint32_t> owner;      // process + 1; 0 = number free
  std::atomic<uint32_t> life;       // counts creations and resets of this number
  std::atomic<uint32_t> receiving;  // RTR, RTS or SQD
  std::atomic<uint32_t> peer;       // whose requests it serves: device << 24 | number, or kAnyPeer
  std::atomic<uint64_t> ack;
};

struct ProcessEntry {
  std::atomic<int32_t> pid;        // 0 = free
  std::atomic<uint32_t> doorbell;  // futex: bumped when something arrived
  std::atomic<uint32_t> sleeping;
  Ring<Request, 1024> requests;
  Ring<Datagram, 512> datagrams;
};

enum Counter : unsigned {
#define COUNTER(directory, name) name,
#include "../counters.def"
#undef COUNTER
  kCounters
};

struct DeviceEntry {
  std::atomic<uint32_t> next_qpn, next_cqn, next_srqn, next_mkey, next_pdn, next_uar;
  std::atomic<uint32_t> link_down;
  std::atomic<uint64_t> counters[kCounters];
  QpEntry qps[kQpsPerDevice];
};

struct Fabric {
  DeviceEntry devices[kMaxDevices];
  ProcessEntry processes[kMaxProcesses];
};

// Maps the file and claims a process slot (reclaiming those of dead processes). Null with a
// complaint when that fails. Called once a process, and again in a forked child.
Fabric* join_fabric(const char* path, unsigned& process);
void leave_fabric(Fabric& fabric, unsigned process);

// False for a process that ended, reaped or not.
bool process_alive(const Fabric& fabric, unsigned process);

// A free queue pair number, owned by `process`; 0 when all are taken. Numbers are handed out in
// turn, so that reuse is rare, unless SIGMA_CONNECTX_REUSE_QPN=1: then the lowest free one.
uint32_t claim_qpn(Fabric& fabric, unsigned device, unsigned process);
inline QpEntry& qp_entry(Fabric& fabric, unsigned device, uint32_t qpn) {
  return fabric.devices[device].qps[(qpn - kFirstQpn) % kQpsPerDevice];
}

void wake_process(Fabric& fabric, unsigned process);
// Sleeps until woken or `timeout_ns`; `seen` is the doorbell read before the last look for work.
void sleep_process(Fabric& fabric, unsigned process, uint32_t seen, uint64_t timeout_ns);

}  // namespace connectx
