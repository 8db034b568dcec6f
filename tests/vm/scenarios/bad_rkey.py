#!/usr/bin/env python3
"""A wrong remote key: one first error with its opcode, peer and key, then flushes."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import check
from errors import check_error
from jobs import JobPair, csv_path
from rig import Tracer, expect, run_test

WRONG_KEY = "0x5a5a5a"


def test() -> None:
    job = JobPair("op=rdma_write count=16 list=16 bytes=32 bad_rkey_at=5 after_error=3", held=True)
    csv = csv_path("bad_rkey")
    tracer = Tracer(job.pids, csv)
    job.go()
    expect(job.client.wait() == 3, f"the job did not see its error\n{job.client.tail()}")
    job.server.wait_ok()
    tracer.finish()
    first = check_error(check.Trace(csv), job, "rdma_write", "rem_access_err", tracer)
    expect(first["rkey"] == WRONG_KEY, f"the error's rkey is {first['rkey']}, expected {WRONG_KEY}")
    expect(first["wr_id"] == "5", f"the error's wr_id is {first['wr_id']}, expected 5")


if __name__ == "__main__":
    run_test(test)
