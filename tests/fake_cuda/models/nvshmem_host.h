// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// NVSHMEM IBGDA's host side: RC queue pairs with umems of their own, or DCIs that share one. DeepEP
// (V1) uses the same and brings its own device code.
#pragma once

#include "cuda_stack.h"

namespace models {

// The structures that NVSHMEM publishes to its kernels (version words 0x100B8, 0x10048).
struct NvshmemManagement {
  uint32_t reserved, lock;
  uint64_t resv_head, ready_head, prod_idx, cons_idx, get_head;
};
struct NvshmemQp {
  uint32_t version, type;
  uint32_t qpn, index;
  uint8_t unknown_[24];
  uint16_t nwqes, reserved_;
  uint32_t reserved2_;
  uint64_t wqe, dbrec, bf, cq, prod_idx;
  NvshmemManagement mvars;
  uint8_t tail_[184 - 88 - sizeof(NvshmemManagement)];
};
static_assert(sizeof(NvshmemQp) == 184 && offsetof(NvshmemQp, nwqes) == 40 &&
              offsetof(NvshmemQp, wqe) == 48 && offsetof(NvshmemQp, dbrec) == 56 &&
              offsetof(NvshmemQp, prod_idx) == 80);
static_assert(offsetof(NvshmemQp, mvars) + offsetof(NvshmemManagement, lock) == 92 &&
              offsetof(NvshmemQp, mvars) + offsetof(NvshmemManagement, prod_idx) == 112);
struct NvshmemCq {
  uint32_t version, reserved[3];
  uint64_t cqe;
  uint8_t unknown_[32];
  uint32_t cqn, reserved2_;
  uint32_t qpn, reserved3_;
};
static_assert(sizeof(NvshmemCq) == 72 && offsetof(NvshmemCq, cqe) == 16 &&
              offsetof(NvshmemCq, cqn) == 56);

inline constexpr size_t kGpuPage = 65536;

// What device code keeps for one queue; the indices stand in the published structure.
struct NvshmemDevice {
  Ring ring;
  Fate fate;
  NvshmemQp* state = nullptr;
  const uint8_t* cqe = nullptr;
  uint32_t* record = nullptr;
  uint8_t* bf = nullptr;
  unsigned batch = 32;

  uint64_t reserved() const { return __atomic_load_n(&state->mvars.resv_head, __ATOMIC_RELAXED); }
  Done done(uint64_t end) { return collapsed_done(cqe, end, reserved(), fate); }
};

template <typename Device>
struct NvshmemHost : CudaStack {
  bool dci = false, by_address = false;
  std::vector<QueueObjects> objects;
  std::vector<Device> devices;
  mlx5dv_devx_uar* uar = nullptr;
  uint8_t* bf = nullptr;
  Buffer shared_ring, shared_record, published_qps, published_cqs;
  mlx5dv_devx_umem *shared_ring_umem = nullptr, *shared_record_umem = nullptr;
  ibv_srq* target_srq = nullptr;
  ibv_cq* target_cq = nullptr;
  ibv_qp* target = nullptr;
  static constexpr uint64_t kTargetKey = 0x5157ull << 32 | 0x1234;

  void open(const Options& options) {
    dci = !strcmp(options.mode, "dci");
    by_address = !strcmp(options.mode, "peermem");
    bind_cuda_like_nvshmem(host.cuda);
    bind_mlx5_linked(host.mlx5);
    host.open(options.device);
    host.start_cuda();
  }

  // cudaMalloc(bytes + 65535), rounded up to a GPU page.
  Buffer control_memory(size_t bytes) {
    return host.device_memory(bytes, kGpuPage - 1, kGpuPage, false);
  }
  mlx5dv_devx_umem* control_umem(const Buffer& buffer) {
    return host.umem(buffer, by_address ? Host::By::address : Host::By::dma_buf_only);
  }

  void create(const Options& options) {
    objects.resize(options.queues);
    devices = std::vector<Device>(options.queues);
    const uint32_t blocks = options.depth;
    uar = host.uar(false);
    bf = host.map_uar(uar->reg_addr, 8);
    if (dci) {
      shared_ring = control_memory(size_t{options.queues} * blocks * 64);
      shared_record = control_memory(size_t{options.queues} * 8);
      shared_ring_umem = control_umem(shared_ring);
      shared_record_umem = control_umem(shared_record);
      create_target();
    }
    for (unsigned i = 0; i < options.queues; ++i) create_queue(i, blocks, options.batch);
  }

