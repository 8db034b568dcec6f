// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Rings and DevX commands, mutated: no read beyond the copy, an end, positions that stay in their
// bounds, and no entry that is counted twice or not at all.
#include <infiniband/mlx5dv.h>

#include "../unit/cqe_writer.h"
#include "../unit/wqe_writer.h"
#include "catch.h"
#include "decode/completion_ring.h"
#include "decode/prm.h"
#include "decode/send_ring.h"
#include "fuzzer.h"

using namespace sigma;

namespace {

constexpr uint32_t kQpNum = 0x1234;

constexpr QpService kServices[] = {QpService::unknown, QpService::rc,  QpService::uc,
                                   QpService::ud,      QpService::xrc, QpService::ud_underlay,
                                   QpService::dci,     QpService::raw};

// A ring of WQEs of most shapes, from position 65,530 on. Returns the bytes in posting order.
Bytes send_ring(uint64_t first, uint64_t& end) {
  WqeWriter writer(64);
  uint64_t at = first;
  const auto begin = [&](uint8_t opcode, uint8_t opmod = 0) -> WqeWriter& {
    return writer.begin(at, {opcode, kQpNum, opmod});
  };
  at += begin(MLX5_OPCODE_SEND).inline_data(200).end();
  at += begin(MLX5_OPCODE_RDMA_WRITE).remote(1, 2).data(3, 4, 5).data(6, 7, 8).end();
  at +=
      begin(MLX5_OPCODE_ATOMIC_MASKED_CS, 9).remote(1, 2).quads({1, 2, 3, 4}).data(8, 9, 10).end();
  at += begin(MLX5_OPCODE_UMR).zeros(176).end();
  at += begin(MLX5_OPCODE_SEND)
            .quads({9})
            .words({0x80000077, 0x0400c111})
            .zeros(32)
            .inline_data(9)
            .end();
  at += begin(MLX5_OPCODE_TSO).words({0, 0, 0, 54u << 16}).zeros(64).data(1, 2, 3).end();
  at += begin(MLX5_OPCODE_NOP).end();
  end = at;
  Bytes bytes((end - first) * 64);
  REQUIRE(writer.view(first, end).copy(0, bytes.data(), bytes.size()));
  return bytes;
}

// 32 entries of a layout: ordinary ones, sessions, an error.
Bytes completion_ring(CqLayout layout) {
  Bytes bytes(32 * 64);
  const auto put = [&](size_t slot, const CqeBytes& entry) {
    std::copy(entry.begin(), entry.end(), bytes.begin() + static_cast<long>(slot * 64));
  };
  for (uint16_t slot = 0; slot < 32; ++slot)
    put(slot, image_of({.opcode = static_cast<uint8_t>(slot % 5), .wqe_counter = slot}, 0));
  put(7, image_of({.opcode = MLX5_CQE_REQ_ERR, .syndrome = 0x15}, 0));
  CqeBytes minis{};
  for (size_t i = 0; i < 8; ++i) put_mini(minis, i, {.wqe_counter = static_cast<uint16_t>(i)});
  if (layout == CqLayout::compressed_basic) {
    put(10, image_of({.bytes = 9, .format = 3}, 0));
    put(11, minis);
    put(18, minis);
  }
  if (layout == CqLayout::compressed_enhanced) {
    put_block_mark(minis, 5, 0);
    put(10, minis);
  }
  return bytes;
}

// Two pieces of exactly their own size each, so that a read beyond either is seen.
struct Pieces {
  Bytes head, tail;
  Pieces(const Bytes& bytes, size_t seam)
      : head(bytes.begin(), bytes.begin() + static_cast<long>(std::min(seam, bytes.size()))),
        tail(bytes.begin() + static_cast<long>(std::min(seam, bytes.size())), bytes.end()) {}
  RingBytes view() const { return RingBytes(head, tail); }
};

}  // namespace

