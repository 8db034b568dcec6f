#!/usr/bin/env python3
"""Queue pairs of the kernel itself: an NVMe-oF target and its host, both in this kernel, over soft-RoCE. `list`
shows them by module and device, a trace counts them, and the job beside them is traced as ever.
"""
import contextlib
import glob
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import check
from jobs import JobPair, csv_path
from rig import SIGMATRACE, Process, expect, run_test, wait_for

COUNT = 100
NQN = "nqn.2026-01.test:sigma"
TARGET = "/sys/kernel/config/nvmet"
ADDRESS, PORT = "10.77.0.2", "4420"


def sh(command: str) -> str:
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect(done.returncode == 0, f"{command}: {done.stdout}")
    return done.stdout


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


@contextlib.contextmanager
def nvme_over_rdma():
    """A RAM disk, exported by nvmet-rdma on rxe1's address and connected by nvme-rdma (Documentation of nvmet's
    configfs: drivers/nvme/target/configfs.c; of the options: drivers/nvme/host/fabrics.c)."""
    for module in ("brd rd_nr=1 rd_size=4096", "nvmet-rdma", "nvme-rdma"):
        sh(f"modprobe {module}")
    if not os.path.isdir(TARGET):
        sh("mount -t configfs configfs /sys/kernel/config")
    subsystem, port = f"{TARGET}/subsystems/{NQN}", f"{TARGET}/ports/1"
    try:
        os.makedirs(f"{subsystem}/namespaces/1")
        write(f"{subsystem}/attr_allow_any_host", "1")
        write(f"{subsystem}/namespaces/1/device_path", "/dev/ram0")
        write(f"{subsystem}/namespaces/1/enable", "1")
        os.mkdir(port)
        for name, value in (("trtype", "rdma"), ("adrfam", "ipv4"), ("traddr", ADDRESS), ("trsvcid", PORT)):
            write(f"{port}/addr_{name}", value)
        os.symlink(subsystem, f"{port}/subsystems/{NQN}")
        fabrics = os.open("/dev/nvme-fabrics", os.O_RDWR)
        os.write(fabrics, f"transport=rdma,traddr={ADDRESS},trsvcid={PORT},nqn={NQN},nr_io_queues=1,keep_alive_tmo=600".encode())
        os.close(fabrics)
        wait_for(lambda: glob.glob("/sys/class/nvme/nvme*/state"), "a controller")
        yield
    finally:
        for controller in glob.glob("/sys/class/nvme/nvme*/delete_controller"):
            write(controller, "1")
        for command in (f"rm -f {port}/subsystems/{NQN}", f"rmdir {port}", f"rmdir {subsystem}/namespaces/1", f"rmdir {subsystem}",
                        "modprobe -r nvme-rdma", "modprobe -r nvmet-rdma", "modprobe -r brd"):
            subprocess.run(command, shell=True, check=False)


def kernels_own() -> dict:
    """{"module on device": how many}, as `rdma resource` tells it: another program's reading of the same list."""
    found = {}
    for qp in json.loads(sh("rdma -j resource show qp")):
        module = qp.get("comm", "").strip("[]")
        if "pid" not in qp and qp["type"] not in ("GSI", "SMI"):
            name = f"{module} on {qp['ifname']}"
            found[name] = found.get(name, 0) + 1
    return found


def listed() -> dict:
    done = subprocess.run([SIGMATRACE, "list", "--json"], stdout=subprocess.PIPE, check=True)
    found = {}
    for qp in json.loads(done.stdout)["kernel_qps"]:
        expect(qp["driven_by"] == "kernel" and qp["qp_type"] == "rc", f"a queue pair of the kernel: {qp}")
        name = f"{qp['because_of']} on {qp['device']}"
        found[name] = found.get(name, 0) + 1
    return found


def test() -> None:
    expect(kernels_own() == {} == listed(), f"queue pairs of kernel users before: {kernels_own()}, {listed()}")
    with nvme_over_rdma():
        # An admin queue and one for I/O, with both ends on the device of the address. The kernel's list names who
        # called the verb, which for users of the connection manager is that (rdma_create_qp).
        truth = kernels_own()
        expect(sum(truth.values()) == 4 and all(name.endswith(" on rxe1") for name in truth), f"the rig is not as it should be: {truth}")
        expect(listed() == truth, f"`list` shows {listed()}, there are {truth}")
        shown = subprocess.run([SIGMATRACE, "list"], stdout=subprocess.PIPE, text=True, check=True).stdout
        expect("queue pairs of kernel modules: " in shown and all(name in shown for name in truth), shown)

        csv = csv_path("kernel_users")
        tracer = Process("sigmatrace", [SIGMATRACE, "attach", "--all", "-o", csv, "--budget", "off"],
                         {"SIGMATRACE_LOCK": csv + ".lock"})
        wait_for(lambda: "attached: " in tracer.stderr() or tracer.popen.poll() is not None, "the tracer attaches")
        job = JobPair(f"op=rdma_write count={COUNT} bytes=64")
        job.wait_ok()
        sh("dd if=/dev/zero of=$(ls /dev/nvme*n1 | head -1) bs=64k count=8 oflag=direct")
        tracer.popen.send_signal(2)
        tracer.wait_ok()
        trace = check.Trace(csv)
        rows = trace.of(job.client.pid)
        expect([row["status"] for row in rows] == ["success"] * COUNT, f"{len(rows)} rows of {COUNT}\n{tracer.tail()}")
        pids = {row["pid"] for row in trace.rows}
        expect(pids <= {str(pid) for pid in job.pids}, f"rows of others: {pids}")
        expect(trace.counters["qps_of_kernel"] == 4, f"counted: {trace.counters['qps_of_kernel']}")
        said = str(trace.meta["coverage"]["statement"])
        for user, count in truth.items():
            expect(f"{user} ({count})" in said, f"the coverage does not name {user}: {said}")
    deadline = time.monotonic() + 30
    while kernels_own() and time.monotonic() < deadline:
        time.sleep(0.1)
    expect(kernels_own() == {}, f"queue pairs of kernel users after: {kernels_own()}")


if __name__ == "__main__":
    run_test(test)