  void create_queue(unsigned i, uint32_t blocks, unsigned batch) {
    QueueObjects& made = objects[i];
    made.cq_memory = control_memory(size_t{blocks} * 64);
    require(
        host.cuda.cuMemsetD8(made.cq_memory.address, 0xff, made.cq_memory.bytes) == CUDA_SUCCESS,
        "cuMemsetD8");
    made.cq_umem = control_umem(made.cq_memory);
    // The CQ's own doorbell record: nobody reads it, for overruns are ignored.
    made.record_memory = control_memory(16);
    made.record_umem = control_umem(made.record_memory);
    prm_blobs::Cq cq;
    cq.log_entries = log2_of(blocks);
    cq.collapsed = cq.overrun_ignored = true;
    cq.uar_page = uar->page_id;
    cq.eqn = host.eqn();
    cq.ring = {made.cq_umem->umem_id, 0};
    cq.doorbell = {made.record_umem->umem_id, 8};
    made.cqn = host.create(made.cq, prm_blobs::create_cq(cq), "CQ");

    prm_blobs::Qp qp;
    qp.transport = dci ? prm_blobs::Transport::dci : prm_blobs::Transport::rc;
    qp.pd = host.pdn;
    qp.uar_page = uar->page_id;
    qp.log_send_blocks = log2_of(blocks);
    qp.send_cqn = qp.receive_cqn = made.cqn;
    if (dci) {
      qp.ring = {shared_ring_umem->umem_id, uint64_t{i} * blocks * 64};
      qp.doorbell = {shared_record_umem->umem_id, uint64_t{i} * 8};
    } else {
      made.ring_memory = control_memory(size_t{blocks} * 64);
      made.ring_umem = control_umem(made.ring_memory);
      qp.ring = {made.ring_umem->umem_id, 0};
      qp.doorbell = {made.record_umem->umem_id, 0};
    }
    made.qpn = host.create(made.qp, prm_blobs::create_qp(qp), "QP");

    Device& device = devices[i];
    device.ring.memory = ring_of(i).gpu + ring_offset(i, blocks);
    device.ring.blocks = blocks;
    device.ring.qpn = made.qpn;
    device.cqe = made.cq_memory.gpu;
    device.record = reinterpret_cast<uint32_t*>(record_of(i).gpu + (dci ? i * 8 : 0)) + 1;
    device.bf = bf;
    device.batch = batch;
  }

  const Buffer& ring_of(unsigned i) const { return dci ? shared_ring : objects[i].ring_memory; }
  const Buffer& record_of(unsigned i) const {
    return dci ? shared_record : objects[i].record_memory;
  }
  uint64_t ring_offset(unsigned i, uint32_t blocks) const {
    return dci ? uint64_t{i} * blocks * 64 : 0;
  }

