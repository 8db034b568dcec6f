// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "output/meta.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/private_file.h"
#include "output/coverage.h"
#include "output/names.h"

namespace sigma {
namespace {

// Keeps the order in which keys are set, so that the file reads from the general to the particular.
using Json = nlohmann::ordered_json;

template <typename T>
Json number(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <typename T>
Json hex(const std::optional<T>& value) {
  return value ? Json(fmt::format("{:#x}", *value)) : Json(nullptr);
}

Json word(std::string_view text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json utc(const std::optional<uint64_t>& monotonic_ns, const UtcClock& clock) {
  return monotonic_ns ? Json(clock.utc_ns(*monotonic_ns)) : Json(nullptr);
}

Json clock_pair(const ClockPair& pair) {
  return {
      {"monotonic_ns", pair.monotonic_ns}, {"utc_ns", pair.utc_ns}, {"error_ns", pair.error_ns}};
}

Json process(const Process& process, const TraceInfo& info, const UtcClock& clock) {
  Json facts = Json::object();
  if (const auto known = info.facts.find(process.pid); known != info.facts.end())
    for (const auto& [key, value] : known->second) facts[key] = value;
  return {{"pid", process.pid},
          {"comm", word(process.comm)},
          {"exit_ns", utc(process.exit_ns, clock)},
          {"exit_code", number(process.exit_code)},
          {"facts", std::move(facts)}};
}

// Who told of what it sent: a probe, its ring in memory, or each of some; "": it has sent nothing.
std::string posts_by(const QueuePair& qp) {
  const bool read = qp.observed->seen + qp.observed->missed > 0;
  if (qp.posts_probed) return read ? "probe and memory" : "probe";
  return read ? "memory" : "";
}

// What was read from its send ring; null: it was not. Blocks are WQEBBs of 64 bytes.
Json observed(const QueuePair& qp) {
  if (!qp.observed) return nullptr;
  const Observed& ring = *qp.observed;
  return {{"origin", word(ring_origin_name(ring.origin))},
          {"mode", word(ring_mode_name(ring.mode))},
          {"posts_by", word(posts_by(qp))},
          {"tier", number(ring.tier)},
          {"reason", word(ring.reason)},
          {"hung", ring.hung},
          {"end_unseen", ring.end_unseen},
          {"blocks_posted", ring.posted},
          {"blocks_seen", ring.seen},
          {"blocks_missed", ring.missed},
          {"gaps", ring.gaps},
          {"certified_by_margin", ring.by_margin},
          {"certified_by_later_doorbell", ring.by_posterior},
          {"modulo_65536", ring.modulo}};
}

Json queue_pair(const QueuePair& qp, const UtcClock& clock) {
  return {{"device", word(qp.device)},
          {"qp_num", qp.qp_num},
          {"life", qp.life},
          {"pid", qp.pid},
          {"handle", number(qp.handle)},
          {"qp_type", word(qp.type ? qp_type_name(*qp.type) : "")},
          {"state", word(qp.state ? qp_state_name(*qp.state) : "")},
          {"port", number(qp.port)},
          {"peer_qp_num", number(qp.peer_qp_num)},
          {"peer", word(address_text(qp.peer))},
          {"peer_gid", word(address_text({qp.peer.gid, std::nullopt}))},
          {"peer_lid", number(qp.peer.lid)},
          {"sq_sig_all", number(qp.sq_sig_all)},
          {"max_send_wr", number(qp.max_send_wr)},
          {"max_recv_wr", number(qp.max_recv_wr)},
          {"max_send_sge", number(qp.max_send_sge)},
          {"max_recv_sge", number(qp.max_recv_sge)},
          {"max_inline_data", number(qp.max_inline_data)},
          {"path_mtu_bytes", number(qp.path_mtu)},
          {"sgid_index", number(qp.sgid_index)},
          {"sl", number(qp.sl)},
          {"traffic_class", number(qp.traffic_class)},
          {"flow_label", number(qp.flow_label)},
          {"hop_limit", number(qp.hop_limit)},
          {"static_rate", number(qp.static_rate)},
          {"pkey_index", number(qp.pkey_index)},
          {"qkey", hex(qp.qkey)},
          {"sq_psn", number(qp.sq_psn)},
          {"rq_psn", number(qp.rq_psn)},
          {"timeout", number(qp.timeout)},
          {"retry_cnt", number(qp.retry_cnt)},
          {"rnr_retry", number(qp.rnr_retry)},
          {"min_rnr_timer", number(qp.min_rnr_timer)},
          {"max_rd_atomic", number(qp.max_rd_atomic)},
          {"max_dest_rd_atomic", number(qp.max_dest_rd_atomic)},
          {"send_cq", number(qp.send_cq)},
          {"recv_cq", number(qp.recv_cq)},
          {"has_srq", qp.has_srq},
          {"older_than_attach", qp.older_than_attach},
          {"observed", observed(qp)},
          {"created_ns", utc(qp.created_ns, clock)},
          {"destroyed_ns", utc(qp.destroyed_ns, clock)}};
}

Json completion_queue(const CompletionQueue& cq, const UtcClock& clock) {
  return {{"device", word(cq.device)},
          {"pid", cq.pid},
          {"handle", number(cq.handle)},
          {"cqn", number(cq.cqn)},
          {"entries", number(cq.entries)},
          {"created_ns", utc(cq.created_ns, clock)},
          {"destroyed_ns", utc(cq.destroyed_ns, clock)}};
}

Json memory_region(const MemoryRegion& mr, const UtcClock& clock) {
  return {{"device", word(mr.device)},
          {"pid", mr.pid},
          {"handle", number(mr.handle)},
          {"addr", fmt::format("{:#x}", mr.addr)},
          {"length", mr.length},
          {"lkey", hex(mr.lkey)},
          {"rkey", hex(mr.rkey)},
          {"created_ns", utc(mr.created_ns, clock)},
          {"destroyed_ns", utc(mr.destroyed_ns, clock)}};
}

Json library(const LibraryInfo& library) {
  Json probes = Json::array(), uncovered = Json::array();
  for (const ProbeInfo& probe : library.probes)
    probes.push_back({{"function", probe.function},
                      {"route", word(probe.route)},
                      {"file_offset", fmt::format("{:#x}", probe.file_offset)},
                      {"instruction", word(probe.instruction)},
                      {"link", word(probe.link)},
                      {"at_return", probe.at_return},
                      {"expected_ns", probe.expected_ns}});
  for (const UncoveredFunction& function : library.uncovered)
    uncovered.push_back({{"function", function.function}, {"reason", function.reason}});
  return {{"name", word(library.name)},
          {"path", library.path},
          {"build_id", word(library.build_id)},
          {"probes", std::move(probes)},
          {"uncovered", std::move(uncovered)}};
}

Json coverage(const TraceInfo& info) {
  Json counters = Json::object();
  for (const CounterInfo& counter : kCounters)
    counters[std::string(counter.name)] = info.counters.*counter.value;
  Json libraries = Json::array();
  for (const LibraryInfo& each : info.libraries) libraries.push_back(library(each));
  return {{"statement", coverage_statement(info.counters, info.remarks)},
          {"out_of_sight", kOutOfSight},
          {"counters", std::move(counters)},
          {"libraries", std::move(libraries)}};
}

template <typename List, typename Describe>
Json list(const List& items, const Describe& describe) {
  Json array = Json::array();
  for (const auto& item : items) array.push_back(describe(item));
  return array;
}

// Whether the file can be rewritten to `size` bytes without running out of space midway. File
// systems that cannot say so are trusted.
bool can_hold(int fd, size_t size) {
  return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size)) == 0 ||
         errno == EOPNOTSUPP;
}

}  // namespace

NodeInfo NodeInfo::read() {
  NodeInfo info;
  utsname name{};
  if (uname(&name) == 0) info = {name.nodename, {}, name.release};
  std::ifstream("/proc/sys/kernel/random/boot_id") >> info.boot_id;
  return info;
}

std::string meta_json(const TraceInfo& info) {
  const UtcClock clock(info.start_clock);
  const Json document = {
      {"schema_version", kMetaSchemaVersion},
      {"tool", "sigmatrace"},
      {"tool_version", info.tool_version},
      {"complete", info.complete},
      {"end_reason", word(info.end_reason)},
      {"node", info.node.node},
      {"boot_id", info.node.boot_id},
      {"kernel", info.node.kernel},
      {"command_line", info.command_line},
      {"clocks",
       {{"start", clock_pair(info.start_clock)},
        {"end", info.end_clock ? clock_pair(*info.end_clock) : Json(nullptr)}}},
      {"coverage", coverage(info)},
      {"processes", list(info.processes, [&](const auto& p) { return process(p, info, clock); })},
      {"qps", list(info.queue_pairs, [&](const auto& qp) { return queue_pair(*qp, clock); })},
      {"cqs",
       list(info.completion_queues, [&](const auto& cq) { return completion_queue(cq, clock); })},
      {"mrs", list(info.memory_regions, [&](const auto& mr) { return memory_region(mr, clock); })},
  };
  // Names come from other processes and may be no UTF-8: such bytes become U+FFFD.
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<MetaFile> MetaFile::create(const std::string& csv_path, const TraceInfo& info) {
  const std::string path = path_for(csv_path);
  SIGMA_ASSIGN(Fd fd, write_private_file(path, meta_json(info)));
  return MetaFile(path, std::move(fd));
}

Status MetaFile::write(const TraceInfo& info) {
  const std::string text = meta_json(info);
  if (auto fd = write_private_file(path_, text); fd.ok()) {
    fd_ = *std::move(fd);
    return {};
  } else if (!can_hold(fd_.get(), text.size()) || lseek(fd_.get(), 0, SEEK_SET) != 0) {
    return std::move(fd).error();
  }
  int errnum = 0;
  if (write_all(fd_.get(), text, &errnum) == text.size() &&
      ftruncate(fd_.get(), static_cast<off_t>(text.size())) == 0)
    return {};
  return Error{fmt::format("cannot write {}: {}", path_, errno_text(errnum ? errnum : errno))};
}

}  // namespace sigma
