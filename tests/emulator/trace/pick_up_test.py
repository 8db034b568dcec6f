#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""How long completions lie in their queue until the job polls them (workloads/picked_up.c, --completions both).

    pick_up_test.py --list
    pick_up_test.py NAME --sigmatrace FILE --workloads DIR       (the library by SIGMA_CONNECTX_LIBRARY)
"""
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from driven_job import Attach, EmulatedJob, named_tests  # noqa: E402

HISTOGRAM = 1.05  # a percentile is the upper end of its step
SLEEP_US = 50_000
SLEPT, SPUN = 20, 2000


class Tracer(Attach):
    """Into a trace directory; `report` is what is made of it."""

    def __init__(self, arguments, job, folder, *options):
        self.program, self.path = arguments.sigmatrace, os.path.join(folder, "trace")
        super().__init__(self.program, "--pid", str(job.pid), "--budget", "off", "-o", self.path, *options,
                         env={"SIGMATRACE_SYSFS": os.path.join(job.directory, "sys"),
                              "SIGMATRACE_CLOCK": os.path.join(job.directory, "clock"),
                              "SIGMATRACE_LOCK": os.path.join(folder, "lock")})

    def report(self):
        return json.loads(subprocess.run([self.program, "report", self.path, "--json"], check=True,
                                         capture_output=True).stdout)


def traced(arguments, folder, lines, *options):
    """The report, and what the job said to each line: the shortest sleep, the longest way from post to poll."""
    with EmulatedJob(os.path.join(arguments.workloads, "picked_up"), folder=folder) as job:
        with Tracer(arguments, job, folder, *options) as tracer:
            tracer.says("^attached: ")
            said = []
            for count, sleep_us in lines:
                job.tell(f"{count} {sleep_us}")
                word, least, most = job.line().split()
                assert word == "done", "the job failed"
                said.append((int(least), int(most)))
            job.end()
            assert tracer.status() == 0, tracer.text
            print(tracer.text)
            return tracer, tracer.report(), said


def untold(report):
    """By the coverage statement: a ring of 64 entries may be overwritten unread."""
    lines = [line for line in report["coverage"] if "completions that a poll returned and no ring told of" in line]
    return sum(int(re.sub(",", "", line.rsplit(": ", 1)[1])) for line in lines)


def one(report, count):
    """Of the only queue that was polled, all that its ring told."""
    assert len(report["pick_ups"]) == 1, report["pick_ups"]
    entry = report["pick_ups"][0]
    print(entry)
    assert entry["queue"] == "send" and entry["delay"]["count"] + untold(report) == count, (entry, report["coverage"])
    assert report["totals"]["operations"] == count, report["totals"]
    assert report["totals"]["unfinished"] == 0, report["totals"]
    return entry["delay"], entry["error_ns_max"]


def slept(arguments, folder):
    """Each lay there for as long as the job slept; the completion's own way is the device's, which others may hold up."""
    tracer, report, [(least, most)] = traced(arguments, folder, [(SLEPT, SLEEP_US)], "--completions", "both")
    delay, error = one(report, SLEPT)
    assert "pick-up: how long" in tracer.text, tracer.text
    assert delay["p50_ns"] >= least - 1_000_000, (delay, least)
    assert delay["max_ns"] <= most * HISTOGRAM + error, (delay, most, error)


def spun(arguments, folder):
    """A job that spins picks each up at once."""
    _, report, [(_, most)] = traced(arguments, folder, [(SPUN, 0)], "--completions", "both")
    delay, error = one(report, SPUN)
    assert delay["p50_ns"] < 1_000_000, delay
    assert delay["max_ns"] <= most * HISTOGRAM + error, (delay, most, error)


def by_order(arguments, folder):
    """Posts are read from the ring, which has no wr_id."""
    _, report, [(least, most)] = traced(arguments, folder, [(SLEPT, SLEEP_US)], "--completions", "both", "--posts", "ring")
    delay, error = one(report, SLEPT)
    assert delay["p50_ns"] >= least - 1_000_000, (delay, least)
    assert delay["max_ns"] <= most * HISTOGRAM + error, (delay, most, error)


def not_asked(arguments, folder):
    """Nothing is said where polls are not probed."""
    tracer, report, _ = traced(arguments, folder, [(SPUN, 0)])
    assert report["pick_ups"] == [], report["pick_ups"]
    assert "pick-up" not in tracer.text, tracer.text


TESTS = {test.__name__: test for test in (slept, spun, by_order, not_asked)}


if __name__ == "__main__":
    asked = named_tests.parse(__doc__, TESTS, sigmatrace="sigmatrace", workloads=".")
    with tempfile.TemporaryDirectory(prefix="sigma-pick-up-") as scratch:
        TESTS[asked.name](asked, scratch)
