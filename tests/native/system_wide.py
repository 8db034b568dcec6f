#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""system_wide.py BUILD CASE: `sigmatrace attach` by --all, --comm, --cgroup, --uid, on real processes. Other
jobs may run on the machine: each case looks at its own only, which it tells by pid."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from late_job import Attach, Job, Output, in_kernel, links_of, run_case, wait_for

BUILD = sys.argv[1]
PROGRAM = os.path.join(BUILD, "bin", "sigmatrace")
NOBODY = 65534
UNIFIED = "/sys/fs/cgroup/unified" if os.path.isdir("/sys/fs/cgroup/unified") else "/sys/fs/cgroup"


def built(name):
    return os.path.join(BUILD, "tests", name)


def name_for(letter):
    """A command name that no other process has."""
    return f"sg{letter}{os.getpid()}"


def named(folder, name):
    """The job's program under a name of its own."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        os.chmod(folder, 0o755)
        shutil.copy(built("late_job"), path)
    return path


def job(program, provider=None, under=()):
    """Its libraries lie beside it, where every user may read them."""
    folder = os.path.dirname(program)
    for source in ("unit/resolve/libibverbs.so.1", "late_job_provider.so"):
        if not os.path.exists(os.path.join(folder, os.path.basename(source))):
            shutil.copy(built(source), folder)
    return Job(program, os.path.join(folder, "libibverbs.so.1"), provider or os.path.join(folder, "late_job_provider.so"), under)


class Wide(Attach):
    """A system-wide tracer, under a lock of the case's own. `path`: its CSV."""

    def __init__(self, folder, *arguments, **more):
        self.path = os.path.join(folder, "ops.csv")
        self.env = {"SIGMATRACE_LOCK": os.path.join(folder, "lock")}
        super().__init__(PROGRAM, *arguments, "-o", self.path, env=self.env, **more)

    def output(self):
        assert self.interrupt() == 0, self.text
        return Output(self.path)


def first_row(tracer, target):
    """Posts until a row of the job comes; where its library was unknown before, the first ones may be missing."""
    def seen():
        target.send(1)
        target.poll(1)
        with open(tracer.path, encoding="utf-8") as file:
            return any(f",{target.pid}," in line for line in file)
    wait_for(seen, "a row of the job")


def check_whole(output, target, first=1):
    ids = output.ids(target.pid)
    assert ids and ids[0] <= first and ids == list(range(ids[0], target.sent + 1)), (ids[:3], ids[-3:], target.sent)
    assert output.counters["records_dropped"] == 0, output.counters


def case_comm(folder):
    """Those that run, those to come, by their name; no other."""
    name, other_name = name_for("a"), name_for("b")
    with job(named(folder, name)) as running, job(named(folder, other_name)) as stranger:
        running.load()
        stranger.load()
        with Wide(folder, "--comm", name, "--budget", "off") as tracer:
            tracer.says(f"^attached: 1 process of processes named {name}")
            running.send(100)
            stranger.send(100)
            # Its libraries have probes already: not one of its posts is missed, how quick it may be.
            with job(named(folder, name)) as later:
                later.load()
                later.send(50)
                later.end()
            running.send(20)
            output = tracer.output()
        check_whole(output, running)
        check_whole(output, later)
        assert {row["pid"] for row in output.rows} == {str(running.pid), str(later.pid)}
        assert {row["comm"] for row in output.rows} == {name}, {(row["pid"], row["comm"]) for row in output.rows}
        assert {each["pid"] for each in output.meta["processes"]} >= {running.pid, later.pid}, output.meta["processes"]
        for each in (running, stranger):
            each.end()


def case_library_elsewhere(folder):
    """A selected process maps a copy of its own, which had no probes: they follow, and it is traced from there."""
    name = name_for("a")
    provider = os.path.join(folder, "libmine-rdmav34.so")
    shutil.copy(built("late_job_provider.so"), provider)
    with Wide(folder, "--comm", name, "--budget", "off") as tracer:
        tracer.says("^attached: 0 processes")
        with job(named(folder, name), provider) as target:
            target.load()
            os.unlink(provider)
            first_row(tracer, target)
            target.send(10)
            output = tracer.output()
            check_whole(output, target, target.sent)
            target.end()


def case_uid(folder):
    name = name_for("a")
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    with job(named(folder, name), under=as_nobody) as theirs, job(named(folder, name)) as ours:
        theirs.load()
        ours.load()
        with Wide(folder, "--uid", "nobody", "--comm", name, "--budget", "off") as tracer:
            tracer.says(f"^attached: 1 process of processes named {name} of user {NOBODY}")
            ours.send(30)
            theirs.send(30)
            output = tracer.output()
        check_whole(output, theirs)
        assert {row["pid"] for row in output.rows} == {str(theirs.pid)}
        theirs.end()
        ours.end()


