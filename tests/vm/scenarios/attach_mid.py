#!/usr/bin/env python3
"""Attach in mid-traffic: from some request on, each one is seen, without a hole."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import check
from jobs import JobPair, csv_path, wait_for_traffic
from late import check_late_peers
from rig import Tracer, expect, run_test

COUNT = 4000


def test() -> None:
    job = JobPair(f"op=rdma_write count={COUNT} bytes=64 pause_us=1000 signal_every=4")
    wait_for_traffic()
    csv = csv_path("mid")
    tracer = Tracer(job.pids, csv)
    expect(job.client.popen.poll() is None, "the job was over before the tracer was attached")
    job.wait_ok()
    tracer.finish()

    trace = check.Trace(csv)
    rows = trace.of(job.client.pid)
    # verbs_job numbers its requests by wr_id, in posting order
    numbers = [int(row["wr_id"]) for row in rows if row["wr_id"]]
    expect(numbers, f"no rows\n{tracer.tail()}")
    expect(sorted(numbers) == list(range(min(numbers), COUNT)),
           f"requests {min(numbers)}..{max(numbers)} have holes or repeats: {len(numbers)} rows")
    expect(0 < min(numbers) < COUNT - 100, f"the first request seen is {min(numbers)}")
    # A request posted before the attach and completed after it has a completion only: nobody saw
    # its post's time or length. These can but be the oldest ones.
    whole = [row for row in rows if row["time_ns"]]
    expect(whole, f"no row has the time of its post\n{tracer.tail()}")
    first_whole = min(int(row["wr_id"]) for row in whole)
    wrong = [row for row in rows if row["opcode"] != "rdma_write" or row["status"] != "success" or
             row["bytes"] != ("64" if int(row["wr_id"]) >= first_whole else "")]
    expect(not wrong, "".join(check.shown("not a write of 64 bytes that succeeded", wrong)))
    check_late_peers(trace, job)


if __name__ == "__main__":
    run_test(test)
