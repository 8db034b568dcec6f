// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// DOCA GPUNetIO as NCCL GIN (GDAKI) uses it: a CQ ring with an entry for each WQE, queue pairs in
// groups of two that share a UAR page. --mode db (default: doorbell, record, doorbell) | no_dbr (a
// doorbell alone, at 0x600 of the page) | proxy (a CPU thread rings; the record is in host memory).
#include "cuda_stack.h"

namespace models {
namespace {

// What DOCA publishes: 296 bytes a queue pair.
struct DocaQp {
  uint64_t sq_rsvd, sq_ready, sq_wqe_pi;
  uint32_t sq_num, sq_num_shift8_be;
  uint8_t unknown_[24];
  uint32_t lock;
  uint16_t sq_wqe_num, sq_wqe_mask;
  uint64_t wqe_daddr, dbrec, sq_db;
  uint8_t unknown2_[72];
  uint64_t cqe_daddr;
  uint32_t cq_num, cqe_num;
  uint64_t unknown3_;
  uint64_t cqe_ci;
  uint64_t unknown4_;
  uint64_t cqe_rsvd;
  uint8_t unknown5_[80];
  uint32_t nic_handler, tail_;
};
static_assert(sizeof(DocaQp) == 296 && offsetof(DocaQp, sq_num) == 24 &&
              offsetof(DocaQp, lock) == 56 && offsetof(DocaQp, wqe_daddr) == 64 &&
              offsetof(DocaQp, dbrec) == 72 && offsetof(DocaQp, sq_db) == 80 &&
              offsetof(DocaQp, cqe_daddr) == 160 && offsetof(DocaQp, cq_num) == 168 &&
              offsetof(DocaQp, cqe_ci) == 184 && offsetof(DocaQp, cqe_rsvd) == 200 &&
              offsetof(DocaQp, nic_handler) == 288);

enum class Handler { db, no_dbr, proxy };
constexpr unsigned kSharers = 2;
constexpr size_t kNoRecordOffset = 0x600;

struct DocaPoster {
  Ring ring;
  Fate fate;
  Handler handler = Handler::db;
  DocaQp* state = nullptr;
  const uint8_t* cq = nullptr;
  uint32_t* record = nullptr;
  uint8_t* db = nullptr;
  uint64_t* proxy = nullptr;

  uint64_t reserved() const { return __atomic_load_n(&state->sq_rsvd, __ATOMIC_RELAXED); }

  // The entry of this very index, unless some poster has already seen it.
  Done done(uint64_t end) {
    const uint64_t index = end - 1;
    if (at64(state->cqe_ci).load() > index) return Done::yes;
    const CqeView view{cq + index % ring.blocks * 64};
    const uint8_t op_own = view.op_own();
    if (op_own >> 4 == 0xf || (op_own & 1) != (index / ring.blocks & 1)) return Done::no;
    if (op_own >> 4 == 13) {
      fate.fail(view.syndrome());
      return Done::failed;
    }
    max64(state->cqe_ci, end);
    return Done::yes;
  }

  uint64_t reserve(unsigned blocks) {
    const uint64_t base = at64(state->sq_rsvd).fetch_add(blocks);
    const uint64_t end = base + blocks;
    if (end <= ring.blocks) return base;
    Spin spin;
    while (done(end - ring.blocks) != Done::yes) {
      if (fate.over()) return ~uint64_t{0};
      spin.once();
    }
    return base;
  }

  void submit(uint64_t base, unsigned blocks, unsigned, bool) {
    const uint64_t end = base + blocks;
    Spin spin;
    while (at64(state->sq_ready).load() != base) {
      if (fate.over()) return;
      spin.once();
    }
    at64(state->sq_ready).store(end);
    const uint64_t value = doorbell_value(ring.qpn, end);
    switch (handler) {
      case Handler::db:
        lock(state->lock);
        if (max64(state->sq_wqe_pi, end) < end) {
          ring_doorbell(db, value);
          store_record(record, end);
          ring_doorbell(db, value);
        }
        unlock(state->lock);
        break;
      case Handler::no_dbr:
        if (max64(state->sq_wqe_pi, end) < end) ring_doorbell(db, value);
        break;
      case Handler::proxy:
        max64(*proxy, end);
        break;
    }
  }
  void flush(uint64_t) {}
};

struct Doca : CudaStack {
  static constexpr const char* kName = "doca";
  static constexpr bool kSignalsAll = true, kTrailingNop = false;
  bool signals(uint64_t, bool) const { return true; }
  static std::initializer_list<Kind> kinds() {
    static constexpr std::initializer_list<Kind> kAll = {Kind::write, Kind::write,
                                                         Kind::write_inline, Kind::read, Kind::add};
    return kAll;
  }
  static uint32_t inline_limit() { return 28; }
  static bool fixed_inline() { return false; }

