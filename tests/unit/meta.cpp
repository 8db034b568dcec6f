// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "output/meta.h"

#include <infiniband/verbs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "catch.h"
#include "csv_support.h"
#include "output/coverage.h"

using namespace sigma;
using namespace sigma::test;
using Json = nlohmann::json;

namespace {

TraceInfo sample() {
  TraceInfo info;
  info.tool_version = "1.2.3";
  info.command_line = {"sigmatrace", "attach", "--pid", "1"};
  info.node = {"n1", "b-o-o-t", "6.1.0"};
  info.start_clock = {1000, 1'700'000'000'000'000'000, 20};
  info.processes = {{4711, "job", 3000, 256}};
  auto qp = std::make_shared<QueuePair>();
  qp->device = "rxe0";
  qp->qp_num = 17;
  qp->life = 1;
  qp->pid = 4711;
  qp->type = IBV_QPT_RC;
  qp->state = IBV_QPS_RTS;
  qp->path_mtu = 1024;
  qp->peer.lid = 9;
  qp->created_ns = 2000;
  qp->qkey = 0x11111111;
  info.queue_pairs = {qp};
  info.completion_queues = {{"rxe0", 4711, 3, std::nullopt, 128, 1500, std::nullopt}};
  info.memory_regions = {
      {"rxe0", 4711, 0x7f0000000000, 4096, 5, 0xab, 0xcd, std::nullopt, std::nullopt}};
  info.libraries = {{"libmlx5",
                     "/lib/libmlx5.so.1",
                     "c0ffee",
                     {{"post_send", "ops_table", "push rbp", "multi", 0x1234, 570, true}},
                     {{"poll_cq", "no safe site"}}}};
  info.counters.operations = 12;
  info.counters.records_dropped = 3;
  info.remarks = {"process 4712 ended before the attach"};
  return info;
}

}  // namespace

TEST_CASE("the side file says what the trace was made of") {
  const Json meta = Json::parse(meta_json(sample()));
  CHECK(meta["schema_version"] == 1);
  CHECK(meta["tool_version"] == "1.2.3");
  CHECK(meta["complete"] == false);
  CHECK(meta["node"] == "n1");
  CHECK(meta["boot_id"] == "b-o-o-t");
  CHECK(meta["kernel"] == "6.1.0");
  CHECK(meta["command_line"] == Json({"sigmatrace", "attach", "--pid", "1"}));
  CHECK(meta["clocks"]["start"]["monotonic_ns"] == 1000);
  CHECK(meta["clocks"]["start"]["utc_ns"] == 1'700'000'000'000'000'000);
  CHECK(meta["clocks"]["end"].is_null());

  const Json& qp = meta["qps"][0];
  CHECK(qp["device"] == "rxe0");
  CHECK(qp["qp_num"] == 17);
  CHECK(qp["life"] == 1);
  CHECK(qp["qp_type"] == "rc");
  CHECK(qp["state"] == "rts");
  CHECK(qp["path_mtu_bytes"] == 1024);
  CHECK(qp["peer"] == "9");
  CHECK(qp["peer_gid"].is_null());
  CHECK(qp["peer_qp_num"].is_null());
  CHECK(qp["qkey"] == "0x11111111");
  CHECK(qp["created_ns"] == 1'700'000'000'000'001'000);  // UTC, as in the rows

  CHECK(meta["cqs"][0]["entries"] == 128);
  CHECK(meta["mrs"][0]["addr"] == "0x7f0000000000");
  CHECK(meta["mrs"][0]["length"] == 4096);
  CHECK(meta["mrs"][0]["lkey"] == "0xab");
  CHECK(meta["mrs"][0]["rkey"] == "0xcd");
  CHECK(meta["processes"][0]["comm"] == "job");
  CHECK(meta["processes"][0]["exit_code"] == 256);

  const Json& library = meta["coverage"]["libraries"][0];
  CHECK(library["build_id"] == "c0ffee");
  CHECK(library["probes"][0]["instruction"] == "push rbp");
  CHECK(library["probes"][0]["file_offset"] == "0x1234");
  CHECK(library["uncovered"][0]["reason"] == "no safe site");
}