def case_uid_refuses_a_pid(folder):
    with job(named(folder, name_for("a"))) as target:
        with Wide(folder, "--pid", str(target.pid), "--uid", "nobody") as tracer:
            assert tracer.status() == 1
            assert f"process {target.pid} is not of user {NOBODY}" in tracer.text and "hint" in tracer.text, tracer.text
        target.end()


def case_cgroup(folder):
    """Those below a cgroup, also one that moves in; named by a path with a link in it."""
    cgroup = tempfile.mkdtemp(prefix="sigma-", dir=UNIFIED)
    below = os.path.join(cgroup, "below")
    os.mkdir(below)

    def move(target, to):
        with open(os.path.join(to, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(str(target.pid))
    try:
        link = os.path.join(folder, "cgroup")
        os.symlink(cgroup, link)
        name = name_for("a")
        with job(named(folder, name)) as inside, job(named(folder, name)) as outside:
            move(inside, below)
            inside.load()
            outside.load()
            with Wide(folder, "--cgroup", link, "--budget", "off") as tracer:
                tracer.says("^attached: 1 process of all processes in ")
                inside.send(30)
                outside.send(30)
                move(outside, cgroup)
                outside.send(5)
                output = tracer.output()
            check_whole(output, inside)
            assert output.ids(outside.pid) == list(range(31, 36)), output.ids(outside.pid)
            inside.end()
            outside.end()
        with Wide(folder, "--cgroup", folder) as tracer:
            assert tracer.status() == 1 and "no cgroup of version 2" in tracer.text, tracer.text
    finally:
        os.rmdir(below)
        os.rmdir(cgroup)


def case_all(folder):
    """Every process: one that runs, and one that comes."""
    with job(named(folder, name_for("a"))) as running:
        running.load()
        with Wide(folder, "--all", "--budget", "off", "--ring-size", "64M") as tracer:
            tracer.says("^attached: [0-9]+ process(es)? of all processes, and those to come")
            running.send(20)
            with job(named(folder, name_for("b"))) as later:
                later.load()
                later.send(20)
                later.end()
            output = tracer.output()
        check_whole(output, running)
        check_whole(output, later)
        running.end()


def case_many_processes(folder):
    """Many that run: all are traced from the attach on. Their memory is searched one after another; how many were,
    and that the others were not, is said."""
    name, count = name_for("a"), 40
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(job(named(folder, name))) for _ in range(count)]
        for target in running:
            target.load()
        with Wide(folder, "--comm", name, "--budget", "off") as tracer:
            tracer.says(f"^attached: {count} processes")
            for target in running:
                target.send(3)
            output = tracer.output()
        for target in running:
            check_whole(output, target)
            target.end()
    said = " ".join(output.coverage["statement"])
    searched = re.search(r"memory of (\d+) running processes searched, one after another", said)
    left = re.search(r"(\d+) processes: what they made before the attach is unknown", said)
    assert searched and int(searched[1]) + (int(left[1]) if left else 0) == count, said


def case_exec_leaves(folder):
    """A process that becomes something else is no longer selected; one that becomes selected is taken in."""
    inside, outside = name_for("a"), name_for("b")
    with job(named(folder, inside)) as target:
        target.load()
        with Wide(folder, "--comm", inside, "--budget", "off") as tracer:
            tracer.says("^attached: 1 process")
            target.send(10)
            target.ask("exec " + named(folder, outside))
            target.load()
            target.send(10)
            target.ask("exec " + named(folder, inside))
            target.load()
            target.send(5)
            output = tracer.output()
        assert output.ids(target.pid) == [*range(1, 11), *range(21, 26)], output.ids(target.pid)
        target.end()


def case_follow_forks(folder):
    """Children of the selected, and the selected themselves, whatever they become."""
    inside, outside = name_for("a"), name_for("b")
    with job(named(folder, inside)) as target:
        target.load()
        with Wide(folder, "--comm", inside, "--follow-forks", "--budget", "off") as tracer:
            tracer.says("^attached: 1 process")
            target.send(1)
            child = target.fork(20)
            target.ask("exec " + named(folder, outside))
            target.load()
            target.send(3)
            output = tracer.output()
        assert output.ids(target.pid) == list(range(1, 5)), output.ids(target.pid)
        assert len(output.ids(child)) == 20, output.ids(child)
        target.end()


def case_one_a_node(folder):
    """A second one says who holds the lock; it is free again however the first one ended."""
    name = name_for("a")
    nowhere = os.path.join(folder, "none")
    with Attach(PROGRAM, "--all", env={"SIGMATRACE_LOCK": os.path.join(nowhere, "lock")}) as tracer:
        assert tracer.status() == 1 and f"sudo mkdir -p {nowhere}" in tracer.text, tracer.text
    other = tempfile.mkdtemp(dir=folder)
    with Wide(folder, "--comm", name) as first:
        first.says("^attached: ")
        for arguments in (("--all",), ("--comm", name), ("--uid", "0")):
            with Attach(PROGRAM, *arguments, "-o", os.path.join(other, "ops.csv"), env=first.env) as second:
                assert second.status() == 1
                assert f"process {first.popen.pid} (sigmatrace)" in second.text and "hint" in second.text, second.text
                assert os.listdir(other) == [], "an output that holds nothing"
        with job(named(folder, name_for("b"))) as target:  # named processes are traced beside it
            with Attach(PROGRAM, "--pid", str(target.pid), "-o", os.path.join(other, "ops.csv"), env=first.env) as second:
                second.says("^attached: ")
                assert second.interrupt() == 0, second.text
            target.end()
        ours = links_of(first.popen.pid)
        assert ours, "no links"
        first.popen.send_signal(signal.SIGKILL)
        first.status()
    wait_for(lambda: not ours & in_kernel(), "no link and no program of the tracer is left")
    with Wide(folder, "--comm", name) as third:
        third.says("^attached: ")
        assert third.interrupt() == 0, third.text
    assert not os.path.exists(third.env["SIGMATRACE_LOCK"]), "the lock file is left behind"


def case_short_processes(folder):
    """Processes that come, post and go: each is traced, and the tracer holds nothing of those that are gone."""
    name = name_for("a")
    rounds, warm = 2000, 400

    def held(pid):
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            rss_kib = next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))
        return len(os.listdir(f"/proc/{pid}/fd")), len(links_of(pid)), rss_kib
    with job(named(folder, name)) as target:
        target.load()
        with Wide(folder, "--comm", name, "--budget", "off") as tracer:
            tracer.says("^attached: ")
            children = [target.fork(2) for _ in range(warm)]
            before = held(tracer.popen.pid)
            children += [target.fork(2) for _ in range(rounds - warm)]
            after = held(tracer.popen.pid)
            output = tracer.output()
        assert len(set(children)) > warm, "process ids that are used again at once tell nothing"
        assert len(output.rows) == 2 * rounds, len(output.rows)
        # One a process would be 1,600. Others on the machine may map libraries meanwhile, which are probed for all.
        assert after[0] <= before[0] + 40, f"descriptors, links, KiB: {before}, then {after}"
        assert after[1] <= before[1] + 40, f"descriptors, links, KiB: {before}, then {after}"
        assert after[2] <= before[2] + 4096, f"descriptors, links, KiB: {before}, then {after}"
        target.end()


