// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/placement.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>

namespace sigma {
namespace {

// Another domain has to be that much better, and for that many rounds: moving costs the reader its own cache.
constexpr double kMuchBetter = 1.5;
constexpr int kRoundsToMove = 2;
constexpr int kRoundsIdle = 5;
constexpr double kBusy = 0.5;  // of a CPU
// Less is some 4,000 cache lines a second: a distant reader costs their writers less than 0.1% of a core.
constexpr double kWorthwhileBytesPerSecond = 256.0 * 1024;
constexpr size_t kMostProcesses = 16, kMostThreads = 512, kMostThreadsOfOne = 128;  // read each round
// To be spoken of.
constexpr double kMuchFarBytes = 64.0 * (1 << 20), kMuchFarShare = 0.1;

using CpuMask = std::array<unsigned long, kMostCpus / (8 * sizeof(unsigned long))>;
constexpr size_t kMaskBits = 8 * sizeof(unsigned long);

// Of the calling thread. None: unknown.
Cpus allowed_cpus() {
  CpuMask mask{};
  Cpus cpus;
  if (sched_getaffinity(0, sizeof mask, reinterpret_cast<cpu_set_t*>(mask.data())) != 0) return cpus;
  for (uint32_t cpu = 0; cpu < kMostCpus; ++cpu)
    if (mask[cpu / kMaskBits] >> cpu % kMaskBits & 1) cpus.insert(cpus.end(), cpu);
  return cpus;
}

int keep_to(pid_t thread, const Cpus& cpus) {
  CpuMask mask{};
  for (const uint32_t cpu : cpus) mask[cpu / kMaskBits] |= 1ul << cpu % kMaskBits;
  return sched_setaffinity(thread, sizeof mask, reinterpret_cast<const cpu_set_t*>(mask.data()));
}

}  // namespace

// ---- the decision -------------------------------------------------------------------------------

// Where a reader in this domain takes nobody's CPU, nor shares a core with who is busy if it can be helped.
// Empty: nowhere, or it is all that is allowed.
Cpus PlacementChoice::usable(size_t domain, const PlacementRound& round) const {
  Cpus free, undisturbing;
  bool others = false;
  for (const uint32_t cpu : round.allowed) {
    if (!domains_->domains[domain].contains(cpu)) {
      others = true;
      continue;
    }
    if (round.busy.contains(cpu)) continue;
    free.insert(cpu);
    const auto core = domains_->cores.find(cpu);
    if (core == domains_->cores.end() ||
        std::ranges::none_of(core->second, [&](uint32_t sibling) { return round.busy.contains(sibling); }))
      undisturbing.insert(cpu);
  }
  if (!others) return {};
  return undisturbing.empty() ? free : undisturbing;
}

std::optional<size_t> PlacementChoice::wish(const PlacementRound& round) const {
  const auto best = std::ranges::max_element(round.weights);
  if (best == round.weights.end() || *best <= 0) return std::nullopt;
  auto domain = static_cast<size_t>(best - round.weights.begin());
  if (present_ && *best < kMuchBetter * round.weights[*present_]) domain = *present_;
  if (usable(domain, round).empty()) return std::nullopt;
  return domain;
}

Cpus PlacementChoice::next(const PlacementRound& round) {
  if (round.active) {
    idle_for_ = 0;
    const auto wanted = wish(round);
    if (!wanted) present_.reset();
    wished_for_ = !wanted || wanted == present_ ? 0 : wanted == wished_ ? wished_for_ + 1 : 1;
    wished_ = wanted;
    if (wished_for_ >= kRoundsToMove) present_ = wanted;
  } else if (++idle_for_ >= kRoundsIdle) {
    present_.reset();
    wished_for_ = 0;
  }
  if (!present_) return {};
  Cpus cpus = usable(*present_, round);
  if (cpus.empty()) present_.reset();
  return cpus;
}

// ---- what it is decided by ----------------------------------------------------------------------

Placement::Placement(const std::string& sysfs_root)
    : domains_(sysfs_root.empty() ? CacheDomains() : CacheDomains::read(sysfs_root)), choice_(domains_) {}

// What was read of each since it was asked last. Of those that have ended this is the end.
std::vector<Placement::Read> Placement::take(std::span<const QueueBytes> queues, std::optional<size_t> reader_domain) {
  std::vector<Read> reads;
  std::map<uint32_t, Process> kept;
  for (const QueueBytes& queue : queues) {
    auto node = processes_.extract(queue.pid);
    Process process = node.empty() ? Process() : std::move(node.mapped());
    const uint64_t bytes = queue.bytes - (queue.bytes >= process.bytes ? process.bytes : 0);
    process.bytes = queue.bytes;
    process.lately = process.lately / 2 + bytes;
    if (queue.ended) {
      account(process, bytes, reader_domain);
      continue;
    }
    reads.push_back({&(kept[queue.pid] = std::move(process)), queue.pid, bytes});
  }
  processes_ = std::move(kept);
  return reads;
}

void Placement::account(const Process& process, uint64_t bytes, std::optional<size_t> reader_domain) {
  double near = 0;
  if (domains_.only_one())
    near = 1;
  else if (reader_domain && !process.weights.empty())
    near = process.weights[*reader_domain];
  near_bytes_ += near * static_cast<double>(bytes);
  far_bytes_ += (1 - near) * static_cast<double>(bytes);
}

// Those that are read most, and of these first who was looked at before: only they can be compared.
void Placement::look_at_threads(std::vector<Read>& reads, uint64_t now_ns, PlacementRound& round) {
  std::ranges::sort(reads, std::greater(), [&](const Read& read) {
    return read.process->lately + (times_.knows(read.pid) ? read.process->lately / 2 : 0);
  });
  round.weights.assign(domains_.domains.size(), 0);
  std::map<uint32_t, double> used;  // of each CPU
  size_t left = kMostThreads;
  for (size_t i = 0; i < std::min(reads.size(), kMostProcesses) && left > 0; ++i) {
    Process& process = *reads[i].process;
    if (process.lately == 0) break;
    const ProcessUse use = times_.read(reads[i].pid, now_ns, std::min(left, kMostThreadsOfOne));
    left -= use.threads.size();
    double all = 0;
    process.weights.assign(domains_.domains.size(), 0);
    for (const ThreadUse& thread : use.threads) {
      all += thread.weight;
      used[thread.cpu] += thread.share;
      if (const auto domain = domains_.of(thread.cpu)) process.weights[*domain] += thread.weight;
    }
    if (all == 0) {
      process.weights.clear();
      continue;
    }
    for (double& weight : process.weights) weight /= all;
    if (use.fresh) continue;
    for (size_t domain = 0; domain < round.weights.size(); ++domain)
      round.weights[domain] += process.weights[domain] * static_cast<double>(process.lately);
  }
  times_.forget_before(now_ns);
  for (const auto& [cpu, share] : used)
    if (share > kBusy) round.busy.insert(cpu);
}

void Placement::round(std::span<const QueueBytes> queues, pid_t reader, uint32_t reader_cpu, uint64_t now_ns) {
  const auto reader_domain = domains_.of(reader_cpu);
  std::vector<Read> reads = take(queues, reader_domain);
  PlacementRound round;
  if (!domains_.only_one()) look_at_threads(reads, now_ns, round);
  uint64_t bytes = 0;
  for (const Read& read : reads) {
    account(*read.process, read.bytes, reader_domain);
    bytes += read.bytes;
  }
  const double elapsed_s = static_cast<double>(now_ns - std::min(now_ns, round_ns_)) * 1e-9;
  round_ns_ = now_ns;
  if (domains_.only_one() || reader == 0 || refused_) return;
  round.active = static_cast<double>(bytes) >= kWorthwhileBytesPerSecond * elapsed_s;
  round.allowed = allowed_cpus();
  apply(reader, round.allowed, choice_.next(round));
}

void Placement::finish(std::span<const QueueBytes> queues, uint32_t reader_cpu) {
  const auto reader_domain = domains_.of(reader_cpu);
  for (const Read& read : take(queues, reader_domain)) account(*read.process, read.bytes, reader_domain);
}

void Placement::apply(pid_t reader, const Cpus& allowed, const Cpus& wanted) {
  if (wanted == applied_) return;
  if (keep_to(reader, wanted.empty() ? allowed : wanted) == 0) {
    applied_ = wanted;
    return;
  }
  refused_ = true;
  refusal_ = std::strerror(errno);
}

// ---- coverage -----------------------------------------------------------------------------------

void Placement::add_to(Counters& counters) const {
  counters.observer_near_kib += static_cast<uint64_t>(near_bytes_ / 1024);
  counters.observer_far_kib += static_cast<uint64_t>(far_bytes_ / 1024);
}

std::vector<std::string> Placement::statements() const {
  std::vector<std::string> lines;
  const double all_bytes = near_bytes_ + far_bytes_;
  if (far_bytes_ > kMuchFarBytes && far_bytes_ > kMuchFarShare * all_bytes)
    lines.push_back(fmt::format(
        "{:.0f} of {:.0f} MiB of queues were read from a core that is not known to share a cache with the threads that "
        "use them, which costs these 100 to 200 ns a request: leave sigmatrace a core beside the job's (taskset)",
        far_bytes_ / (1 << 20), all_bytes / (1 << 20)));
  if (refused_) lines.push_back("the reader of queues could not be placed near the traced threads: " + refusal_);
  return lines;
}

}  // namespace sigma