  // The DCT by verbs objects, as NVSHMEM makes it.
  void create_target() {
    ibv_srq_init_attr srq{};
    srq.attr.max_wr = 16;
    srq.attr.max_sge = 1;
    target_srq = ibv_create_srq(host.pd, &srq);
    target_cq = ibv_create_cq(host.context, 16, nullptr, nullptr, 0);
    require(target_srq && target_cq, "no SRQ or CQ for the DCT");
    ibv_qp_init_attr_ex init{};
    init.qp_type = IBV_QPT_DRIVER;
    init.send_cq = init.recv_cq = target_cq;
    init.srq = target_srq;
    init.pd = host.pd;
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    mlx5dv_qp_init_attr driver{};
    driver.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC;
    driver.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCT;
    driver.dc_init_attr.dct_access_key = kTargetKey;
    target = mlx5dv_create_qp(host.context, &init, &driver);
    require(target, "no DCT");
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags =
        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    require(
        ibv_modify_qp(target, &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
        "the DCT to INIT");
    attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.min_rnr_timer = 12;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.is_global = host.ethernet;
    attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(host.gid_index);
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.grh.dgid = host.gid;
    require(ibv_modify_qp(target, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER) == 0,
            "the DCT to RTR");
  }

  Peer local(unsigned i) const {
    Peer peer;
    peer.qpn = objects[i].qpn;
    if (target) peer.dct = target->qp_num;
    return peer;
  }

  void connect(unsigned i, const Peer& peer) {
    prm_blobs::Connection connection = connection_to(host, objects[i].qpn, peer);
    if (dci) {
      connection.peer_qpn = 0;
      Ring& ring = devices[i].ring;
      ring.address_segments = 1;
      ring.target = {peer.dct, kTargetKey, peer.lid};
    }
    connection.udp_source_port = static_cast<uint16_t>(0xc000 | peer.lid);  // one for all
    connection.ack_timeout = 20;
    host.connect(objects[i].qp, connection);
  }

  void reset(unsigned i) {
    host.reset(objects[i].qp, objects[i].qpn);
    clear(i);
  }
  // As of a queue that was never posted to.
  void clear(unsigned i) {
    devices[i].state->mvars = {};
    store_record(devices[i].record, 0);
    memset(objects[i].cq_memory.gpu, 0xff, 64);
  }

  // Arrays of structures in device memory, copied on a stream of their own.
  void publish() {
    const size_t count = devices.size();
    published_qps = control_memory(count * sizeof(NvshmemQp));
    published_cqs = control_memory(count * sizeof(NvshmemCq));
    std::vector<NvshmemQp> qps(count);
    std::vector<NvshmemCq> cqs(count);
    for (unsigned i = 0; i < count; ++i) {
      const uint32_t blocks = devices[i].ring.blocks;
      cqs[i].version = 0x10048;
      cqs[i].cqe = objects[i].cq_memory.address;
      cqs[i].cqn = objects[i].cqn;
      cqs[i].qpn = objects[i].qpn;
      qps[i].version = 0x100b8;
      qps[i].qpn = objects[i].qpn;
      qps[i].nwqes = static_cast<uint16_t>(blocks);
      qps[i].wqe = ring_of(i).address + ring_offset(i, blocks);
      qps[i].dbrec = record_of(i).address + (dci ? i * 8 : 0) + 4;
      qps[i].bf = reinterpret_cast<uint64_t>(bf);
      qps[i].cq = published_cqs.address + i * sizeof(NvshmemCq);
      qps[i].prod_idx = published_qps.address + i * sizeof(NvshmemQp) + 112;
    }
    CUstream own;
    require(
        host.cuda.cuStreamCreateWithPriority(&own, CU_STREAM_NON_BLOCKING, -5) == CUDA_SUCCESS &&
            host.cuda.cuMemcpyHtoDAsync(published_cqs.address, cqs.data(), count * sizeof cqs[0],
                                        own) == CUDA_SUCCESS &&
            host.cuda.cuMemcpyHtoDAsync(published_qps.address, qps.data(), count * sizeof qps[0],
                                        own) == CUDA_SUCCESS &&
            host.cuda.cuStreamSynchronize(own) == CUDA_SUCCESS &&
            host.cuda.cuStreamDestroy(own) == CUDA_SUCCESS,
        "cannot publish");
    for (unsigned i = 0; i < count; ++i)
      devices[i].state = reinterpret_cast<NvshmemQp*>(published_qps.gpu) + i;
  }

  void describe(unsigned i) const {
    const uint32_t blocks = devices[i].ring.blocks;
    describe_queue(i, objects[i].qpn, objects[i].cqn, ring_of(i).address + ring_offset(i, blocks),
                   blocks, record_of(i).address + (dci ? i * 8 : 0) + 4,
                   objects[i].cq_memory.address);
  }
  Device& device(unsigned i) { return devices[i]; }

  void destroy() {
    for (QueueObjects& made : objects) made.destroy(host);
    for (mlx5dv_devx_umem* umem : {shared_ring_umem, shared_record_umem})
      if (umem) host.mlx5.mlx5dv_devx_umem_dereg(umem);
    for (Buffer* buffer : {&shared_ring, &shared_record, &published_qps, &published_cqs})
      host.release(*buffer);
    if (target)
      require(ibv_destroy_qp(target) == 0 && ibv_destroy_srq(target_srq) == 0 &&
                  ibv_destroy_cq(target_cq) == 0,
              "cannot destroy the DCT");
    host.unmap_uar(uar->reg_addr);
    host.mlx5.mlx5dv_devx_free_uar(uar);
  }
};

}  // namespace models