TEST_CASE("mutated send rings do no harm") {
  Fuzzer fuzzer("mlx5_send_ring");
  std::mt19937& random = fuzzer.random();
  constexpr uint64_t kFirst = 65'530;
  uint64_t end = 0;
  const Bytes sample = send_ring(kFirst, end);
  const SendRing ring{kQpNum, 64};
  size_t whole = 0, broken = 0, malformed = 0;
  for (int round = 0; round < 100'000 || !fuzzer.is_over(); ++round) {
    const Bytes bytes = mutate(sample, random);
    const Pieces pieces(bytes, random() % (bytes.size() + 1));
    const RingBytes slots = pieces.view();
    const uint64_t start = chain_start(ring, slots, kFirst, end);
    if (start < kFirst || start > end) FAIL("a chain outside of its bounds");
    whole += start == kFirst;
    broken += start != kFirst;
    uint64_t at = start;
    while (at < end) {
      Wqe wqe;
      const QpService service = kServices[random() % std::size(kServices)];
      // A chain's last WQE may be cut off by the copy's end behind its control segment.
      if (!decode_wqe(slots, (at - kFirst) * 64, service, wqe)) break;
      if (wqe.blocks == 0 || wqe.qp_num != kQpNum || wqe.index != (at & 0xffff))
        FAIL("not the WQE that the chain has");
      malformed += wqe.malformed;
      at += wqe.blocks;
    }
    if (at > end) FAIL("a chain beyond its end");
    // And from anywhere, as after a mistake of the caller's.
    Wqe wqe;
    decode_wqe(slots, random() % (bytes.size() + 64), kServices[random() % 8], wqe);
  }
  CHECK(whole > 10'000);
  CHECK(broken > 10'000);
  CHECK(malformed > 10'000);
}

TEST_CASE("mutated completion rings do no harm") {
  Fuzzer fuzzer("mlx5_completion_ring");
  std::mt19937& random = fuzzer.random();
  const CqLayout layouts[] = {CqLayout::plain, CqLayout::compressed_basic,
                              CqLayout::compressed_enhanced};
  Bytes samples[3];
  for (size_t i = 0; i < 3; ++i) samples[i] = completion_ring(layouts[i]);
  size_t completions = 0, lost_entries = 0;
  for (int round = 0; round < 100'000 || !fuzzer.is_over(); ++round) {
    const size_t kind = static_cast<size_t>(round) % 3;
    const uint32_t entry_bytes = random() % 8 == 0 ? 128 : 64;
    const CompletionRing ring{entry_bytes == 128 ? 16u : 32u, entry_bytes, layouts[kind]};
    const Bytes bytes = mutate(samples[kind], random);
    const Bytes other = random() % 8 == 0 ? mutate(bytes, random) : bytes;
    const Pieces first(bytes, random() % (bytes.size() + 1));
    const Pieces again(other, random() % (other.size() + 1));
    CompletionCursor cursor;
    const auto index = static_cast<uint32_t>(random() % 64);
    if (random() % 2) consumed_to(ring, cursor, random() % 16 == 0 ? 0x800000 | index : index);
    const uint64_t begin = cursor.next;
    uint64_t accounted = 0;
    for (bool more = true; more;) {
      Cqe cqe;
      uint64_t lost = 0;
      const CqNext what =
          next_completion(ring, cursor, random() % 4, first.view(), again.view(), cqe, lost);
      more = what == CqNext::completion || what == CqNext::lost || what == CqNext::resized;
      accounted += what == CqNext::lost ? lost : more;
      completions += what == CqNext::completion;
      lost_entries += lost;
      if (what == CqNext::lost && lost == 0) FAIL("no way on");
      if (cursor.left > cursor.block || cursor.block > kMaxSession) FAIL("a session too long");
    }
    if (cursor.next - begin != accounted) FAIL("an entry that is counted twice, or not at all");
    skip_to_newest(ring, cursor, first.view());
    if (bytes.size() >= kCqeBytes && other.size() >= kCqeBytes) {
      const auto a = std::span(bytes).first<kCqeBytes>(), b = std::span(other).first<kCqeBytes>();
      CompletionCursor collapsed;
      Cqe cqe;
      next_collapsed(collapsed, a, b, cqe);
    }
  }
  CHECK(completions > 100'000);
  CHECK(lost_entries > 10'000);
}

TEST_CASE("mutated DevX commands do no harm") {
  Fuzzer fuzzer("devx");
  std::mt19937& random = fuzzer.random();
  const uint16_t opcodes[] = {0x400, 0x500, 0x502, 0x503, 0x504, 0x507, 0x50a, 0x710, 0x90c, 0x100};
  Bytes answer(16);
  answer[11] = std::byte{0x42};
  size_t facts_seen = 0, none = 0;
  for (int round = 0; round < 200'000 || !fuzzer.is_over(); ++round) {
    Bytes sample(0x120, static_cast<std::byte>(random()));
    const uint16_t opcode = opcodes[random() % std::size(opcodes)];
    sample[0] = static_cast<std::byte>(opcode >> 8);
    sample[1] = static_cast<std::byte>(opcode);
    const Bytes command = mutate(sample, random), reply = mutate(answer, random);
    const auto facts = decode_prm(command, reply);
    facts_seen += facts.has_value();
    none += !facts.has_value();
    if (!facts) continue;
    if (facts->cq_entries && (*facts->cq_entries & (*facts->cq_entries - 1)))
      FAIL("no power of two");
    if (facts->sq_blocks && *facts->sq_blocks > 32'768) FAIL("more blocks than a queue has");
    if (facts->number && *facts->number > 0xffffff) FAIL("a number of more than 24 bits");
  }
  CHECK(facts_seen > 100'000);
  CHECK(none > 10'000);
}

TEST_CASE("mutated resource dumps do no harm") {
  Fuzzer fuzzer("qp_dump");
  std::mt19937& random = fuzzer.random();
  // A short segment, the queue pair's, the end.
  Bytes sample(20 + 0x120 + 4);
  sample[1] = std::byte{5};
  sample[21] = std::byte{0x120 / 4};
  sample[20 + 0x120 + 1] = std::byte{1};
  size_t known = 0, none = 0;
  for (int round = 0; round < 200'000 || !fuzzer.is_over(); ++round) {
    const auto facts = decode_qp_dump(mutate(sample, random));
    known += facts.has_value();
    none += !facts.has_value();
    if (facts && facts->peer_qp_num && *facts->peer_qp_num > 0xffffff)
      FAIL("a number of more than 24 bits");
  }
  CHECK(known > 10'000);
  CHECK(none > 10'000);
}
