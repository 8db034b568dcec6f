// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completion, asynchronous and DevX events: messages in pipes, counted as the kernel counts them.
#include <infiniband/mlx5dv.h>
#include <rdma/ib_user_verbs.h>
#include <sys/ioctl.h>

#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "nic.h"

namespace connectx {

EventChannel* create_channel(Device& device) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return nullptr;
  fcntl(fds[1], F_SETFL, O_NONBLOCK);
  const int moved = fcntl(fds[1], F_DUPFD_CLOEXEC, 900);
  if (moved >= 0) {
    close(fds[1]);
    fds[1] = moved;
  }
  device.channels.push_back(std::make_unique<EventChannel>());
  *device.channels.back() = {fds[0], fds[1]};
  return device.channels.back().get();
}

void post_completion_event(Cq& cq) {
  const ib_uverbs_comp_event_desc event{cq.user_handle};
  if (write(cq.channel->write_fd, &event, sizeof event) == sizeof event) ++cq.events_sent;
}

void post_async_event(Device& device, uint32_t type, uint64_t element) {
  if (!device.async_events) return;
  const ib_uverbs_async_event_desc event{element, type, 0};
  if (write(device.async_events->write_fd, &event, sizeof event) != sizeof event)
    note("%s: an asynchronous event was lost", device.config->name.c_str());
}

void post_qp_event(Qp& qp, uint32_t type) {
  if (qp.devx) return;  // no handle to report it by
  post_async_event(*qp.device, type, qp.user_handle);
  ++qp.async_events;
}

void post_devx_event(Device& device, uint32_t object, uint16_t event) {
  for (const DevxSubscription& subscription : device.devx_subscriptions) {
    if (subscription.object != object || subscription.event != event) continue;
    const mlx5dv_devx_async_event_hdr header{subscription.cookie};
    if (write(subscription.channel->write_fd, &header, sizeof header) != sizeof header)
      note("%s: a DevX event was lost", device.config->name.c_str());
  }
}

unsigned drain_events(EventChannel* channel, size_t message_bytes, uint64_t element) {
  int waiting = 0;
  if (!channel || ioctl(channel->read_fd, FIONREAD, &waiting) != 0) return 0;
  unsigned removed = 0;
  for (; waiting >= static_cast<int>(message_bytes); waiting -= static_cast<int>(message_bytes)) {
    char message[64];
    if (read(channel->read_fd, message, message_bytes) != static_cast<ssize_t>(message_bytes)) break;
    uint64_t of;
    memcpy(&of, message, sizeof of);
    if (of == element) ++removed;
    else if (write(channel->write_fd, message, message_bytes) < 0) break;
  }
  return removed;
}

// Arming writes the arm word and then the CQ doorbell register of a UAR page.
static bool anything_armed(const Device& device) {
  for (const auto& [handle, page] : device.uar_pages) {
    if (*reinterpret_cast<const volatile uint64_t*>(page + MLX5_CQ_DOORBELL) != 0) return true;
  }
  return false;
}

// The arm word: sequence number 2 bits at 28, "solicited only" at 24, consumer index below. The
// device sends one event per sequence number, once a CQE at or past the index was written, and
// never twice for the same CQE. Zero is the initial word, but also what the first arming of a
// fresh queue writes: it counts once any doorbell register was used.
void check_arm(Cq& cq) {
  const uint32_t word = be32toh(__atomic_load_n(&cq.doorbell[1], __ATOMIC_ACQUIRE));
  if (word == 0 && !cq.armed_before && !anything_armed(*cq.device)) return;
  const auto number = static_cast<uint8_t>(word >> 28);
  if (cq.armed_before && number == cq.last_arm_number) return;
  const uint64_t reached = (word >> 24 & 1) ? cq.last_solicited : cq.produced;
  if (reached <= cq.notified) return;
  const uint32_t past = (reached - (word & 0xffffff)) & 0xffffff;
  if (past == 0 || past >= 0x800000) return;
  cq.armed_before = true;
  cq.last_arm_number = number;
  cq.notified = cq.produced;
  post_completion_event(cq);
}

}  // namespace connectx
