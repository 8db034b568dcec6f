// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A completion ring that queue pairs share, and one of them is destroyed: the library moves the others'
// unpolled entries up over its own. A model of device, owner and library, and the reader beside them.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "catch.h"
#include "cqe_writer.h"
#include "observe/cq_reader.h"
#include "observe_rig.h"

namespace {

using sigma::CqeBytes;
using sigma::CqeFields;
using sigma::LookTimes;
using sigma::RecordBuffer;
using sigma::RingBytes;

constexpr uint32_t kEntries = 32;
constexpr uint32_t kOwner = 7, kCq = 3;

class SharedCq {
 public:
  SharedCq() : memory_(kEntries * 64) {
    for (uint32_t slot = 0; slot < kEntries; ++slot) entry(slot)[63] = std::byte{MLX5_CQE_INVALID << 4};
  }

  // Without, it polls by itself, and the doorbell record says how many entries the library has removed.
  explicit SharedCq(bool owner_keeps_index) : SharedCq() { keeps_index_ = owner_keeps_index; }

  bool is_full() const { return produced_ - polled_ == kEntries; }
  void complete(const CqeFields& fields) {
    const CqeBytes bytes = image_of(fields, produced_ / kEntries & 1);
    std::copy(bytes.begin(), bytes.end(), entry(produced_).begin());
    ++produced_;
  }
  void poll() {
    if (polled_ < produced_) ++polled_;
    if (keeps_index_) consumed_ = polled_;
  }
  // What the library does once the queue pair is gone: from the newest entry back to the oldest that is
  // not polled, the others' are put as many places further on as it has found of that one's.
  void clean(uint32_t qp_num) {
    uint64_t end = consumed_, removed = 0;
    while (end < consumed_ + kEntries && is_there(end)) ++end;
    for (uint64_t at = end; at > consumed_; --at) {
      const auto from = entry(at - 1);
      if (qp_of(at - 1) == qp_num) {
        ++removed;
      } else if (removed > 0) {
        const auto to = entry(at - 1 + removed);
        const std::byte owner = to[63] & std::byte{1};
        std::copy(from.begin(), from.end(), to.begin());
        to[63] = (to[63] & std::byte{0xfe}) | owner;
      }
    }
    consumed_ += removed;
    if (keeps_index_) polled_ = consumed_;
  }

  std::vector<std::byte> copy(uint64_t first, uint64_t count) const {
    std::vector<std::byte> bytes;
    for (uint64_t i = first; i < first + count; ++i) {
      const auto* at = memory_.data() + i % kEntries * 64;
      bytes.insert(bytes.end(), at, at + 64);
    }
    return bytes;
  }
  uint64_t produced() const { return produced_; }
  uint64_t consumed() const { return consumed_; }

 private:
  std::span<std::byte, 64> entry(uint64_t position) {
    return std::span<std::byte, 64>(memory_.data() + position % kEntries * 64, 64);
  }
  bool is_there(uint64_t position) {
    const auto own = std::to_integer<uint8_t>(entry(position)[63]);
    return own >> 4 != MLX5_CQE_INVALID && (own & 1) == (position / kEntries & 1);
  }
  uint32_t qp_of(uint64_t position) {
    const auto at = entry(position);
    return std::to_integer<uint32_t>(at[57]) << 16 | std::to_integer<uint32_t>(at[58]) << 8 |
           std::to_integer<uint32_t>(at[59]);
  }

  std::vector<std::byte> memory_;
  uint64_t produced_ = 0, polled_ = 0, consumed_ = 0;
  bool keeps_index_ = true;
};

// One completion, by what its record says: errors have no stamp, but a counter of their own in their life.
using Told = std::tuple<uint32_t, uint32_t, uint16_t, uint64_t>;  // queue pair, life, counter, stamp

struct Model {
  explicit Model(uint32_t seed, bool owner_keeps_index = true) : random(seed), ring(owner_keeps_index) {
    sigma::CqSpec spec;
    spec.owner = {.pid = kOwner, .context = 1, .by_file = false, .number = kCq};
    spec.ring_addr = 0x1000;
    spec.ring = {.entries = kEntries, .entry_bytes = 64};
    reader = std::make_unique<sigma::CqReader>(spec, 0, [this](uint32_t qp_num) {
      const auto it = queues.find(qp_num);
      return it == queues.end() ? nullptr : it->second.get();
    });
    for (int i = 0; i < 4; ++i) create();
  }

