#!/usr/bin/env python3
"""Modules go while a tracer is there: the tracer keeps no driver, survives, sees what comes after, and leaves
nothing behind.
"""
import contextlib
import glob
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import check
from jobs import JobPair, csv_path
from rig import SIGMATRACE, Process, Tracer, expect, run_test, wait_for
from scenarios.tracer_killed import left_in_kernel

COUNT = 200
MODULES = ("rdma_rxe", "rdma_ucm", "ib_uverbs")  # in the order in which they can go


def sh(command: str) -> str:
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect(done.returncode == 0, f"{command}: {done.stdout}")
    return done.stdout


def has_device(name: str) -> bool:
    return os.path.exists(f"/sys/class/infiniband/{name}")


def verbs_devices() -> list:
    """Of those whose files are there."""
    names = []
    for path in glob.glob("/dev/infiniband/uverbs*"):
        with contextlib.suppress(OSError), open(f"/sys/class/infiniband_verbs/{os.path.basename(path)}/ibdev", encoding="ascii") as file:
            names.append(file.read().strip())
    return names


def load() -> None:
    """As guest/init has it."""
    for module in reversed(MODULES):
        sh(f"modprobe {module}")
    for i in range(2):
        if not has_device(f"rxe{i}"):
            sh(f"rdma link add rxe{i} type rxe netdev veth{i}")
    # The address that the tests use is there a moment after the device.
    for i in range(2):
        gid = f"/sys/class/infiniband/rxe{i}/ports/1/gids/1"
        wait_for(lambda: os.path.exists(gid) and "ffff:0a4d" in open(gid, encoding="ascii").read(), f"the GID of rxe{i}")
    wait_for(lambda: set(verbs_devices()) == {"rxe0", "rxe1"} and os.path.exists("/dev/infiniband/rdma_cm"), "the device files")


def unload(modules) -> None:
    for module in modules:
        sh(f"modprobe -r {module}")
        expect(not os.path.exists(f"/sys/module/{module}"), f"{module} is still there")


def check_job(trace: check.Trace, job: JobPair, tracer: Process) -> None:
    rows = trace.of(job.client.pid)
    expect([row["status"] for row in rows] == ["success"] * COUNT, f"{len(rows)} rows of {COUNT}\n{tracer.tail()}")
    found = check.check_peers(trace, rows, job.client.pid, job.server.pid)
    expect(not found, "\n".join(found))


def device_removed_under_a_job() -> None:
    """The device of a traced job that still holds its queue pairs."""
    job = JobPair(f"op=rdma_write count={COUNT} bytes=64", stages="end", held=True)
    tracer = Tracer(job.pids, csv_path("removed"))
    job.go()
    job.wait_stage("end", job.client)
    removal = Process("rdma link delete", ["rdma", "link", "delete", "rxe0"])
    wait_for(lambda: "rxe0" not in verbs_devices(), "the removal is under way")  # it waits for the job
    job.proceed()
    job.client.wait()  # what it makes of a device that is gone is its own affair
    job.server.wait()
    removal.wait_ok()
    tracer.finish()
    check_job(check.Trace(tracer.csv), job, tracer)


def modules_unloaded_under_a_tracer() -> None:
    """A system-wide tracer: it keeps no driver, and sees the jobs before and after."""
    csv = csv_path("unloaded")
    tracer = Process("sigmatrace", [SIGMATRACE, "attach", "--comm", "verbs_job", "-o", csv, "--budget", "off"],
                     {"SIGMATRACE_LOCK": csv + ".lock"})
    wait_for(lambda: "attached: " in tracer.stderr() or tracer.popen.poll() is not None, "the tracer attaches")
    expect(tracer.popen.poll() is None, f"the tracer ended\n{tracer.tail()}")
    jobs = []
    for anew in (False, True):
        if anew:
            for i in range(2):
                sh(f"rdma link delete rxe{i}")
            # The hook is in ib_uverbs, which the kernel may keep as long.
            unload(MODULES[:-1])
            load()
        job = JobPair(f"op=rdma_write count={COUNT} bytes=64")
        job.wait_ok()
        jobs.append(job)
    tracer.popen.send_signal(2)
    tracer.wait_ok()
    trace = check.Trace(csv)
    for job in jobs:
        check_job(trace, job, tracer)
    for i in range(2):
        sh(f"rdma link delete rxe{i}")
    unload(MODULES)  # nothing is held any more


def test() -> None:
    before = left_in_kernel()
    try:
        device_removed_under_a_job()
        load()
        modules_unloaded_under_a_tracer()
    finally:
        load()
    wait_for(lambda: left_in_kernel() == before, "nothing is left in the kernel", limit_s=30)


if __name__ == "__main__":
    run_test(test)
