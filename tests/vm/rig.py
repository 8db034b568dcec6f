"""What the tests in the guest share: held jobs, the tracer, waiting, reporting.

Nothing here sleeps for luck: every wait has a condition and a limit, and a limit that is
passed is a failure with a message (class Failure).
"""
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

BUILD = os.environ.get("SIGMA_BUILD", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build"))
SIGMATRACE = os.path.join(BUILD, "bin", "sigmatrace")
PROGRAMS = os.path.join(BUILD, "tests", "vm")
WAIT_S = 240              # the guest is emulated and its host may be loaded
GIDS = {"rxe0": "::ffff:10.77.0.1", "rxe1": "::ffff:10.77.0.2"}


@dataclass(frozen=True)
class Fabric:
    """Two devices that reach each other. `names_peers`: the kernel and the provider tell which
    queue pair is connected to which (iWARP has a TCP connection instead)."""
    client: str
    server: str
    server_address: str
    names_peers: bool = True


ROCE = Fabric("rxe0", "rxe1", "10.77.0.2")


class Failure(Exception):
    """A test's expectation does not hold; the message is all that the reader gets."""


def expect(condition, message: str) -> None:
    if not condition:
        raise Failure(message)


def program(name: str) -> str:
    """One of our test programs; a missing one is a failure, never a skip."""
    path = os.path.join(PROGRAMS, name)
    expect(os.path.exists(path), f"{path} is missing: build first")
    return path


def wait_for(condition, what: str, limit_s: float = WAIT_S):
    """Poll until condition() is true and return its value."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failure(f"waited {limit_s:.0f} s in vain: {what}")
        time.sleep(0.02)


def process_state(pid: int) -> str:
    """R, S, T, Z ... of a process; X when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def is_listening(port: int) -> bool:
    """Whether a TCP socket listens on the port."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(name) as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    return True
    return False


def is_cm_listening(pid: int) -> bool:
    """Whether the process has a listening RDMA connection manager id."""
    shown = subprocess.run(["rdma", "resource", "show", "cm_id"], stdout=subprocess.PIPE, text=True)
    return any("state LISTEN" in line and f"pid {pid} " in line for line in shown.stdout.splitlines())


class Process:
    """A child whose output goes to files, so that no pipe can stall it."""

    def __init__(self, name: str, argv: list, env=None, stdin=None):
        self.name = name
        self.out = tempfile.TemporaryFile("w+")
        self.err = tempfile.TemporaryFile("w+")
        self.popen = subprocess.Popen(argv, stdout=self.out, stderr=self.err,
                                      stdin=stdin or subprocess.DEVNULL,
                                      env={**os.environ, **(env or {})})
        self.pid = self.popen.pid

    def text(self, file) -> str:
        return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")

    def stdout(self) -> str:
        return self.text(self.out)

    def stderr(self) -> str:
        return self.text(self.err)

    def wait(self, limit_s: float = WAIT_S) -> int:
        try:
            return self.popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} does not end within {limit_s:.0f} s\n{self.tail()}") from None

    def wait_ok(self, limit_s: float = WAIT_S) -> None:
        status = self.wait(limit_s)
        expect(status == 0, f"{self.name} ended with {status}\n{self.tail()}")

    def tail(self) -> str:
        lines = self.stdout().splitlines()[-15:] + self.stderr().splitlines()[-15:]
        return "\n".join(f"    {self.name}: {line}" for line in lines)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.popen.kill()
        self.popen.wait()

    def say(self) -> None:
        """Answer a program that waits at a stage (verbs_job)."""
        self.popen.stdin.write(b"\n")
        self.popen.stdin.flush()


class Held(Process):
    """A program stopped before its first instruction, by the wrapper `hold`."""

    def __init__(self, name: str, argv: list, env=None, stdin=None):
        super().__init__(name, [program("hold"), "--", *argv], env, stdin)
        wait_for(lambda: process_state(self.pid) in "TXZ", f"{name} stops at its start")
        expect(process_state(self.pid) == "T", f"{name} ended at its start\n{self.tail()}")

    def go(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class Tracer(Process):
    """sigmatrace attach, started and waited for until it says that it is attached."""

    def __init__(self, pids, csv: str, *options: str, env=None):
        expect(os.path.exists(SIGMATRACE), f"{SIGMATRACE} is missing: build first")
        self.csv = csv
        pid_list = ",".join(str(pid) for pid in pids)
        super().__init__("sigmatrace", [SIGMATRACE, "attach", "--pid", pid_list, "-o", csv,
                                        "--budget", "off", *options], env)
        wait_for(self.is_attached, "sigmatrace's line `attached`")
        # Both kernels have the hook; a fallback that works as well would hide that it is not used.
        expect("control plane by ib_uverbs_ioctl by kprobe" in self.stderr(),
               f"set-up is not told by the kernel's hook\n{self.tail()}")

    def is_attached(self) -> bool:
        status = self.popen.poll()
        expect(status is None, f"sigmatrace ended with {status} before it attached\n{self.tail()}")
        return bool(re.search(r"^attached", self.stderr(), re.MULTILINE))

    def finish(self, limit_s: float = WAIT_S) -> None:
        """It ends by itself, with the last of its targets."""
        status = self.wait(limit_s)
        expect(status == 0, f"sigmatrace ended with {status}\n{self.tail()}")

    def interrupt(self) -> None:
        self.popen.send_signal(signal.SIGINT)
        self.finish()


def kill_children() -> None:
    """Ends what a failed test left (the agent would as well; this keeps later output clean)."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/stat") as file:
                    if int(file.read().rsplit(")", 1)[1].split()[1]) == os.getpid():
                        os.kill(int(name), signal.SIGKILL)


def run_test(test) -> None:
    """Run test() and exit: 0, or 1 with the failure's message."""
    begin = time.monotonic()
    try:
        test()
    except Failure as failure:
        print(f"FAILED: {failure}")
        kill_children()
        sys.exit(1)
    print(f"passed in {time.monotonic() - begin:.1f} s")