  void create() {
    sigma::SendSpec spec;
    spec.owner = {.pid = kOwner, .context = 1, .by_file = false, .number = next_number++};
    spec.blocks = 64;
    queues[spec.owner.number] =
        std::make_unique<sigma::SendReader>(spec, 0, sigma::SendReader::Mode::read, false);
  }
  // A receive from a shared queue, a send, or an error, of any queue pair.
  void complete(bool errors) {
    if (ring.is_full()) return;
    auto it = queues.begin();
    std::advance(it, random() % queues.size());
    const bool error = errors && random() % 8 == 0;
    CqeFields fields;
    fields.opcode = error ? MLX5_CQE_RESP_ERR : random() % 3 ? MLX5_CQE_RESP_SEND : MLX5_CQE_REQ;
    fields.qp_num = it->first;
    fields.timestamp = ++stamp;
    if (fields.opcode == MLX5_CQE_REQ) {
      fields.wqe_counter = sends[it->first]++;
    } else {
      fields.wqe_counter = error ? flushed[it->first]++ : static_cast<uint16_t>(random() % 4);  // slots come again
    }
    if (error) fields.syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
    if (error) fields.timestamp = 0;
    ring.complete(fields);
    truth.insert({fields.qp_num, fields.opcode, fields.wqe_counter, fields.timestamp});
  }
  void receive(uint32_t qp_num) {
    const CqeFields fields{.opcode = MLX5_CQE_RESP_SEND, .qp_num = qp_num, .timestamp = ++stamp};
    ring.complete(fields);
    truth.insert({qp_num, fields.opcode, fields.wqe_counter, fields.timestamp});
  }
  void look() {
    now += 1000;
    const LookTimes times{now - 1000, now};
    if (!reader->is_read()) return look_at_index(times);
    observe_rig::look_at(*reader, ring, static_cast<uint32_t>(ring.consumed()), times, out);
  }
  void look_at_index(const LookTimes& times) {
    const auto check = reader->index_check();
    const auto first = ring.copy(check.first, check.count);
    const auto consumer = static_cast<uint32_t>(ring.consumed());
    if (!reader->on_counted(consumer, RingBytes{std::span<const std::byte>(first)}, times, out)) return;
    ++second_copies;
    const auto second = ring.copy(check.first, check.count);
    reader->on_index_check(RingBytes{std::span<const std::byte>(first)}, RingBytes{std::span<const std::byte>(second)},
                           now, out);
  }
  // As the command begins, by BPF.
  void last_look() {
    const uint64_t first = reader->next() - std::min<uint64_t>(reader->next(), 7);
    const auto bytes = ring.copy(first, kEntries);
    reader->on_last(first, RingBytes{std::span<const std::byte>(bytes)}, static_cast<uint32_t>(ring.consumed()),
                    {now, now + 10}, out);
  }
  // More comes in before the device has heard of it, of the one that goes as well.
  void destroy(bool errors) {
    last_look();
    auto it = queues.begin();
    std::advance(it, random() % queues.size());
    for (uint32_t n = random() % 6; n > 0; --n) complete(errors);
    if (random() % 4 == 0) look();
    ring.clean(it->first);
    if (random() % 2) look();  // and before the reader hears of it
    queues.erase(it);
    create();
  }

  void hear() {
    heard.take(out);
    for (const sigma_ring_completion& cqe : std::exchange(heard.completions, {})) {
      const Told completion{cqe.number, cqe.raw_opcode, cqe.wqe_counter, cqe.nic_stamp};
      CHECK(truth.contains(completion));
      CHECK(told.insert(completion).second);
      ++count;
    }
    missed = heard.missed;
    if (!heard.states.empty()) state = heard.states.back();
  }

  std::mt19937 random;
  SharedCq ring;
  std::map<uint32_t, std::unique_ptr<sigma::SendReader>> queues;
  std::map<uint32_t, uint16_t> sends, flushed;
  std::unique_ptr<sigma::CqReader> reader;
  RecordBuffer out;
  observe_rig::Heard heard;
  std::set<Told> truth, told;
  sigma_ring state{};  // as last said
  uint64_t count = 0, missed = 0, stamp = 100, now = 1'000'000, second_copies = 0;
  uint32_t next_number = 0x80;
};

}  // namespace

