// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The heap scan against processes that say themselves what they have (live_objects_target.c): all
// of it must be found and nothing else, while the process runs and none of its pages is brought in.
#include "resolve/live_objects.h"

#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "catch.h"
#include "child_process.h"
#include "resolve/glibc_heap.h"

using namespace sigma;

namespace {

using Lines = std::set<std::string>;

struct Truth {
  std::map<std::string, Lines> objects;  // by their first word
  std::map<std::string, uint64_t> functions;
  pid_t forked = 0;
  int remnants = 0;
};

Truth parse_truth(const std::vector<std::string>& lines) {
  Truth truth;
  for (const std::string& line : lines) {
    std::istringstream in(line);
    std::string kind, name;
    in >> kind;
    if (kind == "function") {
      in >> name;
      in >> truth.functions[name];
    } else if (kind == "child") {
      in >> truth.forked;
    } else if (kind == "remnants") {
      in >> truth.remnants;
    } else {
      truth.objects[kind].insert(line);
    }
  }
  return truth;
}

std::string pointer(uint64_t address) {
  return address ? fmt::format("{:#x}", address) : "(nil)";
}

std::string line_of(const LiveQp& qp) {
  return fmt::format("qp {} {} {} {} {} {} {} {} {} {}", pointer(qp.address), pointer(qp.context),
                     pointer(qp.send_cq), pointer(qp.recv_cq), pointer(qp.srq), qp.qp_num,
                     qp.handle, qp.type, qp.state, static_cast<int>(qp.extended));
}

std::string line_of(const LiveMr& mr) {
  return fmt::format("mr {} {} {} {} {} {} {}", pointer(mr.address), pointer(mr.context),
                     pointer(mr.start), mr.length, mr.handle, mr.lkey, mr.rkey);
}

std::string line_of(const LiveCq& cq) {
  return fmt::format("cq {} {} {} {}", pointer(cq.address), pointer(cq.context), cq.handle,
                     cq.entries);
}

std::string line_of(const LiveSrq& srq) {
  return fmt::format("srq {} {} {}", pointer(srq.address), pointer(srq.context), srq.handle);
}

std::string line_of(const LiveContext& context) {
  return fmt::format("context {} {} {}", pointer(context.address), context.cmd_fd, context.device);
}

template <typename Object>
Lines lines_of(const std::vector<Object>& objects) {
  Lines lines;
  for (const Object& object : objects) lines.insert(line_of(object));
  return lines;
}

Lines missing(const Lines& expected, const Lines& found) {
  Lines lines;
  std::set_difference(expected.begin(), expected.end(), found.begin(), found.end(),
                      std::inserter(lines, lines.end()));
  return lines;
}

// Names the differences alone: the lists are long.
void check_same(const Lines& found, const Lines& expected) {
  CHECK(missing(expected, found) == Lines{});
  CHECK(missing(found, expected) == Lines{});
}

LiveObjects scan(pid_t pid, const LiveScanLimits& limits = {}) {
  auto live = find_live_objects(pid, limits);
  if (!live.ok()) FAIL(live.error().what);
  return *std::move(live);
}

// A figure of /proc/PID/status, as in "VmRSS:     1234 kB".
std::string status_field(pid_t pid, const std::string& name) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name + ":")) return line.substr(name.size() + 1);
  }
  return {};
}

// Minor and major page faults of the process so far (proc(5), stat fields 10 and 12).
std::pair<uint64_t, uint64_t> page_faults(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(in, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 10; ++field) fields >> skipped;
  uint64_t minor_faults = 0, children = 0, major_faults = 0;
  fields >> minor_faults >> children >> major_faults;
  return {minor_faults, major_faults};
}

struct Target {
  explicit Target(const std::string& scenario)
      : child({SIGMA_LIVE_OBJECTS_TARGET, scenario}),
        truth(parse_truth(child.read_until("ready"))) {}
  ChildProcess child;
  Truth truth;
};

}  // namespace

TEST_CASE("a heap scan finds every verbs object and invents none") {
  Target target("plain");
  REQUIRE(target.truth.objects["qp"].size() == 212);
  REQUIRE(target.truth.remnants > 10);  // destroyed QPs whose bytes are intact: the hard part

  LiveObjects live = scan(target.child.pid());
  check_same(lines_of(live.contexts), target.truth.objects["context"]);
  check_same(lines_of(live.qps), target.truth.objects["qp"]);
  check_same(lines_of(live.mrs), target.truth.objects["mr"]);
  check_same(lines_of(live.cqs), target.truth.objects["cq"]);
  check_same(lines_of(live.srqs), target.truth.objects["srq"]);
  CHECK(live.totals.complete);
  CHECK(live.freed >= static_cast<uint32_t>(target.truth.remnants));
  for (const LiveQp& qp : live.qps) CHECK(qp.in_heap);
  for (const LiveContext& context : live.contexts) {
    CHECK(context.evidence == FdEvidence::device_record);
    CHECK_FALSE(context.inherited);
    CHECK(context.owner == target.child.pid());
  }
  CHECK(target.child.end() == 0);
}

