// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "queue_job.h"

#include <dlfcn.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_interpose/registry.h"

enum { kLogSq = 7, kLogCq = 7, kCqBytes = 64 << kLogCq, kSqBytes = 64 << kLogSq };
enum {
  kDscp = 26,
  kTrafficClass = 105,
  kSl = 3,
  kSport = 49161,
  kTimeout = 20,
  kRetries = 7,
  kRnr = 6,
  kHop = 64
};

#define CHECK(condition, ...)       \
  do {                              \
    if (!(condition)) {             \
      fprintf(stderr, __VA_ARGS__); \
      fprintf(stderr, "\n");        \
      return 1;                     \
    }                               \
  } while (0)

static void put32(uint8_t* command, size_t at, uint32_t value) {
  value = htobe32(value);
  memcpy(command + at, &value, 4);
}

static void put64(uint8_t* command, size_t at, uint64_t value) {
  put32(command, at, (uint32_t)(value >> 32));
  put32(command, at + 4, (uint32_t)value);
}

static uint32_t number_in(const uint8_t* answer) {
  uint32_t value;
  memcpy(&value, answer + 8, 4);
  return be32toh(value) & 0xffffff;
}

// Device memory with the alignment that queues need: the stacks allocate more, and round up.
static CUdeviceptr aligned(CUdeviceptr address, uint64_t alignment) {
  return (address + alignment - 1) / alignment * alignment;
}

// What NVSHMEM publishes to its kernels of one queue pair: 184 bytes, as gpu_interpose has it.
enum { kStructures = 20, kStructureBytes = 184, kIndexAt = 112, kMine = 11 };
static void put_structure(uint8_t* at, uint32_t qpn, uint64_t ring, uint64_t record) {
  const uint32_t version = 1u << 16 | kStructureBytes;
  memset(at, 0, kStructureBytes);
  memcpy(at, &version, sizeof version);
  memcpy(at + 8, &qpn, sizeof qpn);
  memcpy(at + 48, &ring, sizeof ring);
  memcpy(at + 56, &record, sizeof record);
}

static const struct sigma_gpu_queue* find_queue(const struct sigma_gpu_registry* registry,
                                                uint32_t qp_num) {
  for (uint32_t i = 0; i < registry->used; i++)
    if (registry->queues[i].qp_num == qp_num) return &registry->queues[i];
  return NULL;
}

static void print_queue(const char* when, const struct sigma_gpu_queue* q) {
#define SHOW(name) printf("%s %s %llu\n", when, #name, (unsigned long long)q->name)
  SHOW(state);
  SHOW(flags);
  SHOW(context);
  SHOW(qp_num);
  SHOW(cqn);
  SHOW(pdn);
  SHOW(ring_addr);
  SHOW(doorbell_addr);
  SHOW(cq_addr);
  SHOW(ring_entries);
  SHOW(cq_entries);
  SHOW(cqe_bytes);
  SHOW(ring_memory);
  SHOW(doorbell_memory);
  SHOW(cq_memory);
  SHOW(tier);
  SHOW(uar_page);
  SHOW(uar_addr);
  SHOW(qp_type);
  SHOW(qp_state);
  SHOW(mtu);
  SHOW(port);
  SHOW(peer_qp_num);
  SHOW(udp_sport);
  SHOW(dscp);
  SHOW(traffic_class);
  SHOW(sl);
  SHOW(hop_limit);
  SHOW(ack_timeout);
  SHOW(retries);
  SHOW(rnr_retries);
  SHOW(index_addr);
  SHOW(index_bytes);
  SHOW(index_memory);
  SHOW(index_state);
#undef SHOW
  printf("%s device %s\n", when, q->device);
}

