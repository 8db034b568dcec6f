#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Where the thread that reads queues runs, on a machine whose first two CPUs share no cache, as its sysfs says
(workloads/placed.c). Each waits until the kernel says that the thread may run where it should.

    placement_test.py --list
    placement_test.py NAME --sigmatrace FILE --workloads DIR       (the library by SIGMA_CONNECTX_LIBRARY)
"""
import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../native"), os.path.dirname(HERE)]
import connectx_tree  # noqa: E402
from late_job import Attach, Output, wait_for  # noqa: E402


class Job:
    """Posts on an emulated device of its own, all of its threads on one CPU."""

    def __init__(self, program, folder, cpus, cpu):
        self.directory = os.path.join(folder, "run")
        os.mkdir(self.directory)
        connectx_tree.make_tree(self.directory, ["eth"])
        for each in cpus:
            for index, level in enumerate((1, 2, 3)):
                cache = f"{self.directory}/sys/devices/system/cpu/cpu{each}/cache/index{index}"
                connectx_tree.write(f"{cache}/level", str(level))
                connectx_tree.write(f"{cache}/shared_cpu_list", str(each))
        self.popen = subprocess.Popen([program, "mlx5_0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
                                      env={**os.environ, **connectx_tree.workload_environment(self.directory)})
        assert self.popen.stdout.readline() == "ready\n", "the job did not begin"

    def move(self, cpu):
        for tid in os.listdir(f"/proc/{self.popen.pid}/task"):
            os.sched_setaffinity(int(tid), {cpu})

    def tell(self, word):
        self.popen.stdin.write(word + "\n")
        self.popen.stdin.flush()

    def end(self):
        """How many it posted."""
        self.popen.stdin.close()
        word, count = self.popen.stdout.readline().split()
        assert word == "posted" and self.popen.wait(90) == 0, "the job failed"
        return int(count)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


class Traced:
    """The tracer, attached to the job."""

    def __init__(self, sigmatrace, job, folder, *options):
        self.path = os.path.join(folder, "ops.csv")
        self.attach = Attach(sigmatrace, "--pid", str(job.popen.pid), "--budget", "off", "--posts", "ring", "--completions", "ring",
                             "-o", self.path, *options, env={"SIGMATRACE_SYSFS": os.path.join(job.directory, "sys")})

    def __enter__(self):
        self.attach.says("^attached: ")
        return self

    def __exit__(self, *what):
        self.attach.__exit__(*what)

    def reader_cpus(self):
        """That the thread may run on."""
        pid = self.attach.popen.pid
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/comm", encoding="utf-8") as file:
                if file.read() == "sigma-observer\n":
                    return os.sched_getaffinity(int(tid))
        return None

    def wait_until_reader_on(self, cpus):
        wait_for(lambda: self.reader_cpus() == cpus, f"the reader on {cpus}")

    def end(self):
        assert self.attach.interrupt() == 0, self.attach.text
        return Output(self.path)


def follows(arguments, folder):
    """The reader goes where the job's threads are, and after them; the job's end gives it back."""
    cpus = arguments.cpus
    with Job(os.path.join(arguments.workloads, "placed"), folder, cpus, cpus[1]) as job:
        with Traced(arguments.sigmatrace, job, folder) as tracer:
            tracer.wait_until_reader_on({cpus[1]})
            job.move(cpus[0])
            tracer.wait_until_reader_on({cpus[0]})
            output = tracer.end()
        job.end()
        assert len(output.rows) > 0
        assert output.counters["observer_near_kib"] > 0, output.counters


def leaves_busy_cpu(arguments, folder):
    """Where the job takes all of a CPU, the reader leaves it, though no other one shares its cache; and comes back."""
    cpus = arguments.cpus
    with Job(os.path.join(arguments.workloads, "placed"), folder, cpus, cpus[1]) as job:
        with Traced(arguments.sigmatrace, job, folder) as tracer:
            everywhere = tracer.reader_cpus()
            tracer.wait_until_reader_on({cpus[1]})
            job.tell("spin")
            tracer.wait_until_reader_on(everywhere)
            job.tell("sleep")
            tracer.wait_until_reader_on({cpus[1]})
            tracer.end()
        job.end()


def keeps_to_allowed(arguments, folder):
    """Confined by who started it, the tracer stays there; what that costs the job is told."""
    cpus = arguments.cpus
    before = os.sched_getaffinity(0)
    with Job(os.path.join(arguments.workloads, "placed"), folder, cpus, cpus[1]) as job:
        os.sched_setaffinity(0, {cpus[0]})
        with Traced(arguments.sigmatrace, job, folder) as tracer:
            os.sched_setaffinity(0, before)
            assert tracer.reader_cpus() == {cpus[0]}
            # The CSV grows by what was read in seconds; by then the thread has been placed, or has not.
            wait_for(lambda: os.path.exists(tracer.path) and os.path.getsize(tracer.path) > 6 << 20, "rows")
            assert tracer.reader_cpus() == {cpus[0]}
            output = tracer.end()
        job.end()
        assert output.counters["observer_far_kib"] > 0, output.counters
        assert output.counters["observer_near_kib"] == 0, output.counters


TESTS = {test.__name__: test for test in (follows, leaves_busy_cpu, keeps_to_allowed)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=list(TESTS))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--sigmatrace", default="sigmatrace")
    parser.add_argument("--workloads", default=".")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(TESTS))
        return
    arguments.cpus = sorted(os.sched_getaffinity(0))[:2]
    assert len(arguments.cpus) == 2, "this test needs two CPUs, and may use one only"
    with tempfile.TemporaryDirectory(prefix="sigma-placement-") as folder:
        TESTS[arguments.name](arguments, folder)


if __name__ == "__main__":
    main()