  Handler handler = Handler::db;
  std::vector<QueueObjects> objects;
  std::vector<DocaPoster> devices;
  std::vector<mlx5dv_devx_uar*> uars;
  std::vector<uint8_t*> registers;
  Buffer published, proxy_words;
  pthread_t proxy_thread{};
  std::atomic<bool> proxy_ends{false};

  void open(const Options& options) {
    handler = !strcmp(options.mode, "no_dbr")  ? Handler::no_dbr
              : !strcmp(options.mode, "proxy") ? Handler::proxy
                                               : Handler::db;
    bind_cuda_like_runtime(host.cuda);
    bind_mlx5_by_dlvsym(host.mlx5);
    host.open(options.device);
    host.start_cuda();
  }

  Buffer control_memory(size_t bytes) { return host.device_memory(bytes, 4096, 4096, true); }

  void create(const Options& options) {
    objects.resize(options.queues);
    devices = std::vector<DocaPoster>(options.queues);
    for (unsigned i = 0; i < options.queues; ++i) {
      if (i % kSharers == 0) {
        uars.push_back(host.uar(false));
        auto* where = handler == Handler::no_dbr
                          ? static_cast<uint8_t*>(uars.back()->base_addr) + kNoRecordOffset
                          : static_cast<uint8_t*>(uars.back()->reg_addr);
        registers.push_back(handler == Handler::proxy ? where : host.map_uar(where, 8));
      }
      create_queue(i, options.depth);
    }
  }

  void create_queue(unsigned i, uint32_t blocks) {
    QueueObjects& made = objects[i];
    mlx5dv_devx_uar* uar = uars.back();
    // The CQ's initial pattern is made on the host and copied; its record follows the ring.
    const size_t cq_bytes = size_t{blocks} * 64;
    made.cq_memory = control_memory(cq_bytes);
    std::vector<uint8_t> pattern(cq_bytes, 0);
    for (size_t at = 63; at < cq_bytes; at += 64) pattern[at] = 0xf1;
    require(
        host.cuda.cuMemcpyHtoD(made.cq_memory.address, pattern.data(), cq_bytes) == CUDA_SUCCESS,
        "cuMemcpyHtoD");
    made.cq_umem = host.umem(made.cq_memory, Host::By::dma_buf_or_address);
    made.record_memory = handler == Handler::proxy ? host.host_memory(4096) : control_memory(4096);
    made.record_umem = host.umem(made.record_memory, Host::By::dma_buf_or_address);
    prm_blobs::Cq cq;
    cq.log_entries = log2_of(blocks);
    cq.overrun_ignored = true;
    cq.uar_page = uar->page_id;
    cq.eqn = host.eqn();
    cq.ring = {made.cq_umem->umem_id, 0};
    cq.doorbell = {made.record_umem->umem_id, 64};
    made.cqn = host.create(made.cq, prm_blobs::create_cq(cq), "CQ");

    made.ring_memory = control_memory(size_t{blocks} * 64);
    made.ring_umem = host.umem(made.ring_memory, Host::By::dma_buf_or_address);
    prm_blobs::Qp qp;
    qp.pd = host.pdn;
    qp.uar_page = uar->page_id;
    qp.log_send_blocks = log2_of(blocks);
    qp.send_cqn = qp.receive_cqn = made.cqn;
    qp.ring = {made.ring_umem->umem_id, 0};
    if (handler == Handler::no_dbr)
      qp.doorbell_mode = prm_blobs::DoorbellMode::no_record_external;
    else
      qp.doorbell = {made.record_umem->umem_id, 0};
    made.qpn = host.create(made.qp, prm_blobs::create_qp(qp), "QP");

    DocaPoster& device = devices[i];
    device.handler = handler;
    device.ring = {made.ring_memory.gpu, blocks, made.qpn, 0, {}};
    device.cq = made.cq_memory.gpu;
    device.record = reinterpret_cast<uint32_t*>(made.record_memory.gpu) + 1;
    device.db = registers.back();
  }

