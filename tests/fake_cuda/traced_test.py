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
from truth_file import read_truth  # noqa: E402

LIMIT_S = 240
OPCODES = {"RDMA_WRITE": "rdma_write", "RDMA_WRITE_IMM": "rdma_write_with_imm", "RDMA_READ": "rdma_read",
           "ATOMIC_FA": "atomic_fetch_and_add", "ATOMIC_MASKED_FA": "atomic_fetch_and_add",
           "ATOMIC_MASKED_CS": "atomic_cmp_and_swp", "ATOMIC_CS": "atomic_cmp_and_swp"}


class Failed(Exception):
    pass


class Undecided(Failed):
    """What was told is true, but too much was missed for what the row is about: it is run again."""


def require(good, what):
    if not good:
        raise Failed(what)


def read_table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


class Traced:
    """What a run left: the trace's rows and gaps, the device's log, what the model said."""

    def __init__(self, build, directory, test, words=()):
        self.sigmatrace = os.path.join(build, "bin", "sigmatrace")
        self.directory, self.base = os.path.join(directory, "run"), directory
        self.trace = os.path.join(directory, "trace")
        self.test = test
        print(f"seed {SEED}")
        self.run(build, words)
        self.rows = [row for row in self.table("ops") if row["source"] == ("gpu" if test.origin == "library" else "ring")]
        self.gaps = [gap for gap in self.table("gaps") if gap["ring"] == "send"]
        with open(os.path.join(self.trace, "meta.json"), encoding="utf-8") as file:
            self.meta = json.load(file)
        start = self.meta["clocks"]["start"]
        self.utc_offset_ns = start["utc_ns"] - start["monotonic_ns"]

    def run(self, build, more):
        test = self.test
        devices = os.path.join(self.base, "devices")
        os.mkdir(devices)
        links = ["ib"] * test.devices
        connectx_tree.make_tree(devices, links)
        gpu, connectx = (os.path.join(build, "lib", f"lib{name}.so") for name in ("sigmatrace_gpu", "sigma_connectx"))
        environment = {"LD_PRELOAD": f"{gpu} {connectx}", "LD_LIBRARY_PATH": os.path.join(build, "fake_cuda"), **test.environment}
        model = [word.replace("{truth}", os.path.join(self.directory, "truth")) for word in [*test.command, *more]]
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

    def tiers(self):
        """Of the queues that were posted to."""
        return {qp["observed"]["tier"] for qp in self.qps().values() if qp["observed"]["blocks_posted"]}

    def qps(self):
        """By process and number, what the trace says of the rings that were read."""
        return {(qp["pid"], qp["qp_num"]): qp for qp in self.meta["qps"] if qp["observed"]}


def differences(row, wqe, cqe, rung_ns, offset_ns):
    """Between a row and the WQE that the device fetched at its index, in words. `rung_ns`: when the first doorbell was rung that
    told of it, None where a CPU thread rang."""
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
    if row["time_ns"]:
        latest = min(wqe.time_ns, rung_ns or wqe.time_ns)
        early = int(row["time_ns"]) - int(row["time_error_ns"]) - offset_ns - latest
        if early > 0:
            problems.append(f"posted {early} ns before what is stated, with its error")
    if row["complete_source"] == "ring":
        require(cqe, f"a completion that was not written: {row}")
        if abs(int(row["complete_ns"]) - offset_ns - cqe.time_ns) > int(row["complete_error_ns"]):
            problems.append(f"completed {int(row['complete_ns']) - offset_ns - cqe.time_ns} ns off, error {row['complete_error_ns']}")
        if row["status"] != STATUS[cqe.syndrome]:
            problems.append(f"status {row['status']}, expected {STATUS[cqe.syndrome]}")
    elif row["complete_source"] == "inferred" and cqe and cqe.syndrome and row["status"] == "success":
        problems.append("success is inferred of a failure")
    return problems


