// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What gpu_interpose and the fake driver declare of CUDA, against a real cuda.h. Nothing to run: it
// compiles, or names what differs. declarations_test.py writes the rows.
#include <stddef.h>
#include <stdint.h>

#include "same_abi.h"

namespace ours {
#define SIGMA_WRAPPER
#define SIGMA_CUDA_WRAPPERS_ONLY
#include "gpu_interpose/cuda.h"
#include "gpu_interpose/wrappers.h"
#define CALL(member, symbol, type, parameters) typedef CUresult member##_type parameters;
#include "gpu_interpose/reader_calls.def"
}  // namespace ours

namespace fake {
#define FAKE_CUDA_TYPES_ONLY
#include "tests/fake_cuda/cuda_driver.h"
#define ENTRY(base, since, symbol, parameters) typedef CUresult symbol##_type parameters;
#define STREAM_ENTRY(base, since, symbol, suffix, parameters) \
  typedef CUresult symbol##_type parameters;
#include "tests/fake_cuda/driver/entries.def"
}  // namespace fake

#define OUR_FUNCTION(name, type) using name = type;
#define OUR_VALUE(name, value) constexpr auto name = static_cast<long long>(value);
#include "ours.inc"

// With the signatures of former versions.
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <cudaTypedefs.h>

// A function's type against that of a pointer of cudaTypedefs.h.
#define SAME_FUNCTION(name, pointer)                                  \
  static_assert(same::type<name, std::remove_pointer_t<pointer>>, \
                #name " is not what CUDA has as " #pointer);
#define SAME_VALUE(name, real) \
  static_assert(name == static_cast<long long>(real), #name " is not " #real);
#define SAME_PLACE(type, member)                                            \
  static_assert(offsetof(fake::type, member) == offsetof(::type, member) && \
                    sizeof(fake::type::member) == sizeof(::type::member),   \
                #type "." #member " lies elsewhere");

#include "comparisons.inc"

SAME_PLACE(CUmemLocation, type)
SAME_PLACE(CUmemLocation, id)
SAME_PLACE(CUmemAllocationProp, type)
SAME_PLACE(CUmemAllocationProp, requestedHandleTypes)
SAME_PLACE(CUmemAllocationProp, location)
SAME_PLACE(CUmemAllocationProp, win32HandleMetaData)
SAME_PLACE(CUmemAllocationProp, allocFlags)
SAME_PLACE(CUmemAccessDesc, location)
SAME_PLACE(CUmemAccessDesc, flags)
static_assert(offsetof(decltype(fake::CUmemAllocationProp::allocFlags), gpuDirectRDMACapable) ==
              offsetof(decltype(::CUmemAllocationProp::allocFlags), gpuDirectRDMACapable));
