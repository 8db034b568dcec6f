// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "config.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace connectx {
namespace {

double env_number(const char* name, double otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtod(text, nullptr) : otherwise;
}

template <size_t N>
bool parse_hex(const char* text, std::array<uint8_t, N>& out) {
  if (strlen(text) != 2 * N) return false;
  for (size_t i = 0; i < N; ++i) {
    unsigned byte;
    if (sscanf(text + 2 * i, "%2x", &byte) != 1) return false;
    out[i] = static_cast<uint8_t>(byte);
  }
  return true;
}

// ORDINAL:POSITION, and a third number where one is asked for.
Faults::Place env_place(const char* name, uint8_t* more) {
  Faults::Place place;
  const char* text = getenv(name);
  unsigned ordinal;
  unsigned long long position;
  int extra;
  const int fields = text ? sscanf(text, "%u:%llu:%i", &ordinal, &position, &extra) : 0;
  if (fields >= 2) place = {ordinal, position};
  if (fields == 3 && more) *more = static_cast<uint8_t>(extra);
  return place;
}

// One "key value..." a line; a "device" line begins the next device.
bool apply(std::vector<DeviceConfig>& devices, const char* line) {
  char key[32], value[64], extra[32] = "";
  const int fields = sscanf(line, "%31s %63s %31s", key, value, extra);
  if (fields <= 0 || key[0] == '#') return true;
  if (fields < 2) return false;
  if (!strcmp(key, "device")) {
    devices.emplace_back().name = value;
    return true;
  }
  if (devices.empty()) return false;
  DeviceConfig& device = devices.back();
  if (!strcmp(key, "uverbs"))
    device.uverbs = strtoul(value, nullptr, 10);
  else if (!strcmp(key, "guid"))
    device.node_guid = strtoull(value, nullptr, 16);
  else if (!strcmp(key, "lid"))
    device.lid = strtoul(value, nullptr, 10);
  else if (!strcmp(key, "link"))
    device.ethernet = !strcmp(value, "ethernet");
  else if (!strcmp(key, "mac"))
    return parse_hex(value, device.mac);
  else if (!strcmp(key, "clock_offset"))
    device.clock.offset_ticks = strtoull(value, nullptr, 10);
  else if (!strcmp(key, "clock_mult"))
    device.clock.mult_2_64 = strtoull(value, nullptr, 10);
  else if (!strcmp(key, "clock_khz"))
    device.clock.nominal_khz = strtoul(value, nullptr, 10);
  else if (!strcmp(key, "gid")) {
    GidConfig gid;
    gid.type = !strcmp(extra, "roce_v2") ? 2 : !strcmp(extra, "roce_v1") ? 1 : 0;
    if (!parse_hex(value, gid.bytes)) return false;
    device.gids.push_back(gid);
  }
  return true;
}

Config load() {
  Config result;
  const char* dir = getenv("SIGMA_CONNECTX_DIR");
  if (!dir || !*dir) return result;
  const std::string path = std::string(dir) + "/devices";
  FILE* file = fopen(path.c_str(), "re");
  if (!file) {
    fprintf(stderr, "connectx: cannot read %s; run the program under connectx-run\n", path.c_str());
    return result;
  }
  char line[256];
  while (fgets(line, sizeof line, file)) {
    if (!apply(result.devices, line))
      fprintf(stderr, "connectx: %s: bad line: %s", path.c_str(), line);
  }
  fclose(file);
  result.dir = dir;
  result.oracle = env_number("SIGMA_CONNECTX_ORACLE", 1) != 0;
  result.verbose = env_number("SIGMA_CONNECTX_VERBOSE", 0) != 0;
  result.scatter_to_cqe = env_number("SIGMA_CONNECTX_SCATTER_CQE", 0) != 0;
  result.compress_cqe = env_number("SIGMA_CONNECTX_COMPRESS_CQE", 0) != 0;
  result.kernel_hook = env_number("SIGMA_CONNECTX_KERNEL_HOOK", 0) != 0;
  result.realtime = env_number("SIGMA_CONNECTX_REALTIME", 0) != 0;
  result.pause_ns = static_cast<uint64_t>(env_number("SIGMA_CONNECTX_PAUSE_US", 0)) * 1000;
  result.faults.drop = env_number("SIGMA_CONNECTX_DROP", 0);
  result.faults.seed = static_cast<uint64_t>(env_number("SIGMA_CONNECTX_SEED", 1));
  result.faults.delay_us = static_cast<uint32_t>(env_number("SIGMA_CONNECTX_DELAY_US", 0));
  result.faults.gbit_per_s = env_number("SIGMA_CONNECTX_GBPS", 0);
  result.faults.withhold = env_place("SIGMA_CONNECTX_WITHHOLD", nullptr);
  result.faults.fail = env_place("SIGMA_CONNECTX_FAIL", &result.faults.fail_syndrome);
  result.faults.copy = env_number("SIGMA_CONNECTX_COPY", 1) != 0;
  result.faults.busy = env_number("SIGMA_CONNECTX_BUSY", 0) != 0;
  return result;
}

void print(const char* format, va_list arguments) {
  char text[512];
  const int prefix = snprintf(text, sizeof text, "connectx: ");
  vsnprintf(text + prefix, sizeof text - prefix, format, arguments);
  fprintf(stderr, "%s\n", text);
}

}  // namespace

const Config& config() {
  // Never destroyed: the NIC thread and other libraries' destructors outlive static destruction.
  static const Config* const loaded = new Config(load());
  return *loaded;
}

void note(const char* format, ...) {
  if (!config().verbose) return;
  va_list arguments;
  va_start(arguments, format);
  print(format, arguments);
  va_end(arguments);
}

void complain(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print(format, arguments);
  va_end(arguments);
}

}  // namespace connectx
