// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// DevX commands written by the places that the stacks' headers give them. Bits count from the most
// significant one of the first byte, as in mlx5_ifc.h; places were taken from compiled headers of
// NVSHMEM (2d7d25f) and UCX (9466d10), not from the decoder.
#include "decode/prm.h"

#include <infiniband/verbs.h>

#include <vector>

#include "catch.h"

using namespace sigma;

namespace {

class Blob {
 public:
  explicit Blob(size_t bytes) : bytes_(bytes) {}
  Blob& set(size_t first_bit, unsigned width, uint64_t value) {
    for (unsigned i = 0; i < width; ++i) {
      const size_t bit = first_bit + i;
      const auto mask = static_cast<std::byte>(0x80 >> bit % 8);
      if (value >> (width - 1 - i) & 1)
        bytes_[bit / 8] |= mask;
      else
        bytes_[bit / 8] &= ~mask;
    }
    return *this;
  }
  Blob& byte(size_t at, unsigned width, uint64_t value) { return set(at * 8, width, value); }
  std::span<const std::byte> span() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

Blob answer(uint32_t number) {
  return Blob(16).byte(9, 24, number);
}

// CREATE_CQ as UCX sends it.
Blob create_cq() {
  Blob cq(0x110);
  cq.byte(0, 16, 0x400).byte(0x50, 64, 0x1000).byte(0x58, 32, 7);
  const size_t context = 0x10 * 8;
  cq.set(context + 8, 3, 1).set(context + 0x20, 32, 9);  // 128 bytes; doorbell's umem
  cq.set(context + 99, 5, 10).set(context + 0x68, 24, 0x55).set(context + 0xb8, 8, 3);
  cq.set(context + 0x1c0, 64, 0x40);
  return cq;
}

constexpr size_t kQpc = 0x18 * 8, kPath = kQpc + 0x18 * 8;

}  // namespace

TEST_CASE("CREATE_CQ: places, sizes, modes") {
  auto facts = decode_prm(create_cq().span(), answer(0xabc).span());
  REQUIRE(facts);
  CHECK((facts->object == PrmObject::cq && facts->action == PrmAction::create));
  CHECK(facts->number == 0xabc);
  REQUIRE((facts->ring && facts->doorbell));
  CHECK((facts->ring->umem_id == 7 && facts->ring->offset == 0x1000));
  CHECK((facts->doorbell->umem_id == 9 && facts->doorbell->offset == 0x40));
  CHECK(facts->cq_entries == 1024);
  CHECK(facts->cqe_bytes == 128);
  CHECK((facts->uar_page == 0x55 && facts->eqn == 3));
  CHECK((facts->collapsed == false && facts->overrun_ignore == false));
  CHECK(facts->cq_layout == CqLayout::plain);

  // NVSHMEM: one entry of 64 bytes for all, never overrun.
  Blob collapsed = create_cq();
  const size_t context = 0x10 * 8;
  collapsed.set(context + 8, 3, 0).set(context + 11, 1, 1).set(context + 14, 1, 1);
  collapsed.set(context + 99, 5, 0);
  facts = decode_prm(collapsed.span(), {});
  REQUIRE(facts);
  CHECK((facts->cqe_bytes == 64 && facts->collapsed == true && facts->overrun_ignore == true));
  CHECK(facts->cq_entries == 1);
  CHECK_FALSE(facts->number);

  // UCX with CQE zipping; DPDK's older layout; real-time stamps.
  Blob zipped = create_cq();
  zipped.set(context + 17, 1, 1).set(context + 94, 2, 2);
  CHECK(decode_prm(zipped.span(), {})->cq_layout == CqLayout::compressed_basic);
  zipped.set(context + 25, 7, 1);
  CHECK(decode_prm(zipped.span(), {})->cq_layout == CqLayout::compressed_enhanced);
  CHECK(decode_prm(zipped.span(), {})->timestamp_format == 2);
}

TEST_CASE("CREATE_QP: the send queue stands behind the receive queue") {
  Blob qp(0x110);
  qp.byte(0, 16, 0x500).byte(0x100, 64, 0x2000).byte(0x108, 32, 17).byte(0x10c, 8, 0x80);
  qp.set(kQpc + 8, 8, 0).set(kQpc + 0x28, 24, 0x31).set(kQpc + 81, 4, 9);
  qp.set(kQpc + 0x68, 24, 0x56).set(kQpc + 0x88, 24, 0x22).set(kQpc + 0x3e8, 24, 0x111);
  qp.set(kQpc + 0x4e8, 24, 0x222).set(kQpc + 0x500, 64, 0x80).set(kQpc + 0x720, 32, 19);
  qp.set(kQpc + 0x565, 3, 3);
  auto facts = decode_prm(qp.span(), answer(0x654321).span());
  REQUIRE(facts);
  CHECK(facts->number == 0x654321);
  CHECK((facts->ring->umem_id == 17 && facts->ring->offset == 0x2000));
  CHECK((facts->doorbell->umem_id == 19 && facts->doorbell->offset == 0x80));
  CHECK(facts->service == QpService::rc);
  CHECK((facts->sq_blocks == 512 && facts->sq_offset == 0));
  CHECK((facts->send_cqn == 0x111 && facts->recv_cqn == 0x222));
  CHECK((facts->pd == 0x31 && facts->uar_page == 0x56 && facts->user_index == 0x22));
  CHECK_FALSE(facts->srqn);

  // A receive queue of its own: 64 entries of 32 bytes.
  qp.set(kQpc + 0x565, 3, 0).set(kQpc + 73, 4, 6).set(kQpc + 77, 3, 1);
  facts = decode_prm(qp.span(), answer(1).span());
  CHECK((facts->rq_entries == 64 && facts->rq_stride_bytes == 32 && facts->sq_offset == 2048));
  // The same numbers on a shared receive queue mean nothing.
  qp.set(kQpc + 0x565, 3, 1).set(kQpc + 0x568, 24, 0x333);
  facts = decode_prm(qp.span(), answer(1).span());
  CHECK((facts->sq_offset == 0 && facts->srqn == 0x333));

  qp.set(kQpc + 80, 1, 1).set(kQpc + 8, 8, 5);
  facts = decode_prm(qp.span(), answer(1).span());
  CHECK_FALSE(facts->sq_blocks);
  CHECK(facts->service == QpService::dci);

  Blob failed = answer(1);
  failed.byte(0, 8, 3).byte(4, 32, 0x1234567);
  facts = decode_prm(qp.span(), failed.span());
  CHECK((facts->status == 3 && facts->syndrome == 0x1234567));
  CHECK_FALSE(facts->number);
}

TEST_CASE("QP transitions: state, peer, path") {
  Blob init(0x110);
  init.byte(0, 16, 0x502).byte(9, 24, 0x77).set(kPath + 16, 16, 5).set(kPath + 0x128, 8, 2);
  auto facts = decode_prm(init.span(), {});
  REQUIRE(facts);
  CHECK((facts->number == 0x77 && facts->to_state == IBV_QPS_INIT));
  CHECK((facts->pkey_index == 5 && facts->port == 2));

  Blob rtr(0x110);
  rtr.byte(0, 16, 0x503).byte(9, 24, 0x77).set(kQpc + 0x40, 3, IBV_MTU_4096);
  rtr.set(kQpc + 0xa8, 24, 0x88).set(kQpc + 0x4a8, 24, 0x1001).set(kQpc + 0x4a3, 5, 12);
  rtr.set(kPath + 0x48, 8, 3).set(kPath + 0x58, 8, 64).set(kPath + 100, 8, 96);
  rtr.set(kPath + 0x80, 64, 0).set(kPath + 0xc0, 64, 0x0000ffff0a010203);
  rtr.set(kPath + 266, 6, 26).set(kPath + 0x110, 16, 0xc123).set(kPath + 0x128, 8, 1);
  facts = decode_prm(rtr.span(), {});
  REQUIRE(facts);
  CHECK((facts->to_state == IBV_QPS_RTR && facts->mtu_bytes == 4096));
  CHECK((facts->peer_qp_num == 0x88 && facts->rq_psn == 0x1001 && facts->min_rnr_timer == 12));
  CHECK((facts->source_gid_index == 3 && facts->hop_limit == 64 && facts->traffic_class == 96));
  REQUIRE(facts->peer_gid);
  CHECK(*facts->peer_gid ==
        std::array<uint8_t, 16>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3});
  CHECK((facts->dscp == 26 && facts->udp_source_port == 0xc123 && facts->port == 1));
  CHECK_FALSE(facts->peer_lid);

