// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A whole trace with known truth, from its records to the report as JSON: every figure equals the
// truth, percentiles within 1%, with one thread and with several.
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "analysis/trace_pass.h"
#include "analysis_synthetic.h"
#include "catch.h"
#include "csv_support.h"
#include "report_job.h"

using namespace sigma;
using namespace sigma::test;
using Json = nlohmann::json;

namespace {

std::string report_of(const std::string& path, unsigned threads) {
  Rows rows({}, threads);
  ReportContext context;
  auto hosts = Hosts::parse(
      "::ffff:10.0.0.1 h0 0\n::ffff:10.0.0.2 h1 1\n::ffff:10.0.0.3 h2 2\n"
      "::ffff:10.0.0.4 h3 3\n::ffff:10.0.0.5 h4 4\n::ffff:10.0.0.6 h5 5\n",
      "hosts");
  REQUIRE(hosts.ok());
  context.hosts = *hosts;
  const Status read = add_trace(path, threads, rows, context);
  if (!read.ok()) FAIL(read.error().what);
  return report_json(make_report(rows, context));
}

using Filter = std::function<bool(const TrueOperation&)>;
using KeyOf = std::function<std::string(const TrueOperation&)>;

bool succeeded(const TrueOperation& operation) {
  return operation.complete_ns && operation.status == 0;
}

// Time in which at least one of them was under way.
uint64_t union_of(std::vector<std::pair<uint64_t, uint64_t>> times) {
  std::sort(times.begin(), times.end());
  uint64_t sum = 0, until = 0;
  for (const auto& [begin, end] : times) {
    if (end > std::max(begin, until)) sum += end - std::max(begin, until);
    until = std::max(until, end);
  }
  return sum;
}

void check_near(const Json& measured, uint64_t truth) {
  CHECK(measured.get<double>() == Approx(static_cast<double>(truth)).epsilon(0.01));
}

void check_latency(const Json& measured, const std::vector<uint64_t>& values) {
  REQUIRE(measured["count"] == values.size());
  check_near(measured["p50_ns"], exact_percentile(values, 0.5));
  check_near(measured["p95_ns"], exact_percentile(values, 0.95));
  check_near(measured["p99_ns"], exact_percentile(values, 0.99));
  CHECK(measured["max_ns"] == *std::max_element(values.begin(), values.end()));
}

// `lane`: operations of one lane occupy it together; the lanes' times add up.
void check_tally(const Json& measured, const ReportJob& job, const Filter& wanted,
                 const KeyOf& lane) {
  uint64_t operations = 0, bytes = 0, completed = 0, unfinished = 0, errors = 0, flushed = 0;
  uint64_t first = UINT64_MAX, last = 0;
  double outstanding = 0;
  std::vector<uint64_t> latencies;
  std::map<std::string, std::vector<std::pair<uint64_t, uint64_t>>> lanes;
  for (const TrueOperation& operation : job.operations) {
    if (!wanted(operation)) continue;
    ++operations;
    bytes += operation.bytes;
    unfinished += !operation.complete_ns;
    errors += operation.status == IBV_WC_RETRY_EXC_ERR;
    flushed += operation.status == IBV_WC_WR_FLUSH_ERR;
    first = std::min(first, operation.post_ns);
    last = std::max(last, operation.complete_ns.value_or(operation.post_ns));
    if (!succeeded(operation)) continue;
    ++completed;
    latencies.push_back(operation.latency_ns());
    outstanding += static_cast<double>(operation.latency_ns());
    lanes[lane(operation)].push_back({operation.post_ns, *operation.complete_ns});
  }
  uint64_t busy = 0;
  for (const auto& [name, times] : lanes) busy += union_of(times);
  CHECK(measured["operations"] == operations);
  CHECK(measured["bytes"] == bytes);
  CHECK(measured["completed"] == completed);
  CHECK(measured["unfinished"] == unfinished);
  CHECK(measured["errors"] == errors);
  CHECK(measured["flushed"] == flushed);
  CHECK(measured["first_ns"] == ReportJob::utc(first));
  CHECK(measured["last_ns"] == ReportJob::utc(last));
  CHECK(measured["busy_ns"] == busy);
  const double seconds = static_cast<double>(last - first) * 1e-9;
  CHECK(measured["bytes_per_s"].get<double>() == Approx(static_cast<double>(bytes) / seconds));
  CHECK(measured["operations_per_s"].get<double>() ==
        Approx(static_cast<double>(operations) / seconds));
  CHECK(measured["path_bytes_per_s"].get<double>() ==
        Approx(static_cast<double>(bytes) * 1e9 / static_cast<double>(busy)).epsilon(0.012));
  CHECK(measured["depth_mean"].get<double>() == Approx(outstanding * 1e-9 / seconds));
  check_latency(measured["latency"], latencies);
}

// The list's entry whose name has this part. By value: GCC 14 warns of a reference that comes from a
// function with a temporary among its arguments.
Json named(const Json& list, const std::string& part) {
  for (const Json& entry : list)
    if (entry["name"].get<std::string>().find(part) != std::string::npos) return entry;
  throw std::runtime_error("no " + part + " in " + list.dump());
}

std::string row_of(const TrueOperation& o) {
  return std::to_string(o.rank) + ">" + std::to_string(o.peer);
}
std::string cell_of(const TrueOperation& o) {
  return row_of(o) + o.opcode + size_class_name(size_class(o.bytes));
}

// Outstanding at once, seen by each post, of its own queue.
uint32_t deepest(const ReportJob& job, const std::string& row) {
  std::vector<const TrueOperation*> queue;
  for (const TrueOperation& operation : job.operations)
    if (row_of(operation) == row && succeeded(operation)) queue.push_back(&operation);
  size_t most = 0;
  for (const TrueOperation* each : queue)
    most = std::max(most, static_cast<size_t>(std::count_if(
                              queue.begin(), queue.end(), [&](const TrueOperation* other) {
                                return other->post_ns <= each->post_ns &&
                                       *other->complete_ns > each->post_ns;
                              })));
  return static_cast<uint32_t>(most);
}

}  // namespace

