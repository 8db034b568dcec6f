// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What is kept of a process's environment and cgroup; and of ports' counters in a tree like sysfs.
#include "attach/process_facts.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "attach/port_counters.h"
#include "catch.h"
#include "csv_support.h"

using namespace sigma;
using namespace sigma::test;

namespace {

ProcessFacts of_environment(std::string_view text) {
  ProcessFacts facts;
  add_environment_facts(text, facts);
  return facts;
}

ProcessFacts of_cgroup(std::string_view text) {
  ProcessFacts facts;
  add_cgroup_facts(text, facts);
  return facts;
}

std::string joined(std::initializer_list<std::string_view> lines) {
  std::string text;
  for (const auto line : lines) text.append(line).push_back('\0');
  return text;
}

const std::string kId(64, 'a');

}  // namespace

TEST_CASE("facts: only the allowed variables, launchers before schedulers") {
  CHECK(
      (of_environment(joined({"PATH=/bin", "AWS_SECRET=1", "SLURM_JOB_ID=77", "SLURM_PROCID=5"})) ==
       ProcessFacts{{"slurm_job_id", "77"}, {"rank", "5"}}));
  CHECK((of_environment(joined({"SLURM_PROCID=0", "RANK=3", "OMPI_COMM_WORLD_RANK=12"})) ==
         ProcessFacts{{"rank", "12"}}));
  CHECK(of_environment("").empty());
  CHECK(of_environment(joined({"RANKS=4", "XRANK=4", "RANK", "RANK="})).empty());
  CHECK((of_environment("RANK=4") == ProcessFacts{{"rank", "4"}}));  // not terminated
  CHECK((of_environment(joined({"RANK=4", "RANK=5"})) == ProcessFacts{{"rank", "4"}}));
}

TEST_CASE("facts: values are bounded and printable") {
  const auto facts =
      of_environment(joined({"RANK=\033[2J", "SLURM_JOB_ID=" + std::string(5000, 'x')}));
  CHECK(facts.at("rank").find('\033') == std::string::npos);
  CHECK(facts.at("slurm_job_id").size() == kMaxFactBytes);
}

TEST_CASE("facts: the cgroup, and the container that it names") {
  struct Row {
    std::string text, cgroup, container;
  };
  const std::string id12 = kId.substr(0, 12);
  const std::vector<Row> rows = {
      {"0::/system.slice/slurmstepd.scope/job_77/step_0\n",
       "/system.slice/slurmstepd.scope/job_77/step_0", ""},
      {"0::/system.slice/docker-" + kId + ".scope\n", "/system.slice/docker-" + kId + ".scope",
       id12},
      {"12:memory:/docker/" + kId + "\n1:name=systemd:/docker/" + kId + "\n0::/\n",
       "/docker/" + kId, id12},
      {"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + kId + ".scope/x",
       "/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + kId + ".scope/x", id12},
      {"0::/user/" + kId + "aa\n", "/user/" + kId + "aa", ""},  // longer: no id
      {"", "", ""},
      {"rubbish\n:\n", "", ""},
  };
  for (const Row& row : rows) {
    const ProcessFacts facts = of_cgroup(row.text);
    INFO(row.text);
    CHECK((facts.contains("cgroup") ? facts.at("cgroup") : "") == row.cgroup);
    CHECK((facts.contains("container") ? facts.at("container") : "") == row.container);
  }
}

TEST_CASE("facts: a process that is gone has none") {
  CHECK(process_facts(1 << 30).empty());
}

TEST_CASE("port counters: the first value, what changes, the last; nothing that is no number") {
  TemporaryFolder folder;
  const std::string port = folder / "class/infiniband/mlx5_3/ports/2";
  std::filesystem::create_directories(port + "/counters");
  std::filesystem::create_directories(port + "/hw_counters");
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(port + "/" + name) << text << "\n";
  };
  write("counters/port_xmit_data", "18446744073709551615");
  write("counters/port_rcv_data", "N/A (no PMA)");
  write("hw_counters/out_of_sequence", "4");
  write("hw_counters/lifespan", "10");
  setenv("SIGMATRACE_SYSFS", folder.path().c_str(), 1);
  PortCounters counters(std::chrono::hours(1));
  const auto first = counters.take();
  write("hw_counters/out_of_sequence", "9");
  counters.stop();
  const auto last = counters.take();
  unsetenv("SIGMATRACE_SYSFS");
  REQUIRE(first.size() == 2);
  REQUIRE(last.size() == 2);
  for (const auto* samples : {&first, &last})
    for (const CounterSample& sample : *samples) {
      CHECK(sample.device == "mlx5_3");
      CHECK(sample.port == 2);
      const bool errors = sample.counter == "out_of_sequence";
      CHECK((errors || sample.counter == "port_xmit_data"));
      CHECK(sample.value == (errors ? (samples == &first ? 4 : 9) : UINT64_MAX));
    }
  CHECK(counters.take().empty());
}
