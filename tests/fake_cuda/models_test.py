#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The producer models by themselves: each verifies the data of every operation, and the device must have
fetched exactly what the model says it posted, in the way in which its stack posts.

    models_test.py --list
    models_test.py NAME --models DIR       (the libraries by SIGMA_CONNECTX_LIBRARY and LD_LIBRARY_PATH)
"""
import collections
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
EMULATOR = os.path.join(os.path.dirname(HERE), "emulator")
sys.path.insert(0, EMULATOR)
import named_tests  # noqa: E402
import oracle  # noqa: E402
from oracle_invariants import check_invariants, fail, require_equal  # noqa: E402
from truth_file import read_truth  # noqa: E402

TIMEOUT_S = 240
WRITES = {"RDMA_WRITE", "RDMA_WRITE_IMM"}


class Run:
    """What a finished run left: what the model said, and what the device did, by queue pair number."""

    def __init__(self, directory, output):
        self.directory, self.output = directory, output
        self.queues = {}  # number: dict of what the model said
        for line in output.splitlines():
            words = line.split()
            if words[:1] == ["queue"]:
                self.queues.setdefault(int(words[1]), {}).update(
                    zip(words[2::2], (int(word, 0) for word in words[3::2])))
        self.wqes, self.cqes = collections.defaultdict(list), collections.defaultdict(list)
        self.doorbells, self.cqs = collections.defaultdict(list), []
        for record in oracle.records(directory, {"send_wqe", "cqe", "doorbell", "cq"}):
            if record.type == "send_wqe":
                self.wqes[record.qpn].append(record)
            elif record.type == "cqe":
                self.cqes[record.qpn].append(record)
            elif record.type == "doorbell":
                self.doorbells[record.qpn].append(record)
            elif record.event == 0 and record.devx:
                self.cqs.append(record)

    def said(self, name):
        found = re.search(rf"^{name} (\d+)$", self.output, re.MULTILINE)
        return int(found.group(1)) if found else fail(f"the model does not say {name}")


def names(wqes):
    return collections.Counter(oracle.WQE_OPCODES.get(wqe.opcode, hex(wqe.opcode)) for wqe in wqes)


def everything_posted(run):
    """Each queue's WQEs, one after the other, up to where the model has posted."""
    for number, queue in run.queues.items():
        wqes = run.wqes[queue["qpn"]]
        if not wqes:
            fail(f"queue {number}: the device fetched nothing")
        require_equal(f"queue {number}: WQEBBs", wqes[-1].position + wqes[-1].basic_blocks, queue["posted"])
        require_equal(f"queue {number}: errors", [wqe for wqe in wqes if wqe.syndrome], [])
        signaled = [wqe for wqe in wqes if oracle.signaled(wqe)]
        require_equal(f"queue {number}: CQEs", len(run.cqes[queue["qpn"]]), len(signaled))


def all_signaled(run):
    for queue in run.queues.values():
        require_equal("unsignaled WQEs", [wqe for wqe in run.wqes[queue["qpn"]] if not oracle.signaled(wqe)], [])


def collapsed(run):
    require_equal("CQs that are not collapsed", [cq for cq in run.cqs if not cq.collapsed], [])


def doorbell_after_record(run):
    """The record has moved by the time the doorbell is rung; some doorbells stand for several WQEs."""
    rung = 0
    for queue in run.queues.values():
        doorbells = run.doorbells[queue["qpn"]]
        if not doorbells or len(doorbells) > len(run.wqes[queue["qpn"]]):
            fail(f"{len(doorbells)} doorbells for {len(run.wqes[queue['qpn']])} WQEs")
        rung += len(doorbells)
    if rung >= sum(map(len, run.wqes.values())):
        fail("no doorbell was saved")