TEST_CASE("every figure of a trace's report equals the truth, with any number of threads") {
  const uint32_t seed = GENERATE(1u, 2u);
  TemporaryFolder folder;
  ReportJob job(seed);
  job.write(folder / "t");
  const std::string text = report_of(folder / "t", 1);
  for (const unsigned threads : {2u, 3u, 16u}) CHECK((report_of(folder / "t", threads) == text));
  const Json report = Json::parse(text);

  // ---- totals and groups
  const auto all = [](const TrueOperation&) { return true; };
  check_tally(report["totals"], job, all, row_of);
  CHECK(report["totals"]["queue_pairs"] == ReportJob::kRanks * (ReportJob::kRanks - 1));
  CHECK(report["totals"]["peers"] == ReportJob::kRanks);
  CHECK(report["totals"]["processes"] == ReportJob::kRanks);
  CHECK(report["totals"]["duration_ns"] == job.end_ns - trace_meta().info.start_clock.monotonic_ns);
  const Json& by = report["by"];
  REQUIRE(by["qp"].size() == ReportJob::kRanks * (ReportJob::kRanks - 1));
  std::set<std::string> opcodes, sizes;
  for (uint32_t rank = 0; rank < ReportJob::kRanks; ++rank) {
    for (uint32_t peer = 0; peer < ReportJob::kRanks; ++peer) {
      if (peer == rank) continue;
      const Json& qp =
          named(by["qp"], "qp " + std::to_string(ReportJob::qp_of(rank, peer)) + " ->");
      check_tally(
          qp, job, [&](const TrueOperation& o) { return o.rank == rank && o.peer == peer; },
          row_of);
      CHECK(qp["depth_max"] == deepest(job, std::to_string(rank) + ">" + std::to_string(peer)));
    }
    check_tally(
        named(by["process"], "rank " + std::to_string(rank)), job,
        [&](const TrueOperation& o) { return o.rank == rank; }, row_of);
    check_tally(
        named(by["peer"], "h" + std::to_string(rank)), job,
        [&](const TrueOperation& o) { return o.peer == rank; }, row_of);
  }
  for (uint32_t device = 0; device < ReportJob::kRanks; ++device) {
    const std::string name = "mlx5_" + std::to_string(device);
    const auto of_device = [&](const TrueOperation& o) {
      return ReportJob::device_of(o.rank) == name;
    };
    check_tally(named(by["device"], name), job, of_device, row_of);
    check_tally(named(report["rails"]["ports"], name), job, of_device, row_of);
  }
  for (const TrueOperation& operation : job.operations) {
    opcodes.insert(operation.opcode);
    sizes.insert(size_class_name(size_class(operation.bytes)));
  }
  for (const std::string& opcode : opcodes)
    check_tally(
        named(by["opcode"], opcode), job,
        [&](const TrueOperation& o) { return o.opcode == opcode; }, cell_of);
  for (const std::string& size : sizes)
    check_tally(
        named(by["size"], size), job,
        [&](const TrueOperation& o) { return size_class_name(size_class(o.bytes)) == size; },
        cell_of);

  // ---- matrices, in the direction of the data
  for (const std::string& kind : std::vector<std::string>{"node", "rank", "nic"}) {
    const auto ends = [&](const TrueOperation& o) {
      const std::string here = kind == "node"   ? "node1"
                               : kind == "rank" ? std::to_string(o.rank)
                                                : ReportJob::device_of(o.rank) + "/1";
      const std::string there =
          kind == "node"   ? "h" + std::to_string(o.peer)
          : kind == "rank" ? std::to_string(o.peer)
                           : "h" + std::to_string(o.peer) + " rank " + std::to_string(o.peer);
      return o.opcode == "rdma_read" ? std::pair(there, here) : std::pair(here, there);
    };
    std::map<std::pair<std::string, std::string>, std::pair<uint64_t, uint64_t>> truth;
    for (const TrueOperation& operation : job.operations) {
      auto& flow = truth[ends(operation)];
      flow.first += operation.bytes;
      ++flow.second;
    }
    const Json& matrix = report["matrix"][kind];
    REQUIRE(matrix["flows"].size() == truth.size());
    double most = 0, least = 1e300, sum = 0;
    for (const Json& flow : matrix["flows"]) {
      const auto& [bytes, count] =
          truth.at({flow["from"].get<std::string>(), flow["to"].get<std::string>()});
      CHECK(flow["bytes"] == bytes);
      CHECK(flow["operations"] == count);
      most = std::max(most, static_cast<double>(bytes));
      least = std::min(least, static_cast<double>(bytes));
      sum += static_cast<double>(bytes);
    }
    CHECK(matrix["skew"]["max_to_min"].get<double>() == Approx(most / least));
    CHECK(matrix["skew"]["max_to_mean"].get<double>() ==
          Approx(most * static_cast<double>(truth.size()) / sum));
  }

  // ---- senders at once
  REQUIRE(report["rails"]["receivers"].size() == ReportJob::kRanks);
  for (uint32_t peer = 0; peer < ReportJob::kRanks; ++peer) {
    std::map<uint64_t, int> changes;
    double sender_ns = 0;
    std::vector<std::pair<uint64_t, uint64_t>> any;
    for (uint32_t rank = 0; rank < ReportJob::kRanks; ++rank) {
      std::vector<std::pair<uint64_t, uint64_t>> times;
      for (const TrueOperation& o : job.operations)
        if (o.rank == rank && o.peer == peer && succeeded(o))
          times.push_back({o.post_ns, *o.complete_ns});
      sender_ns += static_cast<double>(union_of(times));
      any.insert(any.end(), times.begin(), times.end());
      // The sender's busy times, joined.
      std::sort(times.begin(), times.end());
      for (size_t i = 0; i < times.size();) {
        auto [begin, end] = times[i];
        for (++i; i < times.size() && times[i].first <= end; ++i)
          end = std::max(end, times[i].second);
        ++changes[begin];
        --changes[end];
      }
    }
    int now = 0, most = 0;
    for (const auto& [time_ns, change] : changes) most = std::max(most, now += change);
    const Json& receiver = named(report["rails"]["receivers"], "h" + std::to_string(peer));
    CHECK(receiver["senders"] == ReportJob::kRanks - 1);
    CHECK(receiver["senders_at_once_max"] == most);
    CHECK(receiver["busy_ns"] == union_of(any));
    CHECK(receiver["senders_at_once_mean"].get<double>() ==
          Approx(sender_ns / static_cast<double>(union_of(any))));
  }

  // ---- barriers
  const Json& barriers = report["barriers"];
  CHECK(barriers["epochs"] == ReportJob::kRounds);
  std::vector<uint64_t> spreads;
  std::map<uint32_t, uint64_t> last;
  std::map<uint32_t, std::vector<uint64_t>> behind;
  for (const auto& epoch : job.epochs) {
    spreads.push_back(epoch.last_ns - epoch.first_ns);
    ++last[epoch.last_rank];
    for (const auto& [rank, ns] : epoch.behind_ns) behind[rank].push_back(ns);
  }
  check_latency(barriers["spread"], spreads);
  for (uint32_t rank = 0; rank < ReportJob::kRanks; ++rank) {
    const Json& entry = named(barriers["ranks"], "rank " + std::to_string(rank));
    CHECK(entry["last"] == last[rank]);
    check_latency(entry["behind"], behind[rank]);
  }

  // ---- errors and what is pending
  REQUIRE(report["errors"].size() == 1);
  CHECK(report["errors"][0]["first"]["status"] == "retry_exc_err");
  CHECK(report["errors"][0]["statuses"]["retry_exc_err"] == 1);
  CHECK(report["errors"][0]["statuses"]["wr_flush_err"] == 5);
  CHECK(report["errors"][0]["peer"] == "h1 rank 1");
  std::vector<const TrueOperation*> pending;
  for (const TrueOperation& operation : job.operations)
    if (!operation.complete_ns) pending.push_back(&operation);
  REQUIRE(report["pending"].size() == pending.size());
  for (size_t i = 0; i < pending.size(); ++i) {
    CHECK(report["pending"][i]["time_ns"] == ReportJob::utc(pending[i]->post_ns));
    CHECK(report["pending"][i]["age_ns"] == job.end_ns - pending[i]->post_ns);
    CHECK(report["pending"][i]["wr_id"] == pending[i]->wr_id);
    CHECK(report["pending"][i]["bytes"] == pending[i]->bytes);
  }

  // ---- memory
  const Json& memory = report["memory"];
  uint64_t bytes = 0, total_ns = 0, deregistered = 0;
  std::vector<uint64_t> times;
  for (const auto& region : job.registrations) {
    bytes += region.length;
    total_ns += region.took_ns;
    deregistered += region.deregistered;
    times.push_back(region.took_ns);
  }
  CHECK(memory["registrations"] == job.registrations.size());
  CHECK(memory["deregistrations"] == deregistered);
  CHECK(memory["registered_bytes"] == bytes);
  CHECK(memory["registered_bytes_at_once_max"] == job.registered_at_once);
  CHECK(memory["register_total_ns"] == total_ns);
  check_latency(memory["register_time"], times);
  CHECK(memory["alive"] == job.registrations.size() - deregistered);
  CHECK(memory["older_than_trace"] == 0);

  // ---- ports, marks
  std::map<std::string, uint64_t> moved;
  for (const Json& counter : report["port_counters"]) {
    CHECK(counter["port"] == "mlx5_1/1");
    moved[counter["counter"].get<std::string>()] = counter["increase"].get<uint64_t>();
  }
  CHECK((moved ==
         std::map<std::string, uint64_t>{{"out_of_sequence", 12}, {"port_xmit_data", 9000}}));
  CHECK(report["port_counters"][0]["counter"] == "out_of_sequence");
  CHECK(report["port_counters"][0]["sense"] == "trouble");
  CHECK(report["port_counters"][0]["per_second"].get<double>() == Approx(6));
  REQUIRE(report["marks"].size() == 1);
  CHECK(report["marks"][0]["reason"] == "user");
  CHECK(report["marks"][0]["text"] == "look");

  // ---- the verdict: what was put in, and nothing else
  std::multiset<std::string> kinds;
  for (const Json& finding : report["verdict"]) kinds.insert(finding["kind"].get<std::string>());
  INFO(report["verdict"].dump(1));
  CHECK((kinds == std::multiset<std::string>{"error", "hang", "port"}));
  CHECK(report["config"].empty());
}