def case_short_programs(folder):
    """The same with programs that are started anew each time: exec, dlopen, a few posts, the end."""
    name = name_for("a")
    with job(named(folder, name)) as first:
        first.load()
        with Wide(folder, "--comm", name, "--budget", "off") as tracer:
            tracer.says("^attached: 1 process")
            sent = {}
            for i in range(40):
                with job(named(folder, name)) as target:
                    target.load()
                    target.send(i + 1)
                    sent[target.pid] = i + 1
                    target.end()
            output = tracer.output()
        for pid, count in sent.items():
            assert output.ids(pid) == list(range(1, count + 1)), (pid, count, output.ids(pid))
        first.end()


def case_gone_when_told(folder):
    """A process that none of the tracer's looks has met, and of which a thread that is not its first one posted."""
    name = name_for("a")
    with job(named(folder, name)) as first:
        first.load()
        with Wide(folder, "--comm", name, "--budget", "off") as tracer:
            tracer.says("^attached: 1 process")
            tracer.popen.send_signal(signal.SIGSTOP)
            with job(named(folder, name)) as target:
                target.load()
                target.threads(2, 10)
                while target.poll(64):
                    pass
                target.end()
            tracer.popen.send_signal(signal.SIGCONT)
            output = tracer.output()
        rows = [row for row in output.rows if row["pid"] == str(target.pid)]
        # The made-up provider completes in an order of its own where two threads post: some have a row for each end.
        assert set(output.ids(target.pid)) == set(range(1, 21)), output.ids(target.pid)
        assert {row["comm"] for row in rows} == {name}, rows[0]
        first.end()


if __name__ == "__main__":
    run_case(globals())