static void print_counters(const char* when, const struct sigma_gpu_registry* registry) {
#define SHOW(upper, lower, text) \
  printf("%s " #lower " %llu\n", when, (unsigned long long)registry->counters[SIGMA_GPU_##upper]);
  SIGMA_GPU_COUNTERS(SHOW)
#undef SHOW
}

#define TRUTH(name, value) printf("truth %s %llu\n", name, (unsigned long long)(value))

int queue_job(const struct functions* f) {
  const struct sigma_gpu_registry* registry = dlsym(RTLD_DEFAULT, SIGMA_GPU_REGISTRY_NAME);
  CHECK(registry, "the library is not loaded");
  CHECK(registry->magic == SIGMA_GPU_REGISTRY_MAGIC &&
            registry->version == SIGMA_GPU_REGISTRY_VERSION,
        "no registry");

  int devices = 0;
  struct ibv_device** list = ibv_get_device_list(&devices);
  CHECK(list && devices, "no RDMA device");
  struct mlx5dv_context_attr attributes = {.flags = MLX5DV_CONTEXT_FLAGS_DEVX};
  struct ibv_context* context = f->mlx5dv_open_device(list[0], &attributes);
  CHECK(context, "cannot open the device");
  struct ibv_pd* pd = ibv_alloc_pd(context);
  struct mlx5dv_pd pd_facts;
  struct mlx5dv_obj object = {.pd = {pd, &pd_facts}};
  CHECK(pd && !f->mlx5dv_init_obj(&object, MLX5DV_OBJ_PD), "no protection domain");
  uint32_t eqn;
  CHECK(!f->mlx5dv_devx_query_eqn(context, 0, &eqn), "no EQ");

  // The doorbell page, which the GPU is to ring.
  struct mlx5dv_devx_uar* uar = f->mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
  CHECK(uar, "no UAR");
  CHECK(!f->cuMemHostRegister_v2(uar->reg_addr, 8,
                                 CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                     CU_MEMHOSTREGISTER_IOMEMORY),
        "the UAR cannot be registered");

  // Ring and completions in device memory, doorbell records in host memory that the GPU can reach:
  // as NVSHMEM has them where a CPU thread rings. The ring is registered by dma-buf, whose
  // descriptor is closed at once, the completions by their address.
  CUdeviceptr raw_ring, raw_cq;
  CHECK(!f->cuMemAlloc_v2(&raw_ring, 2 * 65536) && !f->cuMemAlloc_v2(&raw_cq, kCqBytes + 4096),
        "no memory");
  const CUdeviceptr ring = aligned(raw_ring, 65536), completions = aligned(raw_cq, 4096);
  int fd = -1;
  CHECK(!f->cuMemGetHandleForAddressRange(&fd, ring, 65536, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
        "no handle");
  void* records = NULL;
  CHECK(!posix_memalign(&records, 4096, 4096), "no memory");
  memset(records, 0, 4096);
  CHECK(!f->cuMemHostRegister_v2(records, 4096,
                                 CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
        "host memory cannot be registered");
  struct mlx5dv_devx_umem_in in = {.addr = NULL,  // from the handle's first byte on
                                   .size = kSqBytes,
                                   .access = IBV_ACCESS_LOCAL_WRITE,
                                   .pgsz_bitmap = ~4095ull,
                                   .comp_mask = MLX5DV_UMEM_MASK_DMABUF,
                                   .dmabuf_fd = fd};
  struct mlx5dv_devx_umem* ring_umem = f->mlx5dv_devx_umem_reg_ex(context, &in);
  close(fd);
  struct mlx5dv_devx_umem* cq_umem = f->mlx5dv_devx_umem_reg(context, (void*)(uintptr_t)completions,
                                                             kCqBytes, IBV_ACCESS_LOCAL_WRITE);
  struct mlx5dv_devx_umem* records_umem =
      f->mlx5dv_devx_umem_reg(context, records, 4096, IBV_ACCESS_LOCAL_WRITE);
  CHECK(ring_umem && cq_umem && records_umem, "memory cannot be registered with the NIC");

  uint8_t answer[16] = {0}, cq[0x118] = {0}, qp[0x118] = {0};
  put32(cq, 0, 0x400u << 16);
  put32(cq, 0x10, 1u << 25 | 1u << 20 | 1u << 17);  // doorbell by umem, collapsed, overrun ignored
  put32(cq, 0x14, records_umem->umem_id);
  put32(cq, 0x1c, (uint32_t)kLogCq << 24 | uar->page_id);
  put32(cq, 0x24, eqn);
  put64(cq, 0x48, 0);
  put64(cq, 0x50, 0);
  put32(cq, 0x58, cq_umem->umem_id);
  put32(cq, 0x5c, 1u << 31);
  struct mlx5dv_devx_obj* cq_object =
      f->mlx5dv_devx_obj_create(context, cq, sizeof cq, answer, sizeof answer);
  CHECK(cq_object, "no CQ");
  const uint32_t cqn = number_in(answer);

  uint8_t* qpc = qp + 0x18;
  put32(qp, 0, 0x500u << 16);
  put32(qpc, 0x00, 3u << 11);  // RC, migrated
  put32(qpc, 0x04, pd_facts.pdn);
  put32(qpc, 0x08, (uint32_t)kLogSq << 11);
  put32(qpc, 0x0c, uar->page_id);
  put32(qpc, 0x7c, cqn);
  put32(qpc, 0x9c, cqn);
  put64(qpc, 0xa0, 64);
  put32(qpc, 0xac, 3u << 24);  // no receive queue
  put32(qpc, 0xd0, 1u << 28);  // doorbell by umem
  put32(qpc, 0xe4, records_umem->umem_id);
  put32(qp, 0x108, ring_umem->umem_id);
  put32(qp, 0x10c, 1u << 31);
  struct mlx5dv_devx_obj* qp_object =
      f->mlx5dv_devx_obj_create(context, qp, sizeof qp, answer, sizeof answer);
  CHECK(qp_object, "no QP");
  const uint32_t qpn = number_in(answer);

  // To itself. The path's fields beside those of InfiniBand are RoCE's; the command carries both.
  const uint32_t opcodes[] = {0x502, 0x503, 0x504};
  for (int i = 0; i < 3; i++) {
    uint8_t modify[0x110] = {0}, done[16] = {0};
    uint8_t *context_bytes = modify + 0x18, *path = context_bytes + 0x18;
    put32(modify, 0, opcodes[i] << 16);
    put32(modify, 8, qpn);
    put32(context_bytes, 0x08, 5u << 29);  // MTU 4096
    put32(context_bytes, 0x14, qpn);
    struct ibv_port_attr port;
    CHECK(!ibv_query_port(context, 1, &port), "no port");
    put32(path, 0x04, port.lid);
    put32(path, 0x08, (uint32_t)kTimeout << 27 | (uint32_t)kHop);
    put32(path, 0x0c, (uint32_t)kTrafficClass << 20);
    put32(path, 0x20, (uint32_t)kDscp << 16 | kSport);
    put32(path, 0x24, (uint32_t)kSl << 24 | 1u << 16);
    put32(context_bytes, 0x70, (uint32_t)kRetries << 16 | (uint32_t)kRnr << 13);
    CHECK(
        !f->mlx5dv_devx_obj_modify(qp_object, modify, sizeof modify, done, sizeof done) && !done[0],
        "transition %#x: status %#x", opcodes[i], done[0]);
  }

  // The structures by which kernels would find it: among others that name two of the three.
  CUdeviceptr published;
  uint8_t structures[kStructures * kStructureBytes];
  const uint64_t record = (uintptr_t)records + 64 + 4;
  for (int i = 0; i < kStructures; i++)
    put_structure(structures + i * kStructureBytes, i % 3 == 0 ? qpn + 1 : qpn,
                  i % 3 == 1 ? ring + 64 : ring, i % 3 == 2 && i != kMine ? record + 64 : record);
  CHECK(!f->cuMemAlloc_v2(&published, sizeof structures) &&
            !f->cuMemcpyHtoD_v2(published, structures, sizeof structures),
        "cannot publish");

  TRUTH("index_addr", published + kMine * kStructureBytes + kIndexAt);
  TRUTH("index_bytes", 8);
  TRUTH("index_memory", SIGMA_GPU_MEMORY_DEVICE);
  TRUTH("index_state", SIGMA_GPU_INDEX_FOUND);
  TRUTH("state", SIGMA_GPU_QUEUE_LIVE);
  TRUTH("context", (uintptr_t)context);
  TRUTH("qp_num", qpn);
  TRUTH("cqn", cqn);
  TRUTH("pdn", pd_facts.pdn);
  TRUTH("ring_addr", ring);
  TRUTH("doorbell_addr", (uintptr_t)records + 64);
  TRUTH("cq_addr", completions);
  TRUTH("ring_entries", 1 << kLogSq);
  TRUTH("cq_entries", 1 << kLogCq);
  TRUTH("cqe_bytes", 64);
  TRUTH("ring_memory", SIGMA_GPU_MEMORY_DEVICE);
  TRUTH("doorbell_memory", SIGMA_GPU_MEMORY_REGISTERED);
  TRUTH("cq_memory", SIGMA_GPU_MEMORY_DEVICE);
  TRUTH("uar_page", uar->page_id);
  TRUTH("uar_addr", (uintptr_t)uar->reg_addr);
  TRUTH("flags", SIGMA_GPU_INITIATED | SIGMA_GPU_COLLAPSED | SIGMA_GPU_OVERRUN |
                     SIGMA_GPU_UAR_MAPPED | SIGMA_GPU_HAS_PATH | SIGMA_GPU_HAS_RETRIES);
  TRUTH("qp_type", IBV_QPT_RC);
  TRUTH("qp_state", IBV_QPS_RTS);
  TRUTH("mtu", IBV_MTU_4096);
  TRUTH("port", 1);
  TRUTH("peer_qp_num", qpn);
  TRUTH("udp_sport", kSport);
  TRUTH("dscp", kDscp);
  TRUTH("traffic_class", kTrafficClass);
  TRUTH("sl", kSl);
  TRUTH("hop_limit", kHop);
  TRUTH("ack_timeout", kTimeout);
  TRUTH("retries", kRetries);
  TRUTH("rnr_retries", kRnr);
  printf("truth device %s\n", ibv_get_device_name(list[0]));
  const struct sigma_gpu_queue* queue = find_queue(registry, qpn);
  if (queue) print_queue("known", queue);
  print_counters("known", registry);
  fflush(stdout);

  CHECK(!f->cuMemFree_v2(published), "free");
  if (queue) printf("freed index_addr %llu\n", (unsigned long long)queue->index_addr);
  if (queue) printf("freed state %u\n", queue->state);
  CHECK(!f->mlx5dv_devx_obj_destroy(qp_object) && !f->mlx5dv_devx_obj_destroy(cq_object),
        "destroy");
  CHECK(!f->mlx5dv_devx_umem_dereg(ring_umem) && !f->mlx5dv_devx_umem_dereg(cq_umem) &&
            !f->mlx5dv_devx_umem_dereg(records_umem),
        "deregister");
  CHECK(!f->cuMemHostUnregister(uar->reg_addr) && !f->cuMemHostUnregister(records), "unregister");
  f->mlx5dv_devx_free_uar(uar);
  CHECK(!f->cuMemFree_v2(raw_ring) && !f->cuMemFree_v2(raw_cq), "free");
  if (queue) printf("ended state %u\n", queue->state);
  free(records);
  ibv_dealloc_pd(pd);
  ibv_close_device(context);
  ibv_free_device_list(list);
  return 0;
}
