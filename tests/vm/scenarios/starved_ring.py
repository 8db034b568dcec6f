#!/usr/bin/env python3
"""A ring buffer that is much too small, a slow reader, producers on several CPUs: records
are lost, the loss is counted exactly (attempts = consumed + dropped) and shown."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import re

import check
from jobs import JobPair, csv_path
from rig import Tracer, expect, run_test

COUNT = 1500      # what the receive queue takes


def test() -> None:
    jobs = [JobPair(f"op=send count={COUNT} bytes=16 list=8",
                    held=True, port=port) for port in (18601, 18602)]
    csv = csv_path("starved")
    tracer = Tracer([pid for job in jobs for pid in job.pids], csv, "--ring-size", "16K",
                    env={"SIGMATRACE_DRAIN_DELAY_MS": "200"})
    for job in jobs:
        job.go()
    for job in jobs:
        job.wait_ok()
    tracer.finish()

    trace = check.Trace(csv)
    attempted, consumed, dropped = (trace.counters["records_" + name]
                                    for name in ("attempted", "consumed", "dropped"))
    print(f"attempted {attempted} consumed {consumed} dropped {dropped} rows {len(trace.rows)}")
    expect(attempted == consumed + dropped, f"attempted {attempted} != {consumed} + {dropped}")
    expect(dropped > 0, "nothing was dropped: the test starves nothing")
    expect(attempted >= 2 * COUNT // 8, f"only {attempted} records for {2 * COUNT} posts in lists of 8")
    shown = tracer.stdout() + tracer.stderr()
    expect(re.search(r"loss|lost|dropped|no room", shown), f"the loss is not shown\n{tracer.tail()}")
    statement = " ".join(trace.meta["coverage"]["statement"])
    expect("ring buffer had no room" in statement, f"the side file does not state the loss: {statement}")


if __name__ == "__main__":
    run_test(test)
