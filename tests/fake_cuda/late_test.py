#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""A job that was started with the preloaded library, and is traced only later: `sigmatrace attach --pid` finds its GPU
queues, to whom they lead, and tells what is posted from then on.

    late_test.py --build DIR
"""
import argparse
import collections
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import traced_test  # noqa: E402
from traced_test import EMULATOR, LIMIT_S, Failed, Truth, connectx_tree, differences, oracle, require  # noqa: E402

Test = collections.namedtuple("Test", "origin initiator environment")


class Late(traced_test.Traced):
    def run(self, build, more):
        devices = os.path.join(self.base, "devices")
        os.mkdir(devices)
        connectx_tree.make_tree(devices, ["ib"])
        gpu, connectx = (os.path.join(build, "lib", f"lib{name}.so") for name in ("sigmatrace_gpu", "sigma_connectx"))
        pids = os.path.join(self.base, "pids")
        values = {"LD_PRELOAD": f"{gpu} {connectx}", "LD_LIBRARY_PATH": os.path.join(build, "fake_cuda"),
                  "SIGMATRACE_GPU_WAIT_MS": "10000"}
        words = [os.path.join(EMULATOR, "connectx-run"), "--dir", self.directory, "--realtime", "--timeout", str(LIMIT_S), "--pids", pids]
        words += [word for pair in values.items() for word in ("--env", "=".join(pair))]
        words += ["--", os.path.join(build, "tests", "models", "nvshmem"), "--operations", "4000", "--pace-us", "2000"]
        job = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "SIGMA_CONNECTX_LIBRARY": connectx})
        try:
            said = 0
            while said < 2:  # the queues are there, and are posted to
                line = job.stdout.readline()
                require(line, "the job ended")
                said += line.startswith("queue ")
            time.sleep(0.1)
            with open(pids, encoding="ascii") as file:
                pid = int(file.read().split()[1])
            os.kill(pid, signal.SIGSTOP)  # a tracer takes its time on a loaded machine
            words = [self.sigmatrace, "attach", "--pid", str(pid), "--budget", "off", "--ring-size", "64M", "-o", self.trace]
            attach = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      env={**os.environ, "SIGMATRACE_SYSFS": os.path.join(devices, "sys"),
                                           "SIGMATRACE_CLOCK": os.path.join(devices, "clock")})
            for line in attach.stdout:
                print(line, end="")
                if line.startswith("attached"):
                    break
            os.kill(pid, signal.SIGCONT)
            print(attach.communicate(timeout=LIMIT_S)[0])
            require(attach.returncode == 0, f"attach: status {attach.returncode}")
            rest = job.communicate(timeout=LIMIT_S)[0]
            require(job.returncode == 0 and "ok" in rest.splitlines(), f"the job: status {job.returncode}\n{rest}")
        finally:
            if job.poll() is None:
                job.kill()
            job.wait()


def judge(run):
    truth = Truth(run.directory)
    gaps, rows = collections.defaultdict(list), collections.defaultdict(dict)
    for gap in run.gaps:
        gaps[int(gap["pid"]), int(gap["number"])].append((int(gap["first_index"]), int(gap["first_index"]) + int(gap["entries"])))
    for row in run.rows:
        number, index = (int(row["pid"]), int(row["qp_num"])), int(row["index"])
        require(index not in rows[number], f"told twice: {row}")
        rows[number][index] = row
        wqe = truth.wqes[number].get(index)
        require(wqe, f"an operation that was not posted: {row}")
        problems = differences(row, wqe, truth.cqes.get((*number, index)), truth.rung.get(number, {}).get(index), run.utc_offset_ns)
        require(not problems, f"{'; '.join(problems)}\n{row}\n{wqe}")
        require(row["initiator"] == "gpu" and row["tier"] == "3" and row["peer_qp_num"], f"initiator, tier, peer: {row}")
    require(len(rows) == 2, f"queues of which something was told: {len(rows)} of 2")
    for number, told in rows.items():
        ring = run.qps()[number]["observed"]
        first, end = min(told), truth.end(number)
        require(first > 0, "traced from the first post on: the attach was not late")
        require(not ring["end_unseen"], f"QP {number}: {ring}")
        for index, wqe in truth.wqes[number].items():
            if index < first or oracle.WQE_OPCODES[wqe.opcode] == "NOP" or index in told:
                continue
            require(any(begin <= index < until for begin, until in gaps[number]), f"QP {number}: neither a row nor a gap: {wqe}; end {end}")
        print(f"QP {number[1]}: told from {first} to {max(told)}, of {end}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sigma-late-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as base:
        try:
            judge(Late(os.path.abspath(arguments.build), base, Test("library", "gpu", {})))
        except Failed as failure:
            sys.exit(str(failure))
    print("ok")


if __name__ == "__main__":
    main()