TEST_CASE("the side file has every counter and the coverage statement") {
  const Json coverage = Json::parse(meta_json(sample()))["coverage"];
  CHECK(coverage["counters"].size() == kCounters.size());
  CHECK(coverage["counters"]["operations"] == 12);
  CHECK(coverage["counters"]["records_dropped"] == 3);
  CHECK(coverage["counters"]["unfinished"] == 0);
  REQUIRE(coverage["statement"].size() == 2);
  CHECK_THAT(coverage["statement"][0].get<std::string>(), ContainsSubstring("had no room"));
  CHECK_THAT(coverage["statement"][0].get<std::string>(), ContainsSubstring(": 3"));
  CHECK(coverage["statement"][1] == "process 4712 ended before the attach");
}

TEST_CASE("the coverage statement names every gap, loss and error, and nothing else") {
  CHECK(coverage_statement({}, {}) == std::vector<std::string>{"nothing known to be missing"});
  for (const CounterInfo& info : kCounters) {
    Counters counters;
    counters.*info.value = 1234567;
    INFO(info.name);
    const auto lines = coverage_lines(counters);
    if (info.severity == Severity::info) {
      CHECK(lines.empty());
      continue;
    }
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].severity == info.severity);
    CHECK_THAT(lines[0].text, ContainsSubstring("1,234,567"));
    CHECK_THAT(lines[0].text, ContainsSubstring(std::string(info.help)));
  }
}

TEST_CASE("names that are no UTF-8 do not spoil the side file") {
  TraceInfo info = sample();
  info.processes[0].comm = "bad\xff\xfe";
  info.command_line.push_back("\xc3");
  const Json meta = Json::parse(meta_json(info));
  CHECK(meta["processes"][0]["comm"] == "bad\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("the side file is whole at any time, and complete at the end") {
  const TemporaryFolder folder;
  const std::string path = folder / "ops.csv.meta.json";
  TraceInfo info = sample();
  auto meta = MetaFile::create(folder / "ops.csv", info);
  REQUIRE(meta.ok());
  CHECK(Json::parse(read_file(path))["complete"] == false);
  struct stat before {};
  REQUIRE(stat(path.c_str(), &before) == 0);
  CHECK((before.st_mode & 07777) == 0600);

  // A reader that opened the first version goes on reading it: it was replaced, not overwritten.
  std::ifstream reader(path);
  info.complete = true;
  info.end_reason = "interrupted";
  info.end_clock = sample_clocks();
  REQUIRE(meta->write(info).ok());
  CHECK(Json::parse(reader)["complete"] == false);
  const Json last = Json::parse(read_file(path));
  CHECK(last["complete"] == true);
  CHECK(last["end_reason"] == "interrupted");
  CHECK(last["clocks"]["end"]["utc_ns"].get<uint64_t>() > 1'700'000'000'000'000'000);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("the side file is completed without the privilege to replace it") {
  const TemporaryFolder folder;
  const std::string path = folder / "ops.csv.meta.json";
  TraceInfo info = sample();
  auto meta = MetaFile::create(folder / "ops.csv", info);
  REQUIRE(meta.ok());
  info.complete = true;
  info.remarks.clear();
  info.counters = {};

  // Root loses its rights on the folder by becoming somebody else, others by the folder's mode.
  const bool root = geteuid() == 0;
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0555));
  if (root) REQUIRE(seteuid(65534) == 0);
  const Status written = meta->write(info);
  if (root) REQUIRE(seteuid(0) == 0);
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));

  REQUIRE(written.ok());
  const Json last = Json::parse(read_file(path));
  CHECK(last["complete"] == true);
  CHECK(last["coverage"]["statement"][0] == "nothing known to be missing");
}

TEST_CASE("UTC follows the clocks' pair in both directions") {
  const UtcClock clock({5'000, 1'000'000, 0});
  CHECK(clock.utc_ns(5'000) == 1'000'000);
  CHECK(clock.utc_ns(6'000) == 1'001'000);
  CHECK(clock.utc_ns(4'000) == 999'000);
  const UtcClock behind({1'000'000, 5'000, 0});
  CHECK(behind.utc_ns(1'000'100) == 5'100);

  const ClockPair first = sample_clocks(), second = sample_clocks();
  CHECK(second.monotonic_ns > first.monotonic_ns);
  CHECK(first.utc_ns > 1'600'000'000'000'000'000);
}