TEST_CASE("observe: an entry that the library has moved is told once, and the one under it is missed") {
  Model model(1);
  const auto receive = [&](uint32_t qp_num) { model.receive(qp_num); };
  for (const uint32_t qp_num : {0x82u, 0x83u}) receive(qp_num);
  model.last_look();
  receive(0x80);  // while its queue pair is being destroyed
  receive(0x80);
  model.ring.clean(0x80);
  for (int i = 0; i < 3; ++i) model.look();
  receive(0x83);
  for (int i = 0; i < 3; ++i) model.look();
  model.hear();
  CHECK(model.count == 3);
  CHECK(model.missed == 2);
  CHECK(model.reader->next() == 5);
}

// UCX polls by itself: the library's index, which stands in the doorbell record, knows of its cleanings only.
TEST_CASE("observe: laps show where the only index is that of the library's cleanings") {
  struct Case {
    uint32_t before, lap;  // receives: read one by one, and while nobody looks
  };
  const Case each =
      GENERATE(Case{6, 40}, Case{6, 64}, Case{6, 70}, Case{6, 150}, Case{40, 40}, Case{70, 33}, Case{70, 64}, Case{70, 20});
  // Of those that stand the oldest one only shows that the next one does.
  const uint64_t missed = each.lap < kEntries ? 0 : each.lap - (kEntries - 1), rounds = each.lap / (2 * kEntries + kEntries);
  CAPTURE(each.before, each.lap);
  Model model(1, false);
  const auto receive = [&](uint32_t qp_num) { model.receive(qp_num); };
  const auto look = [&] {
    for (int i = 0; i < 3; ++i) model.look();
    model.hear();
  };
  for (uint32_t i = 0; i < 5; ++i) receive(i == 0 ? 0x80 : 0x81), look();
  model.ring.clean(0x80);
  REQUIRE(model.ring.consumed() == 1);
  look();
  for (uint32_t i = 0; i < each.before; ++i) receive(0x82), look();
  CHECK(model.missed == 0);
  CHECK(model.count == 5 + each.before);
  for (uint32_t i = 0; i < each.lap; ++i) receive(0x83);
  look();
  for (uint32_t i = 0; i < 3; ++i) receive(0x82), look();
  // Beyond, they are known modulo twice the ring's entries.
  CHECK(model.missed == missed - rounds * 2 * kEntries);
  CHECK(model.count + model.missed == model.reader->next());
  CHECK(model.ring.produced() - model.reader->next() == rounds * 2 * kEntries);
  // The last ones, each at its place.
  for (uint64_t stamp = model.stamp - 2; stamp <= model.stamp; ++stamp)
    CHECK(model.told.contains({0x82u, MLX5_CQE_RESP_SEND, uint16_t{7}, stamp}));
}

// Then the index is all that there is, and says that nothing comes.
TEST_CASE("observe: where the index alone is looked at, that of the library's cleanings is not believed") {
  struct Case {
    uint32_t before;   // receives, read one by one
    uint32_t at_once;  // then, while entries are not read: so many between two looks
  };
  const Case each = GENERATE(Case{0, 1}, Case{6, 1}, Case{6, 7}, Case{28, 1}, Case{6, 40}, Case{20, 64}, Case{60, 1});
  CAPTURE(each.before, each.at_once);
  Model model(1, false);
  const auto receive = [&](uint32_t qp_num) { model.receive(qp_num); };
  const auto look = [&] { model.look(), model.hear(); };
  for (uint32_t i = 0; i < 5; ++i) receive(i == 0 ? 0x80 : 0x81), look();
  model.ring.clean(0x80);
  look();
  for (uint32_t i = 0; i < each.before; ++i) receive(0x82), look();
  model.reader->set_counted(true, "observer cpu", model.now, model.out);
  // What an index says that was found out already is not believed to begin with.
  CHECK(model.reader->is_read() == (each.before == 60));
  uint64_t unread = 0;
  while (!model.reader->is_read()) {
    for (uint32_t i = 0; i < each.at_once; ++i) receive(0x83);
    unread += each.at_once;
    REQUIRE(unread < 8 * kEntries * each.at_once);
    look();
  }
  // It is said, and the rest is read: what was overwritten meanwhile is a gap, and its count marked.
  if (unread > 0) {
    CHECK(model.state.mode == SIGMA_RING_READ);
    CHECK((model.state.flags & SIGMA_RING_OVERRUN) != 0);
  }
  for (int i = 0; i < 3; ++i) look();
  for (uint32_t i = 0; i < 3; ++i) receive(0x82), look(), look();
  CHECK(model.count + model.missed == model.reader->next());
  CHECK((model.ring.produced() - model.reader->next()) % (2 * kEntries) == 0);
  for (uint64_t stamp = model.stamp - 2; stamp <= model.stamp; ++stamp)
    CHECK(model.told.contains({0x82u, MLX5_CQE_RESP_SEND, uint16_t{7}, stamp}));
  model.reader->end(model.now, model.out);
  model.hear();
  CHECK(bool(model.state.flags & SIGMA_RING_MODULO) == (unread > kEntries));
}

