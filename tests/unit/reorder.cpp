// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reorder: what comes out is what went in, in order of time, however the CPUs' records interleave.
#include "attach/reorder.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "catch.h"

using namespace sigma;

namespace {

struct Seen {
  uint64_t time_ns;
  uint32_t cpu, pid;
  bool operator==(const Seen&) const = default;
};

std::vector<std::byte> record(uint64_t time_ns, uint32_t cpu, uint32_t pid, size_t size = sizeof(sigma_post)) {
  std::vector<std::byte> bytes(size, std::byte{static_cast<unsigned char>(pid)});
  const sigma_header header{time_ns, SIGMA_POST, static_cast<__u16>(size), cpu, pid, pid};
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

struct Fixture {
  std::vector<Seen> seen;
  Reorder reorder;
  explicit Fixture(uint64_t window_ns)
      : reorder(
            [this](std::span<const std::byte> bytes) {
              sigma_header header;
              std::memcpy(&header, bytes.data(), sizeof header);
              CHECK(bytes.size() == header.size);
              CHECK(bytes.back() == std::byte{static_cast<unsigned char>(header.pid)});
              seen.push_back({header.time_ns, header.cpu, header.pid});
            },
            window_ns) {}
};

}  // namespace

TEST_CASE("reorder merges CPUs by time and keeps a CPU's order for equal times") {
  Fixture f(100);
  f.reorder.push(record(10, 0, 1));
  f.reorder.push(record(30, 0, 2));
  f.reorder.push(record(30, 0, 3));
  f.reorder.push(record(20, 1, 4, 512));
  f.reorder.push(record(5, 7, 5, 25));  // a size that is no multiple of 8
  f.reorder.flush();
  CHECK(f.seen == std::vector<Seen>{{5, 7, 5}, {10, 0, 1}, {20, 1, 4}, {30, 0, 2}, {30, 0, 3}});
  CHECK(f.reorder.late() == 0);
  CHECK(f.reorder.held_bytes() == 0);
}

TEST_CASE("reorder holds back what is younger than the window") {
  Fixture f(100);
  f.reorder.push(record(1000, 0, 1));
  f.reorder.push(record(1050, 1, 2));
  f.reorder.release(1101);
  CHECK(f.seen == std::vector<Seen>{{1000, 0, 1}});
  f.reorder.push(record(1020, 2, 3));  // inverted, but within the window
  f.reorder.release(1200);
  CHECK(f.seen == std::vector<Seen>{{1000, 0, 1}, {1020, 2, 3}, {1050, 1, 2}});
  CHECK(f.reorder.late() == 0);
}

TEST_CASE("reorder passes a late record on at once and counts it") {
  Fixture f(100);
  f.reorder.push(record(1000, 0, 1));
  f.reorder.release(2000);
  f.reorder.push(record(1500, 1, 2));
  CHECK(f.seen.size() == 2);
  CHECK(f.reorder.late() == 1);
}

TEST_CASE("reorder puts an inversion within one CPU right") {
  Fixture f(100);
  for (uint64_t time : {10, 30, 20, 40, 25}) f.reorder.push(record(time, 0, static_cast<uint32_t>(time)));
  f.reorder.flush();
  std::vector<uint64_t> times;
  for (const Seen& s : f.seen) times.push_back(s.time_ns);
  CHECK(times == std::vector<uint64_t>{10, 20, 25, 30, 40});
}

TEST_CASE("reorder takes a backlog that a run has overtaken as it takes any") {
  // With work for what is held it would be some 10^10 steps and 10^12 bytes moved: it would not end here.
  constexpr uint64_t kEach = 200'000;
  uint64_t next = 0;
  bool in_order = true;
  Reorder reorder([&](std::span<const std::byte> bytes) {
    sigma_header header;
    std::memcpy(&header, bytes.data(), sizeof header);
    in_order &= header.time_ns == ++next;
  });
  std::vector<std::byte> one = record(0, 0, 1);
  RecordBytes run;
  for (uint64_t time = 2; time <= 2 * kEach; time += 2) {
    std::memcpy(one.data(), &time, sizeof time);
    run.insert(run.end(), one.begin(), one.end());
  }
  reorder.push_run(run, 2 * kEach);
  for (uint64_t time = 1; time < 2 * kEach; time += 2) {
    std::memcpy(one.data(), &time, sizeof time);
    reorder.push(one);
  }
  reorder.flush();
  CHECK(in_order);
  CHECK(next == 2 * kEach);
}

TEST_CASE("reorder puts records right that come in the order of none") {
  Fixture f(100);
  for (uint64_t time = 100; time > 0; --time)
    for (uint32_t twice = 0; twice < 2; ++twice)
      f.reorder.push(record(time, 0, static_cast<uint32_t>(2 * time + twice) & 0xff));
  f.reorder.flush();
  std::vector<Seen> wanted;
  for (uint32_t i = 2; i < 202; ++i) wanted.push_back({i / 2, 0, i & 0xff});
  CHECK(f.seen == wanted);
}

TEST_CASE("reorder takes runs whole, merges them, and gives their room back") {
  Fixture f(100);
  constexpr size_t kSize = Reorder::kLongRunBytes / 2;
  const auto run = [](std::vector<uint64_t> times) {
    RecordBytes bytes;
    for (const uint64_t time : times) {
      const auto one = record(time, 3, static_cast<uint32_t>(time), kSize);
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    return bytes;
  };
  RecordBytes bytes = run({10, 20, 30});
  f.reorder.push_run(bytes, 30);
  CHECK(bytes.empty());
  f.reorder.push(record(25, 0, 25));
  bytes = run({30, 40, 60});
  f.reorder.push_run(bytes, 60);
  bytes = run({62, 70, 65});  // in no order
  f.reorder.push_run(bytes, 0);
  CHECK(bytes.empty());
  bytes = run({55, 66});  // begins before the lane's newest
  f.reorder.push_run(bytes, 66);
  CHECK(bytes.empty());
  f.reorder.push(record(50, 3, 50));
  CHECK(f.reorder.held_bytes() == 11 * kSize + 2 * sizeof(sigma_post));
  f.reorder.release(145);
  bytes = run({44, 46});  // begins too late
  f.reorder.push_run(bytes, 46);
  CHECK(bytes.empty());
  CHECK(f.reorder.late() == 1);
  f.reorder.flush();
  std::vector<uint64_t> times;
  for (const Seen& s : f.seen) times.push_back(s.time_ns);
  CHECK(times == std::vector<uint64_t>{10, 20, 25, 30, 30, 40, 44, 46, 50, 55, 60, 62, 65, 66, 70});
  CHECK(f.reorder.held_bytes() == 0);
  f.reorder.push_run(bytes = run({200, 210}), 210);
  CHECK(bytes.empty());
  CHECK(bytes.capacity() >= 2 * kSize);
  bytes.assign(0, {});
  bytes = run({220});  // too short to be worth its room
  f.reorder.push_run(bytes, 220);
  f.reorder.flush();
  CHECK(f.seen.back().time_ns == 220);
}

TEST_CASE("reorder sorts any arrival within the window, losing and inventing nothing") {
  std::mt19937_64 random(42);
  constexpr uint64_t kWindow = 1000;
  Fixture f(kWindow);
  std::vector<Seen> sent;
  uint64_t now = 10'000;
  for (uint32_t i = 0; i < 20'000; ++i) {
    now += random() % 20;
    const Seen s{now - random() % kWindow, static_cast<uint32_t>(random() % 5), i & 0xff};
    sent.push_back(s);
    f.reorder.push(record(s.time_ns, s.cpu, s.pid, sizeof(sigma_header) + 1 + random() % 400));
    if (i % 64 == 0) f.reorder.release(now);
  }
  f.reorder.flush();
  CHECK(f.reorder.late() == 0);
  CHECK(std::is_sorted(f.seen.begin(), f.seen.end(), [](auto& a, auto& b) { return a.time_ns < b.time_ns; }));
  auto key = [](const Seen& a, const Seen& b) {
    return std::tie(a.time_ns, a.cpu, a.pid) < std::tie(b.time_ns, b.cpu, b.pid);
  };
  std::sort(sent.begin(), sent.end(), key);
  std::sort(f.seen.begin(), f.seen.end(), key);
  CHECK(f.seen == sent);
}
