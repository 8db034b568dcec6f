# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""A run of a producer model under sigmatrace, and what it left. A queue is named by (pid, queue pair number, life), where
lives count from 0 at a RESET, or when the number comes again."""
import collections
import csv
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
EMULATOR = os.path.join(os.path.dirname(HERE), "emulator")
sys.path[:0] = [EMULATOR, os.path.join(EMULATOR, "trace")]
import connectx_tree  # noqa: E402

LIMIT_S = 240
SEED = os.environ.get("SIGMA_TEST_SEED", "7")
BASE = "/dev/shm" if os.path.isdir("/dev/shm") else None  # for the runs' directories


class Failed(Exception):
    pass


class Undecided(Failed):
    """What was told is true, but too much was missed for what the row is about: it is run again."""


def require(good, what):
    if not good:
        raise Failed(what)


def read_table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


class Test:
    """`origin`: of the knowledge of its rings. `initiator`: what its rows say. `runs`: further words of the command, each a run."""

    def __init__(self, command, judge=None, environment=None, devices=1, origin="library", initiator="gpu", runs=("",)):
        self.command, self.judge, self.environment, self.devices = command.split(), judge, environment or {}, devices
        self.origin, self.initiator, self.runs = origin, initiator, runs


class Traced:
    """What a run left: the trace's rows and gaps, the device's log, what the model said."""

    def __init__(self, build, directory, test, words=()):
        self.sigmatrace = os.path.join(build, "bin", "sigmatrace")
        self.directory, self.base = os.path.join(directory, "run"), directory
        self.trace, self.devices = os.path.join(directory, "trace"), os.path.join(directory, "devices")
        self.library, self.connectx = (os.path.join(build, "lib", f"lib{name}.so") for name in ("sigmatrace_gpu", "sigma_connectx"))
        self.build, self.test = build, test
        print(f"seed {SEED}")
        os.mkdir(self.devices)
        connectx_tree.make_tree(self.devices, ["ib"] * test.devices)
        self.run(words)
        self.rows = [row for row in self.table("ops") if row["source"] == ("gpu" if test.origin == "library" else "ring")]
        self.gaps = [gap for gap in self.table("gaps") if gap["ring"] == "send"]
        with open(os.path.join(self.trace, "meta.json"), encoding="utf-8") as file:
            self.meta = json.load(file)
        start = self.meta["clocks"]["start"]
        self.utc_offset_ns = start["utc_ns"] - start["monotonic_ns"]
        self.begins = collections.defaultdict(list)  # by (pid, number): when its lives began, as the trace has it
        for qp in sorted(self.meta["qps"], key=lambda qp: qp["life"]):
            self.begins[qp["pid"], qp["qp_num"]].append(qp["created_ns"])

    def job(self, more=(), options=()):
        """The command of the model on the emulated device, with the preloaded library."""
        environment = {"LD_PRELOAD": f"{self.library} {self.connectx}", "LD_LIBRARY_PATH": os.path.join(self.build, "fake_cuda"),
                       **self.test.environment}
        model = [word.replace("{truth}", os.path.join(self.directory, "truth")) for word in [*self.test.command, *more]]
        words = [os.path.join(EMULATOR, "connectx-run"), "--dir", self.directory, "--realtime", "--timeout", str(LIMIT_S),
                 "--devices", str(self.test.devices), *options]
        words += [word for name, value in environment.items()
                  for word in ("--env", f"{name}={value}".replace("{build}", self.build))]
        return [*words, "--", os.path.join(self.build, "tests", "models", model[0]), *model[1:]]

    def tracer(self, command):
        """Its words and environment."""
        return ([self.sigmatrace, command, "--budget", "off", "--ring-size", "64M", "-o", self.trace],
                {**os.environ, "SIGMATRACE_SYSFS": os.path.join(self.devices, "sys"),
                 "SIGMATRACE_CLOCK": os.path.join(self.devices, "clock"), "SIGMA_CONNECTX_LIBRARY": self.connectx})

    def run(self, more):
        words, environment = self.tracer("run")
        done = subprocess.run([*words, "--", *self.job(more)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, env=environment)
        self.output = done.stdout
        print(self.output)
        require(done.returncode == 0, f"status {done.returncode}")

    def table(self, name):
        path = os.path.join(self.base, f"{name}.csv")
        subprocess.run([self.sigmatrace, "export", self.trace, "--format", "csv", "--table", name, "-o", path], check=True)
        return read_table(path)

    def number_of(self, pid, qp_num, since_ns):
        """Of a request, or a gap, that is of this time at the earliest: nothing of a life is older than that."""
        begins = self.begins[pid, qp_num]
        if len(begins) > 1 and None in begins:
            raise Undecided(f"the tracer came behind the creation of QP {qp_num}: its lives cannot be told apart")
        later = begins[1:]
        require(since_ns is not None or not later, f"a request of unknown time, of {1 + len(later)} lives: QP {qp_num}")
        return pid, qp_num, sum(begin <= since_ns for begin in later)

    def number_of_row(self, row):
        since_ns = int(row["time_ns"]) - int(row["time_error_ns"]) if row["time_ns"] else None
        return self.number_of(int(row["pid"]), int(row["qp_num"]), since_ns)

    def number_of_gap(self, gap):
        return self.number_of(int(gap["pid"]), int(gap["number"]), int(gap["begin_ns"]))

    def qps(self):
        """By number, what the trace says of the rings that were read."""
        found, lives = {}, collections.Counter()
        for qp in sorted(self.meta["qps"], key=lambda qp: qp["life"]):
            if qp["observed"]:
                found[qp["pid"], qp["qp_num"], lives[qp["pid"], qp["qp_num"]]] = qp
            lives[qp["pid"], qp["qp_num"]] += 1
        return found

    def counter(self, name):
        """Of the coverage statement."""
        value = self.meta["coverage"]["counters"][name]
        return value["value"] if isinstance(value, dict) else value

    def tiers(self):
        """Of the queues that were posted to, or may have been."""
        return {qp["observed"]["tier"] for qp in self.qps().values()
                if qp["observed"]["blocks_posted"] or qp["observed"]["end_unseen"]}