TEST_CASE("a heap scan tells the files and offsets of the data-path functions") {
  Target target("plain");
  LiveObjects live = scan(target.child.pid());

  std::map<sigma_function, uint64_t> found;
  for (const LiveFunction& function : live.functions) {
    CHECK(found.emplace(function.function, function.file_offset).second);
    CHECK_THAT(function.mapping.path, ContainsSubstring("live_objects_provider"));
    CHECK(function.mapping.executable);
    CHECK(reachable_path(target.child.pid(), function.mapping).ok());
  }
  auto& truth = target.truth.functions;
  std::map<sigma_function, uint64_t> expected{
      {SIGMA_FN_POLL_CQ, truth["poll_cq"]},       {SIGMA_FN_POST_SEND, truth["post_send"]},
      {SIGMA_FN_POST_RECV, truth["post_recv"]},   {SIGMA_FN_POST_SRQ_RECV, truth["post_srq_recv"]},
      {SIGMA_FN_WR_START, truth["wr_start"]},     {SIGMA_FN_WR_COMPLETE, truth["wr_complete"]},
      {SIGMA_FN_WR_ABORT, truth["wr_abort"]},     {SIGMA_FN_WR_RDMA_WRITE, truth["wr_rdma_write"]},
      {SIGMA_FN_WR_SET_SGE, truth["wr_set_sge"]},
  };
  CHECK(found == expected);
}

TEST_CASE("a heap scan's records go through the session's door") {
  Target target("plain");
  LiveObjects live = scan(target.child.pid());
  std::map<uint16_t, size_t> counts;
  Lines qps;
  for (const auto& record : to_records(live, 12345)) {
    sigma_header header;
    REQUIRE(record.size() >= sizeof header);
    std::memcpy(&header, record.data(), sizeof header);
    CHECK(header.size == record.size());
    CHECK(header.time_ns == 12345);
    CHECK(header.pid == static_cast<uint32_t>(target.child.pid()));
    ++counts[header.type];
    if (header.type == SIGMA_QP_SEEN) {
      sigma_qp_seen seen;
      REQUIRE(record.size() == sizeof seen);
      std::memcpy(&seen, record.data(), sizeof seen);
      CHECK(seen.source == SIGMA_QP_BY_SCAN);
      qps.insert(fmt::format("{} {}", pointer(seen.qp_ptr), seen.qp_num));
    }
  }
  CHECK(counts ==
        std::map<uint16_t, size_t>{{SIGMA_CONTEXT, 2}, {SIGMA_QP_SEEN, 212}, {SIGMA_MR_SEEN, 500}});
  CHECK(qps.size() == 212);
}

TEST_CASE("a heap scan holds while the process allocates, frees, creates and destroys") {
  Target target("churn");
  for (int round = 0; round < 20; ++round) {
    LiveObjects live = scan(target.child.pid());
    check_same(lines_of(live.contexts), target.truth.objects["context"]);
    CHECK(missing(target.truth.objects["qp"], lines_of(live.qps)).empty());
    CHECK(missing(target.truth.objects["mr"], lines_of(live.mrs)).empty());
    check_same(lines_of(live.cqs), target.truth.objects["cq"]);
    // What else is reported can only be of the churning thread: its numbers are all in these
    // ranges.
    for (const LiveQp& qp : live.qps) {
      if (target.truth.objects["qp"].contains(line_of(qp))) continue;
      CHECK(qp.qp_num >= 0x100000);
      CHECK(qp.qp_num < 0x110000);
      CHECK(qp.handle >= 0x100000);
    }
    for (const LiveMr& mr : live.mrs) {
      if (target.truth.objects["mr"].contains(line_of(mr))) continue;
      CHECK(mr.handle >= 0x200000);
      CHECK(mr.length == 64);
    }
  }
  CHECK_THAT(status_field(target.child.pid(), "State"), !ContainsSubstring("stopped"));
  CHECK_THAT(status_field(target.child.pid(), "TracerPid"), ContainsSubstring("\t0"));

  // At rest again, what the thread left is exact as well.
  target.child.say("stop");
  Truth rest = parse_truth(target.child.read_until("stopped"));
  REQUIRE(rest.objects["qp"].size() == 64);
  for (const char* kind : {"qp", "mr"})
    rest.objects[kind].insert(target.truth.objects[kind].begin(), target.truth.objects[kind].end());
  LiveObjects live = scan(target.child.pid());
  check_same(lines_of(live.qps), rest.objects["qp"]);
  check_same(lines_of(live.mrs), rest.objects["mr"]);
  CHECK(target.child.end() == 0);
}

