// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "rig.h"

#include <bpf/libbpf.h>
#include <fcntl.h>
#include <gelf.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <stdexcept>

#include "attach/probe_table.h"
#include "bpf/records.h"
#include "catch.h"
#include "provider.h"
#include "truth.h"

extern char** environ;

namespace rig {

// ---- the workload
// ---------------------------------------------------------------------------------

Workload::Workload(const std::string& scenario, const std::vector<std::string>& environment) {
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) throw std::runtime_error("pipe");
  std::vector<std::string> strings;
  for (char** entry = environ; *entry; entry++) strings.emplace_back(*entry);
  strings.insert(strings.end(), environment.begin(), environment.end());
  std::vector<char*> envp;
  for (std::string& entry : strings) envp.push_back(entry.data());
  envp.push_back(nullptr);
  std::string program = WORKLOAD_PATH, argument = scenario;
  char* argv[] = {program.data(), argument.data(), nullptr};

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  const int error = posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, envp.data());
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]);
  close(from[1]);
  to_ = to[1];
  from_ = from[0];
  if (error) throw std::runtime_error("cannot start " + program + ": " + strerror(error));
  if (read_line() != "ready") throw std::runtime_error("the workload is not ready");
}

Workload::~Workload() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
}

std::string Workload::read_line() {
  size_t end;
  while ((end = buffer_.find('\n')) == std::string::npos) {
    char chunk[65536];
    const ssize_t n = read(from_, chunk, sizeof(chunk));
    if (n <= 0) throw std::runtime_error("the workload died");
    buffer_.append(chunk, static_cast<size_t>(n));
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

std::vector<std::string> Workload::act() {
  if (write(to_, "\n", 1) != 1) throw std::runtime_error("the workload is gone");
  std::vector<std::string> lines;
  for (std::string line = read_line(); line != "end"; line = read_line()) lines.push_back(line);
  return lines;
}

int Workload::end() {
  close(to_);
  to_ = -1;
  int status = -1;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

// ---- the plan
// -------------------------------------------------------------------------------------

namespace {

// Offsets in the file of the library's function symbols.
std::map<std::string, uint64_t> function_offsets(const char* path) {
  elf_version(EV_CURRENT);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  Elf* elf = elf_begin(fd, ELF_C_READ_MMAP, nullptr);
  std::map<std::string, uint64_t> offsets;
  size_t segments = 0;
  elf_getphdrnum(elf, &segments);
  for (Elf_Scn* section = elf_nextscn(elf, nullptr); section; section = elf_nextscn(elf, section)) {
    GElf_Shdr header;
    gelf_getshdr(section, &header);
    if (header.sh_type != SHT_DYNSYM) continue;
    Elf_Data* data = elf_getdata(section, nullptr);
    for (size_t i = 0; i < header.sh_size / header.sh_entsize; i++) {
      GElf_Sym symbol;
      gelf_getsym(data, static_cast<int>(i), &symbol);
      if (GELF_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_value == 0) continue;
      for (size_t s = 0; s < segments; s++) {
        GElf_Phdr segment;
        gelf_getphdr(elf, static_cast<int>(s), &segment);
        if (segment.p_type == PT_LOAD && symbol.st_value >= segment.p_vaddr &&
            symbol.st_value < segment.p_vaddr + segment.p_filesz)
          offsets[elf_strptr(elf, header.sh_link, symbol.st_name)] =
              symbol.st_value - segment.p_vaddr + segment.p_offset;
      }
    }
  }
  elf_end(elf);
  close(fd);
  return offsets;
}

}  // namespace

sigma::LibraryPlan provider_plan() {
  const auto offsets = function_offsets(PROVIDER_PATH);
  sigma::LibraryPlan plan;
  plan.kind = sigma::LibraryKind::provider;
  plan.path = PROVIDER_PATH;
  plan.name = "libsigma_test_provider";
  // As the resolver would find it in read_* functions of libsigma_test_provider, had it any.
  plan.cq_layout.kind = SIGMA_CQ_FIELDS;
  const auto field = [&](sigma_cq_field_name name, size_t offset) {
    plan.cq_layout.fields[name] = {.pointer = offsetof(provider_cq_ex, current),
                                   .offset = static_cast<__u32>(offset),
                                   .mask = ~0u,
                                   .size = 4};
  };
  field(SIGMA_CQ_QP_NUM, offsetof(ibv_wc, qp_num));
  field(SIGMA_CQ_OPCODE, offsetof(ibv_wc, opcode));
  field(SIGMA_CQ_BYTE_LEN, offsetof(ibv_wc, byte_len));
  field(SIGMA_CQ_VENDOR_ERR, offsetof(ibv_wc, vendor_err));
  field(SIGMA_CQ_IMM, offsetof(ibv_wc, imm_data));
  field(SIGMA_CQ_WC_FLAGS, offsetof(ibv_wc, wc_flags));
  field(SIGMA_CQ_SRC_QP, offsetof(ibv_wc, src_qp));
  for (const sigma::ProbeRow& row : sigma::probe_table()) {
    std::string symbol = "provider_" + std::string(row.name);
    if (row.function == SIGMA_FN_CLOSE_DEVICE) symbol = "provider_close_device";
    const auto found = offsets.find(symbol);
    REQUIRE(found != offsets.end());
    sigma::ResolvedFunction function = {};
    function.function = row.function;
    function.site.file_offset = found->second;
    function.return_site.file_offset = found->second;
    function.return_site.return_valid = true;
    plan.functions.push_back(function);
  }
  return plan;
}

sigma::LibraryPlan provider_plan(const std::vector<sigma_function>& functions) {
  sigma::LibraryPlan all = provider_plan();
  std::vector<sigma::ResolvedFunction> some;
  for (const sigma_function wanted : functions)
    for (const sigma::ResolvedFunction& function : all.functions)
      if (function.function == wanted) some.push_back(function);
  all.functions = some;
  return all;
}

// ---- records
// --------------------------------------------------------------------------------------

namespace {

template <typename T>
const T& as(const std::vector<std::byte>& bytes) {
  if (bytes.size() < sizeof(T)) throw std::runtime_error("a record is too short");
  return *reinterpret_cast<const T*>(bytes.data());
}

std::string uverbs(const std::vector<std::byte>& bytes) {
  const auto& record = as<sigma_uverbs>(bytes);
  const size_t payload = sizeof(record) + record.num_attrs * sizeof(sigma_uverbs_attr);
  if (payload + record.payload_bytes > bytes.size())
    throw std::runtime_error("a uverbs record is too short");
  std::string attributes;
  for (size_t i = 0; i < record.num_attrs; i++) {
    sigma_uverbs_attr attr;
    memcpy(&attr, bytes.data() + sizeof(record) + i * sizeof(attr), sizeof(attr));
    std::string text;
    if (attr.offset != SIGMA_UVERBS_NO_PAYLOAD) {
      const size_t n = std::min<size_t>(attr.len, SIGMA_UVERBS_ATTR_BYTES);
      if (attr.offset % 8 || attr.offset + n > record.payload_bytes)
        throw std::runtime_error("payload out of bounds");
      for (size_t k = 0; k < n; k++)
        text += fmt::format("{:02x}", static_cast<unsigned>(bytes[payload + attr.offset + k]));
    } else if (attr.len <= 8 && !(attr.flags & 2)) {
      text = fmt::format("={:x}", static_cast<uint64_t>(attr.data));
    } else {
      text = "absent";
    }
    attributes += attribute_text(attr.attr_id, attr.len, attr.flags, text);
  }
  return uverbs_text(record.ucontext, record.object_id, record.method_id, record.driver_id,
                     record.result, record.flags, attributes);
}

std::string to_text(const std::vector<std::byte>& bytes) {
  switch (as<sigma_header>(bytes).type) {
    case SIGMA_POST: {
      const auto& record = as<sigma_post>(bytes);
      PostText text;
      text.queue = record.queue;
      text.queue_ptr = record.queue_ptr;
      text.context = record.context;
      text.qp_num = record.qp_num;
      text.qp_type = record.qp_type;
      text.position = record.position;
      text.opcode = record.opcode;
      text.flags = record.flags;
      text.send_flags = record.send_flags;
      text.wr_id = record.wr_id;
      text.local = record.local_addr;
      text.remote = record.remote_addr;
      text.bytes = record.bytes;
      text.lkey = record.lkey;
      text.rkey = record.rkey;
      text.imm = record.imm;
      text.ah = record.ah_handle;
      text.remote_qpn = record.remote_qpn;
      text.index = record.index;
      text.sges = record.num_sge;
      text.omitted = record.omitted;
      return text.text();
    }
    case SIGMA_POST_RESULT: {
      const auto& record = as<sigma_post_result>(bytes);
      return result_text(record.queue, record.queue_ptr, record.context, record.qp_num,
                         record.outcome, record.error, record.accepted);
    }
    case SIGMA_COMPLETION: {
      const auto& record = as<sigma_completion>(bytes);
      CompletionText text;
      text.cq = record.cq_ptr;
      text.context = record.context;
      text.wr_id = record.wr_id;
      text.status = record.status;
      text.opcode = record.opcode;
      text.vendor = record.vendor_err;
      text.bytes = record.byte_len;
      text.imm = record.imm;
      text.qp_num = record.qp_num;
      text.src_qp = record.src_qp;
      text.wc_flags = record.wc_flags;
      text.pkey = record.pkey_index;
      text.slid = record.slid;
      text.sl = record.sl;
      text.path_bits = record.dlid_path_bits;
      text.batch = record.batch;
      return text.text();
    }
    case SIGMA_QP_SEEN: {
      const auto& record = as<sigma_qp_seen>(bytes);
      return qp_text(record.qp_ptr, record.context, record.qp_num, record.handle, record.qp_type,
                     record.state, record.send_cq_ptr, record.recv_cq_ptr, record.srq_ptr);
    }
    case SIGMA_CONTEXT: {
      const auto& record = as<sigma_context>(bytes);
      return context_text(record.context, record.kind, record.device, record.cmd_fd);
    }
    case SIGMA_PROCESS: {
      const auto& record = as<sigma_process>(bytes);
      return process_text(record.kind, record.h.pid, record.child_pid, record.exit_code,
                          record.comm);
    }
    case SIGMA_UVERBS:
      return uverbs(bytes);
    default:
      return "unknown record";
  }
}

int collect(void* context, void* data, size_t size) {
  auto& records = *static_cast<std::vector<SeenRecord>*>(context);
  const auto* begin = static_cast<const std::byte*>(data);
  SeenRecord& record = records.emplace_back();
  record.bytes.assign(begin, begin + size);
  record.header = as<sigma_header>(record.bytes);
  if (record.header.size != size) throw std::runtime_error("a record's size is not what it says");
  record.text = to_text(record.bytes);
  return 0;
}

}  // namespace

std::vector<SeenRecord> drain(const sigma::Capture& capture) {
  std::vector<SeenRecord> records;
  const std::unique_ptr<ring_buffer, void (*)(ring_buffer*)> ring(
      ring_buffer__new(capture.ring_map_fd(), collect, &records, nullptr), ring_buffer__free);
  REQUIRE(ring);
  ring_buffer__consume(ring.get());
  return records;
}

std::vector<std::string> texts(const std::vector<SeenRecord>& records) {
  std::vector<std::string> list;
  for (const SeenRecord& record : records) list.push_back(record.text);
  return list;
}

// ---- features and forms
// ---------------------------------------------------------------------------

const sigma::Features& features() {
  static const sigma::Features probed = sigma::Features::probe();
  return probed;
}

sigma::Features features_without(const std::string& names) {
  sigma::Features reduced = features();
  sigma::disable_features(reduced, names);
  return reduced;
}

std::unique_ptr<sigma::Capture> load(const sigma::Features& features,
                                     sigma::CaptureOptions options) {
  auto capture = sigma::Capture::load(options, features);
  if (!capture) FAIL(capture.error().what << " (" << capture.error().hint << ")");
  return *std::move(capture);
}

const std::vector<Form>& forms() {
  static const std::vector<Form> list = {
      {"session", ""}, {"multi", "session"}, {"perf", "multi,session"}};
  return list;
}

}  // namespace rig
