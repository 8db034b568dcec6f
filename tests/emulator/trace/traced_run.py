# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs a workload on emulated devices, traced from the first instruction of each of its processes.

A launcher waits on its standard input while sigmatrace attaches to it with --follow-forks; then it becomes
connectx-run, whose programs are the children that the tracer follows. Nothing waits by time: the tracer says
"attached", and ends with its last target.
"""
import csv
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
EMULATOR = os.path.dirname(HERE)
sys.path.insert(0, EMULATOR)
import connectx_tree  # noqa: E402
import oracle  # noqa: E402

LIMIT_S = 240  # for each wait; only a hang comes near it
SHOWN_LINES = 60


class Failed(Exception):
    pass


class Trace:
    """What a traced run left: the rows, the side file, the oracle's directory, the texts."""

    def __init__(self, directory, rows, meta, output, said):
        self.directory, self.rows, self.meta, self.output, self.said = directory, rows, meta, output, said
        self.counters = {name: entry["value"] if isinstance(entry, dict) else entry
                         for name, entry in meta["coverage"]["counters"].items()}


def read_rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        rows = list(reader)
    for row in rows:
        if None in row or None in row.values():
            raise Failed(f"a row with another number of fields than the header: {row}")
    return rows


class Tracer:
    """sigmatrace attach, on the launcher and what it starts, or system-wide on what has a name."""

    def __init__(self, sigmatrace, pids, directory, devices, options, name=None, environment=None):
        self.csv = os.path.join(directory, "ops.csv")
        self.by_name = name is not None
        target = ["--comm", name] if self.by_name else ["--pid", ",".join(map(str, pids)), "--follow-forks"]
        command = [sigmatrace, "attach", *target, "--budget", "off", "--ring-size", "64M", "-o", self.csv, *options]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        env=dict(os.environ, SIGMATRACE_SYSFS=os.path.join(devices, "sys"),
                                                 SIGMATRACE_CLOCK=os.path.join(devices, "clock"),
                                                 SIGMATRACE_LOCK=os.path.join(directory, "lock"), **(environment or {})))
        self.said = b""

    def wait_attached(self):
        """Until its probes are in place."""
        deadline = time.monotonic() + LIMIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stderr, selectors.EVENT_READ)
            while not re.search(rb"^attached: ", self.said, re.MULTILINE):
                if not selector.select(deadline - time.monotonic()):
                    raise Failed(f"sigmatrace did not attach within {LIMIT_S} s:\n{self.said.decode()}")
                part = os.read(self.process.stderr.fileno(), 65536)
                if not part:
                    raise Failed(f"sigmatrace ended:\n{self.said.decode()}")
                self.said += part

    def wait_ended(self):
        """It ends by itself, with its last target; a system-wide one is told to."""
        if self.by_name:
            self.process.send_signal(signal.SIGINT)
        try:
            self.said += self.process.communicate(timeout=LIMIT_S)[1]
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
            try:
                self.said += self.process.communicate(timeout=30)[1]
            except subprocess.TimeoutExpired:
                pass
            raise Failed(f"sigmatrace did not end with its targets:\n{self.said.decode()}") from None
        if self.process.returncode != 0:
            raise Failed(f"sigmatrace: status {self.process.returncode}\n{self.said.decode()}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()


def link_layers(options):
    """Of the devices that connectx-run will make."""
    devices, links = 1, ["ib"]
    for name, value in zip(options, options[1:]):
        if name == "--devices":
            devices = int(value)
        elif name == "--link":
            links = value.split(",")
    return [links[i % len(links)] for i in range(devices)]


def stand_by(workloads):
    """A process in the root folder of another release, so that its libraries are probed before a program maps them:
    a library that the tracer meets first in a running process is a declared gap. None in the own root."""
    prefix = connectx_tree.release_prefix()
    if not prefix:
        return None
    return subprocess.Popen([*prefix, os.path.join(workloads, "stand_by")], stdin=subprocess.PIPE)


def wait_in_root(process):
    """Until it has become its program, in its root."""
    deadline = time.monotonic() + LIMIT_S
    while os.path.basename(os.readlink(f"/proc/{process.pid}/exe")) != "stand_by":
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failed("no process in the release's root")
        time.sleep(0.01)


def set_clock_wrong(path, error_ns):
    """The tracer's readings of the clock will be that much off."""
    with open(path, encoding="ascii") as file:
        values = dict(line.split() for line in file)
    values["offset_ticks"] = int(values["offset_ticks"]) + (error_ns * int(values["mult_2_64"]) >> 64)
    with open(path, "w", encoding="ascii") as file:
        file.writelines(f"{name} {value}\n" for name, value in values.items())


def bpf_map_entries(pid):
    """By name, the number of entries of each hash map that the process holds."""
    tool = shutil.which("bpftool", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    identifiers = set()
    for fd in os.listdir(f"/proc/{pid}/fdinfo"):
        try:
            with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
                identifiers.update(line.split()[1] for line in file if line.startswith("map_id:"))
        except FileNotFoundError:  # a file that was only open for a moment
            pass
    entries = {}
    for identifier in identifiers:
        ask = lambda *words: json.loads(subprocess.run([tool, "-j", "map", *words, "id", identifier], check=True,  # noqa: E731
                                                       stdout=subprocess.PIPE).stdout)
        shown = ask("show")
        if "hash" in shown["type"]:
            entries[shown["name"]] = len(ask("dump"))
    return entries


def wait_watched(launcher, watch, pid):
    """Until the launcher ends. What `watch(pid)` says meanwhile, now and then."""
    seen, deadline = [], time.monotonic() + LIMIT_S + 60
    while watch and launcher.poll() is None and time.monotonic() < deadline:
        seen.append(watch(pid))
        try:
            launcher.wait(0.5)
        except subprocess.TimeoutExpired:
            pass
    return launcher.wait(max(1, deadline - time.monotonic())), seen


def renamed(program, directory):
    """A copy under a name that nothing else on this machine has; and that name."""
    name = f"sigma{os.getpid()}"
    path = os.path.join(directory, name)
    shutil.copy(program, path)
    return path, name


def ended(tracer, run_directory, output_path, status):
    """The Trace of a workload that has ended with this status."""
    with open(output_path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    if status != 0:
        raise Failed(f"the workload's status is {status}:\n" + "\n".join(text.splitlines()[-SHOWN_LINES:]))
    tracer.wait_ended()
    with open(tracer.csv + ".meta.json", encoding="utf-8") as file:
        meta = json.load(file)
    return Trace(run_directory, read_rows(tracer.csv), meta, text, tracer.said.decode())


def run_traced(sigmatrace, run_options, command, trace_options=(), keep=None, workloads=".", clock_error_ns=0, watch=None,
               by_name=False):
    """The workload's Trace. Fails when workload or tracer does. `keep`: a directory that outlives this.
    `clock_error_ns`: the devices' clocks are read wrongly. `watch(pid)`: asked of the tracer while the workload runs; its
    answers are trace.watched. `by_name`: the last word of the command is a program; its processes are traced because they
    are called so."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = keep or tempfile.mkdtemp(prefix="sigma-trace-", dir=base)
    run_directory = os.path.join(directory, "run")
    output_path = os.path.join(directory, "output")
    # The tracer asks at once which devices there are, and reads their clocks; connectx-run makes its own later.
    devices = os.path.join(directory, "devices")
    os.makedirs(devices, exist_ok=True)
    for device in connectx_tree.make_tree(devices, link_layers(run_options)):
        if clock_error_ns:
            set_clock_wrong(os.path.join(devices, "clock", device.name), clock_error_ns)
    name = None
    if by_name:
        path, name = renamed(command[-1], directory)
        command = [*command[:-1], path]
    words = [os.path.join(EMULATOR, "connectx-run"), "--dir", run_directory, "--realtime", "--timeout", str(LIMIT_S),
             *run_options, *connectx_tree.release_options(), "--", *command]
    launcher = tracer = trace = waiting = None
    try:
        waiting = stand_by(workloads)
        if waiting:
            wait_in_root(waiting)
        with open(output_path, "wb") as output:
            launcher = subprocess.Popen(["sh", "-c", 'read -r go && exec "$@"', "launcher", *words], stdin=subprocess.PIPE,
                                        stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        pids = [process.pid for process in (launcher, waiting) if process]
        tracer = Tracer(sigmatrace, pids, directory, devices, trace_options, name)
        tracer.wait_attached()
        launcher.stdin.write(b"go\n")
        launcher.stdin.close()
        status, watched = wait_watched(launcher, watch, tracer.process.pid)
        if waiting:
            waiting.stdin.close()
            waiting.wait()
        trace = ended(tracer, run_directory, output_path, status)
        trace.watched = watched
        return trace
    finally:
        if tracer:
            tracer.kill()
        if launcher and launcher.poll() is None:
            launcher.terminate()  # connectx-run ends what it started
            launcher.wait()
        if waiting and waiting.poll() is None:
            waiting.kill()
            waiting.wait()
        if trace is None and not keep:
            shutil.rmtree(directory, ignore_errors=True)


def run_started(sigmatrace, run_options, command, trace_options=(), keep=None):
    """The Trace of a workload that `sigmatrace run` starts itself."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = keep or tempfile.mkdtemp(prefix="sigma-run-", dir=base)
    run_directory, devices = os.path.join(directory, "run"), os.path.join(directory, "devices")
    os.makedirs(devices, exist_ok=True)
    connectx_tree.make_tree(devices, link_layers(run_options))
    path = os.path.join(directory, "ops.csv")
    words = [sigmatrace, "run", "--budget", "off", "--ring-size", "64M", "-o", path, *trace_options, "--",
             os.path.join(EMULATOR, "connectx-run"), "--dir", run_directory, "--realtime", "--timeout", str(LIMIT_S),
             *run_options, "--", *command]
    trace = process = None
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=dict(os.environ, SIGMATRACE_SYSFS=os.path.join(devices, "sys"),
                                            SIGMATRACE_CLOCK=os.path.join(devices, "clock")))
        text, said = process.communicate(timeout=LIMIT_S + 60)
        if process.returncode != 0:
            raise Failed(f"status {process.returncode}:\n" + "\n".join((text + said).splitlines()[-SHOWN_LINES:]))
        with open(path + ".meta.json", encoding="utf-8") as file:
            trace = Trace(run_directory, read_rows(path), json.load(file), text, said)
        return trace
    finally:
        if process and process.poll() is None:
            process.terminate()  # which is passed on to connectx-run
            process.communicate()
        if trace is None and not keep:
            shutil.rmtree(directory, ignore_errors=True)


# ---- a job that runs already

def wait_until(condition, what, launcher):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if launcher.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"{what}: {'the launcher has ended' if launcher.poll() is not None else 'not in time'}")
        time.sleep(0.002)


class Rendezvous:
    """The program itself says when it has done enough, and goes on when told: {ready} and {go} in its command."""

    def __init__(self, directory):
        self.ready, self.go = os.path.join(directory, "ready"), os.path.join(directory, "go")
        os.mkfifo(self.ready)
        os.mkfifo(self.go)

    def pause(self, launcher, pids, run_directory):
        with open(self.ready, encoding="ascii") as file:
            if file.readline() != "ready\n":
                raise Failed("the workload did not get ready")

    def resume(self, pids):
        with open(self.go, "w", encoding="ascii") as file:
            file.write("go\n")


class StopAnywhere:
    """All its processes are stopped once they have sent enough, wherever they are."""

    def __init__(self, sends):
        self.sends = sends

    def sent(self, run_directory):
        try:
            return sum(1 for _ in oracle.records(run_directory, {"send_wqe"}))
        except oracle.BadLog:  # one that begins just now
            return 0

    def pause(self, launcher, pids, run_directory):
        wait_until(lambda: self.sent(run_directory) >= self.sends, "sends", launcher)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(state_of(task) in "Tt" for pid in pids for task in os.listdir(f"/proc/{pid}/task")),
                   "stopped threads", launcher)

    def resume(self, pids):
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def state_of(task):
    with open(f"/proc/{task}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def hook_emulated_commands(devices):
    """The tracer's environment in which the kernel shows it the commands (SIGMA_CONNECTX_KERNEL_HOOK=1). The device's
    file is none of a device node: it has the number 0:0."""
    nodes = os.path.join(devices, "sys/class/infiniband_verbs")
    for node in os.listdir(nodes):
        if os.path.isdir(os.path.join(nodes, node)):
            with open(os.path.join(nodes, node, "dev"), "w", encoding="ascii") as file:
                file.write("0:0\n")
    return {"SIGMATRACE_UVERBS_HOOK": "shmem_fallocate"}


def run_late(sigmatrace, run_options, command, trace_options=(), sends=None, keep=None):
    """The Trace of a workload that runs already when the tracer comes. Its `since_ns`: it was told to go on then."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = keep or tempfile.mkdtemp(prefix="sigma-late-", dir=base)
    run_directory = os.path.join(directory, "run")
    output_path, pids_path = os.path.join(directory, "output"), os.path.join(directory, "pids")
    devices = os.path.join(directory, "devices")
    os.makedirs(devices, exist_ok=True)
    connectx_tree.make_tree(devices, link_layers(run_options))
    meeting = StopAnywhere(sends) if sends else Rendezvous(directory)
    command = [word.replace("{ready}", getattr(meeting, "ready", "")).replace("{go}", getattr(meeting, "go", "")) for word in command]
    words = [os.path.join(EMULATOR, "connectx-run"), "--dir", run_directory, "--realtime", "--timeout", str(LIMIT_S),
             "--pids", pids_path, *run_options, *connectx_tree.release_options(), "--", *command]
    programs = 2 if "--server" in run_options else 1
    launcher = tracer = trace = None
    pids = []
    try:
        with open(output_path, "wb") as output:
            launcher = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                        start_new_session=True)

        def started():
            if os.path.exists(pids_path):
                with open(pids_path, encoding="ascii") as file:
                    pids[:] = [int(line.split()[1]) for line in file if line.endswith("\n")]
            return len(pids) == programs
        wait_until(started, "programs", launcher)
        meeting.pause(launcher, pids, run_directory)
        hooked = "SIGMA_CONNECTX_KERNEL_HOOK=1" in run_options
        tracer = Tracer(sigmatrace, pids, directory, devices, trace_options,
                        environment=hook_emulated_commands(devices) if hooked else None)
        tracer.wait_attached()
        since_ns = time.monotonic_ns()
        meeting.resume(pids)
        status = launcher.wait(LIMIT_S + 60)
        trace = ended(tracer, run_directory, output_path, status)
        trace.since_ns = since_ns
        return trace
    finally:
        if tracer:
            tracer.kill()
        if launcher and launcher.poll() is None:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass
            launcher.terminate()
            launcher.wait()
        if trace is None and not keep:
            shutil.rmtree(directory, ignore_errors=True)


def remove(trace):
    shutil.rmtree(os.path.dirname(trace.directory), ignore_errors=True)
