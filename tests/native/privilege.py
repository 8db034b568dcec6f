#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""privilege.py BUILD CASE: each subcommand as the user nobody, with just the capabilities that it needs; what
it says when one is missing; whose its files are, and what it keeps while it traces."""
import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from late_job import Attach, Job, Output, run_case, wait_for

BUILD = sys.argv[1]
NOBODY = 65534
LIBC = ctypes.CDLL(None, use_errno=True)

# linux/capability.h
CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_PERFMON": 38, "CAP_BPF": 39}
DAC_READ_SEARCH, CHECKPOINT_RESTORE = 2, 40
ALL_BITS = (1 << 41) - 1


def mask(numbers):
    return sum(1 << number for number in numbers)


def as_nobody(numbers):
    """For preexec_fn: another user, with these capabilities and no others, handed on through exec."""
    set_no_caps, keep, ambient, raise_one, version = 24, 8, 47, 2, 0x20080522

    def change():
        def need(result, what):
            if result != 0:
                raise OSError(ctypes.get_errno(), what)
        for number in range(64):
            if number not in numbers and LIBC.prctl(set_no_caps, number, 0, 0, 0) != 0:
                break  # beyond the last one that the kernel knows
        need(LIBC.prctl(keep, 1, 0, 0, 0), "keep capabilities")
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        bits = mask(numbers)
        low, high = bits & 0xffffffff, bits >> 32
        header = ctypes.create_string_buffer(struct.pack("Ii", version, 0), 8)
        data = ctypes.create_string_buffer(struct.pack("6I", low, low, low, high, high, high), 24)
        need(LIBC.capset(header, data), "capset")
        for number in numbers:
            need(LIBC.prctl(ambient, raise_one, number, 0, 0), "ambient")
        os.umask(0)
    return change


class Place:
    """What nobody can reach: the programs, copied, and a folder of its own for outputs."""

    def __init__(self, folder):
        os.chmod(folder, 0o755)
        self.folder = folder
        for source in ("bin/sigmatrace", "tests/late_job", "tests/unit/resolve/libibverbs.so.1"):
            shutil.copy(os.path.join(BUILD, source), folder)
        self.provider = os.path.join(folder, "liblate-rdmav34.so")
        shutil.copy(os.path.join(BUILD, "tests/late_job_provider.so"), self.provider)
        self.program = os.path.join(folder, "sigmatrace")
        self.out = os.path.join(folder, "out")
        os.mkdir(self.out, 0o700)
        os.chown(self.out, NOBODY, NOBODY)
        self.csv = os.path.join(self.out, "ops.csv")
        self.env = {"SIGMATRACE_LOCK": os.path.join(self.out, "lock")}

    def job(self, **more):
        new = Job(os.path.join(self.folder, "late_job"), os.path.join(self.folder, "libibverbs.so.1"), self.provider, **more)
        new.load()
        return new

    def attach(self, numbers, *arguments):
        return Attach(self.program, *arguments, env=self.env, before=as_nobody(numbers))

    def run(self, numbers, *arguments):
        return subprocess.run([self.program, *arguments], preexec_fn=as_nobody(numbers), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=90)


def private(path):
    status = os.stat(path)
    assert (status.st_uid, status.st_mode & 0o077) == (NOBODY, 0), (path, status)


def case_attach(folder):
    """A job of root's, traced by nobody with three capabilities: all of it, into files that are nobody's alone."""
    place = Place(folder)
    with place.job() as target:
        with place.attach(CAPABILITIES.values(), "--pid", str(target.pid), "--budget", "off", "-o", place.csv) as tracer:
            tracer.says("^attached: ")
            target.send(100)
            assert tracer.interrupt() == 0, tracer.text
        assert Output(place.csv).ids(target.pid) == list(range(1, 101)), tracer.text
        for path in (place.csv, place.csv + ".meta.json"):
            private(path)
        target.end()


def case_attach_to_all(folder):
    place = Place(folder)
    with place.job() as target:
        with place.attach(CAPABILITIES.values(), "--all", "--budget", "off", "--ring-size", "64M", "-o", place.csv) as tracer:
            tracer.says("^attached: ")
            private(place.env["SIGMATRACE_LOCK"])
            target.send(100)
            assert tracer.interrupt() == 0, tracer.text
        assert Output(place.csv).ids(target.pid) == list(range(1, 101)), tracer.text
        target.end()


def case_run(folder):
    """The same three suffice for a command of one's own, which gets no more than without us."""
    place = Place(folder)
    under = (place.program, "run", "--budget", "off", "-o", place.csv, "--")
    with place.job(under=under, before=as_nobody(CAPABILITIES.values()), env=place.env) as target:
        def rows():
            target.send(1)
            target.poll(1)
            with open(place.csv, encoding="utf-8") as file:
                return len(file.readlines()) > 1
        wait_for(rows, "a row")
        target.end()
    output = Output(place.csv)
    ids = [int(row["wr_id"]) for row in output.rows]
    assert ids == list(range(ids[0], target.sent + 1)), (ids, target.sent)
    private(place.csv)


