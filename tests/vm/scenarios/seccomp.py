#!/usr/bin/env python3
"""A target under a seccomp allow-list without the newest system calls is traced unharmed.

On kernels whose return probes use the system call `uretprobe` (335) a return probe would
kill it: then posts are told without one, and may be marked unverified.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import signal
import subprocess

import check
from jobs import csv_path
from launch import Pair, on_port
from rig import Tracer, expect, program, run_test

COUNT = 1000
# pidfd_send_signal, as new as uretprobe and not on the list. Not uretprobe itself: kernels with
# commit cf6cb56ef244 let that one pass every filter.
NEW_CALL = "import ctypes; ctypes.CDLL(None).syscall(424, -1, 0, 0, 0)"


def start() -> Pair:
    boxed = [program("seccomp_run"), "--", "ib_write_bw", "-F", "-x", "1", "-n", str(COUNT), "-s", "256"]
    return Pair([*boxed, "-d", "rxe1"], [*boxed, "-d", "rxe0", "127.0.0.1"], on_port(18515))


def test() -> None:
    killed = subprocess.run([program("seccomp_run"), "--", "python3", "-c", NEW_CALL])
    expect(killed.returncode == -signal.SIGSYS, f"the filter lets a new call through ({killed.returncode})")
    start().go()      # without the tracer: the list itself lets the program work

    job = start()
    csv = csv_path("seccomp")
    tracer = Tracer(list(job.pids.values()), csv)
    job.go()
    tracer.finish()
    trace = check.Trace(csv)
    rows = trace.of(job.pids["client"])
    expect(len(rows) == COUNT, f"{len(rows)} rows, expected {COUNT}\n{tracer.tail()}")
    wrong = [row for row in rows if row["opcode"] != "rdma_write" or row["status"] != "success"]
    expect(not wrong, "".join(check.shown("not a write that succeeded", wrong)))
    marked = [row for row in rows if "unverified" in row["flags"].split()]
    expect(trace.counters["unverified"] == len(marked),
           f"unverified is {trace.counters['unverified']}, {len(marked)} rows are marked")


if __name__ == "__main__":
    run_test(test)