class Truth:
    """What the device did, by (pid, queue pair number)."""

    def __init__(self, directory):
        self.wqes, self.cqes = collections.defaultdict(dict), {}
        doorbells = collections.defaultdict(list)
        for record in oracle.records(directory, {"send_wqe", "cqe", "doorbell"}):
            if record.type == "send_wqe":
                self.wqes[record.pid, record.qpn][record.position] = record
            elif record.type == "doorbell":
                doorbells[record.pid, record.qpn].append(record)
            elif oracle.CQE_OPCODES[record.opcode] in ("REQ", "REQ_ERR"):
                self.cqes[record.pid, record.qpn, record.wqe_position] = record
        self.rung = {number: self.first_rung(self.wqes[number], rung) for number, rung in doorbells.items()}

    def posted_by(self, number, position):
        """When it had been posted at the latest: its first doorbell; of one that a CPU thread rang, when it was fetched."""
        return self.rung.get(number, {}).get(position) or self.wqes[number][position].time_ns

    def end(self, number):
        """Where its last request ends, in blocks."""
        last = max(self.wqes[number], default=None)
        return 0 if last is None else last + self.wqes[number][last].basic_blocks

    @staticmethod
    def first_rung(wqes, doorbells):
        """{position: when the first doorbell was rung that covers it}; the doorbells have 16 bits of an index, and are in order."""
        found, reached, positions = {}, 0, sorted(wqes)
        at = 0
        for doorbell in doorbells:
            reached += (doorbell.index - reached) & 0xffff if (doorbell.index - reached) & 0xffff < 0x8000 else 0
            while at < len(positions) and positions[at] < reached:
                found[positions[at]] = doorbell.time_ns
                at += 1
        return found


def shift(ring, end):
    """By how much indices that are known modulo 65,536 only are short."""
    short = end - ring["blocks_posted"]
    return short if ring["modulo_65536"] and short > 0 and short % 65536 == 0 else 0


def trace_is_oracle(run, may_fail=False):
    """Every row is a WQE, once; every WQE is a row or in a gap, unless the trace says of its queue that the end was not seen;
    what a ring has posted is what was seen and missed."""
    truth = Truth(run.directory)
    gaps, rows = collections.defaultdict(list), collections.defaultdict(dict)
    for gap in run.gaps:
        number, first = (int(gap["pid"]), int(gap["number"])), int(gap["first_index"])
        gaps[number].append((first, first + int(gap["entries"])))
    shifts = {number: shift(qp["observed"], truth.end(number)) for number, qp in run.qps().items()}
    for row in run.rows:
        number, index = (int(row["pid"]), int(row["qp_num"])), int(row["index"])
        require(not any(first <= index < end for first, end in gaps[number]), f"told, and in a gap: {row}")
        if "modulo" in row["flags"].split():
            index += shifts[number]
        require(index not in rows[number], f"told twice: {row}")
        # Of a queue in host memory the tracer may read the first posts before it hears that a GPU makes them.
        if row["initiator"] != run.test.initiator:
            require(run.test.origin == "command" and row["initiator"] == "", f"initiator: {row}")
            require(all(told["initiator"] == "" for told in rows[number].values()), f"initiator lost: {row}")
        rows[number][index] = row
        wqe = truth.wqes[number].get(index)
        require(wqe, f"an operation that was not posted: {row}")
        problems = differences(row, wqe, truth.cqes.get((*number, index)), truth.rung.get(number, {}).get(index),
                               run.utc_offset_ns)
        require(not problems, f"{'; '.join(problems)}\n{row}\n{wqe}")
        require(may_fail or row["status"] in ("success", "unfinished"), f"status: {row}")
    seen = missed = unknown = total = 0
    for number, posted in truth.wqes.items():
        real = {index: wqe for index, wqe in posted.items() if oracle.WQE_OPCODES[wqe.opcode] != "NOP"}
        if not real or number not in run.qps():
            continue
        ring = run.qps()[number]["observed"]
        require(ring["origin"] == run.test.origin, f"QP {number}: {ring}")
        total, seen = total + len(real), seen + len(rows[number])
        # A last look is waited for no longer than the job may bear. Where it was not in time, and where 65,536 passed between two
        # looks, posts may not be counted; only where it is said. (gpu_captured.* ask for every end.)
        known, uncounted = ring["blocks_posted"] + shifts[number], shifts[number]
        require(known == truth.end(number) or
                ring["end_unseen"] and known < truth.end(number),
                f"QP {number}: {ring}; the end is {truth.end(number)}")
        for index, wqe in real.items():
            inside = any(first <= index - shifts[number] < until for first, until in gaps[number])
            if index in rows[number]:
                continue
            missed += inside
            unknown += not inside
            require(inside or index >= known or index < uncounted,
                    f"QP {number}: neither a row nor a gap: {wqe}\ngaps: {gaps[number]}\n{ring}")
        require(ring["blocks_seen"] + ring["blocks_missed"] == ring["blocks_posted"], f"QP {number}: {ring}")
        require(sum(until - first for first, until in gaps[number]) == ring["blocks_missed"], f"QP {number}: {ring}, {gaps[number]}")
    require(total, "no queue pair that the library found")
    print(f"seen {seen} of {total}, {missed} in gaps, {unknown} behind an end that was not seen, or in a count modulo 65,536")
    require(seen + missed + unknown == total, "the counts do not add up")
    return seen, missed, total