  // InfiniBand without a GRH
  rtr.set(kPath + 0xc0, 64, 0).set(kPath + 0x110, 16, 0).set(kPath + 0x30, 16, 0x11);
  rtr.set(kPath + 292, 4, 4);
  facts = decode_prm(rtr.span(), {});
  CHECK((facts->peer_lid == 0x11 && facts->service_level == 4));
  CHECK_FALSE(facts->peer_gid);
  CHECK_FALSE(facts->udp_source_port);

  Blob rts(0x110);
  rts.byte(0, 16, 0x504).byte(9, 24, 0x77).set(kQpc + 0x3c8, 24, 0x2002);
  rts.set(kQpc + 909, 3, 7).set(kQpc + 912, 3, 6).set(kPath + 64, 5, 14);
  facts = decode_prm(rts.span(), {});
  CHECK((facts->to_state == IBV_QPS_RTS && facts->sq_psn == 0x2002));
  CHECK((facts->retry_count == 7 && facts->rnr_retry == 6 && facts->ack_timeout == 14));

  Blob reset(16);
  reset.byte(0, 16, 0x50a).byte(9, 24, 0x77);
  facts = decode_prm(reset.span(), {});
  CHECK((facts->to_state == IBV_QPS_RESET && facts->number == 0x77));
  reset.byte(0, 16, 0x507);
  CHECK(decode_prm(reset.span(), {})->to_state == IBV_QPS_ERR);
}

