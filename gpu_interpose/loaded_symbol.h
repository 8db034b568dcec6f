// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Finding a function in the objects that the process has loaded, without dlsym: for dlsym itself,
// which we interpose.
#pragma once

namespace sigma::gpu {

// The first definition of `name` in an object that comes after this library in the dynamic linker's
// order: what dlsym(RTLD_NEXT) would find. Null if there is none. Reads only; takes the loader's
// (recursive) lock for the walk.
void* next_definition(const char* name);

}  // namespace sigma::gpu
