# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""A job on an emulated device of its own, that a test tells what to do by lines, and the tracer that is attached to it."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../native"), os.path.dirname(HERE)]
import connectx_tree  # noqa: E402
import named_tests  # noqa: E402, F401
from late_job import Attach, Driven, Output, wait_for  # noqa: E402, F401


class EmulatedJob(Driven):
    """PROGRAM mlx5_0 ARGUMENTS. Its first line begins with "ready"; the words behind are `said`."""

    def __init__(self, program, *arguments, folder, before=None):
        self.directory = os.path.join(folder, "run")
        os.mkdir(self.directory)
        connectx_tree.make_tree(self.directory, ["eth"])
        self.prepare()
        super().__init__([program, "mlx5_0", *map(str, arguments)], before, self.environment())
        word, *self.said = self.line().split()
        assert word == "ready", "the job did not begin"

    def prepare(self):
        """For what more its sysfs has to say."""

    def environment(self):
        return connectx_tree.workload_environment(self.directory)


class Traced(Attach):
    def __init__(self, program, job, folder, *options, pids=None):
        self.path = os.path.join(folder, "ops.csv")
        super().__init__(program, "--pid", ",".join(map(str, pids or [job.pid])), "--budget", "off", "-o", self.path, *options,
                         env={"SIGMATRACE_SYSFS": os.path.join(job.directory, "sys")})

    def output(self):
        """Once it is told to end."""
        assert self.interrupt() == 0, self.text
        return Output(self.path)
