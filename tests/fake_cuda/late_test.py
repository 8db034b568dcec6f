#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""A job that was started with the preloaded library, and is traced only later: `sigmatrace attach --pid` finds its GPU
queues, to whom they lead, and tells what is posted from then on.

    late_test.py --list
    late_test.py NAME --build DIR
"""
import collections
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from traced_run import BASE, LIMIT_S, Failed, Test, Traced, require  # noqa: E402
from traced_truth import Truth, differences  # noqa: E402
import named_tests  # noqa: E402
import oracle  # noqa: E402


class Late(Traced):
    def run(self, more):
        pids = os.path.join(self.base, "pids")
        words, environment = self.tracer("attach")
        job = subprocess.Popen(self.job(more, ("--pids", pids)), stdout=subprocess.PIPE, text=True, env=environment)
        try:
            said = 0
            while said < 2:  # the queues are there
                line = job.stdout.readline()
                require(line, "the job ended")
                said += line.startswith("queue ")
            while len({wqe.qpn for wqe in oracle.records(self.directory, {"send_wqe"})}) < 2:  # and each was posted to
                require(job.poll() is None, "the job ended")
                time.sleep(0.001)
            with open(pids, encoding="ascii") as file:
                pid = int(file.read().split()[1])
            os.kill(pid, signal.SIGSTOP)  # a tracer takes its time on a loaded machine
            attach = subprocess.Popen([*words, "--pid", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      env=environment)
            for line in attach.stdout:
                print(line, end="")
                if line.startswith("attached"):
                    break
            os.kill(pid, signal.SIGCONT)
            self.output = attach.communicate(timeout=LIMIT_S)[0]
            print(self.output)
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
        gaps[run.number_of_gap(gap)].append((int(gap["first_index"]), int(gap["first_index"]) + int(gap["entries"])))
    for row in run.rows:
        number, index = run.number_of_row(row), int(row["index"])
        require(index not in rows[number], f"told twice: {row}")
        rows[number][index] = row
        wqe = truth.wqes[number].get(index)
        require(wqe, f"an operation that was not posted: {row}")
        problems = differences(row, wqe, truth.cqes.get((*number, index)), truth.rung.get(number, {}).get(index), run.utc_offset_ns)
        require(not problems, f"{'; '.join(problems)}\n{row}\n{wqe}")
        tier = "3" if run.test.origin == "library" else "1"
        require(row["initiator"] == "gpu" and row["tier"] == tier and row["peer_qp_num"], f"initiator, tier, peer: {row}")
    origins = [qp["observed"]["origin"] for qp in run.qps().values()]
    require(origins == [run.test.origin] * 2, f"who told of rings: {origins}")
    require("shown no ring" not in run.output, "rings that were told of are said not to be seen")
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


PATIENT = {"SIGMATRACE_GPU_WAIT_MS": "10000"}
TESTS = {
    "late": Test("nvshmem --operations 4000 --pace-us 2000", judge, PATIENT),
    "late_ucx": Test("ucx_gda --operations 3000 --pace-us 2000", judge, PATIENT),
    # Read by the tracer, which finds them by their content.
    "late_host": Test("mooncake --mode host --operations 3000 --pace-us 2000", judge, PATIENT, origin="content"),
}


def execute(name, build):
    with tempfile.TemporaryDirectory(prefix="sigma-late-", dir=BASE) as base:
        try:
            TESTS[name].judge(Late(build, base, TESTS[name]))
        except Failed as failure:
            sys.exit(f"{name}: {failure}")


if __name__ == "__main__":
    named_tests.main(__doc__, TESTS, execute)
