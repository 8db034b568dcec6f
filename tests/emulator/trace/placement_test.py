#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Where the thread that reads queues runs, on a machine whose first two CPUs share no cache, as its sysfs says
(workloads/placed.c). Each waits until the kernel says that the thread may run where it should.

    placement_test.py --list
    placement_test.py NAME --sigmatrace FILE --workloads DIR       (the library by SIGMA_CONNECTX_LIBRARY)
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from driven_job import EmulatedJob, Traced, connectx_tree, named_tests, wait_for  # noqa: E402


def keep_to(pid, cpus, but=()):
    """All threads of the process."""
    for tid in os.listdir(f"/proc/{pid}/task"):
        if int(tid) not in but:
            os.sched_setaffinity(int(tid), cpus)


class Job(EmulatedJob):
    """Posts, all of its threads on one CPU."""

    def __init__(self, arguments, folder):
        self.cpus = arguments.cpus
        super().__init__(os.path.join(arguments.workloads, "placed"), folder=folder,
                         before=lambda: os.sched_setaffinity(0, {self.cpus[1]}))

    def prepare(self):
        for each in self.cpus:
            for index, level in enumerate((1, 2, 3)):
                cache = f"{self.directory}/sys/devices/system/cpu/cpu{each}/cache/index{index}"
                connectx_tree.write(f"{cache}/level", str(level))
                connectx_tree.write(f"{cache}/shared_cpu_list", str(each))


class Tracer(Traced):
    def __init__(self, arguments, job, folder):
        super().__init__(arguments.sigmatrace, job, folder, "--posts", "ring", "--completions", "ring")

    def observer(self):
        """The thread."""
        for tid in os.listdir(f"/proc/{self.popen.pid}/task"):
            with open(f"/proc/{self.popen.pid}/task/{tid}/comm", encoding="utf-8") as file:
                if file.read() == "sigma-observer\n":
                    return int(tid)
        return None

    def reader_cpus(self):
        """That it may run on."""
        return os.sched_getaffinity(self.observer())

    def wait_until_reader_on(self, cpus):
        wait_for(lambda: self.reader_cpus() == cpus, f"the reader on {cpus}")


def follows(arguments, folder):
    """The reader goes where the job's threads are, and after them; the job's end gives it back."""
    cpus = arguments.cpus
    with Job(arguments, folder) as job:
        with Tracer(arguments, job, folder) as tracer:
            tracer.says("^attached: ")
            tracer.wait_until_reader_on({cpus[1]})
            keep_to(job.pid, {cpus[0]})
            tracer.wait_until_reader_on({cpus[0]})
            output = tracer.output()
        job.end()
        assert len(output.rows) > 0
        assert output.counters["observer_near_kib"] > 0, output.counters


def leaves_busy_cpu(arguments, folder):
    """Where the job takes all of a CPU, the reader leaves it, though no other one shares its cache; and comes back."""
    cpus = arguments.cpus
    with Job(arguments, folder) as job:
        with Tracer(arguments, job, folder) as tracer:
            tracer.says("^attached: ")
            everywhere = tracer.reader_cpus()
            tracer.wait_until_reader_on({cpus[1]})
            job.tell("spin")
            tracer.wait_until_reader_on(everywhere)
            job.tell("sleep")
            tracer.wait_until_reader_on({cpus[1]})
            tracer.output()
        job.end()


def keeps_to_allowed(arguments, folder):
    """Confined by who started it, the tracer stays there; freed, its reader goes to the job; confined again, as taskset does
    it, by one thread, it comes back. What it costs the job is told."""
    cpus = arguments.cpus
    before = os.sched_getaffinity(0)
    with Job(arguments, folder) as job:
        os.sched_setaffinity(0, {cpus[0]})
        with Tracer(arguments, job, folder) as tracer:
            os.sched_setaffinity(0, before)
            tracer.says("^attached: ")
            wait_for(tracer.observer, "the reader")
            assert tracer.reader_cpus() == {cpus[0]}
            # The CSV grows by what was read in seconds; a reader that may go to the job has gone there by then.
            wait_for(lambda: os.path.exists(tracer.path) and os.path.getsize(tracer.path) > 6 << 20, "rows")
            assert tracer.reader_cpus() == {cpus[0]}
            keep_to(tracer.pid, before)
            tracer.wait_until_reader_on({cpus[1]})
            keep_to(tracer.pid, {cpus[0]}, but=[tracer.observer()])
            tracer.wait_until_reader_on({cpus[0]})
            output = tracer.output()
        job.end()
        assert output.counters["observer_far_kib"] > 0, output.counters


TESTS = {test.__name__: test for test in (follows, leaves_busy_cpu, keeps_to_allowed)}


if __name__ == "__main__":
    asked = named_tests.parse(__doc__, TESTS, sigmatrace="sigmatrace", workloads=".")
    asked.cpus = sorted(os.sched_getaffinity(0))[:2]
    assert len(asked.cpus) == 2, "this test needs two CPUs, and may use one only"
    with tempfile.TemporaryDirectory(prefix="sigma-placement-") as scratch:
        TESTS[asked.name](asked, scratch)
