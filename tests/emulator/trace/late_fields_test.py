#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The table of known fields on queues that the real libmlx5 has made: right as it is, and harmless where an entry
is wrong (late_fields.cpp). The truth is what the device was told at each queue's creation.

    late_fields_test.py --list
    late_fields_test.py NAME --late-fields FILE --workloads DIR       (the library by SIGMA_CONNECTX_LIBRARY)
"""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]
import connectx_tree  # noqa: E402
import named_tests  # noqa: E402
import oracle  # noqa: E402
from traced_run import EMULATOR, LIMIT_S, Failed, Rendezvous  # noqa: E402

# Pairs of queue pairs, how many of these have been used, writes on each.
TESTS = {"some_used": (12, 3, 5), "unused": (8, 0, 0)}


def truth_of(directory):
    """Of the one process: the queues that are there, as late_fields reads them."""
    qps, cqs, posted = {}, {}, set()
    for record in oracle.records(directory, {"qp", "cq", "send_wqe"}):
        if record.type == "send_wqe":
            posted.add(record.qpn)
        elif record.type == "qp":
            if record.event == 0:
                qps[record.qpn] = record
            elif record.event == 2:
                qps.pop(record.qpn)
        elif record.event == 0:
            cqs[record.cqn] = record
    return "".join([f"qp {qp.qpn} {qp.send_ring} {qp.doorbell} {qp.send_blocks} {int(qp.qpn in posted)}\n" for qp in qps.values()] +
                   [f"cq {cq.cqn} {cq.ring} {cq.doorbell} {cq.cqe_bytes}\n" for cq in cqs.values()])


def execute(name, arguments, folder):
    pairs, used, before = TESTS[name]
    run_directory, pids = os.path.join(folder, "run"), os.path.join(folder, "pids")
    meeting = Rendezvous(folder)
    command = [os.path.join(os.path.abspath(arguments.workloads), "late_queues"), "mlx5_0", str(pairs), str(used), str(before), "5",
               meeting.ready, meeting.go]
    launcher = subprocess.Popen([os.path.join(EMULATOR, "connectx-run"), "--dir", run_directory, "--timeout", str(LIMIT_S),
                                 "--pids", pids, *connectx_tree.release_options(), "--", *command],
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        meeting.pause(launcher, [], run_directory)
        with open(pids, encoding="ascii") as file:
            pid = file.readline().split()[1]
        checked = subprocess.run([arguments.late_fields, pid], input=truth_of(run_directory), text=True, check=False,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        meeting.resume([])
        status = launcher.wait(LIMIT_S)
    finally:
        if launcher.poll() is None:
            launcher.terminate()
            launcher.wait()
    print(checked.stdout, end="")
    if checked.returncode != 0:
        raise Failed(f"late_fields: status {checked.returncode}")
    if status != 0:
        raise Failed(f"the workload's status is {status}")


def main():
    arguments = named_tests.parse(__doc__, TESTS, late_fields="late_fields", workloads=".")
    with tempfile.TemporaryDirectory(prefix="sigma-fields-") as folder:
        try:
            execute(arguments.name, arguments, folder)
        except Failed as failure:
            sys.exit(f"FAILED: {arguments.name}: {failure}")


if __name__ == "__main__":
    main()
