#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The producer models under `sigmatrace run`, with the preloaded library: the trace must be what the device
fetched minus what the trace itself declares as gaps, and have no operation that was not posted.

    traced_test.py --list
    traced_test.py NAME --build DIR
"""
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from traced_run import BASE, SEED, Failed, Test, Traced, Undecided  # noqa: E402
from traced_judges import barriers, broken, dispatch, hung, lapped, relived, told  # noqa: E402
import named_tests  # noqa: E402

# A pace that a reader on two shared cores follows.
PACED = "--operations 600 --pace-us 300"
# One large ring: the NOPs before are posted a quarter of it at a time.
STARTED = "--start 65500 --operations 200 --queues 1 --depth 1024 --pace-us 300"
# Rings that all rounds fit into: however late the reader comes, nothing was overwritten.
UNLAPPED = "--devices 4 --depth 4096 --truth {truth}"
# All queues are reset, and posted to once more, twice.
RESET = "--resets 2 --operations 200 --pace-us 300"
# Last looks are waited for, however loaded the machine.
PATIENT = {"SIGMATRACE_GPU_WAIT_MS": "10000"}
STALLS = {"SIGMA_CUDA_STALL": "0.02:5", "SIGMA_CUDA_JITTER_US": "50", "SIGMA_CUDA_SEED": SEED}
SNAPSHOTS = {"SIGMATRACE_GPU_TIER": "5"}
SLOW = {"SIGMA_CUDA_COPY_US": "100", "SIGMA_CUDA_JITTER_US": "400", "SIGMA_CUDA_SEED": SEED}
MAPPED = {"LD_LIBRARY_PATH": "{build}/fake_cuda:{build}/fake_gdrcopy"}
IN_DEVICE_MEMORY = ("nvshmem", "doca", "ucx_gda", "deepep", "mooncake")
TESTS = {
    "nvshmem_rc": Test(f"nvshmem {PACED}", told(3)),
    "nvshmem_dci": Test(f"nvshmem --mode dci --depth 64 {PACED}", told(3)),
    "hang": Test("nvshmem --operations 5000 --hang-s 3 --pace-us 300", hung,
                 {"SIGMA_CONNECTX_WITHHOLD": "0:300", "SIGMATRACE_GPU_HANG_MS": "1000"}),
    "error_nvshmem": Test("nvshmem --operations 2000 --pace-us 300", broken(0x15), {"SIGMA_CONNECTX_FAIL": "0:300:0x15"},
                          runs=("--seed 1", "--seed 2", "--seed 3")),
    "error_doca": Test("doca --operations 2000 --pace-us 300", broken(0x13), {"SIGMA_CONNECTX_FAIL": "0:300:0x13"}),
    "bfs_one_late": Test("bfs --seed 11 --truth {truth}", barriers(True), PATIENT),
    "bfs_none_late": Test("bfs --seed 12 --even 1 --truth {truth}", barriers(False), PATIENT),
    "moe_skew_2.13": Test(f"moe --seed 21 --skew 2.13 {UNLAPPED}", dispatch(True), PATIENT, devices=4),
    "moe_skew_drawn": Test(f"moe --seed 22 {UNLAPPED}", dispatch(True), PATIENT, devices=4),
    "moe_even": Test(f"moe --seed 23 --even 1 {UNLAPPED}", dispatch(False), PATIENT, devices=4),
    "nvshmem_peermem": Test(f"nvshmem --mode peermem {PACED}", told(3)),
    "nvshmem_many_posters": Test("nvshmem --operations 1200 --queues 1 --posters 6 --depth 64 --pace-us 300", told(3)),
    "nvshmem_dci_wraps": Test(f"nvshmem --mode dci {STARTED}", told(3), STALLS),
    "doca_db": Test(f"doca {PACED}", told(3)),
    "doca_no_dbr": Test(f"doca --mode no_dbr --queues 4 {PACED}", told(3)),
    "doca_proxy": Test(f"doca --mode proxy {PACED}", told(3)),
    "doca_no_dbr_wraps": Test(f"doca --mode no_dbr {STARTED}", told(3), STALLS),
    "doca_proxy_wraps": Test(f"doca --mode proxy {STARTED}", told(3), STALLS),
    "ucx_gda": Test(f"ucx_gda --depth 256 {PACED}", told(3)),
    "ucx_gda_rolls_back": Test("ucx_gda --mode contended --operations 300 --posters 1 --depth 16 --pace-us 300", told(3)),
    "deepep": Test(f"deepep {PACED}", told(3)),
    "mooncake": Test(f"mooncake {PACED}", told(3)),
    "mooncake_host": Test(f"mooncake --mode host {PACED}", told(1), origin="command"),
    "mooncake_host_wraps": Test(f"mooncake --mode host {STARTED}", told(1), origin="command"),
    "nvshmem_resets": Test(f"nvshmem {RESET}", relived(3, 2)),
    "nvshmem_resets_mapped": Test(f"nvshmem {RESET}", relived(2, 2), MAPPED),
    "nvshmem_resets_stalls": Test(f"nvshmem {RESET}", relived(3, 2), STALLS),
    # In umems by address, which the tracer may take for host memory.
    "mooncake_resets_stalls": Test(f"mooncake {RESET}", relived(3, 2), STALLS),
    "mooncake_host_resets": Test(f"mooncake --mode host {RESET}", relived(1, 2), origin="command"),
    "mooncake_host_unpaced": Test("mooncake --mode host --operations 6000 --depth 128", told(1), origin="command"),
    # Without CUDA nobody says that these are posted to by a GPU.
    "rocshmem": Test(f"rocshmem {PACED}", told(None), origin="command", initiator=""),
    "rocshmem_wraps": Test(f"rocshmem {STARTED}", told(None), origin="command", initiator=""),
    "rocshmem_unpaced": Test("rocshmem --operations 6000 --depth 128", told(None), origin="command", initiator=""),
    **{f"{model}_{name}": Test(f"{model} {words}", judge, environment)
       for model in IN_DEVICE_MEMORY
       for name, words, judge, environment in (
           ("stalls", PACED, told(3), STALLS),
           ("wraps", STARTED, told(3), STALLS),
           ("lapped", "--operations 6000 --depth 128", lapped(3), SLOW),
           ("lapped_wraps", "--start 65500 --queues 1 --operations 3000 --depth 256", lapped(3), SLOW),
           ("mapped", "--operations 3000 --depth 128", told(2), MAPPED),
           ("mapped_wraps", STARTED, told(2), MAPPED),
           ("snapshot", PACED, told(5), SNAPSHOTS),
           ("snapshot_wraps", STARTED, told(5), {**SNAPSHOTS, **STALLS, **PATIENT}))},
}


RUNS = 4


def decide(test, build, words):
    for left in reversed(range(RUNS)):
        with tempfile.TemporaryDirectory(prefix="sigma-traced-", dir=BASE) as base:
            try:
                return test.judge(Traced(build, base, test, words))
            except Undecided as undecided:
                print(f"undecided: {undecided}; {left} more runs")
                if not left:
                    raise
    return None


def execute(name, build):
    for words in TESTS[name].runs:
        try:
            decide(TESTS[name], build, words.split())
        except Failed as failure:
            sys.exit(f"{name}: {failure}")


if __name__ == "__main__":
    named_tests.main(__doc__, TESTS, execute)
