// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the resolver's tests share: fixtures, and binutils as an independent opinion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bpf/config.h"
#include "resolve/code.h"
#include "resolve/resolver.h"

// A file that the build made of tests/data/resolve.
std::string fixture(std::string_view name);
std::vector<std::string> fixture_providers();
// Standard output of a command; fails the test when it does not exit with 0.
std::string output_of(const std::string& command);
std::vector<std::byte> bytes_of(const std::string& path);
sigma::ElfFile open_elf(const std::string& path);

// Name -> address of the functions and labels that `nm` sees.
std::map<std::string, uint64_t> nm(const std::string& path);

// What the name of a function says it is: "fake_wr_send_imm_rc" is SIGMA_FN_WR_SEND_IMM. Takes the
// longest operation that the name contains; 0 when there is none.
sigma_function meant_by(std::string_view name);

// Every promise that a plan makes on its own, whatever the library: sites lie within their
// function, at instruction boundaries that objdump sees too, return sites are valid, no address
// serves twice.
void check_invariants(const sigma::LibraryPlan& plan);
