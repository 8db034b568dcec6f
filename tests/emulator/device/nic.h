// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The device as one process sees it: its objects, and the engines that work on them.
//
// One lock guards everything: control commands (uverbs_*.cpp) and the NIC thread (nic.cpp) take it.
// Objects live until their destroy command; engines keep no pointers across passes, except that a
// queue pair refers to its CQs and SRQ, which uverbs refuses to destroy before the queue pair.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "config.h"
#include "cqe.h"
#include "fabric.h"
#include "oracle.h"
#include "wqe.h"

namespace connectx {

struct Device;

// A pipe: its reading end is the application's, which closes it without our knowing. Events are
// fixed-size messages.
struct EventChannel {
  int read_fd = -1;  // the application's number for it
  int write_fd = -1, drain_fd = -1;
  uint64_t inode = 0;
  unsigned users = 0;  // objects that refer to it
};

// One ibv_open_device: its descriptor, and where its objects' asynchronous events go.
struct Context {
  EventChannel* async_events = nullptr;
};

struct Cq {
  Device* device = nullptr;
  uint32_t cqn = 0;
  uint8_t* ring = nullptr;
  uint32_t entries = 0, cqe_bytes = 64;
  volatile uint32_t* doorbell = nullptr;  // be32: [0] consumer index, [1] arm word
  bool collapsed = false, ignores_overrun = false, real_time = false, devx = false, overrun = false;
  uint64_t produced = 0;
  uint32_t session_limit = 0;  // most completions in a compressed session; 0: none is compressed
  std::vector<HeldCqe> held;   // of a session that may still grow, until the pass ends
  unsigned users = 0;
  // Events
  EventChannel* channel = nullptr;
  EventChannel* async_channel = nullptr;
  uint64_t user_handle = 0;
  uint32_t events_sent = 0;
  bool armed_before = false;
  uint8_t last_arm_number = 0;
  uint64_t notified = 0;        // `produced` when the last event was sent
  uint64_t last_solicited = 0;  // `produced` after the last solicited or failed CQE
};

// An SRQ (a list in memory) or RMP (a list, or cyclic).
struct Srq {
  uint32_t srqn = 0;
  uint8_t* ring = nullptr;
  uint32_t entries = 0, stride_shift = 5, max_wr = 0, max_sge = 0;
  uint32_t segment_offset = 16;  // of the first data segment
  volatile uint32_t* doorbell = nullptr;
  bool cyclic = false;
  uint16_t next = 0;   // WQE to take
  uint16_t taken = 0;  // free-running count
  uint32_t limit = 0;
  EventChannel* async_channel = nullptr;
  uint64_t user_handle = 0;
  unsigned users = 0;
};

struct MemoryKey {
  uint32_t key = 0;
  uint64_t address = 0;  // in this process
  uint64_t length = 0, iova = 0;
  uint32_t access = 0;  // enum ibv_access_flags
  struct Entry {
    uint32_t key;
    uint64_t address, length;
  };
  std::vector<Entry> indirect;  // KLM or KSM list; empty for a plain key
};

// Numbered as enum ibv_qp_type where that has a value; the oracle records these.
enum class Service : uint8_t { rc = 2, uc = 3, ud = 4, dci = 0xf0, dct = 0xf1 };

enum class QpState : uint8_t { reset, init, rtr, rts, sqd, sqe, err };

struct QpCapacity {
  uint32_t max_send_wr = 0, max_recv_wr = 0, max_send_sge = 0, max_recv_sge = 0,
           max_inline_data = 0;
};

struct Inflight {
  uint64_t position = 0;  // WQEBBs since the life began
  uint32_t psn = 0;
  uint16_t index = 0;
  uint8_t opcode = 0, syndrome = 0;
  bool signaled = false, local = false, done = false;
  bool connects = false;   // the first to a new target (DCI)
  bool scattered = false;  // the response is meant for the CQE
  uint64_t bytes = 0;
};

// What a responder knows of one requester's requests.
struct Stream {
  uint32_t expected_psn = 0;
  uint8_t nak_generation = 0;
  bool sequence_nak_sent = false;
  struct AtomicReplay {
    uint32_t psn;
    uint64_t value;
    bool valid;
  } replay[16] = {};
};

struct Qp {
  Device* device = nullptr;
  uint32_t qpn = 0, handle = 0;
  Service service = Service::rc;
  QpState state = QpState::reset;
  bool devx = false;
  uint32_t user_index = 0;
  uint64_t user_handle = 0;
  EventChannel* async_channel = nullptr;
  QpEntry* entry = nullptr;

