#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Attaching to a job that runs already and whose processes or libraries are unusual (workloads/held.c).

    held_test.py --list
    held_test.py NAME --sigmatrace FILE --workloads DIR       (the library by SIGMA_CONNECTX_LIBRARY)
"""
import argparse
import contextlib
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../native"), os.path.dirname(HERE)]
import connectx_tree  # noqa: E402
from late_job import Attach, Output  # noqa: E402


class Held:
    """The running job, on an emulated device of its own."""

    def __init__(self, folder, program, children):
        self.directory = os.path.join(folder, "run")
        os.mkdir(self.directory)
        connectx_tree.make_tree(self.directory, ["eth"])
        self.popen = subprocess.Popen([program, "mlx5_0", str(children)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      env={**os.environ, **connectx_tree.workload_environment(self.directory)})
        word, *pids = self.popen.stdout.readline().split()
        assert word == "ready", "the job did not begin"
        self.pid, *self.children = map(int, pids)
        self.sent = 0

    def write(self, count):
        """The job checks what arrives."""
        self.popen.stdin.write(f"{count}\n")
        self.popen.stdin.flush()
        assert self.popen.stdout.readline() == f"done {count}\n", "the job failed"
        self.sent += count

    def end(self):
        self.popen.stdin.close()
        assert self.popen.wait(90) == 0, "the job failed"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


@contextlib.contextmanager
def traced(arguments, job, folder, pids, *options):
    path = os.path.join(folder, "ops.csv")
    with Attach(arguments.sigmatrace, "--pid", ",".join(map(str, pids)), "--budget", "off", "-o", path, *options,
                env={"SIGMATRACE_SYSFS": os.path.join(job.directory, "sys")}) as tracer:
        tracer.path = path
        tracer.says("^attached: ")
        yield tracer


def check_rows(output, job, first):
    rows = [row for row in output.rows if row["queue"] == "send"]
    assert [int(row["wr_id"]) for row in rows] == list(range(first, job.sent + 1)), (len(rows), first, job.sent)
    assert {row["pid"] for row in output.rows} == {str(job.pid)}, {row["pid"] for row in output.rows}
    assert {(row["opcode"], row["bytes"], row["status"]) for row in rows} == {("rdma_write", "8", "success")}


def forked_children(arguments, folder):
    """Of processes that have copies of a parent's queue pairs none is reported: not by those children, not twice."""
    with Held(folder, os.path.join(arguments.workloads, "held"), children=5) as job:
        job.write(10)
        with traced(arguments, job, folder, [*job.children, job.pid]) as tracer:
            job.write(20)
            assert tracer.interrupt() == 0, tracer.text
        output = Output(tracer.path)
        check_rows(output, job, 11)
        owners = [qp["pid"] for qp in output.meta["qps"]]
        assert owners == [job.pid] * 2, owners
        assert output.counters["qps_inherited"] == 5 * 2, output.counters["qps_inherited"]
        job.end()


def linked_in(arguments, folder):
    """rdma-core within the program: the functions are found by the objects that it has."""
    with Held(folder, os.path.join(arguments.workloads, "held_linked_in"), children=0) as job:
        job.write(10)
        with traced(arguments, job, folder, [job.pid]) as tracer:
            job.write(20)
            assert tracer.interrupt() == 0, tracer.text
        output = Output(tracer.path)
        check_rows(output, job, 11)
        said = " ".join(output.coverage["statement"]) + tracer.text
        assert "libibverbs is linked into" in said, said
        assert "waiting for it" not in tracer.text, tracer.text
        job.end()


def linked_in_without_objects(arguments, folder):
    """Nothing to find the functions by: that is said, and counted, and nobody waits for a library that never comes."""
    with Held(folder, os.path.join(arguments.workloads, "held_linked_in"), children=0) as job:
        path = os.path.join(folder, "ops.csv")
        launcher = subprocess.Popen(["sh", "-c", 'read -r go && exec "$0" mlx5_0 0 told', os.path.join(arguments.workloads, "held_linked_in")],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                    env={**os.environ, **connectx_tree.workload_environment(job.directory)})
        try:
            with Attach(arguments.sigmatrace, "--pid", str(launcher.pid), "--budget", "off", "-o", path,
                        env={"SIGMATRACE_SYSFS": os.path.join(job.directory, "sys")}) as tracer:
                tracer.says("^attached: ")
                launcher.stdin.write("go\n")
                launcher.stdin.flush()
                tracer.says("libibverbs is linked into")  # it was looked at, and has made nothing yet
                launcher.stdin.write("make them\n")
                launcher.stdin.flush()
                assert launcher.stdout.readline().startswith("ready")
                launcher.stdin.close()
                assert launcher.wait(90) == 0, "the job failed"
                assert tracer.status() == 0, tracer.text
            assert Output(path).counters["libraries_unresolved"] == 1, tracer.text
        finally:
            launcher.kill()
            launcher.wait()
        job.end()


TESTS = {test.__name__: test for test in (forked_children, linked_in, linked_in_without_objects)}


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
    with tempfile.TemporaryDirectory(prefix="sigma-held-") as folder:
        TESTS[arguments.name](arguments, folder)


if __name__ == "__main__":
    main()