def case_list_needs_none(folder):
    """One's own processes are looked at (this one has opened no device); that the others' cannot be is said."""
    place = Place(folder)
    with place.job(before=as_nobody([])) as mine, place.job() as roots:
        done = place.run([], "list", "--json")
        assert done.returncode == 0, done.stderr
        notes = " ".join(json.loads(done.stdout)["notes"])
        assert "1 more have libibverbs loaded and no device open" in notes, notes
        assert "could not be read: run as root" in notes, notes
        mine.end()
        roots.end()


def case_attach_needs_each(folder):
    """Without one of them: at once, naming it and how to come by it; nothing is written."""
    place = Place(folder)
    with place.job() as target:
        for missing in CAPABILITIES:
            others = [number for name, number in CAPABILITIES.items() if name != missing]
            done = place.run(others, "attach", "--pid", str(target.pid), "-o", place.csv)
            assert done.returncode == 1 and f"{missing} is missing" in done.stderr, (missing, done.stderr)
            assert "hint: " in done.stderr and "setcap" in done.stderr, done.stderr
            assert os.listdir(place.out) == []
        target.end()


def case_deleted_library(folder):
    """A library that was deleted since is reached with two capabilities more (the second because the job is another
    user's); without them that is said."""
    place = Place(folder)
    with place.job() as target:
        os.unlink(place.provider)
        arguments = ("--pid", str(target.pid), "--budget", "off", "-o", place.csv)
        with place.attach(CAPABILITIES.values(), *arguments) as tracer:
            tracer.says("^attached: ")
            target.send(10)
            assert tracer.interrupt() == 0, tracer.text
        output = Output(place.csv)
        assert output.rows == [] and output.counters["libraries_unresolved"] == 1, output.counters
        for said in (place.provider, "CAP_CHECKPOINT_RESTORE", "CAP_DAC_READ_SEARCH"):
            assert said in tracer.text, tracer.text
        with place.attach([*CAPABILITIES.values(), DAC_READ_SEARCH, CHECKPOINT_RESTORE], *arguments) as tracer:
            tracer.says("^attached: ")
            target.send(10)
            assert tracer.interrupt() == 0, tracer.text
        assert Output(place.csv).ids(target.pid) == list(range(11, 21)), tracer.text
        target.end()


def case_reading_needs_none(folder):
    """report and export of one's own trace; doctor says what is missing, and fails by that alone."""
    place = Place(folder)
    trace = os.path.join(place.out, "trace")
    with place.job() as target:
        with place.attach(CAPABILITIES.values(), "--pid", str(target.pid), "--budget", "off", "-o", trace) as tracer:
            tracer.says("^attached: ")
            target.send(30)
            assert tracer.interrupt() == 0, tracer.text
        target.end()
    for parent, _, names in os.walk(trace):
        private(parent)
        for name in names:
            private(os.path.join(parent, name))
    done = place.run([], "report", trace, "--json")
    assert done.returncode == 0 and json.loads(done.stdout), done.stderr
    done = place.run([], "export", trace, "--format", "csv", "-o", place.csv)
    assert done.returncode == 0 and len(Output(place.csv).rows) == 30, done.stderr
    done = place.run([], "doctor", "--json")
    findings = {each["name"]: each for each in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1, done.stderr
    for name in CAPABILITIES:
        assert findings[name]["verdict"] == "problem" and findings[name]["mend"], findings[name]
    done = place.run(CAPABILITIES.values(), "doctor", "--json")
    findings = {each["name"]: each for each in json.loads(done.stdout)["findings"]}
    for name in CAPABILITIES:
        assert findings[name]["verdict"] == "ok", findings[name]


def case_root_keeps_little(folder):
    """A tracer that root started cannot do, while it traces, what tracing does not need."""
    place = Place(folder)
    with place.job() as target, Attach(place.program, "--pid", str(target.pid), "-o", place.csv) as tracer:
        tracer.says("^attached: ")

        def effective():
            with open(f"/proc/{tracer.popen.pid}/status", encoding="ascii") as file:
                return int(next(line for line in file if line.startswith("CapEff:")).split()[1], 16)
        target.send(10)  # it is given up just after the line
        kept = {2, 12, 19, 23, 38, 39, 40}  # capability_table(), less what is for the start only
        with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
            kept |= {21} if int(file.read()) > 2 else set()  # where perf events are CAP_SYS_ADMIN's
        wait_for(lambda: effective() & ALL_BITS & ~mask(kept) == 0, "the other capabilities are gone")
        assert effective() & mask(CAPABILITIES.values()) == mask(CAPABILITIES.values())
        assert tracer.interrupt() == 0, tracer.text
        target.end()


if __name__ == "__main__":
    run_case(globals())
