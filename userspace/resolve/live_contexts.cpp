// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The layout asserted here is libibverbs' public one: ibv_poll_cq() and its like are inline
// functions of verbs.h, so that it cannot change any more. verbs_context grows at its front ("grows
// up"): distances from the context downwards are fixed as well.
#include "resolve/live_contexts.h"

#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

namespace sigma {
namespace {

static_assert(sizeof(ibv_context) == 328);
static_assert(offsetof(ibv_context, ops.poll_cq) == 96);
static_assert(offsetof(ibv_context, ops.post_srq_recv) == 168);
static_assert(offsetof(ibv_context, ops.post_send) == 208);
static_assert(offsetof(ibv_context, ops.post_recv) == 216);
static_assert(offsetof(ibv_context, cmd_fd) == 264);
static_assert(offsetof(ibv_context, abi_compat) == 320);
static_assert(offsetof(verbs_context, context) - offsetof(verbs_context, sz) == 8);

constexpr uint64_t kAllOnes = ~uint64_t{0};
constexpr uint64_t kAbiCompat = offsetof(ibv_context, abi_compat);
// Words of verbs_context, counted down from the context, that are no function pointers.
constexpr size_t kPriv = 14, kPlaceholder3 = 2, kSize = 1;
static_assert(offsetof(verbs_context, context) - offsetof(verbs_context, priv) == 8 * kPriv);
static_assert(offsetof(verbs_context, context) - offsetof(verbs_context, _ABI_placeholder3) ==
              8 * kPlaceholder3);
// sizeof(struct verbs_context): 0x288 in rdma-core 33 to 56, 0x2b8 in 65.
constexpr uint64_t kSmallestVerbsContext = sizeof(ibv_context) + 8 * (kPriv + 1);
constexpr uint64_t kLargestVerbsContext = 0x800;
// libibverbs fills nearly every slot, with "not supported" functions at least.
constexpr size_t kFewestFunctions = 8;
constexpr size_t kMaxContexts = 4096;
constexpr int kMaxAncestors = 32;

bool plausible_size(uint64_t size) {
  return size >= kSmallestVerbsContext && size <= kLargestVerbsContext && size % 8 == 0;
}

// The NUL-terminated text of a fixed field, or empty when it is not terminated or not printable.
template <size_t N>
std::string field_text(const char (&field)[N]) {
  size_t length = ::strnlen(field, N);
  bool printable = std::all_of(field, field + length, [](char c) { return c > 0x20 && c < 0x7f; });
  return length < N && printable ? std::string(field, length) : std::string();
}

std::string fd_target(pid_t pid, int fd) {
  char target[256];
  std::string link = fmt::format("/proc/{}/fd/{}", pid, fd);
  ssize_t length = ::readlink(link.c_str(), target, sizeof target);
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : std::string();
}

bool is_uverbs_node(const std::string& target) {
  size_t slash = target.rfind('/');
  std::string_view name =
      std::string_view(target).substr(slash == std::string::npos ? 0 : slash + 1);
  return target.starts_with("/dev/") && name.starts_with("uverbs");
}

bool convincing_device(const ibv_device& device) {
  std::string node = field_text(device.dev_name);
  return !field_text(device.name).empty() && node.starts_with("uverbs") &&
         node.find_first_not_of("0123456789", 6) == std::string::npos && node.size() > 6 &&
         field_text(device.dev_path).starts_with('/');
}

uint64_t address_of(const void* function) {
  return reinterpret_cast<uint64_t>(function);
}

// verbs_context's own part, which ends where the context begins: null or code, but for three words.
bool plausible_prefix(const RemoteMemory& memory, uint64_t context, uint64_t size) {
  std::vector<uint64_t> words((size - sizeof(ibv_context)) / 8);
  if (!memory.read(context - 8 * words.size(), std::as_writable_bytes(std::span(words))))
    return false;
  size_t functions = 0;
  for (size_t down = 1; down <= words.size(); ++down) {
    if (down == kSize || down == kPlaceholder3 || down == kPriv) continue;
    uint64_t word = words[words.size() - down];
    if (word == 0) continue;
    if (!is_code(memory, word)) return false;
    ++functions;
  }
  return functions >= kFewestFunctions;
}

pid_t parent_of(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(in, line);
  size_t after_name = line.rfind(')');  // the name may hold anything, also ')'
  if (after_name == std::string::npos) return 0;
  char state = 0;
  int parent = 0;
  return std::sscanf(line.c_str() + after_name + 1, " %c %d", &state, &parent) == 2 ? parent : 0;
}

enum class Sameness : uint8_t { same, different, unknown };

Sameness same_open_file(pid_t a, pid_t b, int fd) {
  long order = ::syscall(SYS_kcmp, a, b, KCMP_FILE, fd, fd);
  if (order == 0) return Sameness::same;
  if (order > 0 || errno == EBADF) return Sameness::different;
  return Sameness::unknown;
}

bool shares_a_qp(const RemoteMemory& other, const std::vector<ObjectIdentity>& qps) {
  return std::any_of(qps.begin(), qps.end(), [&](const ObjectIdentity& qp) {
    struct {
      uint32_t handle, number;
    } theirs;
    static_assert(offsetof(ibv_qp, qp_num) == offsetof(ibv_qp, handle) + 4);
    return other.read(qp.address + offsetof(ibv_qp, handle),
                      std::as_writable_bytes(std::span(&theirs, 1))) &&
           theirs.handle == qp.handle && theirs.number == qp.number;
  });
}

}  // namespace

bool is_code(const RemoteMemory& memory, uint64_t address) {
  const Mapping* mapping = find_mapping(memory.maps(), address);
  return mapping && mapping->executable && mapping->inode != 0;
}

std::optional<LiveContext> read_context(const RemoteMemory& memory, uint64_t address) {
  if (address % 8 != 0 || address < kLargestVerbsContext) return std::nullopt;
  auto size = memory.read_object<uint64_t>(address - 8);
  if (!size || !plausible_size(*size)) return std::nullopt;
  auto context = memory.read_object<ibv_context>(address);
  if (!context || address_of(context->abi_compat) != kAllOnes || context->cmd_fd < 0)
    return std::nullopt;

  LiveContext live;
  live.address = address;
  live.cmd_fd = context->cmd_fd;
  live.poll_cq = address_of(reinterpret_cast<void*>(context->ops.poll_cq));
  live.post_send = address_of(reinterpret_cast<void*>(context->ops.post_send));
  live.post_recv = address_of(reinterpret_cast<void*>(context->ops.post_recv));
  live.post_srq_recv = address_of(reinterpret_cast<void*>(context->ops.post_srq_recv));
  uint64_t req_notify_cq = address_of(reinterpret_cast<void*>(context->ops.req_notify_cq));
  for (uint64_t function :
       {live.poll_cq, live.post_send, live.post_recv, live.post_srq_recv, req_notify_cq}) {
    if (!is_code(memory, function)) return std::nullopt;
  }
  if (!plausible_prefix(memory, address, *size)) return std::nullopt;

  live.fd_target = fd_target(memory.pid(), live.cmd_fd);
  if (live.fd_target.empty()) return std::nullopt;
  auto device = memory.read_object<ibv_device>(address_of(context->device));
  if (device) live.device = field_text(device->name);
  if (!is_uverbs_node(live.fd_target)) {
    if (!device || !convincing_device(*device)) return std::nullopt;
    live.evidence = FdEvidence::device_record;
  }
  live.owner = memory.pid();
  return live;
}

std::vector<LiveContext> find_contexts(const RemoteMemory& memory, const ScanLimits& limits,
                                       ScanTotals& totals) {
  std::vector<LiveContext> contexts;
  constexpr size_t kBack =
      kAbiCompat / 8 + 1;  // from abi_compat down to verbs_context.sz, in words
  memory.scan_writable(limits, totals, [&](uint64_t address, std::span<const uint64_t> words) {
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i] != kAllOnes) [[likely]]
        continue;
      // The size's word is nearly always in the same piece, and rejects nearly everything.
      if (i >= kBack && !plausible_size(words[i - kBack])) continue;
      if (contexts.size() >= kMaxContexts) {
        totals.complete = false;
        return;
      }
      if (auto context = read_context(memory, address + 8 * i - kAbiCompat))
        contexts.push_back(*std::move(context));
    }
  });
  return contexts;
}

pid_t find_owner(const RemoteMemory& memory, const LiveContext& context,
                 const std::vector<ObjectIdentity>& qps) {
  pid_t owner = memory.pid();
  pid_t ancestor = parent_of(memory.pid());
  for (int i = 0; i < kMaxAncestors && ancestor > 1; ++i, ancestor = parent_of(ancestor)) {
    auto other = RemoteMemory::open(ancestor);
    if (!other.ok()) continue;
    auto theirs = read_context(*other, context.address);
    if (!theirs || theirs->cmd_fd != context.cmd_fd || theirs->fd_target != context.fd_target ||
        theirs->post_send != context.post_send || theirs->poll_cq != context.poll_cq) {
      continue;
    }
    Sameness file = same_open_file(memory.pid(), ancestor, context.cmd_fd);
    if (file == Sameness::same || (file == Sameness::unknown && shares_a_qp(*other, qps)))
      owner = ancestor;
  }
  return owner;
}

}  // namespace sigma
