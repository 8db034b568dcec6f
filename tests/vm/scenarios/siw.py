#!/usr/bin/env python3
"""A second provider on a real kernel: siw (iWARP in software), through librdmacm as all iWARP goes.

The table's rows over librdmacm, on two siw devices; the preloaded oracle counts along, because what
perftest exchanges beside its traffic depends on the transport.
"""
import contextlib
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import run_row
from rig import Fabric, expect, run_test

SIW = Fabric("siw0", "siw1", "10.78.0.2", names_peers=False)
ROWS = ["write_bw_cm", "read_bw_cm", "write_lat_cm", "rping"]


def sh(command: str) -> None:
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect(done.returncode == 0, f"{command}: {done.stdout}")


@contextlib.contextmanager
def siw_devices():
    """siw0 and siw1 over a veth pair of their own, beside soft-RoCE's."""
    sh("modprobe siw")
    try:
        sh("ip link add siwv0 type veth peer name siwv1")
        for i in range(2):
            sh(f"sysctl -qw net.ipv4.conf.siwv{i}.accept_local=1 net.ipv4.conf.siwv{i}.rp_filter=0")
            sh(f"ip addr add 10.78.0.{i + 1}/24 dev siwv{i} && ip link set siwv{i} up")
        for i in range(2):
            sh(f"rdma link add siw{i} type siw netdev siwv{i}")
        # Programs that poll without a pause starve the threads that carry their traffic.
        sh("for pid in $(pgrep ^siw_tx); do renice -n -20 -p $pid; done")
        yield
    finally:
        for command in ("rdma link delete siw0", "rdma link delete siw1", "ip link delete siwv0", "modprobe -r siw"):
            subprocess.run(command, shell=True, check=False)


def test() -> None:
    with siw_devices():
        run_row.run(run_row.chosen(ROWS), with_oracle=True, fabric=SIW)


if __name__ == "__main__":
    run_test(test)