TEST_CASE("CREATE_RMP and CREATE_DCT") {
  Blob rmp(0x200);
  const size_t wq = 0x50 * 8;
  rmp.byte(0, 16, 0x90c).set(wq + 0x80, 64, 0xc0).set(wq + 0x10c, 4, 5).set(wq + 0x11b, 5, 8);
  rmp.set(wq + 0x140, 32, 21).set(wq + 0x160, 32, 22).set(wq + 0x180, 64, 0x3000);
  rmp.set(wq + 0x134, 4, 3);
  auto facts = decode_prm(rmp.span(), answer(0x99).span());
  REQUIRE(facts);
  CHECK((facts->object == PrmObject::rmp && facts->number == 0x99));
  CHECK((facts->doorbell->umem_id == 21 && facts->doorbell->offset == 0xc0));
  CHECK((facts->ring->umem_id == 22 && facts->ring->offset == 0x3000));
  CHECK((facts->rmp_stride_bytes == 32 && facts->rmp_entries == 256));
  CHECK(facts->strides_per_wqe == 8);

  Blob dct(0x90);
  const size_t context = 0x10 * 8;
  dct.byte(0, 16, 0x710).set(context + 0x48, 24, 0x444).set(context + 0xa8, 24, 0x555);
  dct.set(context + 0x100, 64, 0x1ee7a330).set(context + 0x145, 3, IBV_MTU_1024);
  dct.set(context + 0x148, 8, 1).set(context + 0xe0, 8, 96).set(context + 0x178, 8, 64);
  facts = decode_prm(dct.span(), answer(0x66).span());
  REQUIRE(facts);
  CHECK((facts->object == PrmObject::dct && facts->number == 0x66));
  CHECK((facts->recv_cqn == 0x444 && facts->srqn == 0x555));
  CHECK((facts->dc_access_key == 0x1ee7a330 && facts->mtu_bytes == 1024 && facts->port == 1));
  CHECK((facts->traffic_class == 96 && facts->hop_limit == 64));
}

