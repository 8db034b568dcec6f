// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Posts that were read from rings: without wr_id but with an index.
//
// A request may be told by a probe and by the ring; the index is the key, the probe's word (a point in
// time, the wr_id) stands. Of calls that ran at once the probe knows the content only; then the content
// is the key, and the ring tells the index.
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstring>

#include "session/correlate.h"

namespace sigma {
namespace {

bool same_content(const Pending& probed, const sigma_ring_post& post) {
  if (probed.source != Source::probe || probed.opcode != post.opcode) return false;
  const bool is_inline = probed.send_flags & IBV_SEND_INLINE;
  if (!(post.flags & SIGMA_RING_NO_BYTES) && probed.bytes != post.bytes) return false;
  if (!is_inline && probed.num_sge != 0 && probed.local_addr != post.local_addr) return false;
  const WrTraits traits = traits_of_wr(probed.opcode);
  return !traits.remote || (probed.remote_addr == post.remote_addr && probed.rkey == post.rkey);
}

std::shared_ptr<const Address> peer_of(const sigma_ring_post& post) {
  if (!(post.flags & SIGMA_RING_HAS_QPN)) return nullptr;
  Address address;
  if (post.flags & SIGMA_RING_HAS_GID) {
    address.gid.emplace();
    std::memcpy(address.gid->data(), &post.gid_prefix, 8);
    std::memcpy(address.gid->data() + 8, &post.gid_interface, 8);
  }
  if (post.lid != 0) address.lid = post.lid;
  return std::make_shared<const Address>(address);
}

}  // namespace

Pending pending_of(const sigma_ring_post& post) {
  uint16_t post_flags = SIGMA_POST_HAS_INDEX;
  if (post.flags & SIGMA_RING_HAS_QPN) post_flags |= SIGMA_POST_HAS_AH;
  uint8_t send_flags = 0;
  if (post.flags & SIGMA_RING_SIGNALED) send_flags |= IBV_SEND_SIGNALED;
  if (post.flags & SIGMA_RING_INLINE) send_flags |= IBV_SEND_INLINE;
  uint8_t flags = 0;
  if (post.flags & SIGMA_RING_TRUNCATED) flags |= kTruncated;
  if (post.flags & SIGMA_RING_MODULO) flags |= kModulo;
  return {
      .time_ns = post.post_ns,
      .call_ns = 0,
      .wr_id = 0,
      .local_addr = post.local_addr,
      .remote_addr = post.remote_addr,
      .bytes = post.bytes,
      .peer = peer_of(post),
      .pid = post.h.pid,
      .tid = 0,
      .lkey = post.lkey,
      .rkey = post.rkey,
      .imm = post.imm,
      .remote_qpn = post.remote_qpn,
      .time_error_ns = post.post_error_ns,
      .index = post.index,
      .blocks = post.blocks,
      .position = 0,
      .num_sge = post.num_sge,
      .post_flags = post_flags,
      .opcode = post.opcode,
      .send_flags = send_flags,
      .flags = flags,
      .tier = post.tier,
      .source = post.tier == SIGMA_TIER_NONE || post.tier == 1 ? Source::ring : Source::gpu,
      .initiator = initiator_of(post.initiator),
      .ring_flags = post.flags,
  };
}

void Correlator::on_ring_post(Qp& qp, const sigma_ring_post& post) {
  if (!is_of_life(qp, ring_reader(post.tier), post.life)) return;
  qp.ring.told = true;
  ++counters_.ring_posts;
  qp.has_operations = true;
  if (!qp.info->type && post.qp_type != 0xff) qp.info->type = post.qp_type;
  if (!qp.info->observed) qp.info->observed.emplace();
  Observed& observed = *qp.info->observed;
  observed.seen += post.blocks;
  observed.by_margin += (post.flags & SIGMA_RING_MARGIN) != 0;
  observed.by_posterior += (post.flags & SIGMA_RING_POSTERIOR) != 0;

  ObservedRing& ring = qp.ring;
  ring.latest = std::max<uint64_t>(ring.latest, post.index);
  ring.read_until = std::max<uint64_t>(ring.read_until, post.index + post.blocks);
  if (merge(qp, post)) {
    ++counters_.ring_posts_merged;
  } else {
    if (post.flags & SIGMA_RING_TRUNCATED) ++counters_.truncated;
    make_room(qp.send.size(), &qp, Queue::send, nullptr);
    // Behind all that stand before it: a probe tells of its post at once, the ring later.
    size_t at = qp.send.size();
    while (at > 0 && qp.send[at - 1].is_placed() && qp.send[at - 1].index > post.index) --at;
    qp.send.insert(at, pending_of(post));
    ++pending_;
  }
  settle_waiting(qp);
}

// A probe has told of this request.
bool Correlator::merge(Qp& qp, const sigma_ring_post& post) {
  const auto confirm = [](Pending& probed) { probed.flags &= static_cast<uint8_t>(~kUnverified); };
  Pending* alike = nullptr;
  for (size_t i = qp.send.size(); i > 0; --i) {
    Pending& pending = qp.send[i - 1];
    if (pending.is_placed()) {
      if (pending.index == post.index) return confirm(pending), true;
      if (pending.index < post.index) break;
    } else if (pending.index <= post.index && same_content(pending, post)) {
      alike = &pending;
    }
  }
  if (qp.ring.probed.contains(post.index)) return true;
  if (alike != nullptr) {
    alike->index = post.index;
    alike->blocks = post.blocks;
    alike->post_flags |= SIGMA_POST_HAS_INDEX;
    alike->flags &= static_cast<uint8_t>(~kConcurrent);
    return confirm(*alike), true;
  }
  if (qp.ring.uncertain == 0) return false;
  --qp.ring.uncertain;
  return true;
}

// A send request has been reported: its ring may tell of it again.
void Correlator::note_reported(Qp& qp, const Pending& pending) {
  if (!qp.ring.active || pending.source != Source::probe) return;
  if (pending.is_placed())
    qp.ring.probed.add(pending.index, std::max<uint64_t>(pending.blocks, 1));
  else
    ++qp.ring.uncertain;
}

// The oldest request has been reported.
void Correlator::pop(Qp& qp, Queue side) {
  if (side == Queue::send) note_reported(qp, qp.send[0]);
  (side == Queue::send ? qp.send : qp.recv).pop_front();
  --pending_;
}

void Correlator::on_ring_gap(Qp& qp, const sigma_ring_gap& gap) {
  if (!is_of_life(qp, ring_reader(gap.tier), gap.life)) return;
  qp.ring.told = true;
  qp.ring.latest = std::max<uint64_t>(qp.ring.latest, gap.first + gap.count);
  qp.ring.read_until = std::max<uint64_t>(qp.ring.read_until, gap.first + gap.count);
  if (!qp.info->observed) qp.info->observed.emplace();
  qp.info->observed->missed += gap.count;
  ++qp.info->observed->gaps;
  qp.info->observed->modulo |= (gap.flags & SIGMA_RING_MODULO) != 0;
  ++counters_.ring_gaps;
  counters_.ring_blocks_missed += gap.count;
  settle_waiting(qp);
}

}  // namespace sigma
