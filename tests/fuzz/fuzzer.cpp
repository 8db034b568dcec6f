// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "fuzzer.h"

#include <sanitizer/common_interface_defs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace fs = std::filesystem;

namespace {

// Edges taken by the input, as hashes of where they lead from and to; and those taken by any.
constexpr size_t kEdges = 1 << 16;
std::array<uint8_t, kEdges> taken, ever;
uintptr_t before;
bool counting;

const sigma::Bytes* running;
std::string running_name;

void write_file(const fs::path& path, const sigma::Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

void on_death() {
  if (running) write_file("crash-" + running_name, *running);
}

}  // namespace

// Called by instrumented code at each branch; this file is not instrumented.
extern "C" void __sanitizer_cov_trace_pc() {
  if (!counting) return;
  const auto pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  taken[((before >> 1) ^ pc ^ (pc >> 16)) % kEdges] = 1;
  before = pc;
}

namespace sigma {

Fuzzer::Fuzzer(std::string name, std::vector<Bytes> seeds) : name_(std::move(name)) {
  const fs::path folder = fs::path(SIGMA_FUZZ_CORPUS) / name_;
  std::vector<fs::path> files;
  std::error_code none;
  for (fs::directory_iterator it(folder, none), end; !none && it != end; it.increment(none))
    files.push_back(it->path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(in), {}};
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    seeds.emplace_back(data, data + text.size());
  }
  corpus_ = std::move(seeds);
  seeds_ = corpus_.size();
  const char* seconds = std::getenv("SIGMA_FUZZ_SECONDS");
  cpu_time_ = std::chrono::seconds(seconds ? std::atoi(seconds) : 60);
  (void)!nice(5);  // tests whose timing matters go first
  running = &input_;
  running_name = name_;
  __sanitizer_set_death_callback(on_death);
}

bool Fuzzer::is_over() {
  const auto now = std::chrono::steady_clock::now();
  if (now < look_again_) return false;
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  const auto left =
      cpu_time_ - std::chrono::seconds(used.tv_sec) - std::chrono::nanoseconds(used.tv_nsec);
  look_again_ = now + left;  // one thread: not sooner
  return left.count() <= 0;
}

Fuzzer::~Fuzzer() {
  running = nullptr;
  std::printf("%s: %llu inputs, %zu kept beside %zu given\n", name_.c_str(),
              static_cast<unsigned long long>(inputs_), corpus_.size() - seeds_, seeds_);
  const char* folder = std::getenv("SIGMA_FUZZ_SAVE");
  if (!folder) return;
  fs::create_directories(fs::path(folder) / name_);
  for (size_t i = 0; i < corpus_.size(); ++i) {
    char file[32];
    std::snprintf(file, sizeof file, "%04zu", i);
    write_file(fs::path(folder) / name_ / file, corpus_[i]);
  }
}

// Keeps the input that ran if it took a new way.
void Fuzzer::judge() {
  counting = false;
  bool is_new = false;
  for (size_t i = 0; i < kEdges; i += sizeof(uint64_t)) {
    uint64_t now, known;
    std::memcpy(&now, &taken[i], sizeof now);
    std::memcpy(&known, &ever[i], sizeof known);
    if ((now & ~known) == 0) continue;
    known |= now;
    std::memcpy(&ever[i], &known, sizeof known);
    is_new = true;
  }
  if (is_new && inputs_ > seeds_) corpus_.push_back(input_);
}

bool Fuzzer::next() {
  if (inputs_ > 0) judge();
  // On a machine that is too busy for more, at least these.
  constexpr uint64_t kLeast = 2000;
  if (inputs_ >= kLeast && inputs_ % 16 == 0 && is_over()) return false;
  if (inputs_ < seeds_) {
    input_ = corpus_[inputs_];
    input_.shrink_to_fit();
  } else {
    // The newest ones lead further more often.
    const size_t size = corpus_.size();
    const size_t recent = std::min<size_t>(size, 32);
    const size_t at = random_() % 4 == 0 ? size - 1 - random_() % recent : random_() % size;
    input_ = mutate(corpus_[at], random_);
  }
  ++inputs_;
  taken.fill(0);
  before = 0;
  counting = true;
  return true;
}

}  // namespace sigma
