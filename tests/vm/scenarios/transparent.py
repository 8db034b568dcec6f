#!/usr/bin/env python3
"""A target's output and exit status are the same with and without the tracer.

What differs between any two runs (pids, numbers that the kernel hands out, times) is
replaced by a mark before the comparison.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import re

from jobs import JobPair, csv_path
from launch import Pair, on_port
from rig import Tracer, expect, run_test

VOLATILE = re.compile(r"0x[0-9a-fA-F]+|\b\d+(\.\d+)?\b")
JOBS = ["op=send count=150 bytes=777", "op=rdma_read count=60 bytes=5000 new_api=1",
        "op=rdma_write count=16 list=16 bad_rkey_at=5 after_error=3"]


def outcome(process, keep_numbers: bool):
    text = process.stdout() + "--\n" + process.stderr()
    lines = [line for line in text.splitlines() if "QPN" not in line]
    return process.wait(), [line if keep_numbers else " ".join(VOLATILE.sub("#", line).split())
                            for line in lines]


def run_job(options: str, traced: bool) -> list:
    job = JobPair(options, held=True)
    tracer = Tracer(job.pids, csv_path("same")) if traced else None
    job.go()
    job.client.wait()
    job.server.wait()
    if tracer:
        tracer.finish()
    # with its numbers: the checksum and the counts have to agree as well
    return [outcome(job.client, True), outcome(job.server, True)]


def run_perftest(traced: bool) -> list:
    common = ["ib_send_bw", "-F", "-x", "1", "-n", "300", "-s", "512"]
    pair = Pair([*common, "-d", "rxe1"], [*common, "-d", "rxe0", "127.0.0.1"], on_port(18515))
    tracer = Tracer(list(pair.pids.values()), csv_path("same")) if traced else None
    pair.go()
    if tracer:
        tracer.finish()
    return [outcome(pair.client, False), outcome(pair.server, False)]


def test() -> None:
    runs = [(options, lambda traced, o=options: run_job(o, traced)) for options in JOBS]
    for name, run in [*runs, ("ib_send_bw", run_perftest)]:
        # On a loaded host a job's output can vary by itself (how much was done when an error struck);
        # a difference that the tracer makes is there each time.
        for _ in range(3):
            plain, traced = run(False), run(True)
            if plain == traced:
                break
        expect(plain == traced, f"{name}:\n  without the tracer {plain}\n  with it {traced}")


if __name__ == "__main__":
    run_test(test)