  // Rings
  uint8_t* send_ring = nullptr;
  uint32_t send_blocks = 0;
  uint8_t* receive_ring = nullptr;
  uint32_t receive_entries = 0, receive_shift = 0;
  volatile uint32_t* doorbell = nullptr;  // be32: [0] receive, [1] send; null: it has none
  uint32_t uar_page = 0;                  // of DevX queue pairs
  uint32_t ordinal = ~0u;                 // among the process's DevX queue pairs that send
  uint16_t rung = 0;                      // by a GPU's doorbell
  bool was_rung = false;
  Cq* send_cq = nullptr;
  Cq* receive_cq = nullptr;
  Srq* srq = nullptr;

  // Scatter to CQE: up to how many bytes of a request received, and of a response (0: none)
  uint32_t receive_scatter_bytes = 0, response_scatter_bytes = 0;
  std::vector<uint8_t> responses;  // where these arrive, kResponseBytes for each WQEBB

  // Attributes
  QpCapacity cap;
  uint32_t access = 0, peer_qpn = 0, qkey = 0, send_psn_start = 0, receive_psn_start = 0;
  uint16_t peer_lid = 0;
  GidBytes peer_gid{};
  bool peer_global = false;
  int peer_device = -1;
  uint8_t path_mtu = 5, timeout = 14, retry_count = 7, rnr_retry = 7, min_rnr_timer = 12,
          service_level = 0, traffic_class = 0;

  // Requester
  uint64_t fetched = 0;  // WQEBBs
  std::deque<Inflight> inflight;
  size_t sent = 0;  // how many of `inflight` were transmitted
  uint32_t next_psn = 0;
  uint8_t last_nak = 0;  // generation
  unsigned retries = 0, rnr_retries = 0;
  uint64_t hold_until_ns = 0;  // RNR wait, pacing
  bool had_more = false;       // posted and not fetched, when the last WQE was
  uint64_t progress_ns = 0;    // of the retransmission timer

  // Responder
  uint64_t receives = 0;  // taken from the own receive queue
  Stream stream;
  std::map<uint64_t, Stream> initiators;  // of a DCT: one stream for each DCI's life
  uint64_t dc_key = 0;
  bool last_wqe_reported = false;
  unsigned async_events = 0;  // posted for this queue pair

  bool datagram() const { return service == Service::ud; }
  bool addressed() const { return datagram() || service == Service::dci; }  // by each WQE
};

inline constexpr size_t kResponseBytes = 64;

struct Umem {
  uint64_t address = 0, length = 0;
};

struct DevxSubscription {
  EventChannel* channel;
  uint64_t cookie;
  uint32_t object;
  uint16_t event;
};

struct DevxObject {
  uint32_t create_opcode = 0, id = 0;
};

struct Device {
  const DeviceConfig* config = nullptr;
  unsigned index = 0;
  uint64_t memory_inode = 0;
  bool link_down = false;  // as this process last saw it
  int memory_fd = -1;      // the character device: one sparse memfd, pages at their mmap offsets
  std::map<uint32_t, std::unique_ptr<Cq>> cqs;  // by number, which is also the handle
  std::map<uint32_t, std::unique_ptr<Srq>> srqs;
  std::map<uint32_t, std::unique_ptr<Qp>> qps;
  std::map<uint32_t, MemoryKey> keys;  // by index: key >> 8
  std::map<uint32_t, Umem> umems;
  std::map<uint32_t, DevxObject> devx_objects;
  std::vector<DevxSubscription> devx_subscriptions;
  std::vector<std::unique_ptr<EventChannel>> channels;
  std::map<int, Context> contexts;                        // by descriptor
  std::map<uint32_t, const volatile uint8_t*> uar_pages;  // by handle; written by the application
  std::map<uint32_t, const volatile uint8_t*> uar_by_number;
  uint32_t next_handle = 1;
  uint64_t counters[kCounters] = {};  // since they were last added to the fabric's
  volatile uint8_t* clock_page = nullptr;
  Qp* by_number[kQpsPerDevice] = {};

