// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory keys, and moving bytes within this process or to and from another.
#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

#include "nic.h"

namespace connectx {
namespace {

constexpr int kMaxIndirection = 2;

bool append(SgeList& out, uint64_t address, uint64_t length) {
  // One descriptor holds less than 4 GiB, which no message exceeds.
  if (out.count == kMaxSges || length > UINT32_MAX) return false;
  out.sges[out.count++] = {address, static_cast<uint32_t>(length), 0};
  return true;
}

bool translate_level(Device& device, uint32_t key, uint64_t va, uint64_t length, uint32_t access,
                     SgeList& out, int level) {
  const auto found = device.keys.find(key >> 8);
  if (found == device.keys.end()) return false;
  const MemoryKey& entry = found->second;
  if (entry.key != key || (entry.access & access) != access) return false;
  if (va < entry.iova || va - entry.iova > entry.length ||
      length > entry.length - (va - entry.iova))
    return false;
  if (entry.indirect.empty()) return append(out, entry.address + (va - entry.iova), length);
  if (level == kMaxIndirection) return false;
  uint64_t offset = va - entry.iova;
  for (const MemoryKey::Entry& part : entry.indirect) {
    if (length == 0) break;
    if (offset >= part.length) {
      offset -= part.length;
      continue;
    }
    const uint64_t piece = length < part.length - offset ? length : part.length - offset;
    if (!translate_level(device, part.key, part.address + offset, piece, 0, out, level + 1))
      return false;
    length -= piece;
    offset = 0;
  }
  return length == 0;
}

void copy_within(const SgeList& local, const Sge* remote, unsigned remote_count,
                 Direction direction) {
  unsigned i = 0, j = 0;
  uint64_t local_done = 0, remote_done = 0;
  while (i < local.count && j < remote_count) {
    const uint64_t piece =
        std::min<uint64_t>(local.sges[i].length - local_done, remote[j].length - remote_done);
    auto* here = reinterpret_cast<char*>(local.sges[i].address + local_done);
    auto* there = reinterpret_cast<char*>(remote[j].address + remote_done);
    if (direction == Direction::from_peer)
      memmove(here, there, piece);
    else
      memmove(there, here, piece);
    local_done += piece;
    remote_done += piece;
    if (local_done == local.sges[i].length) ++i, local_done = 0;
    if (remote_done == remote[j].length) ++j, remote_done = 0;
  }
}

}  // namespace

uint64_t SgeList::bytes() const {
  uint64_t sum = 0;
  for (unsigned i = 0; i < count; ++i) sum += sges[i].length;
  return sum;
}

bool translate(Device& device, uint32_t key, uint64_t va, uint64_t length, uint32_t access,
               SgeList& out) {
  return translate_level(device, key, va, length, access, out, 0);
}

void trim(SgeList& list, uint64_t skip, uint64_t bytes) {
  unsigned kept = 0;
  for (unsigned i = 0; i < list.count && bytes > 0; ++i) {
    Sge sge = list.sges[i];
    const uint64_t dropped = std::min<uint64_t>(skip, sge.length);
    skip -= dropped;
    sge.address += dropped;
    sge.length = static_cast<uint32_t>(std::min<uint64_t>(sge.length - dropped, bytes));
    bytes -= sge.length;
    if (sge.length > 0) list.sges[kept++] = sge;
  }
  list.count = kept;
}

bool move_bytes(int32_t peer_pid, const SgeList& local, const Sge* remote, unsigned remote_count,
                Direction direction) {
  uint64_t remote_bytes = 0;
  for (unsigned i = 0; i < remote_count; ++i) remote_bytes += remote[i].length;
  const uint64_t bytes = std::min(local.bytes(), remote_bytes);
  if (bytes == 0) return true;
  if (peer_pid == nic().pid) {
    copy_within(local, remote, remote_count, direction);
    return true;
  }
  iovec here[kMaxSges], there[kMaxSges];
  for (unsigned i = 0; i < local.count; ++i)
    here[i] = {reinterpret_cast<void*>(local.sges[i].address), local.sges[i].length};
  for (unsigned i = 0; i < remote_count; ++i)
    there[i] = {reinterpret_cast<void*>(remote[i].address), remote[i].length};
  const ssize_t moved =
      direction == Direction::from_peer
          ? process_vm_readv(peer_pid, here, local.count, there, remote_count, 0)
          : process_vm_writev(peer_pid, here, local.count, there, remote_count, 0);
  if (moved == static_cast<ssize_t>(bytes)) return true;
  note("moving %llu bytes to or from process %d: %zd, %s", static_cast<unsigned long long>(bytes),
       peer_pid, moved, strerror(errno));
  return false;
}

}  // namespace connectx
