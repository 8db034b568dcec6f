# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs a program with the preloaded library, on an emulated ConnectX and our libcuda.so.1."""
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(TESTS, "emulator"))
import connectx_tree  # noqa: E402

LIMIT_S = 240  # only a hang comes near it


class Failed(Exception):
    pass


def require(condition, message):
    if not condition:
        raise Failed(message)


def require_equal(what, found, expected):
    require(found == expected, f"{what}: {found!r}, not {expected!r}")


class Rig:
    def __init__(self, build):
        self.build = build
        self.library = os.path.join(build, "lib", "libsigmatrace_gpu.so")
        self.connectx = os.path.join(build, "lib", "libsigma_connectx.so")
        self.jobs = os.path.join(build, "tests", "interpose")
        self.cuda_directory = os.path.join(build, "fake_cuda")

    @contextlib.contextmanager
    def devices(self, links=("ib",)):
        """A directory with emulated devices; yields the environment of programs that use them."""
        directory = tempfile.mkdtemp(prefix="sigma-gpu-")
        try:
            os.environ["SIGMA_CONNECTX_LIBRARY"] = self.connectx
            connectx_tree.make_tree(directory, list(links))
            environment = dict(os.environ, **connectx_tree.workload_environment(directory))
            environment["LD_LIBRARY_PATH"] = self.cuda_directory
            environment["LD_PRELOAD"] = f"{self.library} {self.connectx}"
            yield environment
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def job(self, name):
        return os.path.join(self.jobs, name)


def run(command, environment, status=0, **options):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options)
    if done.returncode != status:
        raise Failed(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def groups(output):
    """"GROUP NAME VALUE" lines as {group: {name: value}}."""
    found = {}
    for line in output.splitlines():
        words = line.split(" ", 2)
        if len(words) == 3:
            found.setdefault(words[0], {})[words[1]] = int(words[2]) if words[2].lstrip("-").isdigit() else words[2]
    return found
