#!/usr/bin/env python3
"""kill -9 of the tracer in mid-traffic: the job goes on to its right end, and within 10 s no
program and no link of the tracer is left in the kernel."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import json
import subprocess

from jobs import JobPair, csv_path, results, wait_for_traffic
from rig import Tracer, expect, run_test, wait_for

COUNT = 5000


def left_in_kernel() -> tuple:
    """Ids of all BPF programs and links, and the uprobes that the kernel lists."""
    ids = []
    for kind in ("prog", "link"):
        shown = subprocess.run(["bpftool", "-j", kind, "show"], stdout=subprocess.PIPE, check=True)
        ids.append(frozenset(entry["id"] for entry in json.loads(shown.stdout or "[]")))
    with open("/sys/kernel/tracing/uprobe_events") as file:
        return (*ids, file.read())


def test() -> None:
    before = left_in_kernel()
    job = JobPair(f"op=rdma_write count={COUNT} bytes=64 pause_us=1000", held=True)
    tracer = Tracer(job.pids, csv_path("killed"))
    job.go()
    wait_for_traffic()
    expect(left_in_kernel() != before, "the tracer has nothing in the kernel: the check sees nothing")
    tracer.kill()
    expect(job.client.popen.poll() is None, "the job was over before the tracer was killed")
    wait_for(lambda: left_in_kernel() == before, "the kernel is as before", limit_s=10)
    job.wait_ok()
    expect(results(job.client)["success"] == COUNT, f"the job missed completions\n{job.client.tail()}")


if __name__ == "__main__":
    run_test(test)
