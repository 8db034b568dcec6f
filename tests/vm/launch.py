"""Starts the programs of a table row, held before their first instruction.

A launch has `pids` ({"client": pid, "server": pid}); go() lets them run to their end.
How to tell that a server is ready differs from program to program, so each has an entry in
LAUNCHERS; nothing waits for a fixed time.
"""
import os
import tempfile

import rig
from rig import ROCE, Fabric, Held, Process, expect, is_cm_listening, is_listening, program, wait_for
from table import PERFTEST_PORT, RPING_PORT, Row

UCX = {"UCX_IB_GID_INDEX": "1", "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
       "UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_WARN_UNUSED_ENV_VARS": "n"}
UCX_PORT, VERBS_PORT, PINGPONG_PORT = 13337, 18600, 18515


class Pair:
    """A server, then a client once the server is ready for it."""

    def __init__(self, server: list, client: list, ready, env=None, client_env=None):
        self.ready = ready
        self.server = Held("server", server, env)
        self.client = Held("client", client, client_env or env)
        self.pids = {"server": self.server.pid, "client": self.client.pid}

    def go(self, limit_s: float = rig.WAIT_S) -> None:
        self.server.go()
        wait_for(lambda: self.ready(self.server.pid) or self.server.popen.poll() is not None,
                 "the server listens")
        self.client.go()
        self.client.wait_ok(limit_s)
        self.server.wait_ok(limit_s)

    def stdout(self, side: str) -> str:
        return getattr(self, side).stdout()


class Ranks:
    """Two MPI ranks under mpirun, each held; rank 0 is the "client"."""

    def __init__(self, argv: list, env: dict):
        self.dir = tempfile.mkdtemp(prefix="ranks.")
        settings = [word for name in env for word in ("-x", name)]
        # OMPI's shared-memory and TCP paths are excluded so that UCX carries everything
        self.mpirun = Process("mpirun", [
            "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2",
            "--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "^openib,vader,tcp",
            *settings, program("hold"), self.dir, "--", *argv], env)
        wait_for(self._all_held, "both ranks are held")
        ranks = {self._rank(pid): pid for pid in self._held()}
        self.pids = {"client": ranks["0"], "server": ranks["1"]}

    def _held(self) -> list:
        return [int(name) for name in os.listdir(self.dir)]

    def _all_held(self) -> bool:
        expect(self.mpirun.popen.poll() is None, f"mpirun ended early\n{self.mpirun.tail()}")
        held = self._held()
        return len(held) == 2 and all(rig.process_state(pid) == "T" for pid in held)

    @staticmethod
    def _rank(pid: int) -> str:
        with open(f"/proc/{pid}/environ") as file:
            for entry in file.read().split("\0"):
                if entry.startswith("OMPI_COMM_WORLD_RANK="):
                    return entry.split("=")[1]
        return "?"

    def go(self, limit_s: float = rig.WAIT_S) -> None:
        for pid in self.pids.values():
            os.kill(pid, rig.signal.SIGCONT)
        self.mpirun.wait_ok(limit_s)

    def stdout(self, side: str) -> str:
        return self.mpirun.stdout()


def on_port(port: int):
    return lambda pid: is_listening(port)


def through_cm(port: int, fabric: Fabric):
    """The connection manager says that it listens before an iWARP device has the socket for it."""
    return lambda pid: is_cm_listening(pid) and (fabric.names_peers or is_listening(port))


def launch_perftest(row: Row, env: dict, fabric: Fabric) -> Pair:
    # -F: the guest's CPU frequency is nobody's concern
    common = [row.program, "-F", *row.options]
    if "-R" in row.options:
        return Pair([*common, "-d", fabric.server],
                    [*common, "-d", fabric.client, fabric.server_address], through_cm(PERFTEST_PORT, fabric), env)
    return Pair([*common, "-x", "1", "-d", fabric.server],
                [*common, "-x", "1", "-d", fabric.client, "127.0.0.1"],
                on_port(PERFTEST_PORT), env)


def launch_pingpong(row: Row, env: dict, fabric: Fabric) -> Pair:
    common = [row.program, "-g", "1", *row.options]
    return Pair([*common, "-d", fabric.server], [*common, "-d", fabric.client, "127.0.0.1"],
                on_port(PINGPONG_PORT), env)


def launch_rping(row: Row, env: dict, fabric: Fabric) -> Pair:
    return Pair(["rping", "-s", "-a", fabric.server_address, *row.options],
                ["rping", "-c", "-a", fabric.server_address, *row.options], through_cm(RPING_PORT, fabric), env)


def launch_verbs_job(row: Row, env: dict, fabric: Fabric) -> Pair:
    job = program("verbs_job")
    return Pair([job, f"device={fabric.server}", *row.options],
                [job, f"device={fabric.client}", *row.options, "127.0.0.1"], on_port(VERBS_PORT), env)


def launch_ucx(row: Row, env: dict, fabric: Fabric) -> Pair:
    def side(device: str, *more: str):
        # a UCT test is told its device and transport, a UCP test by the environment
        uct = [] if row.options[1].startswith(("ucp_", "tag_")) else ["-d", device, "-x", "rc_verbs"]
        return (["ucx_perftest", *more, *row.options, *uct],
                {**UCX, "UCX_NET_DEVICES": device, **env})
    server, server_env = side(f"{fabric.server}:1")
    client, client_env = side(f"{fabric.client}:1", "127.0.0.1")
    return Pair(server, client, on_port(UCX_PORT), server_env, client_env)


def launch_mpi(row: Row, env: dict, fabric: Fabric) -> Ranks:
    return Ranks([program("mpi_ring"), *row.options],
                 {**UCX, "UCX_NET_DEVICES": f"{fabric.client}:1", **env})


LAUNCHERS = {
    "ib_write_bw": launch_perftest, "ib_read_bw": launch_perftest, "ib_send_bw": launch_perftest,
    "ib_atomic_bw": launch_perftest, "ib_write_lat": launch_perftest,
    "ib_send_lat": launch_perftest, "ib_read_lat": launch_perftest,
    "ibv_rc_pingpong": launch_pingpong, "ibv_ud_pingpong": launch_pingpong,
    "rping": launch_rping, "verbs_job": launch_verbs_job, "ucx_perftest": launch_ucx,
    "mpi_ring": launch_mpi,
}


def launch(row: Row, env=None, fabric=ROCE):
    return LAUNCHERS[row.program](row, env or {}, fabric)
