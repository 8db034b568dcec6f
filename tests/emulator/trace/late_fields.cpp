// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// late_fields PID: what the table of known fields (observe/known_fields.h) says of a process whose queues
// libmlx5 has made, and what it would say if an entry were wrong, for every wrong value that there is.
//
// Standard input is the truth, by the device: lines of "qp NUMBER RING DOORBELL BLOCKS POSTED" and
// "cq NUMBER RING DOORBELL ENTRY_BYTES". The table's own places must be these. With another offset in an
// entry the search must give these, by what queues that have posted tell, or no place: never a wrong one.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "observe/late_rings.h"
#include "observe/owner_memory.h"
#include "observe/serving_library.h"

using namespace sigma;

namespace {

constexpr uint16_t kObjectBytes = 0x600;  // late_rings.cpp: of a queue pair, and more than of a CQ

struct Truth {
  std::map<uint32_t, SendPlace> sends;
  std::map<uint32_t, CqPlace> cqs;
  size_t posted = 0;  // queue pairs that have
};

struct Counts {
  size_t none = 0, right = 0, wrong = 0;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "late_fields: %s\n", what.c_str());
  std::exit(1);
}

Truth read_truth() {
  Truth truth;
  std::string kind;
  uint32_t number = 0, size = 0;
  uint64_t ring = 0, doorbell = 0;
  while (std::cin >> kind >> number >> ring >> doorbell >> size) {
    if (kind == "qp") {
      bool posted = false;
      std::cin >> posted;
      truth.posted += posted;
      truth.sends[number] = {size != 0 ? ring : 0, doorbell, size};
    } else {
      truth.cqs[number] = {ring, doorbell, size, number};
    }
  }
  return truth;
}

// What is placed by an attach that knows these fields.
Counts place_all(const LiveObjects& live, const std::string& build_id, const FieldsOfBuild& fields, const Truth& truth) {
  KnownFields known;
  known.learn(build_id, fields);
  LateRings late(live.pid, known);
  const FoundRings found = late.begin(live, build_id, 1);
  Counts counts;
  for (const FoundSend& send : found.sends) {
    const SendSpec& spec = send.spec;
    const auto it = truth.sends.find(spec.owner.number);
    const SendPlace place{spec.ring_addr, spec.doorbell_addr, spec.blocks};
    ++(it != truth.sends.end() && it->second == place ? counts.right : counts.wrong);
  }
  for (const FoundCq& cq : found.cqs) {
    const CqSpec& spec = cq.spec;
    const auto it = truth.cqs.find(spec.owner.number);
    const CqPlace place{spec.ring_addr, spec.doorbell_addr, spec.ring.entry_bytes, spec.owner.number};
    ++(it != truth.cqs.end() && it->second == place ? counts.right : counts.wrong);
  }
  counts.none = truth.sends.size() + truth.cqs.size() - counts.right - counts.wrong;
  return counts;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) fail("usage: late_fields PID");
  const Truth truth = read_truth();
  const auto live = find_live_objects(std::atoi(argv[1]), {});
  if (!live.ok() || live->contexts.empty()) fail("no context found");
  const ServingLibrary library = serving_library(live->pid, live->contexts[0]);
  const FieldsOfBuild row = KnownFields().of(library.build_id);
  if (row.sends.size() != 1 || row.cqs.size() != 1) fail("the table has no row for build " + library.build_id);

  const auto print = [](const char* what, const Counts& counts) {
    std::printf("%s: %zu right, %zu not placed, %zu wrong\n", what, counts.right, counts.none, counts.wrong);
  };
  const Counts own = place_all(*live, library.build_id, row, truth);
  print("as it is", own);
  if (own.none + own.wrong != 0) fail("the table does not give all places");

  const uint16_t ring = row.sends[0].ring, active = row.cqs[0].active;
  size_t wrong = 0, missing = 0, mutants = 0;
  for (const bool of_cq : {false, true}) {
    Counts sum;
    for (uint16_t offset = 0; offset < kObjectBytes; offset += 4) {
      if (offset == (of_cq ? active : ring)) continue;
      const FieldsOfBuild mutant = fields_from(of_cq ? ring : offset, of_cq ? offset : active);
      const Counts counts = place_all(*live, library.build_id, mutant, truth);
      ++mutants;
      sum.right += counts.right, sum.none += counts.none, sum.wrong += counts.wrong;
      if (counts.wrong != 0) std::printf("%s at 0x%x: %zu wrong\n", of_cq ? "CQs" : "queue pairs", offset, counts.wrong);
    }
    print(of_cq ? "CQs, wrong entry" : "queue pairs, wrong entry", sum);
    wrong += sum.wrong;
    missing += sum.none;
  }
  // Queues that have been used tell where their fields are, and so where the others' are.
  if (truth.posted != 0 && missing != 0) fail("the vote does not give all places");
  if (truth.posted == 0 && missing == 0) fail("every mutant gives all places: the table is not asked");
  std::printf("%zu mutants, %zu wrong places\n", mutants, wrong);
  return wrong == 0 ? 0 : 1;
}
