# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What the rows ask of a run beyond that its trace is true."""
import collections
import json
import os
import subprocess

from traced_run import Undecided, require  # first: it says where the emulator's modules are
import oracle
from compare import STATUS
from traced_truth import Truth, trace_is_oracle
from truth_file import read_truth


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


def relived(tier, resets):
    """All queues are reset in between: each has so many lives more, and nothing of one is told of another, or twice."""
    def judge(run):
        told(tier)(run)
        lives = collections.Counter(number[:2] for number in Truth(run.directory).wqes)
        found = collections.Counter(number[:2] for number, qp in run.qps().items() if qp["observed"]["blocks_posted"])
        require(set(lives.values()) == {1 + resets}, f"lives of the device: {lives}")
        require(found == lives, f"lives that were told: {found}, of {lives}")
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
    finished = {number: max((position for *of, position in truth.cqes if tuple(of) == number), default=-1)
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
        failed = {number[:3] for number, cqe in truth.cqes.items() if cqe.syndrome}
        require(len(failed) == 1, f"failed: {failed}")
        [number] = failed
        # One whose post was missed is told as well, by its completion alone.
        errors = [row for row in run.table("ops") if row["status"] not in ("success", "unfinished", "")]
        if not errors and run.qps()[number]["observed"]["end_unseen"]:
            raise Undecided("the last look at the queue that failed was not in time")
        if not errors:  # completions that were overwritten before they were read: counted, as all that is missed
            missed = run.counter("ring_completions_missed")
            print(f"the errors were not seen; completions missed: {missed}")
            return require(missed, "no completion was missed, and no error told")
        require({(int(row["pid"]), int(row["qp_num"])) for row in errors} == {number[:2]}, f"errors: {errors}")
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
                signals[run.number_of_row(row)].append(row)
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
            number = run.number_of_row(row)
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


