#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""harm.py BUILD CASE: whatever happens to the tracer or to the job, the job's own work is right (each answer
of the job is checked by the provider's account), and nothing of the tracer stays in the kernel."""
import contextlib
import ctypes
import os
import resource
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from late_job import Attach, Job, Output, in_kernel, links_of, run_case, wait_for

BUILD = sys.argv[1]
PROGRAM = os.path.join(BUILD, "bin", "sigmatrace")
LIBC = ctypes.CDLL(None, use_errno=True)


def built(name):
    return os.path.join(BUILD, "tests", name)


def loaded_job():
    new = Job(built("late_job"), built("unit/resolve/libibverbs.so.1"), built("late_job_provider.so"))
    new.load()
    return new


@contextlib.contextmanager
def attached(target, folder, *options, name="ops.csv", **more):
    """A tracer on the job; at the end its links and programs are gone, however it ended."""
    path = os.path.join(folder, name)
    with Attach(PROGRAM, "--pid", str(target.pid), "-o", path, *options, **more) as tracer:
        tracer.path = path
        tracer.says("^attached: ")
        held = links_of(tracer.popen.pid)
        assert {kind for kind, _ in held} == {"link", "prog"}, held
        yield tracer
    wait_for(lambda: not held & in_kernel(), "no link and no program of the tracer is left")


def goes_on(target):
    at = target.at()
    wait_for(lambda: target.at() > at + 1000, "the job goes on")


def exact(counters):
    attempted, consumed, dropped = (counters["records_" + name] for name in ("attempted", "consumed", "dropped"))
    assert attempted == consumed + dropped, counters
    return dropped


def case_64_threads(folder):
    """64 threads that post side by side: every post, each once."""
    with loaded_job() as target:
        with attached(target, folder, "--budget", "off", "--ring-size", "64M") as tracer:
            target.threads(64, 300)
            assert tracer.interrupt() == 0, tracer.text
        output = Output(tracer.path)
        assert exact(output.counters) == 0, output.counters
        assert sorted(output.ids(target.pid)) == list(range(1, 64 * 300 + 1))
        assert len({row["tid"] for row in output.rows}) == 64
        target.end()


def case_64_threads_governed(folder):
    """Beyond the budget the probes go: what is seen is true and each once, what is not is said."""
    with loaded_job() as target:
        with attached(target, folder, "--budget", "1", "--ring-size", "64M") as tracer:
            rounds = 0
            while "budget" not in tracer.text:
                target.threads(64, 300)
                rounds += 1
                assert rounds < 1000, "never beyond the budget"
            target.threads(64, 300)
            assert tracer.interrupt() == 0, tracer.text
        output = Output(tracer.path)
        ids = output.ids(target.pid)
        assert len(ids) == len(set(ids)) and set(ids) <= set(range(1, target.sent + 1)), "invented rows"
        assert output.counters["governor_pauses"] > 0, output.counters
        assert exact(output.counters) >= 0
        assert "paus" in " ".join(output.coverage["statement"]), output.coverage["statement"]
        target.end()


def case_tracer_stopped(folder):
    """A tracer that does not run keeps nobody: the ring fills, the job goes on, the loss is exact."""
    with loaded_job() as target:
        with attached(target, folder, "--budget", "off", "--ring-size", "64K") as tracer:
            tracer.popen.send_signal(signal.SIGSTOP)
            target.spin()
            goes_on(target)
            target.stop()
            target.threads(8, 1000)
            tracer.popen.send_signal(signal.SIGCONT)
            assert tracer.interrupt() == 0, tracer.text
        output = Output(tracer.path)
        assert exact(output.counters) > 0, output.counters
        ids = output.ids(target.pid)
        assert ids and len(ids) == len(set(ids)), "invented rows"
        target.end()


def case_tracer_out_of_memory(folder):
    """It ends, the job does not notice, and what it had written is whole."""
    with loaded_job() as target:
        with attached(target, folder, "--budget", "off", "--ring-size", "64M") as tracer:
            with open(f"/proc/{tracer.popen.pid}/statm", encoding="ascii") as file:
                size = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
            limit = size + (1 << 20)
            resource.prlimit(tracer.popen.pid, resource.RLIMIT_CORE, (0, 0))
            resource.prlimit(tracer.popen.pid, resource.RLIMIT_AS, (limit, limit))
            # Nothing is polled for: what is posted stays pending in the tracer.
            while tracer.popen.poll() is None:
                target.send(2000)
            assert tracer.status() == 1 and "memory" in tracer.text, (tracer.status(), tracer.text)
        target.send(10)
        target.end()


def case_many_targets(folder):
    """Jobs that all post as fast as they can while one tracer comes to each in turn: their work goes on, and from the
    attach on none of their posts is missing."""
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(loaded_job()) for _ in range(4)]
        for target in targets:
            target.spin()
        path = os.path.join(folder, "ops.csv")
        pids = ",".join(str(target.pid) for target in targets)
        options = ("--budget", "off", "--completions", "off", "--ring-size", "64M", "-o", path)
        with Attach(PROGRAM, "--pid", pids, *options) as tracer:
            tracer.says("^attached: 4 processes")
            for target in targets:
                target.stop()
            first = {target.pid: target.sent + 1 for target in targets}
            for target in targets:
                target.send(25)
            assert tracer.interrupt() == 0, tracer.text
        output = Output(path)
        lost = exact(output.counters)
        for target in targets:
            ids = output.ids(target.pid)
            assert ids and 1 <= ids[0] and ids[-1] <= target.sent, "invented rows"
            assert all(one < next_one for one, next_one in zip(ids, ids[1:])), "a post twice, or out of order"
            if lost == 0:
                assert ids[-1] == target.sent and len(ids) == ids[-1] - ids[0] + 1, (ids[0], ids[-1], len(ids))
                assert ids[0] <= first[target.pid], (ids[0], first)
            target.send(5)
            target.end()


