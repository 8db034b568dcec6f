// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "native/tracer_rig.h"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "attach/features.h"
#include "catch.h"

namespace rig {
namespace {

const sigma::Features& probed() {
  static const sigma::Features features = sigma::Features::probe();
  return features;
}

// Of each of a million records: an assertion that holds would take longer than the tracer.
template <typename T>
void append(std::vector<T>& list, std::span<const std::byte> record) {
  if (record.size() != sizeof(T)) FAIL("a record of " << record.size() << " bytes");
  std::memcpy(&list.emplace_back(), record.data(), sizeof(T));
}

}  // namespace

Trace::Trace(std::vector<pid_t> pids, const std::string& without,
             const std::function<void(sigma::TracerOptions&)>& change, std::function<void()> on_say)
    : on_say_(std::move(on_say)) {
  sigma::Features features = probed();
  sigma::disable_features(features, without);
  sigma::TracerOptions options;
  options.pids = std::move(pids);
  options.budget = 0;
  if (change) change(options);
  auto tracer = sigma::Tracer::start(
      options, features, [this](std::span<const std::byte> record) { on_record(record); },
      [this](std::string_view line) {
        said_.emplace_back(line);
        if (on_say_) on_say_();
      });
  if (!tracer.ok()) FAIL(tracer.error().what << " (" << tracer.error().hint << ")");
  tracer_ = *std::move(tracer);
}

void Trace::on_record(std::span<const std::byte> record) {
  sigma_header header;
  if (record.size() < sizeof header) FAIL("a record of " << record.size() << " bytes");
  std::memcpy(&header, record.data(), sizeof header);
  switch (header.type) {
    case SIGMA_POST: return append(posts_, record);
    case SIGMA_COMPLETION: return append(completions_, record);
    case SIGMA_PROCESS: return append(processes_, record);
    case SIGMA_WINDOW: return append(windows_, record);
    default: return;
  }
}

void Trace::poll() {
  const auto polled = tracer_->poll();
  if (!polled.ok()) FAIL(polled.error().what);
}

void Trace::care() {
  poll();
  poll();
}

void Trace::poll_until(const std::function<bool()>& done) {
  while (!done()) {
    const timespec pause{0, static_cast<long>(tracer_->interval().count())};
    nanosleep(&pause, nullptr);
    poll();
  }
}

sigma::Counters Trace::counters() const {
  sigma::Counters counters;
  tracer_->add_to(counters);
  return counters;
}

bool Trace::has_said(const std::string& begin) const {
  return std::any_of(said_.begin(), said_.end(), [&](const std::string& line) { return line.starts_with(begin); });
}

std::string Trace::said() const {
  std::string text;
  for (const std::string& line : said_) text += line + '\n';
  for (const std::string& line : tracer_->statements()) text += line + '\n';
  return text;
}

std::vector<uint64_t> Trace::posts_of(pid_t pid, unsigned queue) const {
  std::vector<uint64_t> list;
  for (const sigma_post& post : posts_)
    if (post.h.pid == static_cast<uint32_t>(pid) && post.queue == queue) list.push_back(post.wr_id);
  return list;
}

std::vector<uint64_t> ids(const std::vector<Posted>& all) {
  std::vector<uint64_t> list;
  for (const Posted& posted : all)
    for (uint64_t id = posted.first; id < posted.end(); id++) list.push_back(id);
  return list;
}

std::vector<uint64_t> ids(const Posted& posted) { return ids(std::vector{posted}); }

}  // namespace rig
