// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A libgdrapi.so.2 for our libcuda.so.1: the functions that the preloaded library uses, as gdrapi.h
// (NVIDIA/gdrcopy 2.6) declares and describes them. Pages are the GPU's, of 64 KiB: what is pinned
// may begin before and end behind what was asked for.
//
// SIGMA_GDR_PINS=n: no more than n are pinned at a time. SIGMA_GDR_LOG=FILE: "pinned N mapped N",
// what is left when the library goes.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "driver/device_side.h"

namespace {

constexpr uint64_t kPage = 65536;

struct Pinned {
  uint64_t begin, bytes;
  void* mapping;
};
struct Gdr {
  std::map<unsigned long, Pinned> pinned;
  unsigned long next = 1;
};
Gdr& instance = *new Gdr;  // lives as long as tell() needs it

unsigned long most() {
  const char* text = getenv("SIGMA_GDR_PINS");
  return text ? strtoul(text, nullptr, 10) : ~0ul;
}

__attribute__((destructor)) void tell() {
  const char* path = getenv("SIGMA_GDR_LOG");
  FILE* file = path ? fopen(path, "ae") : nullptr;
  if (!file) return;
  unsigned long mapped = 0;
  for (const auto& [handle, each] : instance.pinned) mapped += each.mapping != nullptr;
  fprintf(file, "ever %lu pinned %zu mapped %lu\n", instance.next - 1, instance.pinned.size(),
          mapped);
  fclose(file);
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

struct gdr_mh_t {
  unsigned long h;
};
struct gdr_info_v2_t {
  uint64_t va, mapped_size;
  uint32_t page_size;
  uint64_t tm_cycles;
  uint32_t cycles_per_ms;
  unsigned mapped : 1, wc_mapping : 1;
  int mapping_type;
};

void* gdr_open() {
  return &instance;
}

int gdr_pin_buffer(void*, unsigned long address, size_t bytes, uint64_t, uint32_t,
                   gdr_mh_t* handle) {
  if (!handle || !fake_gpu_address(address, 1)) return EINVAL;
  if (instance.pinned.size() >= most()) return ENOMEM;
  const uint64_t begin = address / kPage * kPage;
  const uint64_t end = (address + bytes + kPage - 1) / kPage * kPage;
  handle->h = instance.next++;
  instance.pinned[handle->h] = {begin, end - begin, nullptr};
  return 0;
}

int gdr_unpin_buffer(void*, gdr_mh_t handle) {
  return instance.pinned.erase(handle.h) ? 0 : EINVAL;
}

int gdr_get_info_v2(void*, gdr_mh_t handle, gdr_info_v2_t* info) {
  const auto found = instance.pinned.find(handle.h);
  if (found == instance.pinned.end()) return EINVAL;
  *info = {};
  info->va = found->second.begin;
  info->mapped_size = found->second.bytes;
  info->page_size = kPage;
  info->mapped = info->wc_mapping = found->second.mapping != nullptr;
  info->mapping_type = found->second.mapping ? 1 : 0;
  return 0;
}

int gdr_map(void*, gdr_mh_t handle, void** at, size_t bytes) {
  const auto found = instance.pinned.find(handle.h);
  if (found == instance.pinned.end() || bytes > found->second.bytes) return EINVAL;
  if (found->second.mapping) return EAGAIN;
  found->second.mapping = fake_gpu_map(found->second.begin, bytes);
  *at = found->second.mapping;
  return *at ? 0 : EINVAL;
}

int gdr_unmap(void*, gdr_mh_t handle, void* at, size_t bytes) {
  const auto found = instance.pinned.find(handle.h);
  if (found == instance.pinned.end() || found->second.mapping != at) return EINVAL;
  fake_gpu_unmap(at, bytes);
  found->second.mapping = nullptr;
  return 0;
}

#pragma GCC visibility pop
}
