// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// rocSHMEM's GDA backend on mlx5: no CUDA in the process; ring, CQ and doorbell records in one umem
// of pinned host memory; a lock around every post, every WQE signaled, system-scope stores.
#include "cuda_stack.h"

namespace models {
namespace {

struct RocshmemPoster {
  Ring ring;
  Fate fate;
  const uint8_t* cqe = nullptr;
  uint32_t* record = nullptr;
  uint8_t* db = nullptr;
  uint32_t gate = 0;
  uint64_t head = 0;

  uint64_t reserved() const { return __atomic_load_n(&head, __ATOMIC_RELAXED); }
  Done done(uint64_t end) { return collapsed_done(cqe, end, reserved(), fate); }

  // The lock is held from here to the end of submit().
  uint64_t reserve(unsigned blocks) {
    lock(gate);
    Spin spin;
    while (head + blocks > ring.blocks && done(head + blocks - ring.blocks) != Done::yes) {
      if (fate.over()) {
        unlock(gate);
        return ~uint64_t{0};
      }
      spin.once();
    }
    return head;
  }
  void submit(uint64_t base, unsigned blocks, unsigned, bool) {
    const uint64_t end = base + blocks;
    __atomic_store_n(&head, end, __ATOMIC_RELEASE);
    store_record(record, end);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    ring_doorbell(db, doorbell_value(ring.qpn, end));
    unlock(gate);
  }
  void flush(uint64_t) {}
};

struct Rocshmem {
  static constexpr const char* kName = "rocshmem";
  static constexpr bool kSignalsAll = true, kTrailingNop = false;
  bool signals(uint64_t, bool) const { return true; }
  static std::initializer_list<Kind> kinds() {
    static constexpr std::initializer_list<Kind> kAll = {Kind::write, Kind::write, Kind::read,
                                                         Kind::add};
    return kAll;
  }
  static uint32_t inline_limit() { return 0; }
  static bool fixed_inline() { return false; }

  Host host;
  std::vector<QueueObjects> objects;
  std::vector<RocshmemPoster> devices;
  mlx5dv_devx_uar* uar = nullptr;
  struct Block {
    FakeKernel kernel;
    void* argument;
    unsigned index;
  };
  std::vector<Block> blocks_;
  std::vector<pthread_t> threads_;

  void open(const Options& options) {
    bind_mlx5_by_dlsym(host.mlx5);
    host.open(options.device);
  }
  Buffer heap(size_t bytes) { return host.host_memory(bytes); }
  bool heap_by_dma_buf() const { return false; }

  void create(const Options& options) {
    objects.resize(options.queues);
    devices = std::vector<RocshmemPoster>(options.queues);
    uar = host.uar(false);
    for (unsigned i = 0; i < options.queues; ++i) {
      QueueObjects& made = objects[i];
      const uint32_t blocks = options.depth;
      const size_t ring_bytes = size_t{blocks} * 64, cq_at = ring_bytes, record_at = cq_at + 2 * 64;
      made.ring_memory = host.host_memory(record_at + 2 * 64);
      memset(made.ring_memory.gpu + cq_at, 0xff, 2 * 64);
      mlx5dv_devx_umem_in in{};
      in.addr = made.ring_memory.gpu;
      in.size = made.ring_memory.bytes;
      in.access = IBV_ACCESS_LOCAL_WRITE;
      in.pgsz_bitmap = ~uint64_t{4095};
      made.ring_umem = host.mlx5.mlx5dv_devx_umem_reg_ex(host.context, &in);
      require(made.ring_umem, "no umem");
      const uint32_t umem = made.ring_umem->umem_id;
      prm_blobs::Cq cq;
      cq.log_entries = 1;
      cq.collapsed = cq.overrun_ignored = true;
      cq.uar_page = uar->page_id;
      cq.eqn = host.eqn();
      cq.ring = {umem, cq_at};
      cq.doorbell = {umem, record_at + 64};
      made.cqn = host.create(made.cq, prm_blobs::create_cq(cq), "CQ");
      prm_blobs::Qp qp;
      qp.pd = host.pdn;
      qp.uar_page = uar->page_id;
      qp.log_send_blocks = log2_of(blocks);
      qp.send_cqn = qp.receive_cqn = made.cqn;
      qp.ring = {umem, 0};
      qp.doorbell = {umem, record_at};
      made.qpn = host.create(made.qp, prm_blobs::create_qp(qp), "QP");
      RocshmemPoster& device = devices[i];
      device.ring = {made.ring_memory.gpu, blocks, made.qpn, 0, {}};
      device.cqe = made.ring_memory.gpu + cq_at;
      device.record = reinterpret_cast<uint32_t*>(made.ring_memory.gpu + record_at) + 1;
      device.db = static_cast<uint8_t*>(uar->reg_addr);
    }
  }

  Peer local(unsigned i) const {
    Peer peer;
    peer.qpn = objects[i].qpn;
    return peer;
  }
  void connect(unsigned i, const Peer& peer) {
    host.connect(objects[i].qp, connection_to(host, objects[i].qpn, peer));
  }
  void publish() {}
  void describe(unsigned i) const {
    const uint64_t base = objects[i].ring_memory.address,
                   ring_bytes = uint64_t{devices[i].ring.blocks} * 64;
    describe_queue(i, objects[i].qpn, objects[i].cqn, base, devices[i].ring.blocks,
                   base + ring_bytes + 128 + 4, base + ring_bytes);
  }
  RocshmemPoster& device(unsigned i) { return devices[i]; }

  static void* run_block(void* argument) {
    const Block& block = *static_cast<const Block*>(argument);
    block.kernel(block.argument, block.index);
    return nullptr;
  }
  void launch(unsigned count, FakeKernel kernel, void* argument) {
    for (unsigned i = 0; i < count; ++i) blocks_.push_back({kernel, argument, i});
    threads_.resize(count);
    for (unsigned i = 0; i < count; ++i)
      pthread_create(&threads_[i], nullptr, run_block, &blocks_[i]);
  }
  void join() {
    for (pthread_t thread : threads_) pthread_join(thread, nullptr);
  }
  void destroy() {
    for (QueueObjects& made : objects) made.destroy(host);
    host.mlx5.mlx5dv_devx_free_uar(uar);
  }
};

}  // namespace
}  // namespace models

int main(int argc, char** argv) {
  return models::run_model<models::Rocshmem>(argc, argv);
}
