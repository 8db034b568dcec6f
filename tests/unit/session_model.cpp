// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The session against a simulated NIC. The simulation knows which request each completion belongs
// to; the session sees only the records. Each request carries its number in local_addr, which
// matching never looks at: so every operation can be held against the truth, exactly.
#include <deque>
#include <memory>
#include <random>

#include "catch.h"
#include "session_rig.h"

namespace {

enum class Ids { constant, counting, slots, random_few };

struct Truth {
  enum Fate { open, own, inferred, refused } fate = open;
  uint32_t status = IBV_WC_SUCCESS;
  uint64_t posted_ns = 0, completed_ns = 0, wr_id = 0;
  uint32_t device = 0, qp_num = 0, life = 0;
  sigma::Queue side = sigma::Queue::send;
  Ids ids = Ids::constant;
};

struct Request {
  uint64_t number;
  bool signalled;
};

struct Cqe {
  sigma_completion wc;
  std::vector<uint64_t> finished;  // the requests that it completes; the last is its own
  uint32_t device;
};

struct SimQp {
  uint32_t number, handle, device;
  uint32_t life = 0;
  bool sig_all, builders, error = false;
  Ids ids;
  uint64_t next_id = 0;
  std::deque<Request> send, recv;  // not executed yet
  std::vector<uint64_t> silent;    // executed, unsignalled, not yet known to be complete
};

struct Faults {
  int blind_steps = 0;       // before these are over the session is told nothing
  unsigned loss_one_in = 0;  // of the data path's records; 0: none
  bool only_counting = false;
  bool calm = false;  // queue pairs seldom end or fail: long stretches of nothing but traffic
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed, Faults faults = {})
      : random_(seed), faults_(faults), blind_(faults.blind_steps > 0) {
    for (uint32_t device = 0; device < 2; ++device) {
      // One CQ for both sides on one device, two on the other.
      if (!blind_) {
        rig.context(device == 0 ? "rxe0" : "rxe1", Rig::kPid, context_of(device));
        rig.create_cq(1, Rig::kPid, context_of(device));
        rig.create_cq(2, Rig::kPid, context_of(device));
      }
      for (uint32_t i = 0; i < (faults_.calm ? 12 : 3); ++i) create(device, 17 + i);
    }
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (blind_ && i == faults_.blind_steps) attach();
      SimQp& qp = *qps_[pick(qps_.size())];
      switch (pick(16)) {
        case 0:
        case 1:
        case 2:
        case 3:
        case 4:
          post(qp, sigma::Queue::send);
          break;
        case 5:
        case 6:
          post(qp, sigma::Queue::recv);
          break;
        case 7:
        case 8:
        case 9:
        case 10:
          execute(qp);
          break;
        case 11:
        case 12:
        case 13:
        case 14:
          poll(qp.device);
          break;
        default:
          rare(qp);
      }
    }
    rig.finish();
  }

  void check() {
    std::vector<int> seen(truth_.size(), 0);
    for (const auto& operation : rig.operations) {
      REQUIRE(operation.local_addr);
      const uint64_t number = *operation.local_addr;
      REQUIRE(number < truth_.size());
      ++seen[number];
      const Truth& truth = truth_[number];
      INFO("request " << number << ", QP " << truth.qp_num << " of device " << truth.device);
      REQUIRE(operation.qp);
      CHECK(operation.qp->qp_num == truth.qp_num);
      CHECK(operation.qp->device == (truth.device == 0 ? "rxe0" : "rxe1"));
      CHECK(operation.qp->life == truth.life);
      CHECK(operation.queue == truth.side);
      CHECK(operation.wr_id == truth.wr_id);
      CHECK(operation.time_ns == truth.posted_ns);
      CHECK_FALSE(operation.flags & sigma::kAmbiguous);
      switch (truth.fate) {
        case Truth::own:
          CHECK(operation.complete_source == sigma::CompleteSource::poll);
          CHECK(operation.status == truth.status);
          CHECK(operation.complete_ns == truth.completed_ns);
          CHECK(operation.latency_ns == truth.completed_ns - truth.posted_ns);
          break;
        case Truth::inferred:
          CHECK(operation.complete_source == sigma::CompleteSource::inferred);
          CHECK(operation.complete_ns == truth.completed_ns);
          CHECK_FALSE(operation.latency_ns);
          break;
        case Truth::open:
          CHECK(operation.complete_source == sigma::CompleteSource::none);
          CHECK_FALSE(operation.status);
          break;
        case Truth::refused:
          FAIL("a refused request was reported");
      }
    }
    uint64_t refused = 0;
    for (size_t number = 0; number < truth_.size(); ++number) {
      INFO("request " << number);
      const bool gone = truth_[number].fate == Truth::refused;
      refused += gone;
      CHECK(seen[number] == (gone ? 0 : 1));
    }
    const auto& counters = rig.session.counters();
    CHECK(counters.refused + counters.aborted == refused);
    CHECK(counters.ambiguous == 0);
    CHECK(counters.completions_without_post == 0);
    CHECK(counters.completions_unmatched == 0);
    CHECK(counters.staged_unresolved == 0);
  }

  // What must hold whatever was lost: no request is reported twice, and a latency is a true one.
  void check_honesty() {
    std::vector<int> seen(truth_.size(), 0);
    for (const auto& operation : rig.operations) {
      if (!operation.local_addr) {
        CHECK_FALSE(operation.latency_ns);
        continue;
      }
      const uint64_t number = *operation.local_addr;
      REQUIRE(number < truth_.size());
      const Truth& truth = truth_[number];
      INFO("request " << number << ", QP " << truth.qp_num << " of device " << truth.device
                      << ", ids " << static_cast<int>(truth.ids));
      CHECK(++seen[number] == 1);
      if (!operation.latency_ns) continue;
      ++latencies;
      CHECK(truth.fate == Truth::own);
      CHECK(operation.status == truth.status);
      CHECK(operation.latency_ns == truth.completed_ns - truth.posted_ns);
    }
  }
  size_t latencies = 0;

  size_t fates(Truth::Fate fate) const {
    return static_cast<size_t>(
        std::ranges::count_if(truth_, [&](const Truth& t) { return t.fate == fate; }));
  }

  Rig rig;

 private:
  // The data path's records may be lost; nothing arrives before the attach.
  template <typename T>
  void tell(T record, sigma_record_type type, uint32_t tid = Rig::kPid) {
    const bool lost = faults_.loss_one_in != 0 && pick(faults_.loss_one_in) == 0;
    if (blind_ || lost)
      ++rig.now;
    else
      rig.send(record, type, Rig::kPid, tid);
  }
  void tell(UverbsRecord record, uint32_t device) {
    if (!blind_) rig.uverbs(std::move(record), Rig::kPid, context_of(device));
  }
  void tell_state(const SimQp& qp, uint8_t state) {
    if (!blind_) rig.set_state(qp.handle, state, Rig::kPid, context_of(qp.device));
  }
  void attach() {
    blind_ = false;
    for (uint32_t device = 0; device < 2; ++device)
      rig.context(device == 0 ? "rxe0" : "rxe1", Rig::kPid, context_of(device));
    // The heap scan finds them, or their next post does.
    for (const auto& qp : qps_) {
      if (pick(3) == 0) continue;
      sigma_qp_seen record{};
      record.context = context_of(qp->device);
      record.qp_ptr = 0x500000 + qp->handle * 0x100ull;
      record.send_cq_ptr = Rig::cq_ptr(1);
      record.recv_cq_ptr = Rig::cq_ptr(qp->device == 0 ? 1 : 2);
      record.qp_num = qp->number;
      record.handle = qp->handle;
      record.qp_type = IBV_QPT_RC;
      record.state = IBV_QPS_RTS;
      record.source = SIGMA_QP_BY_SCAN;
      rig.send(record, SIGMA_QP_SEEN, Rig::kPid);
    }
  }

  static uint64_t context_of(uint32_t device) { return 0x1000 + device * 0x1000; }
  size_t pick(size_t n) { return random_() % n; }

  void create(uint32_t device, uint32_t number) {
    auto qp = std::make_unique<SimQp>();
    qp->number = number;
    qp->handle = next_handle_++;
    qp->device = device;
    qp->life = lives_[{device, number}]++;
    qp->sig_all = pick(3) == 0;
    qp->builders = pick(3) == 0;
    qp->ids = faults_.only_counting ? Ids::counting : static_cast<Ids>(pick(4));
    tell(Rig::create_qp_record(number, {.sig_all = qp->sig_all,
                                        .recv_cq = device == 0 ? 1u : 2u,
                                        .ptr = 0x500000 + qp->handle * 0x100ull,
                                        .handle = qp->handle}),
         device);
    tell_state(*qp, IBV_QPS_RTS);
    qps_.push_back(std::move(qp));
  }

  // On a CQ that both sides share, error completions are told apart by wr_id: receives have their
  // own.
  uint64_t id_of(SimQp& qp, sigma::Queue side) {
    const uint64_t base = side == sigma::Queue::recv ? 1ull << 32 : 0;
    switch (qp.ids) {
      case Ids::constant:
        return base + 5;
      case Ids::counting:
        return base + qp.next_id++;
      case Ids::slots:
        return base + qp.next_id++ % 8;
      case Ids::random_few:
        return base + pick(3);
    }
    return 0;
  }

  void post(SimQp& qp, sigma::Queue side) {
    const size_t count = 1 + pick(4);
    const bool staged = side == sigma::Queue::send && qp.builders;
    const uint64_t call_ns = rig.now + 1;
    const uint32_t tid = 1000 + static_cast<uint32_t>(pick(3));
    std::vector<Request> requests;
    for (size_t i = 0; i < count; ++i) {
      const bool flagged = pick(3) == 0;
      sigma_post record = side == sigma::Queue::send ? Rig::post(qp.number, id_of(qp, side),
                                                                 flagged ? IBV_SEND_SIGNALED : 0)
                                                     : Rig::recv(qp.number, id_of(qp, side));
      record.context = context_of(qp.device);
      record.queue_ptr = 0x500000 + qp.handle * 0x100ull;
      record.local_addr = truth_.size();
      record.call_ns = call_ns;
      record.position = static_cast<uint16_t>(i);
      if (staged) record.flags |= SIGMA_POST_STAGED;
      tell(record, SIGMA_POST, tid);
      requests.push_back({truth_.size(), flagged || qp.sig_all || side == sigma::Queue::recv});
      truth_.push_back({.posted_ns = rig.now,
                        .wr_id = record.wr_id,
                        .device = qp.device,
                        .qp_num = qp.number,
                        .life = qp.life,
                        .side = side,
                        .ids = qp.ids});
    }
    size_t accepted = count;
    if (staged) {
      const bool aborted = pick(6) == 0;
      if (aborted) accepted = 0;
      result(qp, side, aborted ? SIGMA_OUTCOME_ABORTED : SIGMA_OUTCOME_COMMITTED, call_ns, 0, tid);
      for (const Request& request : requests) truth_[request.number].posted_ns = rig.now;
    } else if (pick(10) == 0) {
      accepted = pick(count);
      result(qp, side, SIGMA_OUTCOME_REFUSED, call_ns, static_cast<uint32_t>(accepted), tid);
    }
    for (size_t i = 0; i < count; ++i) {
      if (i >= accepted)
        truth_[requests[i].number].fate = Truth::refused;
      else
        (side == sigma::Queue::send ? qp.send : qp.recv).push_back(requests[i]);
    }
  }

  void result(SimQp& qp, sigma::Queue side, sigma_post_outcome outcome, uint64_t call_ns,
              uint32_t accepted, uint32_t tid) {
    sigma_post_result record{};
    record.context = context_of(qp.device);
    record.call_ns = call_ns;
    record.queue_ptr = 0x500000 + qp.handle * 0x100ull;
    record.qp_num = qp.number;
    record.accepted = accepted;
    record.outcome = outcome;
    record.queue = side == sigma::Queue::send ? SIGMA_QUEUE_SEND : SIGMA_QUEUE_RECV;
    tell(record, SIGMA_POST_RESULT, tid);
  }

  // The NIC works off the oldest requests of one side.
  void execute(SimQp& qp) {
    const bool send = pick(3) != 0;
    auto& queue = send ? qp.send : qp.recv;
    for (size_t n = 1 + pick(6); n > 0 && !queue.empty(); --n) {
      const Request request = queue.front();
      queue.pop_front();
      uint32_t status = IBV_WC_SUCCESS;
      if (qp.error) {
        status = IBV_WC_WR_FLUSH_ERR;
      } else if (pick(200) == 0) {
        // Which of several unsignalled requests with equal wr_ids fails, nobody could tell.
        const bool tellable = qp.ids == Ids::counting || qp.sig_all;
        if (tellable) {
          status = send ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_LEN_ERR;
          qp.error = true;
        }
      }
      if (send && status == IBV_WC_SUCCESS && !request.signalled) {
        qp.silent.push_back(request.number);
        continue;
      }
      Cqe cqe{.device = qp.device};
      cqe.wc = Rig::completion(qp.number, truth_[request.number].wr_id,
                               send ? IBV_WC_RDMA_WRITE : IBV_WC_RECV, status,
                               Rig::cq_ptr(send || qp.device == 0 ? 1 : 2));
      cqe.wc.context = context_of(qp.device);
      if (send) cqe.finished = std::exchange(qp.silent, {});
      cqe.finished.push_back(request.number);
      cqes_[qp.device].push_back(std::move(cqe));
    }
  }

  void poll(uint32_t device) {
    auto& cq = cqes_[device];
    for (size_t n = pick(8); n > 0 && !cq.empty(); --n) {
      tell(cq.front().wc, SIGMA_COMPLETION);
      for (const uint64_t number : cq.front().finished) {
        Truth& truth = truth_[number];
        const bool own = number == cq.front().finished.back();
        truth.fate = own ? Truth::own : Truth::inferred;
        if (own) truth.status = cq.front().wc.status;
        truth.completed_ns = rig.now;
      }
      cq.pop_front();
    }
  }

  // RESET and DESTROY take what was not polled out of the CQ.
  void rare(SimQp& qp) {
    if (pick(qp.error ? 2 : 12) != 0 || (faults_.calm && pick(40) != 0)) return;
    std::erase_if(cqes_[qp.device], [&](const Cqe& cqe) { return cqe.wc.qp_num == qp.number; });
    if (pick(2) == 0) {
      tell_state(qp, IBV_QPS_RESET);
      tell_state(qp, IBV_QPS_RTS);
      qp.life = lives_[{qp.device, qp.number}]++;
      qp.error = false;
      qp.send.clear();
      qp.recv.clear();
      qp.silent.clear();
      return;
    }
    tell(UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY)
             .handle(UVERBS_ATTR_DESTROY_QP_HANDLE, qp.handle),
         qp.device);
    const uint32_t device = qp.device, number = qp.number;
    std::erase_if(qps_, [&](const auto& owned) { return owned.get() == &qp; });
    create(device, number);  // the number is used again
  }

  std::mt19937_64 random_;
  Faults faults_;
  bool blind_;
  std::vector<std::unique_ptr<SimQp>> qps_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> lives_;
  std::deque<Cqe> cqes_[2];
  std::vector<Truth> truth_;
  uint32_t next_handle_ = 50;
};

}  // namespace