def nvshmem(run):
    collapsed(run)
    doorbell_after_record(run)
    for queue in run.queues.values():
        wqes = run.wqes[queue["qpn"]]
        require_equal("kinds", set(names(wqes)) >= {"NOP", "RDMA_WRITE", "RDMA_READ", "ATOMIC_MASKED_FA", "ATOMIC_MASKED_CS"},
                      True)
        for wqe, behind in zip(wqes, wqes[1:]):
            if wqe.basic_blocks > 1:
                require_equal(f"behind {wqe}", (oracle.WQE_OPCODES[behind.opcode], oracle.signaled(behind)), ("NOP", True))


def dci(run):
    nvshmem(run)
    targets = {record.qpn for record in oracle.records(run.directory, {"qp"}) if record.qp_type == oracle.DCT}
    for queue in run.queues.values():
        aimed = {wqe.destination_qpn for wqe in run.wqes[queue["qpn"]] if oracle.WQE_OPCODES[wqe.opcode] != "NOP"}
        require_equal("targets", aimed, targets)
    rings = sorted(queue["ring"] for queue in run.queues.values())
    require_equal("the rings' distance", rings[1] - rings[0], 64 * run.queues[0]["blocks"])


def doca(run):
    all_signaled(run)
    require_equal("collapsed CQs", [cq for cq in run.cqs if cq.collapsed], [])
    require_equal("CQ entries", {cq.entries for cq in run.cqs}, {queue["blocks"] for queue in run.queues.values()})


def two_doorbells(run):
    """Doorbell, record, doorbell: each index is rung twice."""
    for queue in run.queues.values():
        rung = collections.Counter()
        for before, after in zip(run.doorbells[queue["qpn"]][0::2], run.doorbells[queue["qpn"]][1::2]):
            require_equal("the second doorbell's index", after.index, before.index)
            rung[after.index] += 1
        if not rung:
            fail("no doorbell")


def doca_db(run):
    doca(run)
    two_doorbells(run)


def doca_no_dbr(run):
    doca(run)
    for queue in run.queues.values():
        require_equal("the record's address", queue["record"], 0)
        require_equal("offsets", {doorbell.offset for doorbell in run.doorbells[queue["qpn"]]}, {0x600})


def doca_proxy(run):
    doca(run)
    require_equal("doorbells by the GPU", sum(map(len, run.doorbells.values())), 0)


def ucx(run):
    collapsed(run)
    two_doorbells(run)
    if run.said("skipped_doorbells") == 0:
        fail("no doorbell was skipped")


def rolls_back(run):
    collapsed(run)
    two_doorbells(run)
    if run.said("rolled_back") == 0:
        fail("no reservation was rolled back")


def deepep(run):
    collapsed(run)
    all_signaled(run)
    doorbell_after_record(run)
    sizes = {wqe.bytes for wqes in run.wqes.values() for wqe in wqes if wqe.is_inline}
    require_equal("inline sizes", sizes, {4})


def mooncake(run):
    collapsed(run)
    all_signaled(run)
    for queue in run.queues.values():
        offsets = [doorbell.offset for doorbell in run.doorbells[queue["qpn"]]]
        require_equal("offsets alternate", [a ^ b for a, b in zip(offsets, offsets[1:])], [256] * (len(offsets) - 1))


def rocshmem(run):
    collapsed(run)
    all_signaled(run)


def hung(position):
    """No completion from there on; what was posted stands, and nothing is posted any more."""
    def judge(run):
        if not re.search("^hung$", run.output, re.MULTILINE):
            fail("the model did not hang")
        queue = run.queues[0]
        for cqe in run.cqes[queue["qpn"]]:
            if cqe.wqe_position >= position:
                fail(f"completed in spite of that: {cqe}")
        if queue["posted"] <= position:
            fail(f"posted only up to {queue['posted']}")
    return judge


