#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Attaching to a job that runs already and whose processes or libraries are unusual (workloads/held.c).

    held_test.py --list
    held_test.py NAME --sigmatrace FILE --workloads DIR       (the library by SIGMA_CONNECTX_LIBRARY)
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from driven_job import Driven, EmulatedJob, Traced, named_tests, Output  # noqa: E402


class Held(EmulatedJob):
    """The running job."""

    def __init__(self, arguments, program, folder, children=0):
        super().__init__(os.path.join(arguments.workloads, program), children, folder=folder)
        self.children = [int(pid) for pid in self.said[1:]]
        self.sent = 0

    def write(self, count):
        """The job checks what arrives."""
        self.tell(str(count))
        assert self.line() == f"done {count}", "the job failed"
        self.sent += count


def check_rows(output, job, first):
    rows = [row for row in output.rows if row["queue"] == "send"]
    assert [int(row["wr_id"]) for row in rows] == list(range(first, job.sent + 1)), (len(rows), first, job.sent)
    assert {row["pid"] for row in output.rows} == {str(job.pid)}, {row["pid"] for row in output.rows}
    assert {(row["opcode"], row["bytes"], row["status"]) for row in rows} == {("rdma_write", "8", "success")}


def forked_children(arguments, folder):
    """Of processes that have copies of a parent's queue pairs none is reported: not by those children, not twice."""
    with Held(arguments, "held", folder, children=5) as job:
        job.write(10)
        with Traced(arguments.sigmatrace, job, folder, pids=[*job.children, job.pid]) as tracer:
            tracer.says("^attached: ")
            job.write(20)
            output = tracer.output()
        check_rows(output, job, 11)
        owners = [qp["pid"] for qp in output.meta["qps"]]
        assert owners == [job.pid] * 2, owners
        assert output.counters["qps_inherited"] == 5 * 2, output.counters["qps_inherited"]
        job.end()


def linked_in(arguments, folder):
    """rdma-core within the program: the functions are found by the objects that it has."""
    with Held(arguments, "held_linked_in", folder) as job:
        job.write(10)
        with Traced(arguments.sigmatrace, job, folder) as tracer:
            tracer.says("^attached: ")
            job.write(20)
            output = tracer.output()
        check_rows(output, job, 11)
        said = " ".join(output.coverage["statement"]) + tracer.text
        assert "libibverbs is linked into" in said, said
        assert "waiting for it" not in tracer.text, tracer.text
        job.end()


def linked_in_without_objects(arguments, folder):
    """Nothing to find the functions by: that is said, and counted, and nobody waits for a library that never comes."""
    with Held(arguments, "held_linked_in", folder) as job:
        program = os.path.join(arguments.workloads, "held_linked_in")
        with Driven(["sh", "-c", 'read -r go && exec "$0" mlx5_0 0 told', program], env=job.environment()) as late:
            with Traced(arguments.sigmatrace, job, folder, pids=[late.pid]) as tracer:
                tracer.says("^attached: ")
                late.tell("go")
                tracer.says("libibverbs is linked into")  # it was looked at, and has made nothing yet
                late.tell("make them")
                assert late.line().startswith("ready")
                late.end()
                assert tracer.status() == 0, tracer.text
            assert Output(tracer.path).counters["libraries_unresolved"] == 1, tracer.text
        job.end()


TESTS = {test.__name__: test for test in (forked_children, linked_in, linked_in_without_objects)}


if __name__ == "__main__":
    asked = named_tests.parse(__doc__, TESTS, sigmatrace="sigmatrace", workloads=".")
    with tempfile.TemporaryDirectory(prefix="sigma-held-") as scratch:
        TESTS[asked.name](asked, scratch)
