// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// UCX GDA: everything of an endpoint in one umem, its structures included; slots are reserved by an
// addition that is rolled back where there is no room; doorbells are skipped unless asked for or a
// multiple of 128 is crossed; doorbell, record, doorbell. Each queue is one endpoint's channel.
// Mode "contended": another warp's addition comes between the look and the own one.
#include "cuda_stack.h"

namespace models {
namespace {

struct UcxEndpoint {
  uint64_t atomic_va;
  uint32_t atomic_lkey, sq_wqe_num, sq_fc_mask, channel_mask;
  uint64_t sq_wqe_daddr;
  uint8_t tail_[32];
};
static_assert(sizeof(UcxEndpoint) == 64);
struct UcxQp {
  uint8_t cqe[64];
  uint32_t cq_dbrec[2], qp_dbrec[2];
  uint64_t sq_rsvd_index, sq_ready_index;
  uint32_t sq_lock, sq_num;
  uint64_t sq_db;
  uint32_t qpn_ds, tail_[3];
};
static_assert(sizeof(UcxQp) == 128 && offsetof(UcxQp, qp_dbrec) == 72 &&
              offsetof(UcxQp, sq_rsvd_index) == 80 && offsetof(UcxQp, sq_lock) == 96 &&
              offsetof(UcxQp, sq_num) == 100 && offsetof(UcxQp, sq_db) == 104 &&
              offsetof(UcxQp, qpn_ds) == 112);

constexpr size_t kRingAt = sizeof(UcxEndpoint) + sizeof(UcxQp);
constexpr uint64_t kContended = 5;  // each so many reservations of mode "contended"
constexpr uint64_t kSkipped = 128;  // a doorbell each so many at the latest

struct UcxPoster {
  Ring ring;
  Fate fate;
  UcxQp* state = nullptr;
  uint8_t* db = nullptr;
  std::atomic<uint64_t> rolled_back{0}, skipped{0};
  bool skips = true, contended = false;
  uint64_t reservations = 0;  // of mode "contended", which has one poster

  uint64_t reserved() const { return __atomic_load_n(&state->sq_rsvd_index, __ATOMIC_RELAXED); }
  Done done(uint64_t end) { return collapsed_done(state->cqe, end, ready(), fate); }
  uint64_t ready() const { return __atomic_load_n(&state->sq_ready_index, __ATOMIC_ACQUIRE); }

  uint64_t completed() const {
    const CqeView view{state->cqe};
    if (view.op_own() >> 4 == 0xf) return 0;
    const uint64_t limit = ready();
    return limit - static_cast<uint16_t>(limit - static_cast<uint16_t>(view.counter() + 1));
  }

  uint64_t reserve(unsigned blocks) {
    const auto room = [&] { return completed() + ring.blocks - blocks; };
    if (at64(state->sq_rsvd_index).load() > room()) return ~uint64_t{0};
    // Another warp, which saw room as well, has all of it: neither it nor this one finds any, and
    // the last to come goes back first.
    const bool rival = contended && reservations++ % kContended == 0;
    if (rival) at64(state->sq_rsvd_index).fetch_add(ring.blocks);
    const uint64_t base = at64(state->sq_rsvd_index).fetch_add(blocks);
    Spin spin;
    while (base > room()) {
      uint64_t expected = base + blocks;
      if (at64(state->sq_rsvd_index).compare_exchange_strong(expected, base)) {
        ++rolled_back;
        if (rival) at64(state->sq_rsvd_index).fetch_sub(ring.blocks);
        return ~uint64_t{0};
      }
      if (fate.over()) return ~uint64_t{0};
      spin.once();
    }
    return base;
  }

  void submit(uint64_t base, unsigned blocks, unsigned, bool no_delay) {
    const uint64_t end = base + blocks;
    Spin spin;
    while (ready() != base) {
      if (fate.over()) return;
      spin.once();
    }
    if (skips && !no_delay && !((base ^ end) & kSkipped)) {
      ++skipped;
      at64(state->sq_ready_index).store(end);
      return;
    }
    const uint64_t value = doorbell_value(ring.qpn, end);
    ring_doorbell(db, value);
    store_record(&state->qp_dbrec[1], end);
    ring_doorbell(db, value);
    at64(state->sq_ready_index).store(end);
  }
  void flush(uint64_t) {}
};

struct UcxGda : CudaStack {
  static constexpr const char* kName = "ucx_gda";
  static constexpr bool kSignalsAll = false, kTrailingNop = false;
  uint32_t flow_mask = 0;
  // Where a completion is asked for, and twice a ring.
  bool signals(uint64_t base, bool last) const { return last || !(base & flow_mask); }
  static std::initializer_list<Kind> kinds() {
    static constexpr std::initializer_list<Kind> kAll = {Kind::write, Kind::write, Kind::add};
    return kAll;
  }
  static uint32_t inline_limit() { return 0; }
  static bool fixed_inline() { return false; }