def broken(syndrome):
    """One WQE fails, the rest is flushed; the model has seen one of both."""
    def judge(run):
        queue = run.queues[0]
        syndromes = [cqe.syndrome for cqe in run.cqes[queue["qpn"]] if cqe.syndrome]
        require_equal("syndromes", (syndromes[0], set(syndromes[1:]) - {5}), (syndrome, set()))
        if queue.get("syndrome") not in (syndrome, 5):
            fail(f"the model saw {queue.get('syndrome')}")
        require_equal("the other queue's errors", [cqe for cqe in run.cqes[run.queues[1]["qpn"]] if cqe.syndrome], [])
    return judge


def senders(run):
    """By process: its WQEs, each queue pair's by themselves."""
    processes = collections.defaultdict(lambda: collections.defaultdict(list))
    for wqes in run.wqes.values():
        for wqe in wqes:
            processes[wqe.pid][wqe.device, wqe.qpn].append(wqe)
    return processes


def bfs(late):
    """Every element signals to every other once a level; the drawn one, and no other, is always last."""
    def judge(run):
        truth = read_truth(os.path.join(run.directory, "truth"))
        ranks = {int(pid): int(rank) for rank, pid in truth["pid"]}
        levels = max(int(level) for level, _, _ in truth["arrival"])
        first = collections.defaultdict(dict)  # level: rank: when its first signal was fetched
        for pid, queues in senders(run).items():
            require_equal("queues of an element", len(queues), len(ranks) - 1)
            for wqes in queues.values():
                signals = [wqe for wqe in wqes if wqe.is_inline]
                require_equal("signals", len(signals), levels)
                for level, wqe in enumerate(signals, 1):
                    first[level][ranks[pid]] = min(wqe.time_ns, first[level].get(ranks[pid], wqe.time_ns))
        for level, rank, arrived_ns in truth["arrival"]:
            if first[int(level)][int(rank)] < int(arrived_ns):
                fail(f"level {level}: rank {rank} signals before it arrives")
        last = [max(first[level], key=first[level].get) for level in first]
        if late:
            require_equal("the last to arrive", set(last), {int(truth["late"][0][0])})
        elif "late" in truth:
            fail("a late element in the negative case")
    return judge


def moe(skewed):
    """The bytes between each two nodes are what the job says, and give the skew."""
    def judge(run):
        truth = read_truth(os.path.join(run.directory, "truth"))
        ranks = {int(pid): int(rank) for rank, pid in truth["pid"]}
        got = collections.Counter()
        for pid, queues in senders(run).items():
            for wqes in queues.values():
                for wqe in wqes:
                    got[ranks[pid], wqe.destination_device] += wqe.bytes
        require_equal("bytes", dict(got), {(int(a), int(b)): int(n) for a, b, n in truth["bytes"]})
        traffic = collections.Counter()
        for (source, target), count in got.items():
            traffic[source] += count
            traffic[target] += count
        if not skewed:
            require_equal("traffic", len(set(traffic.values())), 1)
            return
        hot, skew = int(truth["hot"][0][0]), float(truth["skew"][0][0])
        require_equal("the busiest node", max(traffic, key=traffic.get), hot)
        for cold in set(traffic) - {hot}:
            for other in set(traffic) - {hot, cold}:
                ratio = got[cold, hot] / got[cold, other]
                if abs(ratio - skew) > 0.01 * skew:
                    fail(f"ratio {ratio}, expected {skew}")
    return judge


class Test:
    def __init__(self, command, judge, environment=None, complete=True, device_options=()):
        self.command, self.judge, self.environment = command.split(), judge, environment or {}
        self.complete, self.device_options = complete, device_options


