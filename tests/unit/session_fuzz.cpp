// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Hostile records: a session that is given mutated ones stays within its memory, keeps its books,
// and still works afterwards.
#include <memory>
#include <random>

#include "catch.h"
#include "session_rig.h"

namespace {

using Bytes = std::vector<std::byte>;

template <typename T>
Bytes bytes_of(T record, sigma_record_type type) {
  record.h.type = type;
  record.h.size = sizeof(T);
  record.h.pid = record.h.tid = Rig::kPid;
  const auto bytes = std::as_bytes(std::span(&record, 1));
  return {bytes.begin(), bytes.end()};
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  const auto uverbs = [&](UverbsRecord record) {
    const auto bytes = record.from(0, Rig::kPid, Rig::kContext).bytes();
    all.emplace_back(bytes.begin(), bytes.end());
  };
  sigma_context context{};
  context.context = Rig::kContext;
  context.kind = SIGMA_CONTEXT_SEEN;
  std::strcpy(context.device, "rxe0");
  all.push_back(bytes_of(context, SIGMA_CONTEXT));
  context.kind = SIGMA_CONTEXT_CLOSED;
  all.push_back(bytes_of(context, SIGMA_CONTEXT));
  for (uint32_t qp : {17u, 18u}) {
    uverbs(Rig::create_qp_record(qp, {.sig_all = qp == 18, .srq = qp == 18 ? 3u : 0u}));
    all.push_back(bytes_of(Rig::post(qp, 1), SIGMA_POST));
    all.push_back(bytes_of(Rig::post(qp, 1, 0), SIGMA_POST));
    all.push_back(bytes_of(Rig::recv(qp, 2), SIGMA_POST));
    all.push_back(bytes_of(Rig::completion(qp, 1), SIGMA_COMPLETION));
    all.push_back(bytes_of(Rig::completion(qp, 2, IBV_WC_RECV), SIGMA_COMPLETION));
    all.push_back(bytes_of(Rig::completion(qp, 1, 0, IBV_WC_WR_FLUSH_ERR), SIGMA_COMPLETION));
    sigma_post staged = Rig::post(qp, 1);
    staged.flags = SIGMA_POST_STAGED;
    staged.call_ns = 7;
    all.push_back(bytes_of(staged, SIGMA_POST));
    for (uint16_t outcome = SIGMA_OUTCOME_REFUSED; outcome <= SIGMA_OUTCOME_ABORTED; ++outcome) {
      sigma_post_result result{};
      result.context = Rig::kContext;
      result.call_ns = 7;
      result.qp_num = qp;
      result.outcome = outcome;
      all.push_back(bytes_of(result, SIGMA_POST_RESULT));
    }
    for (uint8_t state : {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTS}) {
      ib_uverbs_modify_qp core{};
      core.qp_handle = qp;
      core.attr_mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
      core.qp_state = state;
      uverbs(UverbsRecord::write(IB_USER_VERBS_CMD_MODIFY_QP, core));
    }
    uverbs(UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY)
               .handle(UVERBS_ATTR_DESTROY_QP_HANDLE, qp));
    sigma_qp_seen seen{};
    seen.context = Rig::kContext;
    seen.qp_ptr = Rig::qp_ptr(qp);
    seen.qp_num = seen.handle = qp;
    seen.srq_ptr = qp == 18 ? 0xa000 : 0;
    all.push_back(bytes_of(seen, SIGMA_QP_SEEN));
    sigma_qp_peer peer{};
    std::strcpy(peer.device, "rxe0");
    peer.qp_num = qp;
    all.push_back(bytes_of(peer, SIGMA_QP_PEER));
  }
  uverbs(UverbsRecord(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT));
  uverbs(UverbsRecord(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE)
             .handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, 3)
             .in(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, uint64_t{0xa000}));
  uverbs(UverbsRecord(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY)
             .handle(UVERBS_ATTR_DESTROY_SRQ_HANDLE, 3));
  uverbs(
      UverbsRecord::write(IB_USER_VERBS_CMD_REG_MR, ib_uverbs_reg_mr{}, ib_uverbs_reg_mr_resp{}));
  all.push_back(bytes_of(Rig::srq_recv(0xa000, 2), SIGMA_POST));
  sigma_mr_seen mr{};
  mr.context = Rig::kContext;
  all.push_back(bytes_of(mr, SIGMA_MR_SEEN));
  for (uint32_t kind : {SIGMA_PROCESS_EXEC, SIGMA_PROCESS_EXIT, SIGMA_PROCESS_FORK}) {
    sigma_process process{};
    process.kind = kind;
    process.child_pid = Rig::kPid + 1;
    std::memset(process.comm, 'x', sizeof(process.comm));  // no terminator
    all.push_back(bytes_of(process, SIGMA_PROCESS));
  }
  for (uint32_t kind : {SIGMA_WINDOW_PAUSE, SIGMA_WINDOW_RESUME}) {
    sigma_window window{};
    window.kind = kind;
    all.push_back(bytes_of(window, SIGMA_WINDOW));
  }
  return all;
}

}  // namespace

TEST_CASE("session: mutated records neither crash it nor upset its books (seeded)") {
  const auto pool = seeds();
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    std::mt19937_64 random(seed);
    sigma::SessionOptions options;
    // Every second time without a limit of all queues together: then several threads must say the same.
    options.limits = {.pending_per_queue = 64, .pending = 256, .closed_objects = 32};
    if (seed % 2 == 0) options.limits.pending = sigma::SessionLimits().pending;
    Rig rig(options);
    for (int i = 0; i < 20000; ++i) {
      const Bytes& whole = pool[random() % pool.size()];
      size_t size = whole.size();
      if (random() % 16 == 0) size = random() % (size + 1);
      // Exactly as large as it is said to be, so that ASan sees a read beyond; aligned or not.
      const size_t shift = random() % 8 == 0 ? 1 + random() % 7 : 0;
      std::unique_ptr<std::byte[]> copy(new std::byte[shift + size]);
      std::copy(whole.begin(), whole.begin() + static_cast<long>(size), copy.get() + shift);
      if (size >= sizeof(uint64_t)) {
        const uint64_t now = ++rig.now;
        std::memcpy(copy.get() + shift, &now, sizeof(now));
      }
      if (random() % 4 == 0)
        for (size_t flips = 1 + random() % 4; flips > 0 && size > 0; --flips)
          copy[shift + random() % size] = static_cast<std::byte>(random());
      rig.deliver({copy.get() + shift, size});
    }
    const auto& counters = rig.session.counters();
    CHECK(counters.records_malformed > 100);
    CHECK(counters.operations > 1000);
    rig.session.queue_pairs();
    rig.session.memory_regions();

    // It still works.
    rig.window(SIGMA_WINDOW_RESUME, 0);
    rig.context("mlx5_7", 4242, 0x9999000);
    rig.create_qp(77, {}, 4242, 0x9999000);
    sigma_post post = Rig::post(77, 1);
    post.context = 0x9999000;
    rig.send_post(post, 4242);
    auto wc = Rig::completion(77, 1);
    wc.context = 0x9999000;
    rig.send_completion(wc, 4242);
    REQUIRE(rig.operations.back().latency_ns);
    CHECK(rig.operations.back().qp->device == "mlx5_7");

    rig.finish();
    CHECK(counters.operations == rig.operations.size());
    CHECK(counters.completed + counters.unfinished == counters.operations);
  }
}
