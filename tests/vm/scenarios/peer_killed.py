#!/usr/bin/env python3
"""The peer is killed in mid-traffic: retries exceeded once, then flushes."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import check
from errors import check_error
from jobs import JobPair, csv_path
from rig import Tracer, expect, run_test


def test() -> None:
    # timeout 12: 16 ms; the requests after the kill go nowhere until the retries are used up
    job = JobPair("op=rdma_write count=400 list=4 bytes=32 timeout=12 retries=2 after_error=4",
                  stages="mid", held=True)
    csv = csv_path("killed")
    tracer = Tracer(job.pids, csv)
    job.go()
    job.wait_stage("mid", job.client)
    job.server.kill()
    job.proceed(job.client)
    expect(job.client.wait() == 3, f"the job did not see its error\n{job.client.tail()}")
    tracer.finish()
    check_error(check.Trace(csv), job, "rdma_write", "retry_exc_err", tracer)


if __name__ == "__main__":
    run_test(test)
