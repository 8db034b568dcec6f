// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Rings that readers have taken up: whose word counts in which life of a queue pair, and what is known
// of the reading itself. Posts read from them: ring_posts.cpp; completions: ring_completions.cpp.
#include <string_view>
#include <utility>

#include "base/text_field.h"
#include "session/correlate.h"

namespace sigma {

void Correlator::on_ring(Qp& qp, const sigma_ring& ring) {
  const RingReader reader =
      ring.origin == SIGMA_RING_BY_LIBRARY ? RingReader::library : RingReader::observer;
  if (is_past(qp, reader, ring.life)) return;
  const bool begins = ring.event == SIGMA_RING_BEGIN;
  // One that has told nothing, or no more does, makes room for another; but the library that reads it, not
  // for the observer, to whom a device's memory may look like any other.
  const bool inside = qp.ring.reader == RingReader::library && reader == RingReader::observer &&
                      qp.info->observed && qp.info->observed->mode != SIGMA_RING_SETUP;
  const bool free = !qp.ring.active || (!qp.ring.told && !inside) || qp.ring.ended;
  if (begins && (qp.ring.reader == reader || free) &&
      (!qp.ring.active || qp.ring.reader != reader || qp.ring.life != ring.life)) {
    give_up_waiting(qp);
    qp.ring = {};
    qp.ring.active = true;
    qp.ring.reader = reader;
    qp.ring.life = ring.life;
    qp.ring.latest = qp.ring.read_until = ring.first;
    qp.ring.posted_before = qp.info->observed ? qp.info->observed->posted : 0;
    // Posts that probes told of before have 16 bits of their index.
    for (size_t i = 0; i < qp.send.size(); ++i)
      if (qp.send[i].has_index())
        qp.send[i].index = qp.ring.extend(static_cast<uint16_t>(qp.send[i].index));
    ++counters_.rings_observed;
  }
  if (!is_of_life(qp, reader, ring.life)) return;
  if (!qp.info->observed) qp.info->observed.emplace();
  Observed& observed = *qp.info->observed;
  observed.origin = ring.origin;
  observed.mode = ring.mode;
  if (initiator_of(ring.initiator) == Initiator::gpu && observed.initiator == Initiator::unknown)
    tell_initiator(qp, ring);
  observed.initiator = initiator_of(ring.initiator);
  if (ring.tier != SIGMA_TIER_NONE) observed.tier = ring.tier;
  take_reason(observed, ring);
  if (begins) return;
  observed.posted = qp.ring.posted_before + ring.posted;
  observed.modulo |= (ring.flags & SIGMA_RING_MODULO) != 0;
  if (ring.event == SIGMA_RING_END) qp.ring.ended = true;
}

// What is said of the ring itself takes the place of nothing: a queue that hung as its job was killed
// has hung, and its end was not seen.
void Correlator::take_reason(Observed& observed, const sigma_ring& ring) {
  const std::string_view reason = text_of(ring.reason);
  if (ring.event == SIGMA_RING_END && reason == SIGMA_RING_END_UNSEEN) {
    observed.end_unseen = true;
    ++counters_.ring_ends_unseen;
    return;
  }
  // Who does not read it any more does not know of it either.
  if (ring.mode != SIGMA_RING_SETUP) observed.hung = reason == SIGMA_RING_HUNG;
  if (reason != SIGMA_RING_HUNG && reason != SIGMA_RING_MOVES) observed.reason = reason;
}

// A queue in host memory may be read before the preloaded library has said that a GPU posts to it.
void Correlator::tell_initiator(Qp& qp, const sigma_ring& ring) {
  counters_.initiators_late += std::exchange(qp.ring.unsaid, 0);
  for (size_t i = 0; i < qp.send.size(); ++i) {
    Pending& pending = qp.send[i];
    if (pending.source == Source::probe || pending.initiator != Initiator::unknown) continue;
    pending.initiator = Initiator::gpu;
    pending.tier = ring.tier;
  }
}

// Of a life that ended with a reset; counted.
bool Correlator::is_past(const Qp& qp, RingReader reader, uint32_t life) {
  if (reader != RingReader::library || !qp.ring.before || life > *qp.ring.before) return false;
  ++counters_.ring_records_stale;
  return true;
}

// False: of a life that has ended, or by another reader than the life's; counted.
bool Correlator::is_of_life(Qp& qp, RingReader reader, uint32_t life) {
  if (is_past(qp, reader, life)) return false;
  if (!qp.ring.active) {  // the record of its begin was lost
    qp.ring.active = true;
    qp.ring.reader = reader;
    qp.ring.life = life;
  }
  if (qp.ring.reader != reader) {
    ++counters_.ring_records_refused;
    return false;
  }
  if (qp.ring.life == life) return true;
  ++counters_.ring_records_stale;
  return false;
}

}  // namespace sigma
