// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Contexts and queue pairs that come and go, and uverbs commands.
#include <new>

#include "workload.h"

// A context is closed and another opened at its address; the QP there has the same number.
void reopen() {
  for (const char* name : {"sigma_a", "sigma_b"}) {
    static World world;
    world.~World();
    new (&world) World(name);
    ibv_send_wr wr = {};
    ibv_send_wr* bad = nullptr;
    provider_post_send(world.plain(), &wr, &bad);
    provider_close_device(&world.context);
    world.say_first_sight();
    PostText text = world.post(SIGMA_QUEUE_SEND);
    text.flags = common_flags();
    say(text.text());
    world.say_context(SIGMA_CONTEXT_CLOSED);
  }
}

namespace {

void command(World& world, uint16_t object, uint16_t method) {
  provider_command command = {};
  command.hdr.object_id = object;
  command.hdr.method_id = method;
  provider_execute_ioctl(&world.context, &command);
  say(uverbs_text(address(&world.context), object, method, 0, 0, 0, ""));
}

}  // namespace

// Queue pairs are destroyed, by either kind of command, and others come to stand at their address.
// Their number is all that changes. The tracer has seen commands of this context, so it may rely on
// them.
void replaced() {
  World world;
  world.say_context();
  command(world, 7, 0);  // a memory region: of no consequence
  world.say_queue_pair();
  for (int i = 0; i < 3; i++) plain_post(world);
  world.qp.qp_base.qp_num = 18;
  command(world, 4, 1);
  world.say_queue_pair();
  for (int i = 0; i < 3; i++) plain_post(world);
  world.qp.qp_base.qp_num = 19;
  command(world, 0, 0);
  world.say_queue_pair();
  for (int i = 0; i < 3; i++) plain_post(world);
  command(world, 4, 2);  // modified: still the same, so not reported again
  plain_post(world);
}

// The same by a library whose commands are not seen: read anew at each post.
void replaced_unseen() {
  World world;
  world.say_context();
  for (const uint32_t number : {17, 18, 17}) {
    world.qp.qp_base.qp_num = number;
    world.say_queue_pair();
    plain_post(world);
    plain_post(world);
  }
}

// Long enough for whatever is remembered of a queue pair to be used.
void many_posts() {
  World world;
  world.say_context();
  command(world, 3, 0);
  world.say_queue_pair();
  for (int i = 0; i < 1000; i++) plain_post(world);
}

namespace {

std::string hex(const std::vector<uint8_t>& bytes, size_t limit) {
  std::string text;
  for (size_t i = 0; i < bytes.size() && i < limit; i++) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

}  // namespace

// uverbs commands: inline and pointed-to inputs, small and large outputs, a payload that is cut,
// more attributes than are read, and more payload than a record holds.
void commands() {
  World world;
  bool first = true;
  auto run = [&](std::vector<std::vector<uint8_t>> payloads, std::vector<uint16_t> flags,
                 int result) {
    provider_command command = {};
    command.hdr.object_id = 3;
    command.hdr.method_id = 1;
    command.hdr.driver_id = 9;
    command.num_attrs = static_cast<int>(payloads.size());
    command.result = result;
    for (size_t i = 0; i < payloads.size(); i++) {
      auto& attr = command.attrs[i];
      attr.attr_id = static_cast<uint16_t>(0x1000 + i);
      attr.len = static_cast<uint16_t>(payloads[i].size());
      attr.flags = flags[i];
      if (payloads[i].size() <= 8 && !(flags[i] & 2))
        memcpy(&attr.data, payloads[i].data(), payloads[i].size());
      else
        attr.data = address(payloads[i].data());
    }
    provider_execute_ioctl(&world.context, &command);
    if (first) world.say_context(), first = false;
    std::string attributes;
    size_t used = 64 + 16 * (payloads.size() < 24 ? payloads.size() : 24);
    unsigned record_flags = payloads.size() > 24 ? SIGMA_UVERBS_TRUNCATED : 0;
    for (size_t i = 0; i < payloads.size() && i < 24; i++) {
      const size_t n = payloads[i].size();
      std::string text;
      if (n <= 8 && !(flags[i] & 2)) {
        text = fmt::format("={:x}", static_cast<uint64_t>(command.attrs[i].data));
      } else if (used + 640 > 4096) {
        text = "absent";
        record_flags |= SIGMA_UVERBS_TRUNCATED;
      } else {
        text = hex(payloads[i], 640);
        used += ((n < 640 ? n : 640) + 7) / 8 * 8;
        if (n > 640) record_flags |= SIGMA_UVERBS_TRUNCATED;
      }
      attributes += attribute_text(static_cast<unsigned>(0x1000 + i), static_cast<unsigned>(n),
                                   flags[i], text);
    }
    say(uverbs_text(address(&world.context), 3, 1, 9, result, record_flags, attributes));
  };
  auto bytes = [](size_t n) {
    std::vector<uint8_t> list(n);
    for (size_t i = 0; i < n; i++) list[i] = static_cast<uint8_t>(i * 7 + n);
    return list;
  };
  run({}, {}, 0);
  run({bytes(0), bytes(4), bytes(8), bytes(9), bytes(100)}, {1, 1, 1, 1, 1}, 0);
  run({bytes(4), bytes(8), bytes(300)}, {2, 3, 2}, 0);
  run({bytes(16)}, {1}, 22);
  run({bytes(640), bytes(641), bytes(2000)}, {1, 1, 1}, 0);
  run(std::vector<std::vector<uint8_t>>(8, bytes(640)), std::vector<uint16_t>(8, 1), 0);
  run(std::vector<std::vector<uint8_t>>(30, bytes(12)), std::vector<uint16_t>(30, 1), 0);
}
