// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

namespace models {
namespace {

constexpr size_t kPage = 4096;
constexpr uint32_t kUarNcDedicated = 1u << 31;  // newer than some libmlx5

size_t whole_pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                        IBV_ACCESS_REMOTE_ATOMIC;

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  const auto number = [](const char* text) { return strtoull(text, nullptr, 0); };
  for (int i = 1; i + 1 < argc; i += 2) {
    const char *name = argv[i], *value = argv[i + 1];
    if (!strcmp(name, "--mode"))
      options.mode = value;
    else if (!strcmp(name, "--device"))
      options.device = value;
    else if (!strcmp(name, "--queues"))
      options.queues = static_cast<unsigned>(number(value));
    else if (!strcmp(name, "--posters"))
      options.posters = static_cast<unsigned>(number(value));
    else if (!strcmp(name, "--depth"))
      options.depth = static_cast<unsigned>(number(value));
    else if (!strcmp(name, "--batch"))
      options.batch = static_cast<unsigned>(number(value));
    else if (!strcmp(name, "--operations"))
      options.operations = number(value);
    else if (!strcmp(name, "--start"))
      options.start = number(value);
    else if (!strcmp(name, "--seed"))
      options.seed = number(value);
    else if (!strcmp(name, "--pace-us"))
      options.pace_us = static_cast<unsigned>(number(value));
    else if (!strcmp(name, "--hang-s"))
      options.hang_s = static_cast<unsigned>(number(value));
    else if (!strcmp(name, "--resets"))
      options.resets = static_cast<unsigned>(number(value));
    else if (!strcmp(name, "--measured"))
      options.measured = number(value) != 0;
    else
      require(false, "unknown option %s", name);
  }
  require(argc % 2 == 1, "an option without a value");
  require(options.queues && options.posters && options.depth >= 16 &&
              (options.depth & (options.depth - 1)) == 0,
          "at least a queue and a poster, and a depth that is a power of two from 16 on");
  return options;
}

void pause_us(unsigned us) {
  const timespec pause{us / 1'000'000, static_cast<long>(us % 1'000'000) * 1000};
  nanosleep(&pause, nullptr);
}

void Host::open(const char* device) {
  int count;
  ibv_device** list = ibv_get_device_list(&count);
  for (int i = 0; list && i < count; ++i)
    if (!strcmp(ibv_get_device_name(list[i]), device)) context = ibv_open_device(list[i]);
  if (list) ibv_free_device_list(list);
  require(context, "cannot open the device");
  pd = ibv_alloc_pd(context);
  require(pd, "no PD");
  mlx5dv_pd dv{};
  mlx5dv_obj object{};
  object.pd.in = pd;
  object.pd.out = &dv;
  require(mlx5.mlx5dv_init_obj(&object, MLX5DV_OBJ_PD) == 0, "no PD number");
  pdn = dv.pdn;
  require(ibv_query_port(context, 1, &port) == 0, "no port");
  ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  gid_index = ethernet ? 3 : 0;
  require(ibv_query_gid(context, 1, static_cast<int>(gid_index), &gid) == 0, "no GID");
}

void Host::close() {
  require(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0, "cannot close the device");
}

void Host::start_cuda() {
  CUcontext primary;
  require(cuda.cuInit(0) == CUDA_SUCCESS &&
              cuda.cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS &&
              cuda.cuCtxSetCurrent(primary) == CUDA_SUCCESS,
          "no CUDA context");
}

Buffer Host::device_memory(size_t bytes, size_t slack, size_t alignment, bool sync_on_aligned) {
  Buffer buffer;
  CUdeviceptr base;
  require(cuda.cuMemAlloc(&base, bytes + slack) == CUDA_SUCCESS, "no device memory");
  buffer.base = base;
  buffer.address = (base + alignment - 1) / alignment * alignment;
  buffer.bytes = bytes;
  buffer.on_device = true;
  const unsigned on = 1;
  require(cuda.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                     sync_on_aligned ? buffer.address : base) == CUDA_SUCCESS,
          "cuPointerSetAttribute");
  require(cuda.cuMemsetD8(base, 0, bytes + slack) == CUDA_SUCCESS, "cuMemsetD8");
  buffer.gpu = static_cast<uint8_t*>(cuda.gpu_address(buffer.address, bytes));
  require(buffer.gpu, "no device side");
  return buffer;
}

