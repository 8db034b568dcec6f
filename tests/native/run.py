#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""run.py BUILD CASE: `sigmatrace run`, and that the command is as it would be without it. Each case is a
function below, and a CTest test of its own; it fails by an assertion."""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from late_job import LIMIT_S, Job, Output, run_case, wait_for

BUILD = sys.argv[1]
PROGRAM = os.path.join(BUILD, "bin", "sigmatrace")


def built(name):
    return os.path.join(BUILD, "tests", name)


def start(arguments, command, **more):
    return subprocess.Popen([PROGRAM, "run", *arguments, "--", *command], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **more)


def run(arguments, command, given=None, **more):
    """Status, standard output, standard error."""
    with start(arguments, command, stdin=subprocess.PIPE, **more) as process:
        try:
            out, errors = process.communicate(given, LIMIT_S)
        finally:
            process.kill()
    return process.returncode, out, errors


def traces(folder, before=()):
    """A job whose library is no installed one: its operations from some one on, to the last."""
    path = os.path.join(folder, "ops.csv")
    under = [PROGRAM, "run", "--budget", "off", "-o", path, "--", *before]
    with Job(built("late_job"), built("unit/resolve/libibverbs.so.1"), built("late_job_provider.so"), under) as job:
        job.load()

        def rows():
            job.send(1)
            job.poll(1)
            with open(path, encoding="utf-8") as file:
                return len(file.readlines()) > 1
        wait_for(rows, "a row")
        job.end()
        sent = job.sent
    output = Output(path)
    ids = [int(row["wr_id"]) for row in output.rows if row["queue"] == "send"]
    assert ids and ids == list(range(ids[0], sent + 1)), (ids, sent)
    assert {row["comm"] for row in output.rows} == {"late_job"}, output.rows[0]


def case_the_command(folder):
    traces(folder)


def case_what_the_command_starts(folder):
    traces(folder, ("sh", "-c", '"$@"; exit $?', "sh"))


def case_exit_status(_):
    assert run([], ["sh", "-c", "exit 7"])[0] == 7
    assert run([], ["sh", "-c", "kill -KILL $$"])[0] == 128 + signal.SIGKILL


def case_nothing_to_run(folder):
    """As a shell says it, and before any output is touched."""
    path = os.path.join(folder, "ops.csv")
    with open(path, "w", encoding="ascii") as file:
        file.write("kept")
    status, _, errors = run(["-o", path], ["no-such-program-sigma"])
    assert status == 127 and errors.startswith("sigmatrace: ") and "hint: " in errors, errors
    plain = os.path.join(folder, "plain")
    with open(plain, "w", encoding="ascii"):
        pass
    status, _, errors = run(["-o", path], [plain])
    assert status == 126 and plain in errors, errors
    with open(path, encoding="ascii") as file:
        assert file.read() == "kept"


def case_as_without_us(_):
    """Arguments, input, environment, signal mask and descriptors are the caller's."""
    # No other program reads the shell's mask and descriptors: while one is started, a shell may block all signals, and while a
    # pipeline is, it holds the pipe's ends.
    script = ('read line; echo "$line|$1|$2|$SIGMA_WORD"; while read -r word value; do case $word in Sig[BI]*) echo "$word $value";; '
              'esac; done < /proc/$$/status; cd /proc/$$/fd; echo *')
    command = ["sh", "-c", script, "sh", "--help", "-o"]
    environment = {**os.environ, "SIGMA_WORD": "a b"}
    alone = subprocess.run(command, input="in\n", capture_output=True, text=True, check=True, env=environment,
                           preexec_fn=lambda: None).stdout
    status, out, errors = run([], command, "in\n", env=environment)
    assert status == 0, errors
    assert out == alone, (out, alone)
    assert out.startswith("in|--help|-o|a b\n"), out


def case_not_without_a_trace(folder):
    """Where the kernel refuses, the command does not run."""
    marker = os.path.join(folder, "ran")
    status, _, errors = run([], ["touch", marker], env={**os.environ, "SIGMATRACE_DISABLE": "perf,multi"})
    assert status == 1 and "uprobes" in errors, (status, errors)
    assert not os.path.exists(marker)


WAITS = 'trap "echo told; exit 5" TERM; echo ready; while :; do sleep 0.05; done'


def case_signals_are_passed_on(_):
    with start([], ["sh", "-c", WAITS]) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        out, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out) == (5, "told\n"), (process.returncode, out, errors)


def case_interrupt_of_the_terminal(_):
    """Ctrl-C reaches both; the command ends as it likes, and its status is ours."""
    script = 'trap "echo told; exit 6" INT; echo ready; while :; do sleep 0.05; done'
    with start([], ["sh", "-c", script], start_new_session=True) as process:
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out) == (6, "told\n"), (process.returncode, out, errors)


def case_gpu_preloads(_):
    """Before what is preloaded already; the stacks' switches are set only when asked for, and never over the user's."""
    show = ["sh", "-c", 'echo "$LD_PRELOAD|$NCCL_GIN_GDAKI_QP_DEPTH|$NVSHMEM_IBGDA_QP_DEPTH|$NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE"']
    library = os.path.realpath(os.path.join(BUILD, "lib", "libsigmatrace_gpu.so"))
    clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    status, out, errors = run(["--gpu"], show, env=clean)
    assert (status, out) == (0, f"{library}|||\n"), (status, out, errors)
    status, out, errors = run(["--gpu=lossless"], show, env={**clean, "LD_PRELOAD": "libc.so.6", "NVSHMEM_IBGDA_QP_DEPTH": "64"})
    assert (status, out) == (0, f"{library} libc.so.6|4096|64|\n"), (status, out, errors)
    assert "NCCL_GIN_GDAKI_QP_DEPTH=4096" in errors and "NVSHMEM_IBGDA_QP_DEPTH=64 is yours" in errors, errors
    assert run(["--gpu=fast"], show, env=clean)[0] == 2


def case_goes_on_without_a_tracer(folder):
    """kill -9 of the tracer: the command does not notice."""
    go = os.path.join(folder, "go")
    done = os.path.join(folder, "done")
    script = f'echo ready; until [ -e {go} ]; do sleep 0.02; done; echo fine > {done}'
    with start([], ["sh", "-c", script]) as process:
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.wait(LIMIT_S)
        with open(go, "w", encoding="ascii"):
            pass
        wait_for(lambda: os.path.exists(done) and os.path.getsize(done) == 5, "the command's own end")


if __name__ == "__main__":
    run_case(globals())
