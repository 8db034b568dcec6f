#!/usr/bin/env python3
"""Two jobs at once under one tracer: four processes, each with its own requests and peers.

The first queue pairs of the two devices have the same number, so numbers alone mix them up.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from collections import Counter

import check
from jobs import JobPair, csv_path
from rig import Failure, Tracer, run_test


def test() -> None:
    first = JobPair("op=rdma_write count=300 bytes=100 queue_pairs=2", held=True, port=18601)
    second = JobPair("op=send count=200 bytes=50 new_api=1", held=True, port=18602)
    csv = csv_path("two")
    tracer = Tracer(first.pids + second.pids, csv)
    first.go()
    second.go()
    first.wait_ok()
    second.wait_ok()
    tracer.finish()

    trace = check.Trace(csv)
    found = check.check_coverage(trace)
    for job, sent, received in ((first, {("send", "rdma_write"): 600}, {}),
                                (second, {("send", "send"): 200}, {("recv", "recv"): 200})):
        for process, peer, counts in ((job.client, job.server, sent), (job.server, job.client, received)):
            rows = trace.of(process.pid)
            found += check.check_counts(trace, process.pid, process.name, Counter(counts), {})
            found += check.check_completion(rows, 0)
            found += check.check_peers(trace, rows, process.pid, peer.pid)
            found += check.check_printed_peers(rows, process.stdout())
            found += check.check_remote_memory(trace, rows, peer.pid)
    if found:
        raise Failure("\n  ".join(found) + f"\n{tracer.tail()}")


if __name__ == "__main__":
    run_test(test)
