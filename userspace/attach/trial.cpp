// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/trial.h"

#include <bpf/bpf.h>
#include <linux/bpf.h>

#include <array>
#include <span>

namespace sigma {
namespace {

Fd load(std::span<const bpf_insn> instructions, uint32_t expected_attach_type) {
  LIBBPF_OPTS(bpf_prog_load_opts, options,
              .expected_attach_type = static_cast<bpf_attach_type>(expected_attach_type));
  return Fd(bpf_prog_load(BPF_PROG_TYPE_KPROBE, "sigma_trial", "Dual BSD/GPL", instructions.data(),
                          instructions.size(), &options));
}

constexpr bpf_insn kReturnZero[] = {
    {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .src_reg = 0, .off = 0, .imm = 0},
    {.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
};

}  // namespace

Fd load_empty_program(uint32_t expected_attach_type) {
  return load(kReturnZero, expected_attach_type);
}

CountingProgram load_counting_program(uint32_t expected_attach_type) {
  CountingProgram counting;
  counting.map = Fd(bpf_map_create(BPF_MAP_TYPE_ARRAY, "sigma_trial", sizeof(uint32_t),
                                   sizeof(uint64_t), 1, nullptr));
  if (!counting.map) return counting;
  const std::array<bpf_insn, 6> instructions = {{
      // r1 = address of the map's value; atomically add 1 to it
      {.code = BPF_LD | BPF_DW | BPF_IMM,
       .dst_reg = BPF_REG_1,
       .src_reg = BPF_PSEUDO_MAP_VALUE,
       .off = 0,
       .imm = counting.map.get()},
      {.code = 0, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
      {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_2, .src_reg = 0, .off = 0, .imm = 1},
      {.code = BPF_STX | BPF_DW | BPF_ATOMIC,
       .dst_reg = BPF_REG_1,
       .src_reg = BPF_REG_2,
       .off = 0,
       .imm = BPF_ADD},
      kReturnZero[0],
      kReturnZero[1],
  }};
  counting.program = load(instructions, expected_attach_type);
  return counting;
}

uint64_t CountingProgram::runs() const {
  const uint32_t key = 0;
  uint64_t value = 0;
  return bpf_map_lookup_elem(map.get(), &key, &value) == 0 ? value : 0;
}

}  // namespace sigma
