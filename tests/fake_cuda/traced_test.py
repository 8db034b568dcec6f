#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The producer models under `sigmatrace run`, with the preloaded library: the trace must be what the device
fetched minus what the trace itself declares as gaps, and have no operation that was not posted.

    traced_test.py --list
    traced_test.py NAME --build DIR
"""
import argparse
import collections
import csv
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
EMULATOR = os.path.join(os.path.dirname(HERE), "emulator")
sys.path[:0] = [EMULATOR, os.path.join(EMULATOR, "trace")]
import connectx_tree  # noqa: E402
import oracle  # noqa: E402
from compare import STATUS  # noqa: E402

LIMIT_S = 240
OPCODES = {"RDMA_WRITE": "rdma_write", "RDMA_WRITE_IMM": "rdma_write_with_imm", "RDMA_READ": "rdma_read",
           "ATOMIC_FA": "atomic_fetch_and_add", "ATOMIC_MASKED_FA": "atomic_fetch_and_add",
           "ATOMIC_MASKED_CS": "atomic_cmp_and_swp", "ATOMIC_CS": "atomic_cmp_and_swp"}


class Failed(Exception):
    pass


def require(good, what):
    if not good:
        raise Failed(what)


def read_table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


class Traced:
    """What a run left: the trace's rows and gaps, the device's log, what the model said."""

    def __init__(self, build, directory, test):
        self.sigmatrace = os.path.join(build, "bin", "sigmatrace")
        self.directory, self.base = os.path.join(directory, "run"), directory
        self.trace = os.path.join(directory, "trace")
        self.run(build, test)
        self.rows = [row for row in self.table("ops") if row["source"] == "gpu"]
        self.gaps = [gap for gap in self.table("gaps") if gap["ring"] == "send"]
        with open(os.path.join(self.trace, "meta.json"), encoding="utf-8") as file:
            self.meta = json.load(file)
        start = self.meta["clocks"]["start"]
        self.utc_offset_ns = start["utc_ns"] - start["monotonic_ns"]

    def run(self, build, test):
        devices = os.path.join(self.base, "devices")
        os.mkdir(devices)
        links = ["ib"] * test.devices
        connectx_tree.make_tree(devices, links)
        gpu, connectx = (os.path.join(build, "lib", f"lib{name}.so") for name in ("sigmatrace_gpu", "sigma_connectx"))
        environment = {"LD_PRELOAD": f"{gpu} {connectx}", "LD_LIBRARY_PATH": os.path.join(build, "fake_cuda"), **test.environment}
        model = [word.replace("{truth}", os.path.join(self.directory, "truth")) for word in test.command]
        words = [self.sigmatrace, "run", "--budget", "off", "--ring-size", "64M", "-o", self.trace, "--",
                 os.path.join(EMULATOR, "connectx-run"), "--dir", self.directory, "--realtime", "--timeout", str(LIMIT_S),
                 "--devices", str(test.devices)]
        words += [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        words += ["--", os.path.join(build, "tests", "models", model[0]), *model[1:]]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              env={**os.environ, "SIGMATRACE_SYSFS": os.path.join(devices, "sys"),
                                   "SIGMATRACE_CLOCK": os.path.join(devices, "clock"),
                                   "SIGMA_CONNECTX_LIBRARY": connectx})
        self.output = done.stdout
        print(self.output)
        require(done.returncode == 0, f"status {done.returncode}")

    def table(self, name):
        path = os.path.join(self.base, f"{name}.csv")
        subprocess.run([self.sigmatrace, "export", self.trace, "--format", "csv", "--table", name, "-o", path], check=True)
        return read_table(path)

    def qps(self):
        """By process and number, what the trace says of the rings that were read."""
        return {(qp["pid"], qp["qp_num"]): qp for qp in self.meta["qps"] if qp["observed"]}


def differences(row, wqe, cqe, offset_ns):
    """Between a row and the WQE that the device fetched at its index, in words."""
    number = lambda name, base=10: int(row[name], base) if row[name] else None  # noqa: E731
    name = oracle.WQE_OPCODES[wqe.opcode]
    wanted = {"opcode": OPCODES.get(name, name), "bytes": wqe.bytes, "remote_addr": wqe.remote_address, "rkey": wqe.rkey,
              "signaled": oracle.signaled(wqe)}
    got = {"opcode": row["opcode"], "bytes": number("bytes"), "remote_addr": number("remote_addr", 16), "rkey": number("rkey", 16),
           "signaled": row["signaled"] == "yes"}
    if wqe.segments and not wqe.is_inline:
        wanted.update(lkey=wqe.lkey, local_addr=wqe.local_address)
        got.update(lkey=number("lkey", 16), local_addr=number("local_addr", 16))
    if name == "RDMA_WRITE_IMM":
        wanted["imm"], got["imm"] = wqe.immediate, number("imm")
    problems = [f"{field} {got[field]!r}, expected {wanted[field]!r}" for field in wanted if got[field] != wanted[field]]
    if row["initiator"] != "gpu":
        problems.append(f"initiator {row['initiator']}")
    if row["time_ns"] and int(row["time_ns"]) - int(row["time_error_ns"]) - offset_ns > wqe.time_ns:
        problems.append("posted after it was fetched, beyond the stated error")
    if row["complete_source"] == "ring":
        require(cqe, f"a completion that was not written: {row}")
        if abs(int(row["complete_ns"]) - offset_ns - cqe.time_ns) > int(row["complete_error_ns"]):
            problems.append(f"completed {int(row['complete_ns']) - offset_ns - cqe.time_ns} ns off, error {row['complete_error_ns']}")
        if row["status"] != STATUS[cqe.syndrome]:
            problems.append(f"status {row['status']}, expected {STATUS[cqe.syndrome]}")
    elif row["complete_source"] == "inferred" and cqe and cqe.syndrome and row["status"] == "success":
        problems.append("success is inferred of a failure")
    return problems


def trace_is_oracle(run):
    """Every row is a WQE, once; every WQE is a row or in a gap; what a ring has posted is what was seen and missed."""
    wqes, cqes = collections.defaultdict(dict), {}
    for record in oracle.records(run.directory, {"send_wqe", "cqe"}):
        if record.type == "send_wqe":
            wqes[record.pid, record.qpn][record.position] = record
        elif oracle.CQE_OPCODES[record.opcode] in ("REQ", "REQ_ERR"):
            cqes[record.pid, record.qpn, record.wqe_position] = record
    gaps = collections.defaultdict(list)
    for gap in run.gaps:
        gaps[int(gap["pid"]), int(gap["number"])].append((int(gap["first_index"]), int(gap["first_index"]) + int(gap["entries"])))
    rows = collections.defaultdict(dict)
    for row in run.rows:
        number, index = (int(row["pid"]), int(row["qp_num"])), int(row["index"])
        require(index not in rows[number], f"told twice: {row}")
        rows[number][index] = row
        wqe = wqes[number].get(index)
        require(wqe, f"an operation that was not posted: {row}")
        problems = differences(row, wqe, cqes.get((*number, index)), run.utc_offset_ns)
        require(not problems, f"{'; '.join(problems)}\n{row}\n{wqe}")
        require(not any(first <= index < end for first, end in gaps[number]), f"told, and in a gap: {row}")
        require(row["status"] in ("success", "unfinished"), f"failed: {row}")
    seen = total = 0
    for number, posted in wqes.items():
        real = {index: wqe for index, wqe in posted.items() if oracle.WQE_OPCODES[wqe.opcode] != "NOP"}
        if not real or number not in run.qps():
            continue
        total, seen = total + len(real), seen + len(rows[number])
        for index, wqe in real.items():
            require(index in rows[number] or any(first <= index < end for first, end in gaps[number]),
                    f"QP {number}: neither a row nor a gap: {wqe}\ngaps: {gaps[number]}")
        ring = run.qps()[number]["observed"]
        require(ring["blocks_seen"] + ring["blocks_missed"] == ring["blocks_posted"], f"QP {number}: {ring}")
        require(sum(end - first for first, end in gaps[number]) == ring["blocks_missed"], f"QP {number}: {ring}, {gaps[number]}")
        last = max(posted)
        require(ring["blocks_posted"] == last + posted[last].basic_blocks, f"QP {number}: {ring}; the last is {posted[last]}")
        require(ring["origin"] == "library", f"QP {number}: {ring}")
    require(total, "no queue pair that the library found")
    print(f"seen {seen} of {total}")
    require(seen, "nothing was seen")


def sampled(run):
    trace_is_oracle(run)
    require({qp["observed"]["tier"] for qp in run.qps().values()} == {3}, f"tiers: {run.qps()}")


class Test:
    def __init__(self, command, judge, environment=None, devices=1):
        self.command, self.judge, self.environment, self.devices = command.split(), judge, environment or {}, devices


TESTS = {
    "nvshmem_rc": Test("nvshmem --operations 600 --pace-us 300", sampled),
}


def execute(name, build):
    test = TESTS[name]
    with tempfile.TemporaryDirectory(prefix="sigma-traced-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as base:
        test.judge(Traced(os.path.abspath(build), base, test))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=list(TESTS))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--build", default="build")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(TESTS))
    elif arguments.name:
        try:
            execute(arguments.name, arguments.build)
        except Failed as failure:
            sys.exit(f"{arguments.name}: {failure}")
        print("ok")
    else:
        parser.error("no test named")


if __name__ == "__main__":
    main()
