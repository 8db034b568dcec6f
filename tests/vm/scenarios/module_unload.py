#!/usr/bin/env python3
"""Modules go while a tracer is there: the tracer keeps none of them, survives, sees what comes after, and leaves
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


def check_rows(trace: check.Trace, job: JobPair, tracer: Process) -> list:
    rows = trace.of(job.client.pid)
    expect([row["status"] for row in rows] == ["success"] * COUNT, f"{len(rows)} rows of {COUNT}\n{tracer.tail()}")
    return rows


def check_job(trace: check.Trace, job: JobPair, tracer: Process) -> None:
    found = check.check_peers(trace, check_rows(trace, job, tracer), job.client.pid, job.server.pid)
    expect(not found, "\n".join(found) + "\n" + tracer.tail())


def device_removed_under_a_job() -> None:
    """The device of a traced job that still holds its queue pairs."""
    job = JobPair(f"op=rdma_write count={COUNT} bytes=64", stages="end", held=True)
    tracer = Tracer(job.pids, csv_path("removed"))
    job.go()
    job.wait_stage("end", job.client)
    # A tracer that is behind could not ask any more how the device is called.
    wait_for(lambda: os.path.exists(tracer.csv) and "rdma_write" in open(tracer.csv, encoding="utf-8").read(),
             "the tracer has told of the job")
    removal = Process("rdma link delete", ["rdma", "link", "delete", "rxe0"])
    wait_for(lambda: "rxe0" not in verbs_devices(), "the removal is under way")  # it waits for the job
    job.proceed()
    job.client.wait()  # what it makes of a device that is gone is its own affair
    job.server.wait()
    removal.wait_ok()
    tracer.finish()
    check_job(check.Trace(tracer.csv), job, tracer)


def modules_unloaded_under_a_tracer() -> None:
    """A system-wide tracer: it holds no module, and sees the jobs before and after; where the module that it
    hooks has gone and come back, it says what it cannot know, and sees all of what is set up after.
    """
    csv = csv_path("unloaded")
    tracer = Process("sigmatrace", [SIGMATRACE, "attach", "--comm", "verbs_job", "-o", csv, "--budget", "off"],
                     {"SIGMATRACE_LOCK": csv + ".lock"})
    wait_for(lambda: "attached: " in tracer.stderr() or tracer.popen.poll() is not None, "the tracer attaches")
    expect("control plane by ib_uverbs_ioctl by kprobe" in tracer.stderr(), tracer.tail())
    jobs = []
    for modules in ((), MODULES[:-1], MODULES):
        if modules:
            for i in range(2):
                sh(f"rdma link delete rxe{i}")
            for module in modules:
                sh(f"rmmod {module}")  # modprobe -r takes those along that nobody needs any more
                expect(not os.path.exists(f"/sys/module/{module}"), f"{module} is still there")
            load()
        if modules == MODULES:
            wait_for(lambda: "ib_uverbs was loaded anew and is hooked again" in tracer.stderr() or
                     tracer.popen.poll() is not None, "the tracer notices")
        job = JobPair(f"op=rdma_write count={COUNT} bytes=64")
        job.wait_ok()
        jobs.append(job)
    tracer.popen.send_signal(2)
    tracer.wait_ok()
    trace = check.Trace(csv)
    for job in jobs:
        check_job(trace, job, tracer)
    expect("ib_uverbs was loaded anew" in str(trace.meta["coverage"]["statement"]), "the coverage does not say it")


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
