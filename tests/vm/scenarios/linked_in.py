#!/usr/bin/env python3
"""A program with rdma-core linked in, which has no library that could be probed. The kernel's hook tells of what it
sets up, from its first command on; as it makes its queue pairs, the functions are found that these point to, and all
that it posts from then on is traced. Attached to before its first instruction, and once it has its queue pairs.
"""
import os
import sys
from collections import Counter

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import check
from jobs import JobPair, csv_path
from late import check_late_peers
from rig import Failure, Tracer, expect, run_test, wait_for

COUNT = 300
SAID = "libibverbs is linked into the program: what its queue pairs"


def traced(held: bool) -> None:
    job = JobPair(f"op=rdma_write count={COUNT} bytes=64 list=4 signal_every=4", stages="qp", held=held, name="verbs_job_linked_in")
    csv = csv_path("linked_in")
    if not held:
        job.wait_stage("qp")
    tracer = Tracer(job.pids, csv)
    if held:
        job.go()
        job.wait_stage("qp")
        wait_for(lambda: tracer.stderr().count(SAID) == 2, "the functions of both are found")
    job.proceed()
    job.wait_ok()
    tracer.finish()
    trace = check.Trace(csv)
    rows = trace.of(job.client.pid)
    found = check.check_counts(trace, job.client.pid, "client", Counter({("send", "rdma_write"): COUNT}), {})
    check_late_peers(trace, job)
    if held:  # nothing was posted before, and the hook has told of all attributes and regions
        found += check.check_completion(rows, 0)
        found += check.check_peers(trace, rows, job.client.pid, job.server.pid)
        found += check.check_remote_memory(trace, rows, job.server.pid)
    said = str(trace.meta["coverage"]["statement"])
    expect(said.count(SAID) == 2 and "functions that only later ones use are not" in said, f"the coverage: {said}")
    expect("are not traced" not in said, f"the coverage: {said}")
    if found:
        raise Failure("\n  ".join(found) + f"\n{tracer.tail()}")


def test() -> None:
    traced(held=True)
    traced(held=False)


if __name__ == "__main__":
    run_test(test)
