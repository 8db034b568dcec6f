# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""A queue_job on an emulated ConnectX and sigmatrace attached to it: both real programs, started as users start them.

    with Job(directory, cores.job, queues=16) as job, Tracer(job, ["--posts", "ring"], None, cores.tracer):
        job.set_up()
        result = job.run(seconds=0.25)

Between its runs a job is stopped (SIGSTOP), so that several can stand by. What fails ends the bench by an exception.
"""
import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

BUILD = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # not resolved: build/bench holds links
sys.path.insert(0, os.path.join(BUILD, "connectx"))
import connectx_tree  # noqa: E402

SIGMATRACE = os.environ.get("SIGMATRACE", os.path.join(BUILD, "bin", "sigmatrace"))
PROGRAMS = os.environ.get("BENCH_PROGRAMS", os.path.join(BUILD, "tests", "workloads"))
DEVICE = "connectx-nic"  # the emulated device's thread
LIMIT_S = 600  # for each wait; only a hang comes near it
TRACED_BY_RING = ("--posts", "ring", "--completions", "ring")


class Failed(Exception):
    pass


def end_by_sigterm():
    """In good order: a stopped job would stay for ever."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


# ---- where things run ----------------------------------------------------------------------------------------------

@dataclass
class Cores:
    """The job has a core, and sigmatrace the others: those that share the job's last-level cache, where the kernel knows
    of such. The emulated device is put on `job`, where its work slows every way of tracing alike and nothing but
    sigmatrace takes a line from that core; or on `apart`, as a NIC takes none of a job's time: a core of its own, or with
    two of them sigmatrace's.

    A device that shares sigmatrace's core must wait for nobody there, or the job waits for it, and must leave that core
    to sigmatrace, or nothing is traced: with `pause_us` (Job) it comes before all others, as it does for tests, and
    sleeps so long between its looks."""
    job: list
    apart: list
    tracer: list

    def distance_ns(self):
        """What a cache line takes from the job's core to sigmatrace's, now. A guest's processors are moved about under it:
        measured 40 and 175 ns within a minute, while its kernel said that the two share an L3."""
        asked = subprocess.run([os.path.join(PROGRAMS, "bench_core_distance"), str(self.job[0]), str(self.tracer[0])],
                               check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
        return float(asked.stdout)


NEAR_NS = 100  # less: they share a cache. Measured: 40-65 ns where they do, 165-210 ns where they do not.


def l3_of(core):
    """The cores that share this one's L3; None where the kernel does not say, as in many guests."""
    for index in range(8):
        path = f"/sys/devices/system/cpu/cpu{core}/cache/index{index}"
        try:
            with open(f"{path}/level", encoding="ascii") as file:
                if int(file.read()) != 3:
                    continue
            with open(f"{path}/shared_cpu_list", encoding="ascii") as file:
                spans = [span.split("-") for span in file.read().strip().split(",")]
            return {core for span in spans for core in range(int(span[0]), int(span[-1]) + 1)}
        except OSError:
            return None
    return None


def find_cores():
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Failed("two cores are needed: one for the job, one for the tracer")
    job, l3 = cores[0], l3_of(cores[0])
    others = [core for core in cores[1:] if l3 and core in l3] or cores[1:]
    return Cores([job], others[-1:], others[:-1] or others)


def start(words, cores, **options):
    return subprocess.Popen(words, preexec_fn=lambda: os.sched_setaffinity(0, cores), **options)


# ---- the job -------------------------------------------------------------------------------------------------------

@dataclass
class Result:
    operations: float
    seconds: float
    cpu_seconds: float  # of the posting thread
    p50_ns: float       # of one ibv_post_send
    p99_ns: float
    mean_ns: float
    samples: float

    @property
    def rate(self):
        return self.operations / self.seconds

    @property
    def cpu_ns(self):
        return self.cpu_seconds * 1e9 / self.operations


class Job:
    def __init__(self, directory, cores, device=None, pause_us=0, queues=16, blocks=1024, size=8, gbps=0, preload=False):
        """`device`: the cores of the emulated device; None: the job's. `pause_us`: see Cores. `blocks`: of each send ring. `size`: bytes of a
        write. `gbps`: of the device, over all queues; 0: as fast as it can. `preload`: with the bench's own library that
        logs posts and polls. The directory is made, and left."""
        self.directory, self.device, self.pause_us, self.operations = directory, device, pause_us, 0
        connectx_tree.make_tree(directory, ["ib"])
        environment = dict(os.environ, SIGMA_CONNECTX_ORACLE="0", SIGMA_CONNECTX_COPY="0",
                           **connectx_tree.workload_environment(directory))
        if gbps:  # the device paces each queue pair
            environment["SIGMA_CONNECTX_GBPS"] = str(gbps / queues)
        if pause_us:
            environment["SIGMA_CONNECTX_PAUSE_US"] = str(pause_us)
        if preload:
            environment["LD_PRELOAD"] += " " + os.path.join(PROGRAMS, "libbench_preload_log.so")
            environment["PRELOAD_LOG"] = os.path.join(directory, "preload.log")
        self.process = start([os.path.join(PROGRAMS, "bench_queue_job"), "mlx5_0", str(queues), str(blocks), str(size)], cores,
                             env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect("pid")

    def expect(self, word):
        line = self.process.stdout.readline()
        if not line.startswith(word):
            raise Failed(f"the job says {line!r}, not {word}")
        return line

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def set_up(self):
        self.say("set up")
        self.expect("ready")
        self.place_device()
        self.process.send_signal(signal.SIGSTOP)

    def place_device(self):
        """The emulated device runs before all others, for tests. Where it never sleeps that would leave a job on its core
        only the moments in which it finds nothing to do, and make its rate a matter of these."""
        device = self.thread(DEVICE)
        if not self.pause_us:
            os.setpriority(os.PRIO_PROCESS, device, 0)
        if self.device:
            os.sched_setaffinity(device, self.device)

    def thread(self, name):
        """The number of the thread of this name; it names itself when it begins."""
        tasks, deadline = f"/proc/{self.process.pid}/task", time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for task in os.listdir(tasks):
                with open(f"{tasks}/{task}/comm", encoding="ascii") as file:
                    if file.read().strip() == name:
                        return int(task)
            time.sleep(0.001)
        raise Failed(f"the job has no thread {name}")

    def run(self, seconds=0.25, rate=0, batch=1, signaled=16, work_ns=0):
        """`rate`: operations/s; 0: as many as go. Every `signaled`-th completes by itself. `work_ns`: the job's own, for
        each write."""
        self.process.send_signal(signal.SIGCONT)
        self.say(f"run {seconds} {rate} {batch} {signaled} {work_ns}")
        result = Result(*map(float, self.expect("").split()))
        self.process.send_signal(signal.SIGSTOP)
        self.operations += result.operations
        return result

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        if self.process.wait(LIMIT_S) != 0:
            raise Failed("the job failed")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


# ---- the tracer ----------------------------------------------------------------------------------------------------

@dataclass
class CpuUse:
    observer_ns: int
    all_ns: int


class Tracer:
    def __init__(self, job, options, output, cores):
        """Attached when this returns. `output`: a trace directory, a CSV file (NAME.csv), or None."""
        self.output, self.said = output, b""
        words = [SIGMATRACE, "attach", "--pid", str(job.process.pid), "--budget", "off", "--ring-size", "64M", *options]
        if output:
            words += ["-o", output]
        environment = dict(os.environ, SIGMATRACE_SYSFS=os.path.join(job.directory, "sys"),
                           SIGMATRACE_CLOCK=os.path.join(job.directory, "clock"))
        self.process = start(words, cores, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE)
        self.wait_attached()

    def wait_attached(self):
        deadline = time.monotonic() + LIMIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stderr, selectors.EVENT_READ)
            while b"attached: " not in self.said:
                ready = selector.select(deadline - time.monotonic())
                part = os.read(self.process.stderr.fileno(), 65536) if ready else b""
                if not part:
                    raise Failed(f"sigmatrace did not attach:\n{self.said.decode()}")
                self.said += part

    def cpu(self):
        use = CpuUse(0, 0)
        tasks = f"/proc/{self.process.pid}/task"
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/schedstat", encoding="ascii") as file:
                ns = int(file.read().split()[0])
            with open(f"{tasks}/{task}/comm", encoding="ascii") as file:
                observes = file.read().strip() == "sigma-observer"
            use.all_ns += ns
            use.observer_ns += ns if observes else 0
        return use

    def wait(self):
        """It ends with its job. What it wrote about the trace."""
        self.said += self.process.communicate(timeout=LIMIT_S)[1]
        if self.process.returncode != 0:
            raise Failed(f"sigmatrace failed:\n{self.said.decode()}")
        if not self.output:
            return None
        side = f"{self.output}.meta.json" if self.output.endswith(".csv") else os.path.join(self.output, "meta.json")
        with open(side, encoding="utf-8") as file:
            return json.load(file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        self.process.stderr.close()


# ---- both, once -----------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def run_directory():
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = tempfile.mkdtemp(prefix="sigma-bench-", dir=base)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def traced_run(cores, request, options=(), output="trace", **job_options):
    """A whole trace into a directory or a CSV file: what was posted, what the trace says, and at what cost."""
    bound = () if output.endswith(".csv") else ("--max-size", "512M")
    with run_directory() as directory, Job(f"{directory}/run", cores.job, **job_options) as job, \
            Tracer(job, [*TRACED_BY_RING, *bound, *options], f"{directory}/{output}", cores.tracer) as tracer:
        job.set_up()
        before = tracer.cpu()
        result = job.run(**request)
        after = tracer.cpu()
        job.end()
        meta = tracer.wait()
    rings = [qp["observed"] for qp in meta["qps"] if qp["observed"]]
    blocks = {key: sum(ring[f"blocks_{key}"] for ring in rings) for key in ("posted", "seen", "missed")}
    counters = {name: entry["value"] if isinstance(entry, dict) else entry
                for name, entry in meta["coverage"]["counters"].items()}
    off = abs(blocks["posted"] - job.operations) + abs(blocks["seen"] + blocks["missed"] - job.operations)
    return result, blocks, counters, off, (before, after)
