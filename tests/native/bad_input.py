#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""bad_input.py BUILD CASE: `sigmatrace attach` where something is wrong, on real processes, and how it
ends. Each case is a function below, and a CTest test of its own; it fails by an assertion. Bad input
that needs no process is in tests/unit/cli_test.py."""
import os
import resource
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from late_job import Attach, Job, Output, in_kernel, links_of, run_case, wait_for

BUILD = sys.argv[1]
PROGRAM = os.path.join(BUILD, "bin", "sigmatrace")
EXACT = ("--budget", "off")


def built(name):
    return os.path.join(BUILD, "tests", name)


def job(provider="late_job_provider.so"):
    return Job(built("late_job"), built("unit/resolve/libibverbs.so.1"), built(provider))


def loaded_job(**arguments):
    new = job(**arguments)
    new.load()
    return new


def attach(target, *arguments, **more):
    return Attach(PROGRAM, "--pid", str(target.pid), *EXACT, *arguments, **more)


def case_pid_without_rdma(folder):
    """Waits, and says so; traces from when the library comes."""
    path = os.path.join(folder, "ops.csv")
    with job() as target, attach(target, "-o", path) as tracer:
        line = tracer.says("waiting")
        assert str(target.pid) in line and "libibverbs" in line, line
        tracer.says("^attached: 1 process")
        target.load()

        def rows():
            target.send(1)
            target.poll(1)
            with open(path, encoding="utf-8") as file:
                return len(file.readlines()) > 1
        wait_for(rows, "a row of a library that came later")
        assert tracer.interrupt() == 0, tracer.text
        ids = Output(path).ids(target.pid)
        assert ids and ids == list(range(ids[0], target.sent + 1)), (ids, target.sent)
        target.end()


def case_pid_without_rdma_to_its_end(folder):
    with job() as target, attach(target, "-o", os.path.join(folder, "ops.csv")) as tracer:
        tracer.says("^attached: ")
        target.end()
        assert tracer.status() == 0, tracer.text
        assert Output(os.path.join(folder, "ops.csv")).rows == []


def case_no_uprobes(folder):
    path = os.path.join(folder, "ops.csv")
    with loaded_job() as target:
        with attach(target, "-o", path, env={"SIGMATRACE_DISABLE": "perf,multi"}) as tracer:
            assert tracer.status() == 1
            lines = tracer.text.splitlines()
            assert lines[0].startswith("sigmatrace: ") and "uprobes" in lines[0], tracer.text
            assert lines[1].startswith("  hint: ") and "doctor" in lines[1], tracer.text
            assert not os.path.exists(path), "an output that holds nothing"
        target.send(10)
        target.end()


def case_no_ring_buffer(folder):
    with loaded_job() as target:
        with attach(target, "-o", os.path.join(folder, "ops.csv"), env={"SIGMATRACE_DISABLE": "ring_buffer"}) as tracer:
            assert tracer.status() == 1
            assert "BPF ring buffer" in tracer.text and "  hint: " in tracer.text, tracer.text
        target.end()


def case_unknown_provider(folder):
    """Nothing is guessed: which functions are not covered, and why, is said at once and in the side file."""
    path = os.path.join(folder, "ops.csv")
    provider = built("late_job_hidden.so")
    with loaded_job(provider="late_job_hidden.so") as target, attach(target, "-o", path) as tracer:
        tracer.says("^attached: ")
        target.send(10)
        assert tracer.interrupt() == 0, tracer.text
        output = Output(path)
        assert output.rows == []
        [library] = [each for each in output.coverage["libraries"] if each["path"] == provider]
        uncovered = {each["function"]: each["reason"] for each in library["uncovered"]}
        for function in ("post_send", "post_recv", "poll_cq"):
            assert uncovered.get(function), uncovered
        assert not {probe["function"] for probe in library["probes"]} & set(uncovered), library
        assert output.counters["functions_unresolved"] >= 3, output.counters
        assert "not probed" in " ".join(output.coverage["statement"]), output.coverage["statement"]
        assert "late_job_hidden" in tracer.text and "post_send" in tracer.text, tracer.text
        target.end()


def case_starved_ring(folder):
    """A ring that is too small for a slow reader: the loss is exact, and shown."""
    path = os.path.join(folder, "ops.csv")
    with loaded_job() as target:
        with attach(target, "-o", path, "--ring-size", "16K",
                    env={"SIGMATRACE_DRAIN_DELAY_MS": "200"}) as tracer:
            tracer.says("^attached: ")
            target.send(5000)
            assert tracer.interrupt() == 0, tracer.text
        counters = Output(path).counters
        attempted, consumed, dropped = (counters["records_" + name] for name in ("attempted", "consumed", "dropped"))
        assert attempted == consumed + dropped, counters
        assert dropped > 0 and attempted >= 5000, counters
        assert str(dropped) in tracer.text.replace(",", "") and "ring" in tracer.text, tracer.text
        seen = Output(path).ids(target.pid)
        assert seen == sorted(set(seen)) and set(seen) <= set(range(1, target.sent + 1)), "invented rows"
        target.end()


def case_full_output(folder):
    """A file that cannot grow any more: whole rows, how many were lost, status 1."""
    path = os.path.join(folder, "ops.csv")
    limit = 64 * 1024

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with loaded_job() as target:
        with attach(target, "-o", path, before=small_files) as tracer:
            tracer.says("^attached: ")
            target.send(2000)
            assert tracer.interrupt() == 1, tracer.text
        output = Output(path)
        assert os.path.getsize(path) <= limit
        assert 0 < len(output.rows) < 2000
        assert output.ids(target.pid) == list(range(1, len(output.rows) + 1))
        assert output.counters["rows_written"] == len(output.rows), output.counters
        lost = output.counters["rows_lost"]
        assert lost == 2000 - len(output.rows), output.counters
        assert "lost" in tracer.text and str(lost) in tracer.text.replace(",", ""), tracer.text
        assert any(line.startswith("sigmatrace: ") and path in line for line in tracer.text.splitlines()), tracer.text
        target.send(10)
        target.end()


def case_tracer_killed(folder):
    """The job goes on, and nothing of the tracer is left in the kernel."""
    with loaded_job() as target:
        with attach(target, "-o", os.path.join(folder, "ops.csv")) as tracer:
            tracer.says("^attached: ")
            target.spin()
            at = target.at()
            wait_for(lambda: target.at() > at + 1000, "the job posts")
            ours = links_of(tracer.popen.pid)
            assert {kind for kind, _ in ours} == {"link", "prog"} and ours <= in_kernel(), ours
            tracer.popen.send_signal(signal.SIGKILL)
            assert tracer.status() == -signal.SIGKILL
        wait_for(lambda: not ours & in_kernel(), "no link and no program of the tracer is left")
        at = target.at()
        wait_for(lambda: target.at() > at + 1000, "the job goes on")
        target.stop()
        target.send(10)
        target.end()


def case_interrupted(folder):
    """Ctrl-C: status 0, all rows, a complete side file; the job goes on."""
    path = os.path.join(folder, "ops.csv")
    with loaded_job() as target, attach(target, "-o", path) as tracer:
        tracer.says("^attached: ")
        for _ in range(30):
            target.send(100)
            while target.poll(64):
                pass
        assert tracer.interrupt() == 0, tracer.text
        output = Output(path)
        assert output.ids(target.pid) == list(range(1, 3001))
        assert {row["opcode"] for row in output.rows} == {"send"}
        assert {row["bytes"] for row in output.rows} == {"64"}
        assert {row["status"] for row in output.rows} == {"success"}
        assert output.meta["complete"] is True and output.meta["end_reason"] == "interrupted", output.meta
        assert output.counters["records_dropped"] == 0
        assert os.stat(path).st_mode & 0o777 == 0o600
        target.send(10)
        target.end()


def case_interrupted_in_traffic(folder):
    path = os.path.join(folder, "ops.csv")
    with loaded_job() as target, attach(target, "-o", path, "--ring-size", "64M") as tracer:
        tracer.says("^attached: ")
        target.spin()
        wait_for(lambda: os.path.getsize(path) > 100_000, "rows")
        assert tracer.interrupt() == 0, tracer.text
        target.stop()
        output = Output(path)
        ids = output.ids(target.pid)
        if output.counters["records_dropped"] == 0:
            assert ids == list(range(1, len(ids) + 1))
        assert output.meta["complete"] is True
        target.end()


if __name__ == "__main__":
    run_case(globals())
