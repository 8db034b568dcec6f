#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The preloaded library in programs that come to their functions in every way there is.

    interpose_test.py BUILD --list | NAME
"""
import os
import re
import subprocess
import sys

from interpose_rig import TESTS, Failed, Rig, groups, require, require_equal, run

# What a program that is bound by our hooks has no reason to count.
HOLES = ("other_copies", "other_signatures", "deepbind_loads", "namespace_loads", "binding_holes", "unknown_memory",
         "ranges_full", "umems_full", "queues_full", "indices_dropped")
# enum sigma_gpu_queue_flags, enum sigma_gpu_memory
PAST_HOOKS, UAR_MAPPED, INITIATED = 1 << 3, 1 << 4, 1 << 0
MEMORY_UNKNOWN, MEMORY_DEVICE = 0, 3


def knows_all(output):
    """The registry says of the queue what the program knows, and nothing went past the hooks."""
    found = groups(output)
    for name, truth in found["truth"].items():
        require_equal(name, found["known"].get(name), truth)
    for name in HOLES:
        require_equal(name, found["known"][name], 0)
    # With the structure's memory the index is gone, not the queue.
    require_equal("after the structure was freed", found["freed"], {"index_addr": 0, "state": 1})
    require_equal("state after the destroy", found["ended"]["state"], 2)


def bound(*command):
    def case(rig):
        with rig.devices() as environment:
            knows_all(run([rig.job(command[0]), *(rig.job(word) if word.endswith(".so") else word for word in command[1:])],
                          environment))
    return case


def deepbind(rig):
    """Bound past the hooks: the commands are seen as they enter the kernel, and reported as what they are."""
    with rig.devices() as environment:
        found = groups(run([rig.job("bind_plugin_host"), rig.job("libbind_plugin.so"), "deepbind"], environment))
    known, truth = found["known"], found["truth"]
    require_equal("deepbind_loads", known["deepbind_loads"], 1)
    require_equal("binding_holes", known["binding_holes"], 1)
    require(known["flags"] & PAST_HOOKS, "the queue is not marked as seen past the hooks")
    for name in ("qp_num", "cqn", "ring_entries", "dscp", "udp_sport", "peer_qp_num", "ack_timeout"):
        require_equal(name, known[name], truth[name])
    require_equal("memory of the CQ", known["cq_memory"], MEMORY_DEVICE)  # the driver was asked
    require_equal("state after the destroy", found["ended"]["state"], 2)


def well_mannered(way, preload=(), job="manners"):
    def case(rig):
        with rig.devices() as environment:
            words = [word if os.path.isabs(word) else rig.job(word) for word in preload]
            first = [word for word in words if "asan" in word]  # its runtime insists on it
            rest = [word for word in words if word not in first]
            environment["LD_PRELOAD"] = " ".join([*first, environment["LD_PRELOAD"], *rest])
            environment["ASAN_OPTIONS"] = "detect_leaks=0"
            run([rig.job(job), way], environment)
    return case


def dynamic_symbols(rig):
    """(name, version or None, defined) of each."""
    text = subprocess.run(["readelf", "-W", "--dyn-syms", rig.library], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 8 and words[0].rstrip(":").isdigit():
            name, _, version = words[7].partition("@")
            yield name, version.lstrip("@") or None, words[6] != "UND"


def old_versions_only(rig):
    """It loads wherever glibc 2.17 does: no younger symbol, and no library but libc's own."""
    versions = {version for _, version, defined in dynamic_symbols(rig) if version and not defined}
    require(versions, "readelf tells no versions")
    for version in versions:
        numbers = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
        require(numbers and (int(numbers[1]), int(numbers[2])) <= (2, 17), f"{version} is needed")
    text = subprocess.run(["readelf", "-W", "-d", rig.library], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
    require_equal("needed libraries", needed, {"libc.so.6", "libdl.so.2"})


def exports_are_the_table(rig):
    """hooks.def, the dynamic linker's functions, and the tracer's two ends: nothing else is exported."""
    with open(os.path.join(os.path.dirname(TESTS), "gpu_interpose", "hooks.def"), encoding="utf-8") as file:
        rows = re.findall(r"^SIGMA_(?:CUDA|MLX5DV|LIBC)\((\w+)", file.read(), re.MULTILINE)
    require(len(rows) > 20 and len(rows) == len(set(rows)), "hooks.def is not understood")
    exported = {name for name, _, defined in dynamic_symbols(rig) if defined}
    own = {"dlsym", "dlvsym", "dlopen", "dlmopen", "sigmatrace_gpu_registry", "sigmatrace_gpu_emit", "sigmatrace_gpu_tracers"}
    require_equal("exports", exported, set(rows) | own)


ASAN = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()

CASES = {
    "needs_old_glibc_only": old_versions_only,
    "exports_are_the_table": exports_are_the_table,
    "no_cuda_no_change": well_mannered("no_cuda"),
    "next_of_an_interposer": well_mannered("next", ["libinterposer.so"]),
    "forked_child_has_none": well_mannered("fork"),
    "no_cuda_under_asan": well_mannered("no_cuda", [ASAN], "manners_asan"),
    "queue_under_asan": well_mannered("fork", [ASAN], "manners_asan"),
    "bound_by_plt": bound("bind_linked"),
    "bound_by_dlsym": bound("bind_looked_up", "dlsym"),
    "bound_by_dlvsym": bound("bind_looked_up", "dlvsym"),
    "bound_by_dlsym_default": bound("bind_looked_up", "default"),
    "bound_by_dlvsym_default": bound("bind_looked_up", "vdefault"),
    "bound_by_dlsym_next": bound("bind_looked_up", "next"),
    "bound_by_proc_address_11030": bound("bind_looked_up", "11030"),
    "bound_by_proc_address_12000": bound("bind_looked_up", "12000"),
    "bound_by_proc_address_13000": bound("bind_looked_up", "13000"),
    "bound_in_local_plugin": bound("bind_plugin_host", "libbind_plugin.so", "local"),
    "bound_in_deepbind_plugin": deepbind,
}


def main():
    rig = Rig(sys.argv[1])
    if sys.argv[2] == "--list":
        print("\n".join(CASES))
        return
    try:
        CASES[sys.argv[2]](rig)
    except Failed as failure:
        sys.exit(f"{sys.argv[2]}: {failure}")


main()