TEST_CASE("a heap scan brings no page in") {
  Target target("sparse");
  pid_t pid = target.child.pid();
  std::string rss = status_field(pid, "VmRSS");
  std::string page_tables = status_field(pid, "VmPTE");
  auto faults = page_faults(pid);

  LiveObjects live = scan(pid);

  CHECK(status_field(pid, "VmRSS") == rss);
  CHECK(status_field(pid, "VmPTE") == page_tables);
  CHECK(page_faults(pid) == faults);
  check_same(lines_of(live.qps), target.truth.objects["qp"]);
  CHECK(live.totals.writable_bytes > (uint64_t{512} << 20));
  CHECK(live.totals.read_bytes < (uint64_t{64} << 20));
}

TEST_CASE("a forked child's contexts are its parent's") {
  Target target("fork");
  LiveObjects parent = scan(target.child.pid());
  LiveObjects child = scan(target.truth.forked);
  REQUIRE(parent.contexts.size() == 2);
  REQUIRE(child.contexts.size() == 2);
  for (const LiveContext& context : parent.contexts) CHECK_FALSE(context.inherited);
  for (const LiveContext& context : child.contexts) {
    CHECK(context.inherited);
    CHECK(context.owner == target.child.pid());
  }
  CHECK(child.qps.size() == parent.qps.size());
  CHECK(to_records(child, 1).empty());
  CHECK_FALSE(to_records(parent, 1).empty());
}

TEST_CASE("processes of one program that open a device each are not taken for parent and child") {
  // setarch -R: the same addresses in both. The second is no child of the first.
  ChildProcess first({"/usr/bin/setarch", "-R", SIGMA_LIVE_OBJECTS_TARGET, "plain"});
  ChildProcess second({"/usr/bin/setarch", "-R", SIGMA_LIVE_OBJECTS_TARGET, "plain"});
  Truth truth = parse_truth(first.read_until("ready"));
  REQUIRE(parse_truth(second.read_until("ready")).objects == truth.objects);
  for (pid_t pid : {first.pid(), second.pid()}) {
    LiveObjects live = scan(pid);
    REQUIRE(live.contexts.size() == 2);
    for (const LiveContext& context : live.contexts) CHECK_FALSE(context.inherited);
  }
}

TEST_CASE(
    "objects outside glibc's heap are found, and those that share a handle are counted, not "
    "guessed") {
  Target target("pool");
  LiveObjects live = scan(target.child.pid());
  Lines found = lines_of(live.qps);
  CHECK(missing(found, target.truth.objects["qp"]).empty());
  CHECK(missing(target.truth.objects["qp"], found).size() ==
        64);  // a destroyed one has the handle too
  CHECK(missing(lines_of(live.mrs), target.truth.objects["mr"]).empty());
  CHECK(missing(target.truth.objects["mr"], lines_of(live.mrs)).size() == 100);
  CHECK(live.ambiguous == 2 * 64 + 2 * 100);
  for (const LiveQp& qp : live.qps) CHECK_FALSE(qp.in_heap);
}

TEST_CASE("a process without verbs objects has none") {
  ChildProcess child({SIGMA_LIVE_OBJECTS_TARGET, "none"});
  child.read_until("ready");
  LiveObjects live = scan(child.pid());
  CHECK(live.contexts.empty());
  CHECK(live.qps.empty());
  CHECK(live.functions.empty());
  CHECK(to_records(live, 1).empty());
}

TEST_CASE("a heap scan that reaches its limit says so") {
  Target target("plain");
  LiveScanLimits limits;
  limits.scan.max_bytes = 1;
  CHECK_FALSE(scan(target.child.pid(), limits).totals.complete);
  limits = {};
  limits.max_candidates = 10;
  LiveObjects few = scan(target.child.pid(), limits);
  CHECK_FALSE(few.totals.complete);
  CHECK(missing(lines_of(few.qps), target.truth.objects["qp"]).empty());
}

TEST_CASE("a heap scan of a process that is gone fails with the cause") {
  pid_t pid;
  {
    ChildProcess child({SIGMA_LIVE_OBJECTS_TARGET, "none"});
    child.read_until("ready");
    pid = child.pid();
  }
  auto live = find_live_objects(pid, {});
  REQUIRE_FALSE(live.ok());
  CHECK_THAT(live.error().what, ContainsSubstring("does not exist"));
}
