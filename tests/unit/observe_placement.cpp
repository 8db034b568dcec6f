// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where the thread that reads queues runs: what sysfs and /proc say, and what is decided by it.
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include "base/clock.h"
#include "catch.h"
#include "observe/cache_domains.h"
#include "observe/placement.h"
#include "observe/thread_times.h"
#include "temporary_folder.h"

using namespace sigma;

namespace {

namespace fs = std::filesystem;

// devices/system/cpu, as drivers/base/cacheinfo.c makes it.
class Sysfs : test::TemporaryFolder {
 public:
  std::string root() const { return string(); }
  void write(const std::string& file, const std::string& text) { TemporaryFolder::write("devices/system/cpu/" + file, text); }
  // With a first level of its own and the others as told.
  void add(int cpu, const std::string& siblings, const std::string& level2, const std::string& level3) {
    const std::string at = "cpu" + std::to_string(cpu);
    write(at + "/topology/thread_siblings_list", siblings + "\n");
    const std::string lists[] = {siblings, siblings, level2, level3};
    for (int index = 0; index < 4; ++index) {
      if (lists[index].empty()) continue;
      const std::string cache = at + "/cache/index" + std::to_string(index);
      write(cache + "/level", std::to_string(index == 0 ? 1 : index) + "\n");
      write(cache + "/shared_cpu_list", lists[index] + "\n");
    }
  }
};

// Two caches of four CPUs, which are two cores each.
CacheDomains two_domains() {
  CacheDomains domains;
  for (uint32_t first : {0u, 4u}) {
    domains.domains.push_back({first, first + 1, first + 2, first + 3});
    for (uint32_t cpu = first; cpu < first + 4; ++cpu) {
      domains.cpus.insert(cpu);
      const uint32_t core = cpu / 2 * 2;
      domains.cores[cpu] = {core, core + 1};
    }
  }
  return domains;
}

const Cpus kAll = {0, 1, 2, 3, 4, 5, 6, 7}, kFirst = {0, 1, 2, 3}, kSecond = {4, 5, 6, 7}, kNone;

PlacementRound round_of(double first, double second) {
  return {.weights = {first, second}, .allowed = kAll, .busy = {}, .active = true};
}

// What is decided when it has been so two times.
Cpus settled(PlacementChoice& choice, const PlacementRound& round) {
  choice.next(round);
  return choice.next(round);
}

}  // namespace

TEST_CASE("placement: CPU lists are read as the kernel writes them, or not at all") {
  CHECK(parse_cpu_list("0") == Cpus{0});
  CHECK(parse_cpu_list("0-3,8,10-11") == Cpus{0, 1, 2, 3, 8, 10, 11});
  for (const char* text :
       {"", ",", "0,", "-1", "1-", "3-1", "0-8192", "0-4294967296", "0x1", " 0", "0 ", "0-1-2", "a"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_cpu_list(text));
  }
}

TEST_CASE("placement: CPUs share the cache of the highest level that there is") {
  Sysfs sysfs;
  // The second sibling of each core has a number far away, as on most machines.
  for (int cpu = 0; cpu < 8; ++cpu) {
    const int core = cpu % 4;
    const std::string siblings = std::to_string(core) + "," + std::to_string(core + 4);
    sysfs.add(cpu, siblings, siblings, core < 2 ? "0-1,4-5" : "2-3,6-7");
  }
  sysfs.write("cpufreq/boost", "1\n");
  sysfs.write("cpuidle/current_driver", "none\n");
  SECTION("the third") {
    const CacheDomains domains = CacheDomains::read(sysfs.root());
    REQUIRE(domains.domains.size() == 2);
    CHECK(domains.domains[0] == Cpus{0, 1, 4, 5});
    CHECK(domains.domains[1] == Cpus{2, 3, 6, 7});
    CHECK(domains.of(5) == 0u);
    CHECK(domains.of(6) == 1u);
    CHECK(domains.of(8) == std::nullopt);
    CHECK(domains.cores.at(6) == Cpus{2, 6});
    CHECK(!domains.only_one());
  }
  SECTION("the second, where there is no third") {
    for (int cpu = 0; cpu < 8; ++cpu)
      fs::remove_all(sysfs.root() + "/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index3");
    CHECK(CacheDomains::read(sysfs.root()).domains.size() == 4);
  }
  SECTION("one, where all that are online share it") {
    for (int cpu : {2, 3, 6, 7})
      fs::remove_all(sysfs.root() + "/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache");
    CHECK(!CacheDomains::read(sysfs.root()).only_one());
    sysfs.write("online", "0-1,4-5\n");
    CHECK(CacheDomains::read(sysfs.root()).only_one());
  }
}

