#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""gpu_emit.py BUILD CASE: records of the preloaded GPU library on their way into a trace, without GPU, NIC
or any queue: emit_job.c calls the library's function by itself. Each case is a function below, and a CTest
test of its own; it fails by an assertion."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from late_job import Attach, Driven, Output, run_case, wait_for

BUILD = sys.argv[1]
PROGRAM = os.path.join(BUILD, "bin", "sigmatrace")
LIBRARY = os.path.join(BUILD, "lib", "libsigmatrace_gpu.so")
PER_WINDOW = 200_000  # SIGMA_GPU_WINDOW_RECORDS


class Job(Driven):
    def __init__(self):
        super().__init__([os.path.join(BUILD, "tests", "emit_job")], env={"LD_PRELOAD": LIBRARY})
        self.answer()

    def tracers(self):
        return int(self.ask("tracers")[0].split()[1])


def attach(job, *arguments, **more):
    tracer = Attach(PROGRAM, "--pid", str(job.popen.pid), "--budget", "off", *arguments, **more)
    try:
        # The library may know of it before the tracer has come to this process, which must not end until then.
        tracer.says("attached|waiting for it")
        wait_for(lambda: job.tracers() > 0 or tracer.popen.poll() is not None, "the library learns of the tracer")
        assert tracer.popen.poll() is None, "the tracer has ended"
    except BaseException:
        print(tracer.text)
        tracer.popen.kill()
        raise
    return tracer


def case_known_while_traced(_):
    """The kernel keeps the count, also when the tracer has no time to say farewell."""
    with Job() as job:
        assert job.tracers() == 0
        with attach(job) as tracer:
            assert tracer.interrupt() == 0, tracer.text
        wait_for(lambda: job.tracers() == 0, "the library learns that the tracer has gone")
        with attach(job) as tracer:
            tracer.popen.kill()
        wait_for(lambda: job.tracers() == 0, "the library learns that the tracer was killed")
        job.end()


def case_into_the_trace(folder):
    path = os.path.join(folder, "ops.csv")
    with Job() as job:
        job.ask("posts 900 10")  # to nobody
        with attach(job, "-o", path) as tracer:
            job.ask("begin 0")
            job.ask("posts 0 100")
            job.ask("posts 100 5")
            job.end()
            assert tracer.status() == 0, tracer.text
        output = Output(path)
        assert [int(row["index"]) for row in output.rows] == list(range(105)), [row["index"] for row in output.rows]
        for row in output.rows:
            index = int(row["index"])
            assert (row["pid"], row["qp_num"]) == (str(job.popen.pid), "77"), row
            assert (row["initiator"], row["source"], row["tier"]) == ("gpu", "gpu", "3"), row
            assert (row["opcode"], int(row["bytes"]), row["status"]) == ("rdma_write", index % 1000 + 1, "success"), row
            assert row["complete_source"] == ("ring" if index in (99, 104) else "inferred"), row
        assert output.counters["gpu_batches_refused"] == 0, output.counters


def case_what_is_no_record_is_refused(folder):
    path = os.path.join(folder, "ops.csv")
    with Job() as job:
        with attach(job, "-o", path) as tracer:
            job.ask("begin 0")
            job.ask("forged")
            job.end()
            assert tracer.status() == 0, tracer.text
        output = Output(path)
        assert [int(row["index"]) for row in output.rows] == list(range(600, 664)), [row["index"] for row in output.rows]
        assert output.counters["gpu_batches_refused"] == 4, output.counters
        assert output.counters["reads_unreadable"] == 1, output.counters


def case_rate_of_one_process(folder):
    """A process that floods fills its share of a window, and what is beyond is counted."""
    path = os.path.join(folder, "ops.csv")
    sent = PER_WINDOW + 30_000
    with Job() as job:
        with attach(job, "-o", path, "--ring-size", "256M") as tracer:
            job.ask("begin 0")
            job.ask(f"flood {sent}")
            job.end()
            assert tracer.status() == 0, tracer.text
        counters = Output(path).counters
        rows = len(Output(path).rows)
        assert counters["records_attempted"] == counters["records_consumed"] + counters["records_dropped"], counters
        assert rows + counters["gpu_records_over_rate"] + counters["records_dropped"] == sent, (rows, counters)


if __name__ == "__main__":
    run_case(globals())
