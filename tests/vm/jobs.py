"""Pairs of verbs_job for the scenarios: started freely or held, led through their stages."""
import glob
import os
import subprocess
import tempfile

import rig
from rig import Held, Process, expect, is_listening, program, wait_for

PORT = 18600


class JobPair:
    """A verbs_job server on rxe1 and a client on rxe0 with the same options.

    `stages`: where both wait until proceed() is called ("start", "qp", "mid", "end").
    """

    def __init__(self, options: str, stages="", port=PORT, held=False, name="verbs_job"):
        kind = Held if held else Process
        common = [*options.split(), f"port={port}"] + ([f"stages={stages}"] if stages else [])
        job = program(name)
        self.port = port
        self.server = kind("server", [job, "device=rxe1", *common], stdin=subprocess.PIPE)
        if not held:
            self.wait_listening()
        self.client = kind("client", [job, "device=rxe0", *common, "127.0.0.1"],
                           stdin=subprocess.PIPE)
        self.pids = [self.server.pid, self.client.pid]

    def wait_listening(self) -> None:
        wait_for(lambda: is_listening(self.port) or self.server.popen.poll() is not None,
                 "verbs_job's server listens")

    def go(self) -> None:
        """Continue a held pair."""
        self.server.go()
        self.wait_listening()
        self.client.go()

    def wait_stage(self, stage: str, *processes) -> None:
        for process in processes or (self.server, self.client):
            wait_for(lambda: f"stage {stage}\n" in process.stdout() or
                     process.popen.poll() is not None, f"{process.name} reaches stage {stage}")
            expect(process.popen.poll() is None,
                   f"{process.name} ended before stage {stage}\n{process.tail()}")

    def proceed(self, *processes) -> None:
        for process in processes or (self.server, self.client):
            process.say()

    def wait_ok(self, limit_s: float = rig.WAIT_S) -> None:
        self.client.wait_ok(limit_s)
        self.server.wait_ok(limit_s)


def results(process: Process) -> dict:
    """verbs_job's result line: {"success": 5, "first_error": "...", "flushed": 5, ...}"""
    for line in process.stdout().splitlines():
        if line.startswith("result "):
            error = line.split("first_error ")[1].split(" flushed")[0]
            words = line.replace(error, "?").split()
            numbers = dict(zip(words[1::2], words[2::2]))
            return {name: int(value) for name, value in numbers.items() if value != "?"} | \
                {"first_error": error}
    raise rig.Failure(f"{process.name} printed no result\n{process.tail()}")


def sent_packets(device: str = "rxe0") -> int:
    """Packets that a soft-RoCE device has sent: shows that traffic flows, without the tracer."""
    with open(f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts") as file:
        return int(file.read())


def wait_for_traffic(packets: int = 100) -> None:
    begin = sent_packets()
    wait_for(lambda: sent_packets() > begin + packets, f"{packets} packets are sent")


def csv_path(name: str) -> str:
    return os.path.join(tempfile.mkdtemp(prefix=name + "."), "ops.csv")