Buffer Host::host_memory(size_t bytes) {
  Buffer buffer;
  void* memory;
  require(posix_memalign(&memory, 65536, whole_pages(bytes)) == 0, "no memory");
  memset(memory, 0, whole_pages(bytes));
  buffer.base = buffer.address = reinterpret_cast<uint64_t>(memory);
  buffer.gpu = static_cast<uint8_t*>(memory);
  buffer.bytes = bytes;
  if (cuda.cuMemHostRegister) {
    CUdeviceptr device;
    require(cuda.cuMemHostRegister(memory, whole_pages(bytes),
                                   CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) ==
                    CUDA_SUCCESS &&
                cuda.cuMemHostGetDevicePointer(&device, memory, 0) == CUDA_SUCCESS,
            "cannot register host memory");
    buffer.gpu = static_cast<uint8_t*>(cuda.gpu_address(device, bytes));
  }
  return buffer;
}

void Host::release(Buffer& buffer) {
  if (!buffer.base) return;
  if (buffer.on_device) {
    require(cuda.cuMemFree(buffer.base) == CUDA_SUCCESS, "cuMemFree");
  } else {
    auto* memory = reinterpret_cast<void*>(buffer.base);
    if (cuda.cuMemHostUnregister)
      require(cuda.cuMemHostUnregister(memory) == CUDA_SUCCESS, "cuMemHostUnregister");
    free(memory);
  }
  buffer = {};
}