// Its cleanings move older entries to where the index is, and it may stand still for as long as a ring has room.
TEST_CASE("observe: where the index alone is looked at, its owner's is believed (seeded)") {
  uint64_t missed = 0, second_copies = 0, looks = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Model model(seed);
    bool counted = false, known = false;
    for (int turn = 0; turn < 400; ++turn) {
      const uint32_t what = model.random() % 64;
      if (what < 24) model.complete(seed % 2);
      else if (what < 44) model.ring.poll();
      else if (what < 61) model.look(), ++looks;
      else if (what < 63) model.reader->set_counted(counted = !counted, "", model.now, model.out);
      else model.destroy(seed % 2);
      known |= model.reader->counts();
      REQUIRE(model.reader->counts() == known);
      REQUIRE(model.reader->is_read() == !(counted && known));
    }
    model.reader->set_counted(false, "", model.now, model.out);
    for (int i = 0; i < 40; ++i) model.look();
    model.hear();
    CHECK(model.count + model.missed == model.reader->next());
    CHECK(model.reader->next() == model.ring.produced());
    CHECK((model.state.flags & SIGMA_RING_MODULO) == 0);
    missed += model.missed;
    second_copies += model.second_copies;
  }
  CHECK(missed > 1000);
  CHECK(second_copies > 1000);
  CHECK(second_copies < looks / 4);
}

TEST_CASE("observe: no completion is told twice, whatever is destroyed meanwhile (seeded)") {
  uint64_t missed = 0, count = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Model model(seed);
    for (int turn = 0; turn < 400; ++turn) {
      const uint32_t what = model.random() % 64;
      if (what < 24) model.complete(seed % 2);
      else if (what < 44) model.ring.poll();
      else if (what < 62) model.look();
      else model.destroy(seed % 2);
    }
    for (int i = 0; i < 40; ++i) model.look();
    model.hear();
    CHECK(model.count + model.missed == model.reader->next());
    CHECK(model.reader->next() == model.ring.produced());
    missed += model.missed;
    count += model.count;
  }
  CHECK(missed > 100);
  CHECK(count > 10'000);
}

// Its owner may then be a lap ahead of the reader, and is not bounded by the index.
TEST_CASE("observe: what is told of a cleaned ring without its owner's index is true, and told once (seeded)") {
  uint64_t missed = 0, count = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Model model(seed, false);
    const auto turn = [&] {
      const uint32_t what = model.random() % 64;
      if (what < 24) model.complete(false);
      else if (what < 48) model.ring.poll();
      else if (what < 63) model.look();
      else model.destroy(false);
    };
    for (int round = 0; round < 20; ++round) {
      for (int i = 0; i < 100; ++i) turn();
      for (uint32_t i = model.random() % (2 * kEntries); i > 0; --i) model.complete(false), model.ring.poll();
    }
    for (int i = 0; i < 40; ++i) model.look();
    model.hear();
    CHECK(model.count + model.missed == model.reader->next());
    CHECK((model.ring.produced() - model.reader->next()) % (2 * kEntries) == 0);
    missed += model.missed;
    count += model.count;
  }
  CHECK(missed > 100);
  CHECK(count > 10'000);
}
