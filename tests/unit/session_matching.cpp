// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The matching rules, as a table of scripts. One statement per ';':
//   qp N [all] [cqs] [efa]  creates QP N (all: sq_sig_all; cqs: its two sides have different CQs;
//                      efa: by that driver, whose requests complete in any order)
//   old N              QP N, older than the attach, is seen
//   ready N            ... goes to RTS before our eyes
//   s N W / u N W      posts a send with wr_id W, signalled / unsignalled
//   r N W              posts a receive
//   c N W / cr N W     a successful completion of a send / receive
//   e N W S [s|r]      a completion with error status S [by the CQ of sends / receives]
//   reset N, destroy N, pause, resume, end
// and what must come out, in order, as   side N : W outcome
//   ok    completed by its own completion      inf   by a later one's
//   open  unfinished                           errS  completed with status S
//   '?'   marked ambiguous (then without latency)
//   '!'   no post was seen
#include <sstream>

#include "catch.h"
#include "session_rig.h"

namespace {

struct Row {
  const char* name;
  const char* script;
  const char* expected;
};

constexpr Row kRows[] = {
    {"every request signalled", "qp 1; s 1 7; s 1 8; c 1 7; c 1 8; end", "s1:7 ok s1:8 ok"},
    {"sq_sig_all needs no flags", "qp 1 all; u 1 7; u 1 8; c 1 7; c 1 8; end", "s1:7 ok s1:8 ok"},
    {"signalled every third", "qp 1; u 1 1; u 1 2; s 1 3; u 1 4; u 1 5; s 1 6; c 1 3; c 1 6; end",
     "s1:1 inf s1:2 inf s1:3 ok s1:4 inf s1:5 inf s1:6 ok"},
    {"an unsignalled tail is unfinished", "qp 1; u 1 1; s 1 2; u 1 3; u 1 4; c 1 2; end",
     "s1:1 inf s1:2 ok s1:3 open s1:4 open"},
    {"equal wr_ids are matched in order", "qp 1; s 1 0; s 1 0; s 1 0; c 1 0; c 1 0; end",
     "s1:0 ok s1:0 ok s1:0 open"},
    {"equal wr_ids, signalled every second", "qp 1; u 1 0; s 1 0; u 1 0; s 1 0; c 1 0; end",
     "s1:0 inf s1:0 ok s1:0 open s1:0 open"},
    {"two queue pairs do not mix", "qp 1; qp 2; s 1 5; s 2 5; c 2 5; c 1 5; end",
     "s2:5 ok s1:5 ok"},
    {"receives in order", "qp 1; r 1 1; r 1 2; cr 1 1; end", "r1:1 ok r1:2 open"},
    {"sends and receives on one CQ", "qp 1; r 1 9; s 1 9; cr 1 9; c 1 9; end", "r1:9 ok s1:9 ok"},
    {"pre-posted receives stay open", "qp 1; r 1 1; r 1 2; end", "r1:1 open r1:2 open"},

    // Errors.
    {"first error and flushes", "qp 1; s 1 1; s 1 2; s 1 3; e 1 1 10; e 1 2 5; e 1 3 5; end",
     "s1:1 err10 s1:2 err5 s1:3 err5"},
    {"an error completes what was before it", "qp 1; u 1 1; s 1 2; u 1 3; e 1 2 12; e 1 3 5; end",
     "s1:1 inf s1:2 err12 s1:3 err5"},
    {"unsignalled requests fail by themselves", "qp 1; u 1 1; u 1 2; s 1 3; e 1 2 9; e 1 3 5; end",
     "s1:1 inf s1:2 err9 s1:3 err5"},
    {"which of several equal ones failed is not known",
     "qp 1; u 1 0; s 1 0; e 1 0 12; e 1 0 5; end", "s1:0 err12? s1:0 err5?"},
    {"with sq_sig_all it is", "qp 1 all; u 1 0; u 1 0; e 1 0 12; e 1 0 5; end",
     "s1:0 err12 s1:0 err5"},
    {"equal wr_ids flush in order", "qp 1; s 1 0; s 1 0; s 1 0; e 1 0 12; e 1 0 5; e 1 0 5; end",
     "s1:0 err12 s1:0 err5 s1:0 err5"},
    {"the CQ tells a failed send from a failed receive",
     "qp 1 cqs; s 1 4; r 1 4; e 1 4 5 r; e 1 4 12 s; end", "r1:4 err5 s1:4 err12"},
    {"on one CQ the wr_id does", "qp 1; s 1 4; r 1 5; e 1 5 5; e 1 4 12; end",
     "r1:5 err5 s1:4 err12"},
    {"else the send is taken, and marked", "qp 1; s 1 4; r 1 4; e 1 4 12; e 1 4 5; end",
     "s1:4 err12? r1:4 err5?"},
    {"receives are flushed", "qp 1 cqs; r 1 1; r 1 2; e 1 1 5 r; e 1 2 5 r; end",
     "r1:1 err5 r1:2 err5"},

    // Lives.
    {"RESET ends what is pending", "qp 1; s 1 1; r 1 2; reset 1; s 1 3; c 1 3; end",
     "s1:1 open r1:2 open s1:3 ok"},
    {"a number reused after DESTROY", "qp 1; s 1 1; destroy 1; qp 1; s 1 1; c 1 1; end",
     "s1:1 open s1:1 ok"},
    {"a straggler of a destroyed queue pair", "qp 1; s 1 1; destroy 1; c 1 1; end",
     "s1:1 open s0:1 ok!"},

    // Lost records.
    {"a completion was lost", "qp 1; s 1 1; s 1 2; s 1 3; c 1 2; c 1 3; end",
     "s1:1 inf? s1:2 ok? s1:3 ok?"},
    {"a lost completion behind unsignalled ones", "qp 1; u 1 1; s 1 2; u 1 3; s 1 4; c 1 4; end",
     "s1:1 inf? s1:2 inf? s1:3 inf? s1:4 ok?"},
    {"a post was lost", "qp 1; s 1 1; s 1 3; c 1 1; c 1 2; c 1 3; end", "s1:1 ok s1:2 ok! s1:3 ok"},
    {"a receive's completion was lost", "qp 1; r 1 1; r 1 2; cr 1 2; end", "r1:1 inf? r1:2 ok?"},
    {"a flush was lost", "qp 1; s 1 1; s 1 2; s 1 3; e 1 1 12; e 1 3 5; end",
     "s1:1 err12 s1:2 inf? s1:3 err5?"},

    // Older than the attach.
    {"mid-traffic, completions come before posts", "old 1; c 1 0; c 1 0; end", "s1:0 ok! s1:0 ok!"},
    {"mid-traffic, equal wr_ids are never certain",
     "old 1; s 1 0; s 1 0; c 1 0; c 1 0; c 1 0; s 1 0; c 1 0; end",
     "s1:0 ok? s1:0 ok? s1:0 ok! s1:0 ok?"},
    {"mid-traffic, other wr_ids are of requests not seen",
     "old 1; s 1 10; c 1 8; c 1 9; c 1 10; end", "s1:8 ok! s1:9 ok! s1:10 ok?"},
    {"older, but it became ready before our eyes",
     "old 1; ready 1; s 1 0; s 1 0; c 1 0; c 1 0; end", "s1:0 ok s1:0 ok"},
    {"sq_sig_all is learnt from a completion", "old 1; ready 1; u 1 1; u 1 2; c 1 1; c 1 2; end",
     "s1:1 ok s1:2 ok"},
    {"or its absence", "old 1; ready 1; u 1 1; s 1 2; u 1 3; c 1 2; end",
     "s1:1 inf s1:2 ok s1:3 open"},

    {"with equal wr_ids it is not told for certain",
     "old 1; ready 1; u 1 0; s 1 0; c 1 0; u 1 0; s 1 0; c 1 0; end",
     "s1:0 inf? s1:0 ok? s1:0 inf? s1:0 ok?"},
    {"and if the flags were not what was meant, the queue is out of step",
     "old 1; ready 1; u 1 0; s 1 0; c 1 0; u 1 0; c 1 0; u 1 0; c 1 0; end",
     "s1:0 inf? s1:0 ok? s1:0 ok? s1:0 ok?"},

    // EFA.
    {"in any order each completes by itself",
     "qp 1 efa; s 1 1; s 1 2; s 1 3; c 1 2; c 1 3; c 1 1; end", "s1:2 ok s1:3 ok s1:1 ok"},
    {"... and what is overtaken stays open",
     "qp 1 efa; s 1 1; s 1 2; s 1 3; c 1 3; s 1 4; c 1 2; end",
     "s1:3 ok s1:2 ok s1:1 open s1:4 open"},
    {"... without a flag as well", "qp 1 efa all; u 1 1; u 1 2; c 1 2; c 1 1; end",
     "s1:2 ok s1:1 ok"},
    {"... receives too", "qp 1 efa; r 1 1; r 1 2; cr 1 2; cr 1 1; end", "r1:2 ok r1:1 ok"},
    {"... an error is of its request alone",
     "qp 1 efa cqs; s 1 1; s 1 2; s 1 3; e 1 2 12 s; c 1 3; c 1 1; end",
     "s1:2 err12 s1:3 ok s1:1 ok"},
    {"... which of equal wr_ids completed is not known",
     "qp 1 efa; s 1 0; s 1 0; s 1 5; c 1 0; c 1 5; c 1 0; end", "s1:0 ok? s1:5 ok s1:0 ok?"},
    {"... also after a RESET", "qp 1 efa; s 1 1; reset 1; s 1 2; s 1 3; c 1 3; c 1 2; end",
     "s1:1 open s1:3 ok s1:2 ok"},
    {"... and what a pause hid is not taken for another's",
     "qp 1 efa; s 1 1; pause; resume; s 1 2; s 1 3; c 1 1; c 1 3; end",
     "s1:1 open s1:1 ok! s1:3 ok? s1:2 open"},

    // The governor.
    {"a pause closes, and leaves the queues out of step",
     "qp 1; s 1 1; pause; resume; s 1 0; c 1 1; c 1 0; end", "s1:1 open s1:1 ok! s1:0 ok?"},
    {"what comes in a pause is not looked at", "qp 1; pause; s 1 1; c 1 1; resume; end", ""},
};

std::string outcome(const KeptOperation& operation) {
  std::ostringstream text;
  text << (operation.queue == sigma::Queue::send ? 's' : 'r')
       << (operation.qp ? operation.qp->qp_num : 0) << ':' << operation.wr_id.value_or(999) << ' ';
  if (operation.complete_source == sigma::CompleteSource::none)
    text << "open";
  else if (operation.complete_source == sigma::CompleteSource::inferred)
    text << "inf";
  else if (operation.status == IBV_WC_SUCCESS)
    text << "ok";
  else
    text << "err" << operation.status.value_or(999);
  if (operation.flags & sigma::kAmbiguous) text << '?';
  if (!operation.time_ns) text << '!';
  return text.str();
}

// Latency is there exactly where post and completion are known to be of one request.
void check_times(const KeptOperation& operation) {
  const bool certain = operation.complete_source == sigma::CompleteSource::poll &&
                       operation.time_ns && !(operation.flags & sigma::kAmbiguous);
  CHECK(operation.latency_ns.has_value() == certain);
  if (certain) CHECK(*operation.latency_ns == *operation.complete_ns - *operation.time_ns);
}

void run(Rig& rig, const std::string& statement) {
  std::istringstream in(statement);
  std::string verb, option;
  uint32_t qp = 0;
  uint64_t wr_id = 0;
  in >> verb >> qp;
  const auto options = [&] {
    std::vector<std::string> all;
    for (std::string word; in >> word;) all.push_back(word);
    return all;
  };
  if (verb == "qp") {
    Rig::QpSpec spec;
    bool efa = false;
    for (const auto& word : options()) {
      spec.sig_all |= word == "all";
      if (word == "cqs") spec.recv_cq = 2;
      efa |= word == "efa";
    }
    if (efa) spec.type = IBV_QPT_DRIVER;
    UverbsRecord record = Rig::create_qp_record(qp, spec);
    if (efa) record.driver(RDMA_DRIVER_EFA);
    rig.uverbs(record);
  } else if (verb == "old") {
    rig.qp_seen(qp);
  } else if (verb == "ready") {
    ib_uverbs_modify_qp core{};
    core.qp_handle = qp;
    core.attr_mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    core.qp_state = IBV_QPS_RTS;
    rig.modify_qp(core);
  } else if (verb == "s" || verb == "u") {
    in >> wr_id;
    rig.send_post(Rig::post(qp, wr_id, verb == "s" ? IBV_SEND_SIGNALED : 0));
  } else if (verb == "r") {
    in >> wr_id;
    rig.send_post(Rig::recv(qp, wr_id));
  } else if (verb == "c" || verb == "cr") {
    in >> wr_id;
    rig.send_completion(Rig::completion(qp, wr_id, verb == "c" ? IBV_WC_RDMA_WRITE : IBV_WC_RECV));
  } else if (verb == "e") {
    uint32_t status = 0;
    in >> wr_id >> status >> option;
    // With an error status the opcode is not to be trusted.
    rig.send_completion(
        Rig::completion(qp, wr_id, 0xdead, status, Rig::cq_ptr(option == "r" ? 2 : 1)));
  } else if (verb == "reset") {
    rig.set_state(qp, IBV_QPS_RTS);
    rig.set_state(qp, IBV_QPS_RESET);
  } else if (verb == "destroy") {
    rig.destroy_qp(qp);
  } else if (verb == "pause") {
    rig.window(SIGMA_WINDOW_PAUSE);
  } else if (verb == "resume") {
    rig.window(SIGMA_WINDOW_RESUME);
  } else if (verb == "end") {
    rig.finish();
  } else {
    FAIL("unknown verb " << verb);
  }
}

}  // namespace

TEST_CASE("session: posts and completions are matched by the rules") {
  for (const Row& row : kRows) {
    INFO(row.name << ": " << row.script);
    Rig rig;
    rig.context();
    rig.create_cq(1);
    rig.create_cq(2);
    std::istringstream script(row.script);
    for (std::string statement; std::getline(script, statement, ';');) run(rig, statement);

    std::string actual;
    for (const auto& operation : rig.operations) {
      if (!actual.empty()) actual += ' ';
      actual += outcome(operation);
      check_times(operation);
      CHECK(operation.pid == Rig::kPid);
    }
    CHECK(actual == row.expected);

    const auto& counters = rig.session.counters();
    CHECK(counters.operations == rig.operations.size());
    CHECK(counters.completed + counters.unfinished == counters.operations);
    CHECK(counters.records_malformed == 0);
    CHECK(counters.uverbs_undecoded == 0);
  }
}