TEST_CASE("commands that are cut short give what they have") {
  const Blob cq = create_cq();
  for (size_t bytes = 0; bytes < cq.span().size(); ++bytes) {
    const auto facts = decode_prm(cq.span().first(bytes), {});
    CHECK(facts.has_value() == (bytes >= 2));
    if (facts) CHECK(facts->ring.has_value() == (bytes >= 0x5c));
  }
  Blob other(16);
  other.byte(0, 16, 0x100);  // QUERY_HCA_CAP
  CHECK_FALSE(decode_prm(other.span(), {}));
}

TEST_CASE("a resource dump holds what the device says of a queue pair") {
  // info (5 words), command (6 words, with the number), error (11), the queue pair, terminate (1).
  constexpr size_t kInfo = 20, kCommand = 24, kError = 44, kHead = 16, kQp = kHead + 0x110;
  constexpr size_t kAt = kInfo + kCommand + kError;
  Blob dump(kAt + kQp + 4);
  dump.byte(0, 16, kInfo / 4).byte(2, 16, 0xfffe);
  dump.byte(kInfo, 16, kCommand / 4).byte(kInfo + 2, 16, 0xfffd).byte(kInfo + 8, 32, 0x4711);
  dump.byte(kInfo + kCommand, 16, kError / 4).byte(kInfo + kCommand + 2, 16, 0xfffc);
  dump.byte(kAt, 16, kQp / 4).byte(kAt + 2, 16, 0x3001).byte(kAt + 8, 32, 0x4711);
  dump.byte(kAt + kQp, 16, 1).byte(kAt + kQp + 2, 16, 0xfffb);
  const size_t answer = (kAt + kHead) * 8, qpc = answer + kQpc, path = answer + kPath;
  dump.set(qpc, 4, 3).set(qpc + 64, 3, IBV_MTU_4096).set(qpc + 0xa8, 24, 0x815);
  dump.set(qpc + 0x4a8, 24, 0x1001).set(qpc + 0x3c8, 24, 0x2002).set(qpc + 909, 3, 7);
  dump.set(qpc + 912, 3, 6).set(path + 64, 5, 14).set(path + 9 * 8, 8, 3).set(path + 0xb * 8, 8, 64);
  dump.set(path + 0x80, 64, 0).set(path + 0xc0, 64, 0xffff0a010203).set(path + 0x25 * 8, 8, 1);

  auto facts = decode_qp_dump(dump.span());
  REQUIRE(facts);
  CHECK((facts->object == PrmObject::qp && facts->action == PrmAction::none));
  CHECK((facts->number == 0x4711 && facts->peer_qp_num == 0x815 && facts->to_state == IBV_QPS_RTS));
  CHECK((facts->mtu_bytes == 4096 && facts->rq_psn == 0x1001 && facts->sq_psn == 0x2002));
  CHECK((facts->retry_count == 7 && facts->rnr_retry == 6 && facts->ack_timeout == 14));
  CHECK((facts->source_gid_index == 3 && facts->hop_limit == 64 && facts->port == 1));
  REQUIRE(facts->peer_gid);
  CHECK(*facts->peer_gid ==
        std::array<uint8_t, 16>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3});
  CHECK_FALSE(facts->peer_lid);

  // Cut short, it says nothing; nor where the query failed, nor where lengths make no sense.
  for (size_t bytes = 0; bytes < kAt + kQp; ++bytes)
    CHECK_FALSE(decode_qp_dump(dump.span().first(bytes)));
  Blob failed = dump;
  failed.set(answer, 8, 5);
  CHECK_FALSE(decode_qp_dump(failed.span()));
  Blob endless = dump;
  endless.byte(0, 16, 0);
  CHECK_FALSE(decode_qp_dump(endless.span()));
}