def case_two_tracers(folder):
    """Both see all, neither disturbs the other, nor the job; one is killed in between."""
    with loaded_job() as target:
        with attached(target, folder, "--budget", "off", name="a.csv") as first:
            with attached(target, folder, "--budget", "off", name="b.csv") as second:
                with attached(target, folder, "--budget", "off", name="c.csv") as third:
                    target.send(100)
                    third.popen.send_signal(signal.SIGKILL)
                    third.status()
                target.send(100)
                assert second.interrupt() == 0, second.text
            target.send(100)
            assert first.interrupt() == 0, first.text
        assert Output(first.path).ids(target.pid) == list(range(1, 301))
        assert Output(second.path).ids(target.pid) == list(range(1, 201))
        target.end()


def case_target_ptraced(folder):
    """A debugger holds the job while the tracer comes, and while it goes."""
    seize, interrupt, cont, detach = 0x4206, 0x4207, 7, 17

    def ptrace(request, pid):
        if LIBC.ptrace(request, pid, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")
    with loaded_job() as target:
        ptrace(seize, target.pid)
        ptrace(interrupt, target.pid)
        os.waitpid(target.pid, 0)
        with attached(target, folder, "--budget", "off") as tracer:
            ptrace(cont, target.pid)
            target.send(50)
            ptrace(interrupt, target.pid)
            os.waitpid(target.pid, 0)
            assert tracer.interrupt() == 0, tracer.text
        assert Output(tracer.path).ids(target.pid) == list(range(1, 51))
        ptrace(detach, target.pid)
        target.send(10)
        target.end()


def case_target_stopped(folder):
    """The job stands still while the tracer comes, and while it goes; it stays so, and then goes on."""
    def is_stopped():
        with open(f"/proc/{target.pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"
    with loaded_job() as target:
        os.kill(target.pid, signal.SIGSTOP)
        wait_for(is_stopped, "the job stops")
        with attached(target, folder, "--budget", "off") as tracer:
            assert is_stopped(), "the attach let the job go on"
            os.kill(target.pid, signal.SIGCONT)
            target.send(50)
            os.kill(target.pid, signal.SIGSTOP)
            wait_for(is_stopped, "the job stops")
            assert tracer.interrupt() == 0, tracer.text
        assert is_stopped(), "the end of the trace let the job go on"
        assert Output(tracer.path).ids(target.pid) == list(range(1, 51))
        os.kill(target.pid, signal.SIGCONT)
        target.send(10)
        target.end()


def case_target_execs(folder):
    """The job becomes another program, twice: each is traced, with the same pid, and nothing stays of the first ones."""
    with loaded_job() as target:
        with attached(target, folder, "--budget", "off") as tracer:
            for _ in range(2):
                target.send(20)
                target.ask("exec")
                target.load()
            target.send(20)
            assert tracer.interrupt() == 0, tracer.text
        ids = Output(tracer.path).ids(target.pid)
        assert ids == list(range(1, 61)), ids
        target.send(10)
        target.end()


def case_target_killed(folder):
    """Its last posts are there, and the tracer ends with it."""
    with loaded_job() as target:
        with attached(target, folder, "--budget", "off", "--ring-size", "64M") as tracer:
            target.spin()
            goes_on(target)
            target.popen.kill()
            target.popen.wait()
            last = target.at()
            assert tracer.status() == 0, tracer.text
        output = Output(tracer.path)
        assert output.meta["end_reason"] == "targets ended", output.meta["end_reason"]
        ids = output.ids(target.pid)
        if exact(output.counters) == 0:
            assert ids == list(range(1, len(ids) + 1)) and last - 1 <= len(ids) <= last, (len(ids), last)


def case_target_ends_unseen(folder):
    """It posts more than the ring holds and ends while the tracer does not run: its end is told, and its name."""
    with loaded_job() as target:
        with attached(target, folder, "--budget", "off", "--ring-size", "64K") as tracer:
            tracer.popen.send_signal(signal.SIGSTOP)
            target.send(1000)
            while target.poll(64):
                pass
            target.end()
            tracer.popen.send_signal(signal.SIGCONT)
            assert tracer.status() == 0, tracer.text
        output = Output(tracer.path)
        assert output.meta["end_reason"] == "targets ended", output.meta["end_reason"]
        assert exact(output.counters) > 0, output.counters
        ids = output.ids(target.pid)
        assert ids == list(range(1, len(ids) + 1)), ids
        assert {row["comm"] for row in output.rows} == {"late_job"}, output.rows[0]
        process, = output.meta["processes"]
        assert process["exit_code"] == 0 and process["exit_ns"] >= max(int(row["time_ns"]) for row in output.rows), process


def case_target_gone_when_told(folder):
    """What it did is told when it is gone: with its name."""
    with loaded_job() as target:
        with attached(target, folder, "--budget", "off", "--ring-size", "64M") as tracer:
            tracer.popen.send_signal(signal.SIGSTOP)
            for _ in range(10):
                target.send(20)
                while target.poll(64):
                    pass
            target.end()
            tracer.popen.send_signal(signal.SIGCONT)
            assert tracer.status() == 0, tracer.text
        output = Output(tracer.path)
        assert output.ids(target.pid) == list(range(1, 201))
        assert {row["comm"] for row in output.rows} == {"late_job"}, output.rows[0]
        assert [(process["pid"], process["comm"]) for process in output.meta["processes"]] == [(target.pid, "late_job")]


if __name__ == "__main__":
    run_case(globals())