# One large ring: the NOPs before are posted a quarter of it at a time.
STARTED = "--start 65500 --operations 200 --queues 1 --depth 1024"
TESTS = {
    "nvshmem_rc": Test("nvshmem --operations 600", nvshmem),
    "nvshmem_rc_roce": Test("nvshmem --operations 300", nvshmem, device_options=("--link", "eth")),
    "nvshmem_peermem": Test("nvshmem --mode peermem --operations 300", nvshmem),
    "nvshmem_dci": Test("nvshmem --mode dci --operations 600 --depth 64", dci),
    "nvshmem_wraps": Test(f"nvshmem {STARTED}", nvshmem),
    "nvshmem_many_posters": Test("nvshmem --operations 1200 --queues 1 --posters 6 --depth 64", nvshmem),
    "doca_db": Test("doca --operations 600", doca_db),
    "doca_no_dbr": Test("doca --mode no_dbr --operations 600 --queues 4", doca_no_dbr),
    "doca_no_dbr_wraps": Test(f"doca --mode no_dbr {STARTED}", doca_no_dbr),
    "doca_proxy": Test("doca --mode proxy --operations 600", doca_proxy),
    "doca_wraps": Test(f"doca {STARTED}", doca_db),
    "ucx_gda": Test("ucx_gda --operations 600 --depth 256", ucx),
    "ucx_gda_rolls_back": Test("ucx_gda --mode contended --operations 300 --posters 1 --depth 16", rolls_back),
    "ucx_gda_wraps": Test(f"ucx_gda {STARTED}", ucx),
    "deepep": Test("deepep --operations 600", deepep),
    "deepep_wraps": Test(f"deepep {STARTED}", deepep),
    "mooncake": Test("mooncake --operations 600", mooncake),
    "mooncake_host": Test("mooncake --mode host --operations 600", mooncake),
    "mooncake_wraps": Test(f"mooncake {STARTED}", mooncake),
    "rocshmem": Test("rocshmem --operations 600", rocshmem),
    "rocshmem_wraps": Test(f"rocshmem {STARTED}", rocshmem),
    "hang": Test("nvshmem --operations 5000 --hang-s 2", hung(300), {"SIGMA_CONNECTX_WITHHOLD": "0:300"}, complete=False),
    "error": Test("nvshmem --operations 2000", broken(0x15), {"SIGMA_CONNECTX_FAIL": "0:300:0x15"}, complete=False),
    "error_doca": Test("doca --operations 2000", broken(0x13), {"SIGMA_CONNECTX_FAIL": "0:300:0x13"}, complete=False),
    "bfs_one_late": Test("bfs --seed 11 --truth {truth}", bfs(True), complete=False),
    "bfs_none_late": Test("bfs --seed 12 --even 1 --truth {truth}", bfs(False), complete=False),
    "moe_skew_2.13": Test("moe --seed 21 --devices 4 --skew 2.13 --truth {truth}", moe(True), complete=False,
                          device_options=("--devices", "4")),
    "moe_skew_drawn": Test("moe --seed 22 --devices 4 --truth {truth}", moe(True), complete=False, device_options=("--devices", "4")),
    "moe_even": Test("moe --seed 23 --devices 4 --even 1 --truth {truth}", moe(False), complete=False,
                     device_options=("--devices", "4")),
    "late_copies": Test("nvshmem --operations 200", nvshmem, {"SIGMA_CUDA_COPY_US": "500", "SIGMA_CUDA_JITTER_US": "2000"}),
}


def execute(name, models):
    test = TESTS[name]
    with tempfile.TemporaryDirectory(prefix="sigma-models-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as base:
        directory = os.path.join(base, "run")
        words = [os.path.join(EMULATOR, "connectx-run"), "--dir", directory, "--realtime", "--timeout", str(TIMEOUT_S), *test.device_options]
        words += [word for pair in test.environment.items() for word in ("--env", "=".join(pair))]
        command = [word.replace("{truth}", os.path.join(directory, "truth")) for word in test.command[1:]]
        words += ["--", os.path.join(models, test.command[0]), *command]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(done.stdout)
        require_equal("status", done.returncode, 0)
        run = Run(directory, done.stdout)
        if test.complete:
            check_invariants(directory)
            everything_posted(run)
            require_equal("verified", run.said("verified"), sum(queue["verified"] for queue in run.queues.values()))
        test.judge(run)


if __name__ == "__main__":
    named_tests.main(__doc__, TESTS, execute, "models")