  std::vector<QueueObjects> objects;
  std::vector<UcxPoster> devices;
  mlx5dv_devx_uar* uar = nullptr;
  uint8_t* db = nullptr;

  void open(const Options& options) {
#define MODELS_LINKED_CUDA_MEMBER(base, version, symbol) host.cuda.base = &::symbol;
    MODEL_CUDA_FUNCTIONS(MODELS_LINKED_CUDA_MEMBER)
#undef MODELS_LINKED_CUDA_MEMBER
    bind_device_side(host.cuda, dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
    bind_mlx5_linked(host.mlx5);
    host.open(options.device);
    host.start_cuda();
  }

  void create(const Options& options) {
    objects.resize(options.queues);
    devices = std::vector<UcxPoster>(options.queues);
    flow_mask = options.depth / 2 - 1;
    uar = host.uar(false);
    db = host.map_uar(uar->reg_addr, 512 * 2);
    for (unsigned i = 0; i < options.queues; ++i) {
      QueueObjects& made = objects[i];
      const uint32_t blocks = options.depth;
      const size_t bytes = kRingAt + size_t{blocks} * 64;
      made.ring_memory = host.device_memory(bytes, 4096 - 1, 4096, true);
      made.ring_umem = host.umem(made.ring_memory, Host::By::dma_buf_or_address, true);
      const uint32_t umem = made.ring_umem->umem_id;
      require(host.cuda.cuMemsetD8(made.ring_memory.address + sizeof(UcxEndpoint), 0xff, 64) ==
                  CUDA_SUCCESS,
              "cuMemsetD8");
      prm_blobs::Cq cq;
      cq.log_entries = 0;
      cq.collapsed = cq.overrun_ignored = true;
      cq.uar_page = uar->page_id;
      cq.eqn = host.eqn();
      cq.ring = {umem, sizeof(UcxEndpoint)};
      cq.doorbell = {umem, sizeof(UcxEndpoint) + offsetof(UcxQp, cq_dbrec)};
      made.cqn = host.create(made.cq, prm_blobs::create_cq(cq), "CQ");
      prm_blobs::Qp qp;
      qp.pd = host.pdn;
      qp.uar_page = uar->page_id;
      qp.log_send_blocks = log2_of(blocks);
      qp.send_cqn = qp.receive_cqn = made.cqn;
      qp.ring = {umem, kRingAt};
      qp.doorbell = {umem, sizeof(UcxEndpoint) + offsetof(UcxQp, qp_dbrec)};
      made.qpn = host.create(made.qp, prm_blobs::create_qp(qp), "QP");
      UcxPoster& device = devices[i];
      device.ring = {made.ring_memory.gpu + kRingAt, blocks, made.qpn, 0, {}};
      device.state = reinterpret_cast<UcxQp*>(made.ring_memory.gpu + sizeof(UcxEndpoint));
      device.db = db;
      // In a smaller ring nobody might ever ring: callers ask for no delay there.
      device.skips = blocks >= 2 * kSkipped;
      device.contended = !strcmp(options.mode, "contended");
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

  // The structures go into the umem itself. The CQE is copied with them, still invalid.
  void publish() {
    for (size_t i = 0; i < objects.size(); ++i) {
      struct {
        UcxEndpoint endpoint;
        UcxQp qp;
      } image{};
      const Buffer& memory = objects[i].ring_memory;
      image.endpoint.sq_wqe_num = devices[i].ring.blocks;
      image.endpoint.sq_fc_mask = flow_mask;
      image.endpoint.sq_wqe_daddr = memory.address + kRingAt;
      memset(image.qp.cqe, 0xff, sizeof image.qp.cqe);
      image.qp.sq_num = objects[i].qpn;
      image.qp.qpn_ds = htobe32(objects[i].qpn << 8);
      require(host.cuda.cuMemcpyHtoD(memory.address, &image, sizeof image) == CUDA_SUCCESS,
              "cuMemcpyHtoD");
    }
  }

  void describe(unsigned i) const {
    const uint64_t base = objects[i].ring_memory.address, qp = base + sizeof(UcxEndpoint);
    describe_queue(i, objects[i].qpn, objects[i].cqn, base + kRingAt, devices[i].ring.blocks,
                   qp + offsetof(UcxQp, qp_dbrec) + 4, qp);
  }
  UcxPoster& device(unsigned i) {
    return devices[i];
  }

  void destroy() {
    uint64_t rolled_back = 0, skipped = 0;
    for (UcxPoster& device : devices) {
      rolled_back += device.rolled_back;
      skipped += device.skipped;
    }
    printf("rolled_back %llu\nskipped_doorbells %llu\n",
           static_cast<unsigned long long>(rolled_back), static_cast<unsigned long long>(skipped));
    for (QueueObjects& made : objects) made.destroy(host);
    host.unmap_uar(uar->reg_addr);
    host.mlx5.mlx5dv_devx_free_uar(uar);
  }
};

}  // namespace
}  // namespace models

int main(int argc, char** argv) {
  return models::run_model<models::UcxGda>(argc, argv);
}
