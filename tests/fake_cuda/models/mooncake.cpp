// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Mooncake's IBGDA transport: one large control buffer that all queues are cut from, 16-bit
// indices, system-scope stores, a doorbell whose register alternates between the two halves of the
// BlueFlame pair. --mode device (default: device memory) | host (registered host memory).
#include "cuda_stack.h"

namespace models {
namespace {

struct MooncakeContext {
  uint32_t qpn, index;
  uint64_t unknown_;
  uint64_t wq, cq, dbr, bf_reserved;
  uint32_t unknown2_;
  uint16_t unknown3_[2];
};
static_assert(sizeof(MooncakeContext) == 56);

constexpr size_t kControlBytes = size_t{16} << 20;  // the stack has 1 GiB, which nobody here fills

struct MooncakePoster {
  Ring ring;
  Fate fate;
  const uint8_t* cqe = nullptr;
  uint32_t* record = nullptr;
  uint8_t* bf = nullptr;
  uint32_t gate = 0;  // one poster at a time
  uint64_t head = 0;
  unsigned bf_offset = 0;

  uint64_t reserved() const { return __atomic_load_n(&head, __ATOMIC_RELAXED); }
  Done done(uint64_t end) { return collapsed_done(cqe, end, reserved(), fate); }

  // The lock is held from here to the end of submit().
  uint64_t reserve(unsigned blocks) {
    lock(gate);
    const uint64_t base = head;
    Spin spin;
    while (base + blocks > ring.blocks && done(base + blocks - ring.blocks) != Done::yes) {
      if (fate.over()) {
        unlock(gate);
        return ~uint64_t{0};
      }
      spin.once();
    }
    return base;
  }

  void submit(uint64_t base, unsigned blocks, unsigned, bool) {
    const uint64_t end = base + blocks;
    __atomic_store_n(&head, end, __ATOMIC_RELEASE);
    store_record(record, end);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    ring_doorbell(bf + bf_offset, doorbell_value(ring.qpn, end));
    bf_offset ^= 256;
    unlock(gate);
  }
  void flush(uint64_t) {}
};

struct Mooncake : CudaStack {
  static constexpr const char* kName = "mooncake";
  static constexpr bool kSignalsAll = true, kTrailingNop = false;
  bool signals(uint64_t, bool) const { return true; }
  static std::initializer_list<Kind> kinds() {
    static constexpr std::initializer_list<Kind> kAll = {Kind::write, Kind::write,
                                                         Kind::write_inline, Kind::masked_add32};
    return kAll;
  }
  static uint32_t inline_limit() { return 4; }
  static bool fixed_inline() { return true; }

  bool in_host_memory = false;
  Buffer control;
  mlx5dv_devx_umem* umem = nullptr;
  size_t used = 0;
  std::vector<QueueObjects> objects;
  std::vector<MooncakePoster> devices;
  std::vector<size_t> at;
  std::vector<mlx5dv_devx_uar*> uars;

  void open(const Options& options) {
    in_host_memory = !strcmp(options.mode, "host");
    bind_cuda_like_runtime(host.cuda);
    bind_mlx5_linked(host.mlx5);
    // As its probe: bound to the process as a whole, by version.
    const auto probe = reinterpret_cast<decltype(host.mlx5.mlx5dv_devx_umem_reg_ex)>(
        dlvsym(RTLD_DEFAULT, "mlx5dv_devx_umem_reg_ex", "MLX5_1.19"));
    require(probe, "no mlx5dv_devx_umem_reg_ex@MLX5_1.19 in the process");
    host.mlx5.mlx5dv_devx_umem_reg_ex = probe;
    host.open(options.device);
    host.start_cuda();
  }

  size_t cut(size_t bytes) {
    const size_t place = used;
    used += (bytes + 4095) / 4096 * 4096;
    require(used <= control.bytes, "the control buffer is full");
    return place;
  }

  void create(const Options& options) {
    objects.resize(options.queues);
    devices = std::vector<MooncakePoster>(options.queues);
    const uint32_t blocks = options.depth;
    control = in_host_memory ? host.host_memory(size_t{1} << 20)
                             : host.device_memory(kControlBytes, 0, 512, false);
    umem = host.umem(control, Host::By::address);
    for (unsigned i = 0; i < options.queues; ++i) {
      QueueObjects& made = objects[i];
      uars.push_back(host.uar(true));
      uint8_t* bf = host.map_uar(uars.back()->reg_addr, 512);
      const size_t cq_at = cut(64), ring_at = cut(size_t{blocks} * 64), record_at = cut(64);
      at.insert(at.end(), {cq_at, ring_at, record_at});
      require(host.cuda.cuMemsetD8(control.address + cq_at, 0xff, 64) == CUDA_SUCCESS,
              "cuMemsetD8");
      prm_blobs::Cq cq;
      cq.log_entries = 0;
      cq.collapsed = cq.overrun_ignored = true;
      cq.uar_page = uars.back()->page_id;
      cq.eqn = host.eqn();
      cq.ring = {umem->umem_id, cq_at};
      cq.doorbell = {umem->umem_id, record_at + 8};
      made.cqn = host.create(made.cq, prm_blobs::create_cq(cq), "CQ");
      prm_blobs::Qp qp;
      qp.pd = host.pdn;
      qp.uar_page = uars.back()->page_id;
      qp.log_send_blocks = log2_of(blocks);
      qp.send_cqn = qp.receive_cqn = made.cqn;
      qp.ring = {umem->umem_id, ring_at};
      qp.doorbell = {umem->umem_id, record_at};
      made.qpn = host.create(made.qp, prm_blobs::create_qp(qp), "QP");
      MooncakePoster& device = devices[i];
      device.ring = {control.gpu + ring_at, blocks, made.qpn, 0, {}};
      device.cqe = control.gpu + cq_at;
      device.record = reinterpret_cast<uint32_t*>(control.gpu + record_at) + 1;
      device.bf = bf;
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
  void reset(unsigned i) {
    host.reset(objects[i].qp, objects[i].qpn);
    devices[i].head = 0;
    store_record(devices[i].record, 0);
    memset(control.gpu + at[3 * i], 0xff, 64);
  }
  void publish() {}
  void describe(unsigned i) const {
    describe_queue(i, objects[i].qpn, objects[i].cqn, control.address + at[3 * i + 1],
                   devices[i].ring.blocks, control.address + at[3 * i + 2] + 4,
                   control.address + at[3 * i]);
  }
  MooncakePoster& device(unsigned i) { return devices[i]; }

  void destroy() {
    for (QueueObjects& made : objects) made.destroy(host);
    host.mlx5.mlx5dv_devx_umem_dereg(umem);
    for (mlx5dv_devx_uar* uar : uars) {
      host.unmap_uar(uar->reg_addr);
      host.mlx5.mlx5dv_devx_free_uar(uar);
    }
    host.release(control);
  }
};

}  // namespace
}  // namespace models

int main(int argc, char** argv) {
  return models::run_model<models::Mooncake>(argc, argv);
}
