# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""A producer model (tests/fake_cuda/models) whose rate is measured, in turns, and sigmatrace attached to it.

The job and the emulated device share one core: a model's kernel is threads there. A GPU's kernels take
no time of a CPU; so the preloaded library's own thread, and the fake driver's that copies for it, run on the tracer's.
"""
import os
import signal
import subprocess
import time
from dataclasses import dataclass

import traced_job
from traced_job import BUILD, LIMIT_S, Failed, connectx_tree

MODELS = os.path.join(BUILD, "tests", "models")
READER = "sigmatrace-gpu"  # the library's thread
LIBRARY = os.path.join(BUILD, "lib", "libsigmatrace_gpu.so")
CUDA, GDRCOPY = (os.path.join(BUILD, name) for name in ("fake_cuda", "fake_gdrcopy"))
SHAPE = ("--queues", "8", "--posters", "4", "--depth", "1024")  # the device has always something to do


@dataclass
class Result:
    operations: int
    seconds: float

    @property
    def rate(self):
        return self.operations / self.seconds


class ModelJob(traced_job.Job):
    """`words`: the model and its mode. `library`: preloaded. `reads`: it will have a thread that reads device memory."""

    def __init__(self, directory, cores, words, library=False, reads=False, gdrcopy=False, environment=None):
        self.directory, self.device, self.running_ns, self.cores, self.reads = directory, None, 0, cores, reads
        connectx_tree.make_tree(directory, ["ib"])
        settings = dict(os.environ, SIGMA_CONNECTX_ORACLE="0", **connectx_tree.workload_environment(directory),
                        LD_LIBRARY_PATH=f"{CUDA}:{GDRCOPY}" if gdrcopy else CUDA, **(environment or {}))
        if library:
            settings["LD_PRELOAD"] = f"{LIBRARY} {settings['LD_PRELOAD']}"
        model, *mode = words
        self.process = traced_job.start([os.path.join(MODELS, model), "--measured", "1", *SHAPE, *mode], cores.job,
                                        env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect("pid")

    def set_up(self):
        self.say("set up")
        while (line := self.process.stdout.readline()) != "ready\n":
            if not line:
                raise Failed("the job ended before it was ready")
        self.place_device()
        if self.reads:
            # What it starts follows it: the fake driver's thread of its stream.
            os.sched_setaffinity(self.thread(READER), self.cores.tracer)
        self.process.send_signal(signal.SIGSTOP)

    def reader_ns(self):
        """CPU time of the library's thread up to now."""
        if not self.reads:
            return 0
        with open(f"/proc/{self.process.pid}/task/{self.thread(READER)}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0])

    def run(self, seconds):
        """A turn of so long, after its onset."""
        begin = time.monotonic_ns()
        self.process.send_signal(signal.SIGCONT)
        self.say(f"run {seconds}")
        operations, took = self.expect("").split()
        self.process.send_signal(signal.SIGSTOP)
        self.running_ns += time.monotonic_ns() - begin
        return Result(int(operations), float(took))

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        said, _ = self.process.communicate(timeout=LIMIT_S)
        if self.process.returncode != 0 or not said.endswith("ok\n"):
            raise Failed(f"the job failed: {said}")
