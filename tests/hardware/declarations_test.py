#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Compares the declarations of gpu_interpose and of the fake driver with a real cuda.h, by compiling.

    declarations_test.py SOURCE_DIR CUDA_INCLUDE_DIR COMPILER...
"""
import os
import re
import subprocess
import sys
import tempfile

# Our names of CUDA's numbers (gpu_interpose/cuda.h).
NAMES = {
    "kSuccess": "CUDA_SUCCESS",
    "kInvalidValue": "CUDA_ERROR_INVALID_VALUE",
    "kNotInitialized": "CUDA_ERROR_NOT_INITIALIZED",
    "kNotReady": "CUDA_ERROR_NOT_READY",
    "kHostRegisterPortable": "CU_MEMHOSTREGISTER_PORTABLE",
    "kDeviceUsesHostPageTables": "CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
    "kStreamNonBlocking": "CU_STREAM_NON_BLOCKING",
    "kCaptureRelaxed": "CU_STREAM_CAPTURE_MODE_RELAXED",
    "kPointerContext": "CU_POINTER_ATTRIBUTE_CONTEXT",
    "kPointerMemoryType": "CU_POINTER_ATTRIBUTE_MEMORY_TYPE",
    "kPointerDeviceOrdinal": "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL",
    "kPointerRangeStart": "CU_POINTER_ATTRIBUTE_RANGE_START_ADDR",
    "kMemoryHost": "CU_MEMORYTYPE_HOST",
    "kMemoryDevice": "CU_MEMORYTYPE_DEVICE",
    "kHostRegisterIoMemory": "CU_MEMHOSTREGISTER_IOMEMORY",
    "kRangeDmaBuf": "CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD",
    "kProcPerThreadStream": "CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM",
}
# Not part of cuda.h: what the newest signatures that we know belong to.
OWN = {"kNewestVersion"}


def text_of(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def rows(source, typedefs):
    """(what we have, our name for it, how it is compared, CUDA's name) of each declaration."""
    known = set(re.findall(r"PFN_(cu\w+)", typedefs))
    hooks = re.findall(r'^SIGMA_CUDA\((\w+),\s*"(\w+)",\s*(\d+),\s*(\d+),\s*(\w+)\)',
                       text_of(source, "gpu_interpose", "hooks.def"), re.MULTILINE)
    if len(hooks) < 20:
        sys.exit("hooks.def is not understood")
    for symbol, base, since, until, stream in hooks:
        suffix = symbol[-len("_ptsz"):] if stream == "per_thread" else ""  # or _ptds
        pointers = [f"{base}_v{since}{suffix}"]
        # The newest version of the name is one that the table knows.
        if until == "0":
            newest = max(int(version) for version in re.findall(rf"PFN_{base}_v(\d+){suffix}\b", typedefs))
            pointers.append(f"{base}_v{newest}{suffix}")
        for pointer in dict.fromkeys(pointers):
            if pointer not in known:
                sys.exit(f"hooks.def: {symbol}: cudaTypedefs.h has no PFN_{pointer}")
            yield f"decltype(ours::{symbol})", f"wrapper_{symbol}", "FUNCTION", f"PFN_{pointer}"
    calls = re.findall(r"^CALL\((\w+), \w+, (\w+), ", text_of(source, "gpu_interpose", "reader_calls.def"), re.MULTILINE)
    if not calls:
        sys.exit("reader_calls.def is not understood")
    for member, pointer in calls:
        yield f"ours::{member}_type", f"call_{member}", "FUNCTION", f"PFN_{pointer}"
    entries = re.findall(r"^(STREAM_)?ENTRY\((\w+), (\d+), (\w+), (?:(_pt\w+), )?",
                         text_of(source, "tests", "fake_cuda", "driver", "entries.def"), re.MULTILINE)
    for per_thread, base, since, symbol, suffix in entries:
        for end in ["", suffix] if per_thread else [""]:
            # Per-thread default streams came with 7.0.
            pointer = f"{base}_v{max(int(since), 7000) if end else since}{end}"
            if pointer not in known:
                sys.exit(f"entries.def: {symbol}: cudaTypedefs.h has no PFN_{pointer}")
            yield f"fake::{symbol}_type", f"entry_{symbol}{end}", "FUNCTION", f"PFN_{pointer}"
    for name in re.findall(r"^\s+(CU\w+) = \d", text_of(source, "tests", "fake_cuda", "cuda_driver.h"), re.MULTILINE):
        yield f"fake::{name}", f"fake_{name}", "VALUE", name
    for name in re.findall(r"\b(k\w+) = \d", text_of(source, "gpu_interpose", "cuda.h")):
        if name in OWN:
            continue
        if name not in NAMES:
            sys.exit(f"gpu_interpose/cuda.h: {name} is not compared with anything: add it to NAMES")
        yield f"ours::sigma::gpu::cuda::{name}", f"our_{name}", "VALUE", NAMES[name]


def main():
    source, cuda, *compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="sigma-cuda-") as directory:
        lines = list(rows(source, text_of(cuda, "cudaTypedefs.h")))
        # cuda.h defines macros of these names: ours are named before it is read.
        with open(os.path.join(directory, "ours.inc"), "w", encoding="utf-8") as file:
            file.write("\n".join(dict.fromkeys(f"OUR_{kind}({name}, {what})" for what, name, kind, _ in lines)) + "\n")
        with open(os.path.join(directory, "comparisons.inc"), "w", encoding="utf-8") as file:
            file.write("\n".join(f"SAME_{kind}({name}, {real})" for _, name, kind, real in lines) + "\n")
        command = [*compiler, "-std=c++20", "-fsyntax-only", "-isystem", cuda, "-I", source,
                   "-I", os.path.join(source, "tests", "fake_cuda"), "-I", directory,
                   os.path.join(source, "tests", "hardware", "cuda_declarations.cpp")]
        if subprocess.run(command, check=False).returncode != 0:
            sys.exit("the declarations differ")
    version = re.search(r"#define CUDA_VERSION (\d+)", text_of(cuda, "cuda.h"))
    print(f"{len(lines)} declarations are those of CUDA {version[1]}")


main()
