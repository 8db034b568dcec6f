#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""bench bandwidth: what tracing adds to each post, and takes from the bandwidth, of a NIC of 400 Gb/s with messages of
64 KiB: one every 1.3 us.

The emulated device keeps that pace and moves no payload. The job has a core for itself, as beside a NIC; device and
sigmatrace have the others. Some five minutes: what is judged gets most of the rounds."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import traced_job  # noqa: E402
from paired import WAYS, SideBySide, judge, row  # noqa: E402

GBPS, BYTES, QUEUES = 400, 64 * 1024, 4
MESSAGE_NS = BYTES * 8 / GBPS
TOLERANCE = 0.013
SECONDS = 240
COMPARED = ("probe_ring", "probe_probe", "preload")  # told, not judged


def main():
    traced_job.end_by_sigterm()
    cores = traced_job.find_cores()
    row("bandwidth.core_to_core", cores.distance_ns(), "ns")
    with SideBySide(cores, WAYS, device=cores.apart, queues=QUEUES, size=BYTES, gbps=GBPS) as modes:
        rounds = modes.compare(SECONDS, known=0, sparse=COMPARED, signaled=1)
    for way in WAYS:
        compared = rounds.compared(way)
        rate = compared.absolute["rate"].median
        row(f"bandwidth.{way}.rate", rate * BYTES * 8 / 1e9, "Gb/s", reason=rounds.where() if way == "untraced" else "")
        if way == "untraced":
            row("bandwidth.untraced.p50", compared.absolute["p50_ns"].median, "ns/post")
            row("bandwidth.untraced.p99", compared.absolute["p99_ns"].median, "ns/post")
            continue
        why_not = {"ring_ring": "", "untraced_again": "untraced against itself"}.get(way, "to compare with")
        judge(f"bandwidth.{way}.ratio", compared.ratio["rate"], "x of untraced", at_least=1 - TOLERANCE, why_not=why_not)
        for figure in ("p50", "p99"):
            judge(f"bandwidth.{way}.added_{figure}", compared.added[f"{figure}_ns"], "ns/post",
                  at_most=round(TOLERANCE * MESSAGE_NS, 1), why_not=why_not)


if __name__ == "__main__":
    main()