TEST_CASE("one receiver with far more senders at once than the others is named") {
  Job job(60);
  const bool incast = GENERATE(true, false);
  for (uint32_t sender = 0; sender < 12; ++sender)
    for (uint8_t receiver = 1; receiver <= 6; ++receiver) {
      const size_t qp = job.add_qp({.pid = 100 + sender, .peer = receiver});
      // In turn to all; to the third receiver all at once.
      for (unsigned round = 0; round < 40; ++round) {
        const uint64_t slot = incast && receiver == 3 ? 0 : (sender * 7 + round) % 12;
        job.post(qp, 1'000'000'000'000 + round * 1'000'000 + slot * 80'000, 50'000, 65536);
      }
    }
  const Report report = make_report(*rows_of(job), {});
  std::vector<std::string> named;
  for (const ReportFinding& finding : report.verdict)
    if (finding.kind == FindingKind::incast) named.push_back(finding.subject);
  if (incast)
    CHECK((named == std::vector<std::string>{"fe80::3"}));
  else
    CHECK(named.empty());
  REQUIRE(report.receivers.size() == 6);
  CHECK(report.receivers[0].incast.most == (incast ? 12 : 1));
}

TEST_CASE("ports' counters: trouble is told, traffic and congestion are not") {
  PortCounterTotals totals;
  for (const char* counter : {"port_xmit_data", "np_cnp_sent", "rx_write_requests"}) {
    totals.add(0, "mlx5_0", 1, counter, 1'000'000'000, 10);
    totals.add(0, "mlx5_0", 1, counter, 3'000'000'000, 1010);
  }
  const bool trouble = GENERATE(false, true);
  totals.add(0, "mlx5_0", 1, "local_ack_timeout_err", 1'000'000'000, 5);
  totals.add(0, "mlx5_0", 1, "local_ack_timeout_err", 3'000'000'000, trouble ? 2 : 5);  // reset
  Job job(61);
  job.stream(job.add_qp({}), 1'000'000'000'000, 100, 4096, 1000, 4);
  ReportContext context;
  context.port_counters = totals.changes();
  const Report report = make_report(*rows_of(job), context);
  REQUIRE(report.ports.size() == (trouble ? 4 : 3));
  std::vector<std::string> found;
  for (const ReportFinding& finding : report.verdict) found.push_back(finding.text);
  if (trouble) {
    REQUIRE(found.size() == 1);
    CHECK_THAT(found[0], ContainsSubstring("local_ack_timeout_err went up by 2"));
    CHECK(report.ports[0].counter == "local_ack_timeout_err");
  } else {
    CHECK(found.empty());
  }
  CHECK(report.ports.back().per_second == Approx(500));
}