TEST_CASE("placement: a machine that does not say what its CPUs share has no domains") {
  Sysfs sysfs;
  CHECK(CacheDomains::read(sysfs.root()).domains.empty());
  CHECK(CacheDomains::read(sysfs.root() + "/nowhere").domains.empty());
  CHECK(!Placement("").on());
  for (int cpu = 0; cpu < 3; ++cpu) sysfs.add(cpu, std::to_string(cpu), "", "");  // the first level only
  sysfs.write("cpu3/topology/core_id", "3\n");
  CHECK(CacheDomains::read(sysfs.root()).domains.empty());
  CHECK(!CacheDomains::read(sysfs.root()).only_one());
  CHECK(!Placement(sysfs.root()).on());
}

TEST_CASE("placement: nonsense in sysfs is left out, and no CPU is in two domains") {
  Sysfs sysfs;
  sysfs.add(0, "0", "0", "0-1");
  sysfs.add(1, "0-1", "1", "1-8191");     // the half of it is taken, most is not there
  sysfs.add(2, "3", "2", "3");            // not itself
  sysfs.add(3, "3", "3", "0-99999999");   // beyond all CPUs: the second level stands
  sysfs.add(4, "4", "4", std::string(8000, '4'));
  sysfs.write("cpu5/cache/index0/level", "many\n");
  sysfs.write("cpu6/cache/index0/level", "3\n");  // and no list
  sysfs.write("cpu99999/cache/index0/level", "3\n");
  sysfs.write("cpu7", "a file\n");
  fs::create_directories(sysfs.root() + "/devices/system/cpu/cpu8/cache/index0/level");
  const CacheDomains domains = CacheDomains::read(sysfs.root());
  CHECK(domains.domains == std::vector<Cpus>{{0, 1}, {3}, {4}});
  CHECK(domains.cpus == Cpus{0, 1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(domains.cores.at(1) == Cpus{1});
  CHECK(domains.cores.at(2) == Cpus{2});
}

TEST_CASE("placement: a thread's times are read behind whatever its name is") {
  const std::string head = "4711 (", tail = " S 1 2 3 0 -1 4194304 5 6 7 8 120 30 11 12 20 0 1 0 9999 1000 200 "
      "18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 6 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
  for (const char* name : {"job", "", "a b", ") S 1 2 3", "((", "))) R 1 (", "\n)", "0 (x) Z 1"}) {
    CAPTURE(name);
    const auto stat = parse_thread_stat(head + name + ")" + tail);
    REQUIRE(stat);
    CHECK(stat->ticks == 150);
    CHECK(stat->cpu == 6);
  }
  CHECK_FALSE(parse_thread_stat(""));
  CHECK_FALSE(parse_thread_stat("4711 (job"));
  CHECK_FALSE(parse_thread_stat("4711 (job)"));
  CHECK_FALSE(parse_thread_stat("4711 (job) "));
  CHECK_FALSE(parse_thread_stat(head + "job)" + tail.substr(0, tail.find("17 6") + 3)));  // cut off before the CPU
  std::string negative = head + "job)" + tail;
  negative.replace(negative.find("120"), 3, "-20");
  CHECK_FALSE(parse_thread_stat(negative));
}

TEST_CASE("placement: what the threads of a process use is read from the second time on") {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> spun_ns{0};
  std::thread spinner([&] {
    const uint64_t begin_ns = monotonic_now_ns();
    while (!stop) spun_ns = monotonic_now_ns() - begin_ns;
  });
  ThreadTimes times;
  const auto pid = static_cast<uint32_t>(getpid());
  CHECK(!times.knows(pid));
  const ProcessUse first = times.read(pid, 1'000'000'000, 16);
  CHECK(first.fresh);
  CHECK(first.threads.size() == 2);
  CHECK(times.knows(pid));
  const uint64_t before_ns = spun_ns;
  while (spun_ns < before_ns + 300'000'000) std::this_thread::yield();
  const ProcessUse second = times.read(pid, 1'000'000'001, 16);  // any time is more than a nanosecond
  CHECK(!second.fresh);
  REQUIRE(second.threads.size() == 2);
  CHECK(second.threads[1].share == 1);
  CHECK(second.threads[1].weight > 1);
  for (const ThreadUse& thread : second.threads) CHECK(thread.weight > 0);
  CHECK(times.read(pid, 1'000'000'002, 1).threads.size() == 1);  // no more than is asked for
  times.forget_before(1'000'000'003);
  CHECK(times.read(pid, 2'000'000'000, 16).fresh);
  stop = true;
  spinner.join();
  CHECK(ThreadTimes().read(0x7fffffff, 1, 16).threads.empty());
}

TEST_CASE("placement: the reader goes to the domain of the threads, if it stays that two times") {
  const CacheDomains domains = two_domains();
  PlacementChoice choice(domains);
  CHECK(choice.next(round_of(10, 1)) == kNone);
  CHECK(choice.next(round_of(10, 1)) == kFirst);
  SECTION("a little more elsewhere moves nobody") {
    for (int i = 0; i < 5; ++i) CHECK(choice.next(round_of(10, 14)) == kFirst);
  }
  SECTION("much more does, the second time") {
    CHECK(choice.next(round_of(10, 16)) == kFirst);
    CHECK(choice.next(round_of(10, 16)) == kSecond);
  }
  SECTION("not by every other time") {
    for (int i = 0; i < 5; ++i) {
      CHECK(choice.next(round_of(1, 10)) == kFirst);
      CHECK(choice.next(round_of(10, 1)) == kFirst);
    }
  }
  SECTION("nothing known of any thread: anywhere") {
    CHECK(choice.next(round_of(0, 0)) == kNone);
  }
}

TEST_CASE("placement: the reader takes no CPU that traced threads keep busy") {
  const CacheDomains domains = two_domains();
  PlacementChoice choice(domains);
  PlacementRound round = round_of(10, 1);
  const auto settle = [&] { return settled(choice, round); };
  SECTION("nor their core's other half, while there is another") {
    round.busy = {1};
    CHECK(settle() == Cpus{2, 3});
    round.busy = {1, 3};
    CHECK(choice.next(round) == Cpus{0, 2});
    round.busy = {1, 2, 3};
    CHECK(choice.next(round) == Cpus{0});
  }
  SECTION("and leaves at once when there is none") {
    CHECK(settle() == kFirst);
    round.busy = kFirst;
    CHECK(choice.next(round) == kNone);
    CHECK(choice.next(round) == kNone);
    round.busy = {0};
    CHECK(choice.next(round) == kNone);
    CHECK(choice.next(round) == Cpus{2, 3});
  }
  SECTION("also when nothing is read for a moment") {
    CHECK(settle() == kFirst);
    round.busy = kFirst;
    round.active = false;
    CHECK(choice.next(round) == kNone);
  }
}

TEST_CASE("placement: the reader keeps to the CPUs that the tracer may use") {
  const CacheDomains domains = two_domains();
  PlacementChoice choice(domains);
  PlacementRound round = round_of(10, 1);
  const auto settle = [&] { return settled(choice, round); };
  round.allowed = {3, 4, 5};
  CHECK(settle() == Cpus{3});
  round.allowed = {2, 3, 4};
  CHECK(choice.next(round) == Cpus{2, 3});
  round.allowed = {4, 5};  // none of the domain: not a second best
  CHECK(settle() == kNone);
  round.allowed = {0, 1};  // all of it in the domain: nothing to choose
  CHECK(settle() == kNone);
  round.allowed = {};
  CHECK(settle() == kNone);
}

TEST_CASE("placement: the reader is set free when nothing is read for some seconds") {
  const CacheDomains domains = two_domains();
  PlacementChoice choice(domains);
  PlacementRound round = round_of(10, 1);
  round.active = false;
  for (int i = 0; i < 3; ++i) CHECK(choice.next(round) == kNone);  // not worth it
  round.active = true;
  CHECK(settled(choice, round) == kFirst);
  round.active = false;
  for (int i = 0; i < 4; ++i) CHECK(choice.next(round) == kFirst);
  CHECK(choice.next(round) == kNone);
  round.active = true;
  CHECK(settled(choice, round) == kFirst);
}

// With this process's threads and CPUs: the caches are as told.
TEST_CASE("placement: a thread is moved to those whose queues it reads, and what it read is told near or far") {
  cpu_set_t all;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  std::vector<uint32_t> cpus;
  for (uint32_t cpu = 0; cpu < CPU_SETSIZE && cpus.size() < 2; ++cpu)
    if (CPU_ISSET(cpu, &all)) cpus.push_back(cpu);
  REQUIRE(cpus.size() == 2);  // this test needs two CPUs
  const auto cpus_of = [](pid_t thread) {
    cpu_set_t set;
    REQUIRE(sched_getaffinity(thread, sizeof set, &set) == 0);
    Cpus found;
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) found.insert(cpu);
    return found;
  };
  Sysfs sysfs;
  for (const uint32_t cpu : cpus) sysfs.add(static_cast<int>(cpu), std::to_string(cpu), std::to_string(cpu), "");

  // The job: a process that sleeps on the first CPU. The reader: a thread of ours, which does not matter here.
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const pid_t job = fork();
  REQUIRE(job >= 0);
  if (job == 0) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus[0], &one);
    char byte = sched_setaffinity(0, sizeof one, &one) == 0 ? 'y' : 'n';
    ::close(ends[1]);
    _exit(write(ends[0], &byte, 1) == 1 && read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  ::close(ends[0]);
  char is_there = 0;
  REQUIRE(read(ends[1], &is_there, 1) == 1);
  REQUIRE(is_there == 'y');
  std::atomic<pid_t> reader{0};
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    reader = static_cast<pid_t>(syscall(SYS_gettid));
    while (!stop) usleep(1000);
  });
  while (reader == 0) std::this_thread::yield();

  Placement placement(sysfs.root());
  CHECK(placement.on());
  QueueBytes queue{static_cast<uint32_t>(job), 0, false};
  uint64_t now_ns = 1'000'000'000;
  const auto rounds = [&](int count, uint32_t reader_cpu, uint64_t kib) {
    for (; count > 0; --count) {
      queue.bytes += kib * 1024;
      placement.round({&queue, 1}, reader, reader_cpu, now_ns += 1'000'000'000);
    }
    return cpus_of(reader);
  };
  const auto told = [&] {
    Counters counters;
    placement.add_to(counters);
    return std::pair(counters.observer_near_kib, counters.observer_far_kib);
  };
  const Cpus free = cpus_of(0);
  CHECK(rounds(2, cpus[1], 1024) == free);
  CHECK(told() == std::pair<uint64_t, uint64_t>(0, 2048));
  CHECK(rounds(1, cpus[1], 1024) == Cpus{cpus[0]});
  CHECK(rounds(1, cpus[0], 1024) == Cpus{cpus[0]});
  CHECK(told() == std::pair<uint64_t, uint64_t>(1024, 3072));
  CHECK(placement.statements().empty());
  // The job is put on hold, and freed.
  CHECK(rounds(4, cpus[0], 0) == Cpus{cpus[0]});
  CHECK(rounds(1, cpus[0], 0) == free);
  CHECK(told() == std::pair<uint64_t, uint64_t>(1024, 3072));
  // What it does until its end is told by where it was last; another one with its number is a stranger.
  queue.bytes += 1024 * 1024;
  queue.ended = true;
  const QueueBytes both[] = {queue, {queue.pid, 512 * 1024, false}};
  placement.finish(both, cpus[0]);
  CHECK(told() == std::pair<uint64_t, uint64_t>(2048, 3584));
  queue = {queue.pid, 600 * 1024, false};
  placement.finish({&queue, 1}, cpus[0]);
  CHECK(told() == std::pair<uint64_t, uint64_t>(2048, 3672));
  // Much from far away is spoken of.
  queue = {1u << 30, 100 << 20, false};
  placement.finish({&queue, 1}, cpus[0]);
  REQUIRE(placement.statements().size() == 1);
  CHECK_THAT(placement.statements()[0], ContainsSubstring("104 of 106 MiB of queues"));
  // A thread that has gone cannot be placed; that is said once.
  stop = true;
  thread.join();
  queue = {static_cast<uint32_t>(job), 0, false};
  Placement late(sysfs.root());
  for (int i = 0; i < 4; ++i) {
    queue.bytes += 1 << 20;
    late.round({&queue, 1}, reader, cpus[1], now_ns += 1'000'000'000);
  }
  REQUIRE(late.statements().size() == 1);
  CHECK_THAT(late.statements()[0], ContainsSubstring("could not be placed"));
  ::close(ends[1]);
  int status = -1;
  REQUIRE(waitpid(job, &status, 0) == job);
  CHECK(status == 0);
}
