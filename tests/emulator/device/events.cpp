// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completion, asynchronous and DevX events: messages in pipes, counted as the kernel counts them.
#include <infiniband/mlx5dv.h>
#include <rdma/ib_user_verbs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <fcntl.h>
#include <unistd.h>
#include <cstdio>
#include <cstring>

#include "nic.h"

namespace connectx {

namespace {

int high_copy(int fd) {
  // Out of the way of programs that count on low numbers.
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, 900);
  if (moved < 0) return fd;
  close(fd);
  return moved;
}

// Closes our ends of pipes whose reading end the application has closed.
void forget_closed_channels(Device& device) {
  std::erase_if(device.channels, [](const std::unique_ptr<EventChannel>& channel) {
    struct stat status;
    const bool open = fstat(channel->read_fd, &status) == 0 && status.st_ino == channel->inode;
    if (open || channel->users > 0) return false;
    close(channel->write_fd);
    close(channel->drain_fd);
    return true;
  });
}

}  // namespace

EventChannel* create_channel(Device& device) {
  forget_closed_channels(device);
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return nullptr;
  fcntl(fds[1], F_SETFL, O_NONBLOCK);
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fds[0]);
  // A file description of its own: the application's end may block.
  const int drain_fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat status;
  if (drain_fd < 0 || fstat(fds[0], &status) != 0) {
    close(fds[0]);
    close(fds[1]);
    return nullptr;
  }
  device.channels.push_back(std::make_unique<EventChannel>());
  EventChannel& channel = *device.channels.back();
  channel.read_fd = fds[0];
  channel.write_fd = high_copy(fds[1]);
  channel.drain_fd = high_copy(drain_fd);
  channel.inode = status.st_ino;
  return &channel;
}

void post_completion_event(Cq& cq) {
  const ib_uverbs_comp_event_desc event{cq.user_handle};
  if (write(cq.channel->write_fd, &event, sizeof event) == sizeof event) ++cq.events_sent;
}

bool post_async_event(EventChannel* channel, uint32_t type, uint64_t element) {
  if (!channel) return false;
  const ib_uverbs_async_event_desc event{element, type, 0};
  if (write(channel->write_fd, &event, sizeof event) == sizeof event) return true;
  note("asynchronous event %u was lost", type);
  return false;
}

void post_qp_event(Qp& qp, uint32_t type) {
  if (qp.devx) return;  // no handle to report it by
  qp.async_events += post_async_event(qp.async_channel, type, qp.user_handle);
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
  if (!channel || ioctl(channel->drain_fd, FIONREAD, &waiting) != 0) return 0;
  unsigned removed = 0;
  for (; waiting >= static_cast<int>(message_bytes); waiting -= static_cast<int>(message_bytes)) {
    char message[64];
    if (read(channel->drain_fd, message, message_bytes) != static_cast<ssize_t>(message_bytes))
      break;
    uint64_t of;
    memcpy(&of, message, sizeof of);
    if (of == element)
      ++removed;
    else if (write(channel->write_fd, message, message_bytes) < 0)
      break;
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