  Peer local(unsigned i) const {
    Peer peer;
    peer.qpn = objects[i].qpn;
    return peer;
  }
  void connect(unsigned i, const Peer& peer) {
    host.connect(objects[i].qp, connection_to(host, objects[i].qpn, peer));
  }

  // One array for all queue pairs, copied at once.
  void publish() {
    std::vector<DocaQp> qps(devices.size());
    const size_t bytes = qps.size() * sizeof(DocaQp);
    published = host.device_memory(bytes, 0, 256, true);
    if (handler == Handler::proxy) proxy_words = host.host_memory(qps.size() * 64);
    for (size_t i = 0; i < qps.size(); ++i) {
      DocaQp& qp = qps[i];
      qp = {};
      qp.sq_num = objects[i].qpn;
      qp.sq_num_shift8_be = htobe32(objects[i].qpn << 8);
      qp.sq_wqe_num = static_cast<uint16_t>(devices[i].ring.blocks);
      qp.sq_wqe_mask = static_cast<uint16_t>(devices[i].ring.blocks - 1);
      qp.wqe_daddr = objects[i].ring_memory.address;
      qp.dbrec = objects[i].record_memory.address + 4;
      qp.cqe_daddr = objects[i].cq_memory.address;
      qp.cq_num = objects[i].cqn;
      qp.cqe_num = devices[i].ring.blocks;
      qp.nic_handler = handler == Handler::proxy ? 1 : handler == Handler::db ? 2 : 10;
    }
    require(host.cuda.cuMemcpyHtoD(published.address, qps.data(), bytes) == CUDA_SUCCESS,
            "cuMemcpyHtoD");
    for (size_t i = 0; i < qps.size(); ++i) {
      devices[i].state = reinterpret_cast<DocaQp*>(published.gpu) + i;
      if (handler == Handler::proxy)
        devices[i].proxy = reinterpret_cast<uint64_t*>(proxy_words.gpu + i * 64);
    }
    if (handler == Handler::proxy) pthread_create(&proxy_thread, nullptr, run_proxy, this);
  }

  // The library's CPU thread: doorbell, record, fence, doorbell.
  static void* run_proxy(void* argument) {
    Doca& self = *static_cast<Doca*>(argument);
    std::vector<uint64_t> rung(self.devices.size(), 0);
    Spin spin;
    while (!self.proxy_ends) {
      for (size_t i = 0; i < rung.size(); ++i) {
        DocaPoster& device = self.devices[i];
        const uint64_t wanted = __atomic_load_n(device.proxy, __ATOMIC_ACQUIRE);
        if (wanted == rung[i]) continue;
        rung[i] = wanted;
        const uint64_t value = doorbell_value(device.ring.qpn, wanted);
        auto* where = reinterpret_cast<uint64_t*>(device.db);
        __atomic_store_n(where, value, __ATOMIC_RELAXED);
        store_record(device.record, wanted);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        __atomic_store_n(where, value, __ATOMIC_RELEASE);
        spin = {};
      }
      spin.once();
    }
    return nullptr;
  }

  void describe(unsigned i) const {
    describe_queue(i, objects[i].qpn, objects[i].cqn, objects[i].ring_memory.address,
                   devices[i].ring.blocks,
                   handler == Handler::no_dbr ? 0 : objects[i].record_memory.address + 4,
                   objects[i].cq_memory.address);
  }
  DocaPoster& device(unsigned i) { return devices[i]; }

  void destroy() {
    if (handler == Handler::proxy) {
      proxy_ends = true;
      pthread_join(proxy_thread, nullptr);
    }
    for (QueueObjects& made : objects) made.destroy(host);
    host.release(published);
    host.release(proxy_words);
    for (size_t i = 0; i < uars.size(); ++i) {
      if (handler != Handler::proxy)
        host.unmap_uar(handler == Handler::no_dbr
                           ? static_cast<uint8_t*>(uars[i]->base_addr) + kNoRecordOffset
                           : uars[i]->reg_addr);
      host.mlx5.mlx5dv_devx_free_uar(uars[i]);
    }
  }
};

}  // namespace
}  // namespace models

int main(int argc, char** argv) {
  return models::run_model<models::Doca>(argc, argv);
}