  Qp* qp(uint32_t qpn) const {
    const uint32_t slot = (qpn - kFirstQpn) % kQpsPerDevice;
    return by_number[slot] && by_number[slot]->qpn == qpn ? by_number[slot] : nullptr;
  }
};

// ---- nic.cpp: the process's instance
struct Nic {
  std::mutex lock;
  std::atomic<int> waiting{0};  // control commands that want the lock: the NIC thread steps aside
  Fabric* fabric = nullptr;
  unsigned process = 0;
  int32_t pid = 0;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Qp*> active;   // those whose send queue or flush needs looking at
  std::vector<Cq*> holding;  // those with held completions; empty between passes
  // Of queue pairs that are gone: a peer may still answer what they asked, so this memory stays.
  std::vector<std::vector<uint8_t>> old_responses;
  uint32_t devx_senders = 0;  // created so far
};
Nic& nic();
bool nic_running();  // in this process
bool nic_start();    // joins the fabric and starts the thread; idempotent, also after fork

class Guard {
 public:
  Guard() {
    nic().waiting.fetch_add(1);
    nic().lock.lock();
    nic().waiting.fetch_sub(1);
  }
  ~Guard() { nic().lock.unlock(); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
};

// ---- objects.cpp
Qp* create_qp(Device& device);
void destroy_qp(Qp& qp);
bool set_qp_state(Qp& qp, QpState state);  // false: not a legal transition
void fail_qp(Qp& qp);                      // to ERR by the device itself
Cq* create_cq(Device& device);
void destroy_cq(Cq& cq);
// By what the creator asked for, and its CQEs can hold. Once it has its queues.
void grant_scatter_to_cqe(Qp& qp, bool receives, bool responses);
Srq* create_srq(Device& device);
MemoryKey* create_key(Device& device);
void log_mr(const Device& device, const MemoryKey& key);  // its creation
void destroy_key(Device& device, uint32_t key);
void log_qp(const Qp& qp, uint8_t event);
// Where an address vector leads; -1 if nowhere on this fabric.
int find_device(uint16_t lid, const GidBytes& gid, bool by_gid);

// ---- events.cpp
EventChannel* create_channel(Device& device);
void post_completion_event(Cq& cq);
// False: it could not be delivered, and must not be counted.
bool post_async_event(EventChannel* channel, uint32_t type, uint64_t element);
void post_qp_event(Qp& qp, uint32_t type);
void post_devx_event(Device& device, uint32_t object, uint16_t event);
// Removes what the application has not read yet of one object's events; returns how many.
unsigned drain_events(EventChannel* channel, size_t message_bytes, uint64_t element);
void check_arm(Cq& cq);

// ---- memory.cpp
struct SgeList {
  unsigned count = 0;
  Sge sges[kMaxSges];
  uint64_t bytes() const;
};
// Appends the process addresses behind [va, va + length) of a key. False: no such key, out of its
// bounds, or without the access asked for.
bool translate(Device& device, uint32_t key, uint64_t va, uint64_t length, uint32_t access,
               SgeList& out);
enum class Direction { from_peer, to_peer };
// Moves bytes between this process's `local` and `remote` in process `peer`.
bool move_bytes(int32_t peer_pid, const SgeList& local, const Sge* remote, unsigned remote_count,
                Direction direction);
void trim(SgeList& list, uint64_t skip, uint64_t bytes);

// ---- peer_memory.cpp
// Where the NIC reaches an address of this process: elsewhere for other devices' memory. False: not
// at all.
bool reach(uint64_t& address, uint64_t bytes);
bool reach_descriptor(int fd, uint64_t offset, uint64_t bytes, uint64_t& address);
void take_doorbells();

// ---- cq.cpp
struct Completion {
  uint8_t opcode = 0;  // MLX5_CQE_*
  uint8_t wqe_opcode = 0, syndrome = 0;
  uint16_t wqe_counter = 0;
  uint64_t bytes = 0;
  uint32_t immediate = 0;  // big-endian
  bool solicited = false, global_route = false;
  uint32_t remote_qpn = 0;
  uint16_t source_lid = 0;
  uint8_t service_level = 0;
  uint32_t srqn = 0;
  uint64_t wqe_position = 0;
  const uint8_t* scatter_payload = nullptr;  // `bytes` that go into the CQE
};
void write_cqe(Cq* cq, const Qp& qp, const Completion& completion);
void release_cqes(Cq& cq);  // writes what is held
// Moves a CQ to a new ring. The last thing written to the old one is a RESIZE_CQ entry.
void resize_cq(Cq& cq, uint8_t* ring, uint32_t entries, uint32_t cqe_bytes);

// ---- requester.cpp
unsigned run_send_queue(Qp& qp, uint64_t now_ns);  // returns work done
void flush_send_queue(Qp& qp);
void rewind_send_queue(Qp& qp);  // to a new life
// ---- responder.cpp
void serve_request(const Request& request);
void serve_datagram(const Datagram& datagram);
unsigned flush_receive_queue(Qp& qp);

OracleHeader oracle_header(const Device& device, uint64_t time_ns);
void log_wire(const Qp& qp, WireEvent event, uint32_t psn, uint32_t detail);

}  // namespace connectx
