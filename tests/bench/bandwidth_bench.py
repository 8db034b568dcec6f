#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""bench bandwidth: what tracing adds to each post, and takes from the bandwidth, of a NIC of 400 Gb/s with messages of
64 KiB: one every 1.3 us.

The emulated device keeps that pace and moves no payload. The job has a core for itself, as beside a NIC; device and
sigmatrace have the others (traced_job.Cores). What is judged is compared in one process each time, the other ways side by
side. Some five minutes."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import traced_job  # noqa: E402
from paired import WAYS, Estimate, InTurn, QueueJobs, judge, row  # noqa: E402

GBPS, BYTES, QUEUES = 400, 64 * 1024, 4
MESSAGE_NS = BYTES * 8 / GBPS
TOLERANCE = 0.013
JUDGED = ("untraced", "untraced_again", "ring_ring")
JOBS, JOB_SECONDS, TOLD_SECONDS = 8, 20, 90
PAUSE_US = 50  # of the device; a twentieth of what the job has in flight


def rows(rounds, ways, base="untraced"):
    """`base`: what the first way is called, which the others are compared with."""
    for way in ways:
        compared, name = rounds.compared(way), base if way == ways[0] else way
        rate = compared.absolute["rate"].median
        row(f"bandwidth.{name}.rate", rate * BYTES * 8 / 1e9, "Gb/s", reason=rounds.where() if name == base else "")
        if name == base:
            row(f"bandwidth.{name}.p50", compared.absolute["p50_ns"].median, "ns/post")
            row(f"bandwidth.{name}.p99", compared.absolute["p99_ns"].median, "ns/post")
            continue
        why_not = {"ring_ring": "", "untraced_again": "untraced against itself"}.get(way, "to compare with")
        judge(f"bandwidth.{way}.ratio", compared.ratio["rate"], "x of untraced", at_least=1 - TOLERANCE, why_not=why_not)
        for figure in ("p50", "p99"):
            judge(f"bandwidth.{way}.added_{figure}", compared.added[f"{figure}_ns"], "ns/post",
                  at_most=round(TOLERANCE * MESSAGE_NS, 1), why_not=why_not)


def main():
    traced_job.end_by_sigterm()
    cores = traced_job.find_cores()
    row("bandwidth.core_to_core", cores.distance_ns(), "ns")
    job = {"device": cores.apart, "pause_us": PAUSE_US, "queues": QUEUES, "size": BYTES, "gbps": GBPS}
    _, blocks, *_ = traced_job.traced_run(cores, {"seconds": 4, "signaled": 1}, **job)
    row("bandwidth.seen", 100 * blocks["seen"] / blocks["posted"], "% of blocks posted", reason="traced to files")
    rounds, observer = None, []
    for _ in range(JOBS):
        with InTurn(cores, JUDGED, **job) as turns:
            rounds = turns.compare(JOB_SECONDS, known=0, more=rounds, signaled=1)
            observer += turns.observer
    rows(rounds, JUDGED)
    share = Estimate.of(observer)
    row("bandwidth.ring_ring.observer", share.median, "% of a core", reason=share.spread)
    told = ["untraced", *(way for way in WAYS if way not in JUDGED)]
    with QueueJobs(cores, told, **job) as modes:
        rows(modes.compare(TOLD_SECONDS, known=0, signaled=1), told, "untraced_beside")


if __name__ == "__main__":
    main()
