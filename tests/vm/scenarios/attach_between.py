#!/usr/bin/env python3
"""Attach between the making of the queue pairs and the traffic.

Every request is seen. The queue pairs are older than the attach: their peers come from the
kernel by netlink, or are empty and counted.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import check
from jobs import JobPair, csv_path
from late import check_late_peers
from rig import Tracer, expect, run_test


def test() -> None:
    job = JobPair("op=send count=200 bytes=300 queue_pairs=2", stages="qp")
    job.wait_stage("qp")
    csv = csv_path("between")
    tracer = Tracer(job.pids, csv)
    job.proceed()
    job.wait_ok()
    tracer.finish()

    trace = check.Trace(csv)
    sent, received = trace.of(job.client.pid), trace.of(job.server.pid)
    for rows, queue, opcode in ((sent, "send", "send"), (received, "recv", "recv")):
        expect(len(rows) == 400, f"{len(rows)} {queue} rows, expected 400\n{tracer.tail()}")
        wrong = [row for row in rows if row["queue"] != queue or row["opcode"] != opcode or
                 row["status"] != "success" or row["bytes"] != "300"]
        expect(not wrong, "".join(check.shown(f"not a {opcode} of 300 bytes that succeeded", wrong)))
    check_late_peers(trace, job)
    expect(trace.counters["qps_older_than_attach"] == 4,
           f"qps_older_than_attach is {trace.counters['qps_older_than_attach']}, expected 4")


if __name__ == "__main__":
    run_test(test)