def told(tier):
    """All queues are read at that tier."""
    def judge(run):
        seen, _, _ = trace_is_oracle(run)
        require(run.tiers() == {tier}, f"tiers: {[qp['observed'] for qp in run.qps().values()]}")
        if not seen and all(qp["observed"]["end_unseen"] for qp in run.qps().values()):
            raise Undecided("no last look was in time")
        require(seen, "nothing was seen")
    return judge


def lapped(tier):
    """There is more than can be read."""
    def judge(run):
        trace_is_oracle(run)
        require(run.tiers() == {tier}, f"tiers: {[qp['observed'] for qp in run.qps().values()]}")
        require(sum(qp["observed"]["blocks_missed"] for qp in run.qps().values()), "nothing was missed")
    return judge


def report_of(run):
    done = subprocess.run([run.sigmatrace, "report", run.trace, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    for finding in found["verdict"]:
        print(f"[{finding['kind']}] {finding['text']}")
    return found


def findings(report, kind):
    return [finding for finding in report["verdict"] if finding["kind"] == kind]


def hung(run):
    """One completion is withheld, and the job killed: the trace names the queue, its peer, what it posted and what of that is
    outstanding, and says that the end was not seen."""
    trace_is_oracle(run)
    truth = Truth(run.directory)
    stuck = [number for number, qp in run.qps().items() if qp["observed"]["hung"]]
    if not stuck:
        raise Undecided("while the queue hung its reader did not look for as long as a hang takes")
    finished = {number: max((position for pid, qpn, position in truth.cqes if (pid, qpn) == number), default=-1)
                for number in run.qps()}
    require(len(stuck) == 1 and finished[stuck[0]] < 300, f"hung: {stuck}")
    [number] = stuck
    qp = run.qps()[number]
    require(qp["peer_qp_num"] and qp["peer"], f"its peer: {qp}")
    require(qp["observed"]["blocks_posted"] == truth.end(number), f"posted: {qp['observed']}")
    require(qp["observed"]["end_unseen"], f"an end that nobody saw: {qp['observed']}")
    require("queue pair: hung as last looked at" in run.output, "the coverage does not tell of it")
    rows = {int(row["index"]): row for row in run.rows if int(row["qp_num"]) == number[1]}
    last = max(index for index, wqe in truth.wqes[number].items() if oracle.WQE_OPCODES[wqe.opcode] != "NOP")
    require(last in rows, f"the last request posted, {last}, is not told: {max(rows)}")
    for index, row in rows.items():
        wanted = "success" if index <= finished[number] else "unfinished"
        require(row["status"] == wanted, f"completed up to {finished[number]}: {row}")
    told = [finding for finding in findings(report_of(run), "hang") if f"qp {number[1]} " in finding["text"]]
    require(len(told) == 1 and "hangs" in told[0]["text"], "the report does not name the queue")


def broken(syndrome):
    """One request fails, the rest is flushed: the queue is named with the first cause, where a flush has not covered it."""
    def judge(run):
        trace_is_oracle(run, may_fail=True)
        truth = Truth(run.directory)
        failed = {number[:2] for number, cqe in truth.cqes.items() if cqe.syndrome}
        require(len(failed) == 1, f"failed: {failed}")
        [number] = failed
        # One whose post was missed is told as well, by its completion alone.
        errors = [row for row in run.table("ops") if row["status"] not in ("success", "unfinished", "")]
        if not errors and run.qps()[number]["observed"]["end_unseen"]:
            raise Undecided("the last look at the queue that failed was not in time")
        if not errors:  # completions that were overwritten before they were read: counted, as all that is missed
            missed = run.meta["coverage"]["counters"]["ring_completions_missed"]
            print(f"the errors were not seen; completions missed: {missed}")
            return require(missed["value"] if isinstance(missed, dict) else missed, "no completion was missed, and no error told")
        require({(int(row["pid"]), int(row["qp_num"])) for row in errors} == {number}, f"errors: {errors}")
        require({row["status"] for row in errors} <= {STATUS[syndrome], STATUS[5]}, f"errors: {errors}")
        # One entry holds all completions of a collapsed queue: a flush may stand there before the first cause was read.
        report = report_of(run)
        require([error["queue_pair"] for error in report["errors"]] == [f"mlx5_0 qp {number[1]}"], f"errors: {report['errors']}")
        told = findings(report, "error")
        if any(row["status"] == STATUS[syndrome] for row in errors):
            require(len(told) == 1 and f"qp {number[1]}" in told[0]["text"], f"the report does not name the queue: {told}")
    return judge


def barriers(late):
    """Each level's spread, by the first signals' intervals, is the true one within its stated error; the late element is named, or
    nobody."""
    def judge(run):
        trace_is_oracle(run)
        truth, oracle_truth = read_truth(os.path.join(run.directory, "truth")), Truth(run.directory)
        pids = {int(rank): int(pid) for rank, pid in truth["pid"]}
        signals = collections.defaultdict(list)
        for row in run.rows:
            if row["inline"] == "yes":
                signals[int(row["pid"]), int(row["qp_num"])].append(row)
        levels = max(int(level) for level, _, _ in truth["arrival"])
        arrivals = {(int(level), int(rank)): int(ns) for level, rank, ns in truth["arrival"]}
        report = report_of(run)
        named = [finding["text"] for finding in findings(report, "barrier")]
        late_one = f"({pids[int(truth['late'][0][0])]})" if late else None
        require(all(late and late_one in text for text in named), f"another one is named: {named}")
        if not all(len(rows) == levels for rows in signals.values()) or len(signals) != len(pids) * (len(pids) - 1):
            raise Undecided("signals are in gaps: nobody can count the levels")
        for level in range(1, levels + 1):
            # By rank: the interval told of its first signal, and that in which it truly was posted: after its arrival, before the
            # first doorbell that covers it.
            told, true = {}, {}
            for rank, pid in pids.items():
                rows = [(number, rows[level - 1]) for number, rows in signals.items() if number[0] == pid]
                if not all(row["time_ns"] for _, row in rows):
                    raise Undecided("signals of unknown time")
                at = [(int(row["time_ns"]) - run.utc_offset_ns, int(row["time_error_ns"])) for _, row in rows]
                told[rank] = min(time - error for time, error in at), min(time + error for time, error in at)
                true[rank] = arrivals[level, rank], min(oracle_truth.posted_by(number, int(row["index"])) for number, row in rows)
                require(told[rank][0] <= true[rank][1] and told[rank][1] >= true[rank][0],
                        f"level {level}, rank {rank}: posted within {true[rank]}, told {told[rank]}")
            (least, most), (true_least, true_most) = spread_of(told), spread_of(true)
            require(least <= true_most and most >= true_least,
                    f"level {level}: {least} to {most} ns apart, truly {true_least} to {true_most}")
            if late:
                drawn = 1000 * int(truth["late_us"][0][0])
                require(most >= drawn, f"level {level}: at most {most} ns apart, drawn {drawn}")
        # Even levels follow each other sooner than a reader on two shared cores can tell apart; then none are found.
        require(not late or report["barriers"]["epochs"] >= levels - 1, f"levels: {report['barriers']['epochs']} of {levels}")
        require(len(named) == (1 if late else 0), f"named: {named}")
    return judge


def spread_of(intervals):
    """How far apart the first and the last of {rank: (begin, end)} are, at least and at most."""
    begins, ends = zip(*intervals.values())
    return max(begins) - min(ends), max(ends) - min(begins)


def dispatch(skewed):
    """The bytes between each two nodes are what the job says; the report gives their skew, or none."""
    def judge(run):
        seen, _, total = trace_is_oracle(run)
        truth = read_truth(os.path.join(run.directory, "truth"))
        ranks = {int(pid): int(rank) for rank, pid in truth["pid"]}
        target = {number: next(iter(wqes.values())).destination_device for number, wqes in Truth(run.directory).wqes.items() if wqes}
        got = collections.Counter()
        for row in run.rows:
            number = int(row["pid"]), int(row["qp_num"])
            got[ranks[number[0]], target[number]] += int(row["bytes"] or 0)
        sent = {(int(source), int(to)): int(count) for source, to, count in truth["bytes"]}
        require(all(got[pair] <= sent[pair] for pair in got), f"more than was sent: {got}, {sent}")
        found = findings(report_of(run), "skew")
        if seen < total:
            raise Undecided("requests are in gaps: their bytes cannot be told")
        require(dict(got) == sent, f"bytes: {got}, {sent}")
        require(len(found) == (1 if skewed else 0), f"skew: {found}")
        if skewed:
            wanted = float(truth["skew"][0][0])
            require(abs(found[0]["ratio"] - wanted) <= 0.01 * wanted, f"skew {wanted}: {found}")
    return judge


class Test:
    """`origin`: of the knowledge of its rings. `initiator`: what its rows say. `runs`: further words of the command, each a run."""

    def __init__(self, command, judge, environment=None, devices=1, origin="library", initiator="gpu", runs=("",)):
        self.command, self.judge, self.environment, self.devices = command.split(), judge, environment or {}, devices
        self.origin, self.initiator, self.runs = origin, initiator, runs


# A pace that a reader on two shared cores follows.
PACED = "--operations 600 --pace-us 300"
# One large ring: the NOPs before are posted a quarter of it at a time.
STARTED = "--start 65500 --operations 200 --queues 1 --depth 1024 --pace-us 300"
# Rings that all rounds fit into: however late the reader comes, nothing was overwritten.
UNLAPPED = "--devices 4 --depth 4096 --truth {truth}"
# Last looks are waited for, however loaded the machine.
PATIENT = {"SIGMATRACE_GPU_WAIT_MS": "10000"}
SEED = os.environ.get("SIGMA_TEST_SEED", "7")
STALLS = {"SIGMA_CUDA_STALL": "0.02:5", "SIGMA_CUDA_JITTER_US": "50", "SIGMA_CUDA_SEED": SEED}
SNAPSHOTS = {"SIGMATRACE_GPU_TIER": "5"}
SLOW = {"SIGMA_CUDA_COPY_US": "100", "SIGMA_CUDA_JITTER_US": "400", "SIGMA_CUDA_SEED": SEED}
TESTS = {
    "nvshmem_rc": Test(f"nvshmem {PACED}", told(3)),
    "nvshmem_dci": Test(f"nvshmem --mode dci --depth 64 {PACED}", told(3)),
    "hang": Test("nvshmem --operations 5000 --hang-s 3 --pace-us 300", hung,
                 {"SIGMA_CONNECTX_WITHHOLD": "0:300", "SIGMATRACE_GPU_HANG_MS": "1000"}),
    "error_nvshmem": Test("nvshmem --operations 2000 --pace-us 300", broken(0x15), {"SIGMA_CONNECTX_FAIL": "0:300:0x15"},
                          runs=("--seed 1", "--seed 2", "--seed 3")),
    "error_doca": Test("doca --operations 2000 --pace-us 300", broken(0x13), {"SIGMA_CONNECTX_FAIL": "0:300:0x13"}),
    "bfs_one_late": Test("bfs --seed 11 --truth {truth}", barriers(True), PATIENT),
    "bfs_none_late": Test("bfs --seed 12 --even 1 --truth {truth}", barriers(False), PATIENT),
    "moe_skew_2.13": Test(f"moe --seed 21 --skew 2.13 {UNLAPPED}", dispatch(True), PATIENT, devices=4),
    "moe_skew_drawn": Test(f"moe --seed 22 {UNLAPPED}", dispatch(True), PATIENT, devices=4),
    "moe_even": Test(f"moe --seed 23 --even 1 {UNLAPPED}", dispatch(False), PATIENT, devices=4),
    "nvshmem_peermem": Test(f"nvshmem --mode peermem {PACED}", told(3)),
    "nvshmem_many_posters": Test("nvshmem --operations 1200 --queues 1 --posters 6 --depth 64 --pace-us 300", told(3)),
    "nvshmem_wraps": Test(f"nvshmem {STARTED}", told(3)),
    "nvshmem_dci_wraps": Test(f"nvshmem --mode dci {STARTED}", told(3), STALLS),
    "doca_db": Test(f"doca {PACED}", told(3)),
    "doca_no_dbr": Test(f"doca --mode no_dbr --queues 4 {PACED}", told(3)),
    "doca_proxy": Test(f"doca --mode proxy {PACED}", told(3)),
    "doca_wraps": Test(f"doca {STARTED}", told(3)),
    "doca_no_dbr_wraps": Test(f"doca --mode no_dbr {STARTED}", told(3), STALLS),
    "doca_proxy_wraps": Test(f"doca --mode proxy {STARTED}", told(3), STALLS),
    "ucx_gda": Test(f"ucx_gda --depth 256 {PACED}", told(3)),
    "ucx_gda_rolls_back": Test("ucx_gda --mode contended --operations 300 --posters 1 --depth 16 --pace-us 300", told(3)),
    "ucx_gda_wraps": Test(f"ucx_gda {STARTED}", told(3)),
    "deepep": Test(f"deepep {PACED}", told(3)),
    "deepep_wraps": Test(f"deepep {STARTED}", told(3)),
    "mooncake": Test(f"mooncake {PACED}", told(3)),
    "mooncake_wraps": Test(f"mooncake {STARTED}", told(3)),
    "mooncake_host": Test(f"mooncake --mode host {PACED}", told(1), origin="command"),
    "mooncake_host_wraps": Test(f"mooncake --mode host {STARTED}", told(1), origin="command"),
    "mooncake_host_unpaced": Test("mooncake --mode host --operations 6000 --depth 128", told(1), origin="command"),
    # Without CUDA nobody says that these are posted to by a GPU.
    "rocshmem": Test(f"rocshmem {PACED}", told(None), origin="command", initiator=""),
    "rocshmem_wraps": Test(f"rocshmem {STARTED}", told(None), origin="command", initiator=""),
    "rocshmem_unpaced": Test("rocshmem --operations 6000 --depth 128", told(None), origin="command", initiator=""),
    **{f"{model}_snapshot": Test(f"{model} {PACED}", told(5), SNAPSHOTS)
       for model in ("nvshmem", "doca", "ucx_gda", "deepep", "mooncake")},
    **{f"{model}_stalls": Test(f"{model} {PACED}", told(3), STALLS)
       for model in ("nvshmem", "doca", "ucx_gda", "deepep", "mooncake")},
    **{f"{model}_lapped": Test(f"{model} --operations 6000 --depth 128", lapped(3), SLOW)
       for model in ("nvshmem", "doca", "ucx_gda", "deepep", "mooncake")},
}


RUNS = 4


def decide(test, build, words):
    for left in reversed(range(RUNS)):
        with tempfile.TemporaryDirectory(prefix="sigma-traced-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as base:
            try:
                return test.judge(Traced(os.path.abspath(build), base, test, words))
            except Undecided as undecided:
                print(f"undecided: {undecided}; {left} more runs")
                if not left:
                    raise
    return None


def execute(name, build):
    for words in TESTS[name].runs:
        decide(TESTS[name], build, words.split())


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