TEST_CASE("session: a simulated NIC's truth is found exactly (seeded)") {
  size_t own = 0, inferred = 0, open = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Simulation simulation(seed);
    simulation.run(2000);
    simulation.check();
    own += simulation.fates(Truth::own);
    inferred += simulation.fates(Truth::inferred);
    open += simulation.fates(Truth::open);
    refused += simulation.fates(Truth::refused);
  }
  // The simulation did what it is for.
  CHECK(own > 10000);
  CHECK(inferred > 5000);
  CHECK(open > 1000);
  CHECK(refused > 1000);
}

TEST_CASE("session: attached in mid-traffic, it gives no latency that is not true (seeded)") {
  size_t latencies = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Simulation simulation(seed, {.blind_steps = 500});
    simulation.run(2000);
    simulation.check_honesty();
    latencies += simulation.latencies;
  }
  CHECK(latencies > 5000);
}

TEST_CASE("session: with distinct wr_ids lost records make no latency false (seeded)") {
  size_t latencies = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Simulation simulation(seed, {.loss_one_in = 50, .only_counting = true});
    simulation.run(2000);
    simulation.check_honesty();
    latencies += simulation.latencies;
  }
  CHECK(latencies > 10000);
}

// Rig::finish holds what several threads make of it against this.
TEST_CASE("session: long stretches of traffic among many queue pairs (seeded)") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    INFO("seed " << seed);
    Simulation simulation(seed, {.calm = true});
    simulation.run(20000);
    simulation.check();
  }
}
