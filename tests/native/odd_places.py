#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""odd_places.py BUILD CASE: jobs whose libraries are not where the tracer's own are: another root, another
mount namespace, an overlay, files that are deleted or replaced since they were mapped, another C library. Each is attached to by
its pid once it runs, and found by its name before it runs."""
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from late_job import Attach, Job, Output, run_case, wait_for

BUILD = sys.argv[1]
PROGRAM = os.path.join(BUILD, "bin", "sigmatrace")
LIBIBVERBS, PROVIDER = "/opt/verbs/libibverbs.so.1", "/opt/verbs/libjob-rdmav34.so"


def built(name):
    return os.path.join(BUILD, "tests", name)


def job_name():
    return f"sgo{os.getpid()}"


def make_root(folder):
    """A root of a container's kind: the job, its libraries, the C library, and nothing else."""
    root = os.path.join(folder, "root")
    shown = subprocess.run(["ldd", built("late_job")], stdout=subprocess.PIPE, text=True, check=True).stdout
    files = {path: path for path in re.findall(r"(/\S+) \(0x", shown)}
    files |= {built("late_job"): "/" + job_name(), built("unit/resolve/libibverbs.so.1"): LIBIBVERBS,
              built("late_job_provider.so"): PROVIDER}
    for source, place in files.items():
        os.makedirs(os.path.dirname(root + place), exist_ok=True)
        shutil.copy(source, root + place)
    return root


class Tracer(Attach):
    def __init__(self, folder, *arguments):
        self.path = os.path.join(tempfile.mkdtemp(dir=folder), "ops.csv")
        super().__init__(PROGRAM, *arguments, "--budget", "off", "-o", self.path,
                         env={"SIGMATRACE_LOCK": os.path.join(folder, "lock")})


def check_by_pid(folder, target):
    """All that it posts from now on, and nothing else."""
    first = target.sent + 1
    with Tracer(folder, "--pid", str(target.pid)) as tracer:
        tracer.says("^attached: 1 process")
        target.send(50)
        assert tracer.interrupt() == 0, tracer.text
    output = Output(tracer.path)
    assert output.ids(target.pid) == list(range(first, target.sent + 1)), (output.ids(target.pid), tracer.text)
    assert output.counters["libraries_unresolved"] == 0, tracer.text


def check_by_name(folder, start):
    """Found by itself: from some post on, and then all."""
    with Tracer(folder, "--comm", job_name()) as tracer:
        tracer.says("^attached: 0 processes")
        with start() as target:
            target.load()

            def seen():
                target.send(1)
                target.poll(1)
                with open(tracer.path, encoding="utf-8") as file:
                    return any(f",{target.pid}," in line for line in file)
            wait_for(seen, "a row of the job")
            target.send(50)
            assert tracer.interrupt() == 0, tracer.text
            ids = Output(tracer.path).ids(target.pid)
            assert ids == list(range(ids[0], target.sent + 1)), (ids, target.sent)
            target.end()


def check(folder, start):
    with start() as target:
        target.load()
        target.send(3)
        check_by_pid(folder, target)
        target.end()
    check_by_name(folder, start)


def case_other_root_and_mount_namespace(folder):
    """As in a container: none of its paths means anything here."""
    root = make_root(folder)
    check(folder, lambda: Job("/" + job_name(), LIBIBVERBS, PROVIDER, ("unshare", "--mount", "chroot", root), root))


def case_overlay(folder):
    """A container's usual root. The maps name another device than stat does, and the inode is the layer's."""
    lower = make_root(folder)
    upper, work, merged = (os.path.join(folder, name) for name in ("upper", "work", "merged"))
    for path in (upper, work, merged):
        os.mkdir(path)
    script = f'mount -t overlay overlay -o lowerdir={lower},upperdir={upper},workdir={work} {merged} && exec chroot {merged} "$@"'
    check(folder, lambda: Job("/" + job_name(), LIBIBVERBS, PROVIDER, ("unshare", "--mount", "sh", "-c", script, "sh"), upper))


@contextlib.contextmanager
def loaded_job_of_copies(folder):
    """And the paths of what it has mapped."""
    copies = [os.path.join(folder, os.path.basename(path)) for path in (LIBIBVERBS, PROVIDER)]
    shutil.copy(built("unit/resolve/libibverbs.so.1"), copies[0])
    shutil.copy(built("late_job_provider.so"), copies[1])
    with Job(built("late_job"), *copies) as target:
        target.load()
        yield target, copies
        target.end()


def case_deleted(folder):
    with loaded_job_of_copies(folder) as (target, copies):
        for path in copies:
            os.unlink(path)
        check_by_pid(folder, target)


def case_replaced(folder):
    """By a package's upgrade: the old files are mapped, others have their names, and nothing of these is probed."""
    with loaded_job_of_copies(folder) as (target, copies):
        for path in copies:
            os.rename(shutil.copy(built("late_job_hidden.so"), path + ".new"), path)
        check_by_pid(folder, target)


def case_musl(folder):
    """A program and libraries on musl: another loader, heap and threads. By threads as well."""
    program = shutil.copy(built("musl/late_job"), os.path.join(folder, job_name()))
    libraries = [shutil.copy(built("musl/" + name), folder) for name in ("libibverbs.so.1", "late_job_provider.so")]

    def start():
        job = Job(program, *libraries)
        with open(f"/proc/{job.pid}/maps", encoding="utf-8") as maps:
            text = maps.read()
        assert re.search(r"-musl[-/.]", text) and "libc.so.6" not in text, text
        return job
    check(folder, start)
    with start() as target:
        target.load()
        with Tracer(folder, "--pid", str(target.pid)) as tracer:
            tracer.says("^attached: 1 process")
            target.threads(4, 100)
            child = target.fork(0)
            assert tracer.interrupt() == 0, tracer.text
        output = Output(tracer.path)
        assert sorted(output.ids(target.pid)) == list(range(1, 401)) and not output.ids(child), tracer.text
        assert len({row["tid"] for row in output.rows}) == 4
        target.end()


if __name__ == "__main__":
    run_case(globals())