// `offset_form`: as UCX, the dma-buf of the whole allocation from its first page on, and an offset.
mlx5dv_devx_umem* Host::umem(const Buffer& buffer, By by, bool offset_form) {
  mlx5dv_devx_umem* made = nullptr;
  if (by != By::address && buffer.on_device) {
    const uint64_t first = offset_form
                               ? buffer.base / kPage * kPage + (buffer.base % kPage ? kPage : 0)
                               : buffer.address;
    const uint64_t end = buffer.address + whole_pages(buffer.bytes);
    int fd = -1;
    const CUresult result = cuda.cuMemGetHandleForAddressRange(
        &fd, first, end - first, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    require(result == CUDA_SUCCESS || by != By::dma_buf_only, "no dma-buf: %d", result);
    if (result == CUDA_SUCCESS) {
      mlx5dv_devx_umem_in in{};
      in.addr = reinterpret_cast<void*>(buffer.address - first);
      in.size = buffer.bytes;
      in.access = IBV_ACCESS_LOCAL_WRITE;
      in.pgsz_bitmap = ~uint64_t{kPage - 1};
      in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
      in.dmabuf_fd = fd;
      made = mlx5.mlx5dv_devx_umem_reg_ex(context, &in);
      ::close(fd);
      require(made || by == By::dma_buf_or_address, "no umem by dma-buf");
    }
  }
  if (!made)
    made = mlx5.mlx5dv_devx_umem_reg(context, reinterpret_cast<void*>(buffer.address), buffer.bytes,
                                     IBV_ACCESS_LOCAL_WRITE);
  require(made, "no umem");
  return made;
}

ibv_mr* Host::memory_region(const Buffer& buffer, bool by_dma_buf) {
  ibv_mr* made;
  if (by_dma_buf) {
    int fd;
    const uint64_t first = buffer.address / kPage * kPage;
    require(cuda.cuMemGetHandleForAddressRange(
                &fd, first, whole_pages(buffer.address + buffer.bytes - first),
                CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) == CUDA_SUCCESS,
            "no dma-buf of the heap");
    made = ibv_reg_dmabuf_mr(pd, buffer.address - first, buffer.bytes, buffer.address, fd, kAccess);
    ::close(fd);
  } else {
    made = ibv_reg_mr(pd, reinterpret_cast<void*>(buffer.address), buffer.bytes, kAccess);
  }
  require(made, "cannot register memory with the NIC");
  return made;
}

mlx5dv_devx_uar* Host::uar(bool blue_flame) {
  mlx5dv_devx_uar* made = nullptr;
  if (!blue_flame) {
    made = mlx5.mlx5dv_devx_alloc_uar(context, kUarNcDedicated);
    if (!made) made = mlx5.mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
  }
  if (!made) made = mlx5.mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
  require(made, "no UAR");
  return made;
}

uint8_t* Host::map_uar(void* register_address, size_t bytes) {
  if (!cuda.cuMemHostRegister) return static_cast<uint8_t*>(register_address);
  for (MappedUar& known : mapped_) {
    if (known.address != register_address) continue;
    ++known.users;
    return known.seen;
  }
  CUdeviceptr device;
  require(cuda.cuMemHostRegister(register_address, bytes,
                                 CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                     CU_MEMHOSTREGISTER_IOMEMORY) == CUDA_SUCCESS &&
              cuda.cuMemHostGetDevicePointer(&device, register_address, 0) == CUDA_SUCCESS,
          "cannot map the UAR to the GPU");
  auto* seen = static_cast<uint8_t*>(cuda.gpu_address(device, bytes));
  require(seen, "the UAR has no device side");
  mapped_.push_back({register_address, seen, 1});
  return seen;
}

void Host::unmap_uar(void* register_address) {
  for (MappedUar& known : mapped_) {
    if (known.address != register_address || --known.users > 0) continue;
    require(cuda.cuMemHostUnregister(register_address) == CUDA_SUCCESS, "cuMemHostUnregister");
    known.address = nullptr;
  }
}

uint32_t Host::create(mlx5dv_devx_obj*& object, const prm_blobs::Blob& command, const char* what) {
  uint8_t answer[16] = {};
  object =
      mlx5.mlx5dv_devx_obj_create(context, command.data(), command.size(), answer, sizeof answer);
  uint32_t words[4];
  memcpy(words, answer, sizeof words);
  require(object, "cannot create a %s: syndrome %#x", what, be32toh(words[1]));
  return be32toh(words[2]) & 0xffffff;
}

void Host::connect(mlx5dv_devx_obj* qp, const prm_blobs::Connection& connection) {
  for (const auto& command : {prm_blobs::rst2init(connection), prm_blobs::init2rtr(connection),
                              prm_blobs::rtr2rts(connection)})
    modify(qp, command);
}

void Host::reset(mlx5dv_devx_obj* qp, uint32_t qpn) {
  modify(qp, prm_blobs::transition(prm_blobs::k2Rst, qpn).take());
}

void Host::modify(mlx5dv_devx_obj* qp, const std::vector<uint8_t>& command) {
  uint8_t answer[16] = {};
  require(mlx5.mlx5dv_devx_obj_modify(qp, command.data(), command.size(), answer, sizeof answer) ==
                  0 &&
              answer[0] == 0,
          "a transition failed: status %#x", answer[0]);
}

uint32_t Host::eqn() {
  uint32_t number;
  require(mlx5.mlx5dv_devx_query_eqn(context, 0, &number) == 0, "no EQ");
  return number;
}

prm_blobs::Connection connection_to(const Host& host, uint32_t qpn, const Peer& peer) {
  prm_blobs::Connection connection;
  connection.qpn = qpn;
  connection.peer_qpn = peer.qpn;
  connection.ethernet = host.ethernet;
  connection.peer_lid = peer.lid;
  memcpy(connection.peer_gid.data(), peer.gid, 16);
  connection.gid_index = host.gid_index;
  connection.mtu = 3;
  return connection;
}

}  // namespace models
