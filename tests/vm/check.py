"""Checks the tracer's CSV and side file against what a row of the table says.

Reads them with Python's csv and json only: nothing of the product is used. The checks
return lists of findings in words; an empty list is a pass.
"""
import csv
import json
import re
from collections import Counter

from rig import GIDS

ONE_SIDED = {"rdma_write", "rdma_write_with_imm", "rdma_read", "atomic_fetch_and_add",
             "atomic_cmp_and_swp"}
LEFT = {"unfinished", "wr_flush_err"}
MAX_SHOWN = 5       # rows of one kind of finding


class Trace:
    """ops.csv with its side file."""

    def __init__(self, path: str):
        with open(path, newline="") as file:
            self.rows = list(csv.DictReader(file))
        with open(path + ".meta.json") as file:
            self.meta = json.load(file)
        self.counters = self.meta["coverage"]["counters"]

    def of(self, pid: int) -> list:
        return [row for row in self.rows if row["pid"] == str(pid)]

    def queue_pairs(self, pid: int) -> dict:
        """{(device, qp_num): queue pair} of a process."""
        return {(qp["device"], qp["qp_num"]): qp for qp in self.meta["qps"] if qp["pid"] == pid}

    def regions(self, pid: int) -> list:
        """(device, rkey, lkey, first, end) of a process's memory regions."""
        return [(mr["device"], mr["rkey"], mr["lkey"], int(mr["addr"], 16),
                 int(mr["addr"], 16) + mr["length"])
                for mr in self.meta["mrs"] if mr["pid"] == pid]


def describe(row: dict) -> str:
    """A CSV row in one short line."""
    names = ("pid", "qp_num", "queue", "opcode", "bytes", "signaled", "status", "complete_source",
             "peer_qp_num", "peer", "remote_addr", "rkey", "latency_ns", "index")
    return " ".join(f"{name}={row.get(name, '?')}" for name in names if row.get(name))


def shown(what: str, rows: list) -> list:
    """One finding for all rows that share it, with a few of them."""
    if not rows:
        return []
    lines = "".join(f"\n      {describe(row)}" for row in rows[:MAX_SHOWN])
    return [f"{len(rows)} rows: {what}{lines}"]


def number(row: dict, name: str):
    return int(row[name], 0) if row[name] else None


def check_counts(trace: Trace, pid: int, side: str, expected: Counter, loose) -> list:
    seen = Counter((row["queue"], row["opcode"]) for row in trace.of(pid))
    return [f"{side}: {queue} {opcode}: {seen[queue, opcode]} rows, expected "
            f"{expected[queue, opcode]}"
            for queue, opcode in sorted(seen.keys() | expected.keys())
            if (queue, opcode) not in loose and seen[queue, opcode] != expected[queue, opcode]]


def check_bytes(rows: list, sizes: dict) -> list:
    known = [row for row in rows if row["opcode"] in sizes and not
             (row["queue"] == "recv" and row["status"] != "success")]
    return shown("bytes differ from " + str(sizes),
                 [row for row in known if number(row, "bytes") != sizes[row["opcode"]]])


def check_completion(rows: list, left) -> list:
    """Signalled sends: success with a positive latency. `left`: how many may end otherwise;
    None where that is not fixed."""
    findings = shown("a signalled send that did not complete", [
        row for row in rows if row["queue"] == "send" and row["signaled"] == "yes" and not
        (row["status"] == "success" and (number(row, "latency_ns") or 0) > 0)])
    findings += shown("completed without complete_ns = time_ns + latency_ns", [
        row for row in rows if row["status"] == "success" and row["signaled"] == "yes" and
        abs((number(row, "complete_ns") or 0) - (number(row, "time_ns") or 0) -
            (number(row, "latency_ns") or 0)) > 2 * (number(row, "time_error_ns") or 0) + 2])
    findings += shown("an unexpected status",
                      [row for row in rows if row["status"] not in LEFT | {"success"}])
    remains = sum(row["status"] in LEFT for row in rows)
    if left is not None and remains != left:
        findings.append(f"{remains} rows are unfinished or flushed, expected {left}")
    return findings


def check_signaled(rows: list, expected: int) -> list:
    sends = [row for row in rows if row["queue"] == "send"]
    count = sum(row["signaled"] == "yes" for row in sends)
    findings = [] if count == expected else [f"{count} sends signalled, expected {expected}"]
    return findings + shown("signaled is not known",
                            [row for row in sends if row["signaled"] not in ("yes", "no")])


def check_remote_memory(trace: Trace, rows: list, peer_pid: int) -> list:
    regions = trace.regions(peer_pid)

    def inside(row: dict) -> bool:
        addr, rkey, size = number(row, "remote_addr"), row["rkey"], number(row, "bytes") or 0
        return addr is not None and any(
            rkey == region[1] and region[3] <= addr and addr + size <= region[4]
            for region in regions)

    # an empty write (a flush) may name no memory
    return shown("remote_addr and rkey lie in no memory region of the peer", [
        row for row in rows if row["opcode"] in ONE_SIDED and (number(row, "bytes") or 0) > 0 and
        not inside(row)])


def check_local_memory(trace: Trace, rows: list, pid: int) -> list:
    regions = trace.regions(pid)
    return shown("local_addr and lkey lie in no memory region of the process", [
        row for row in rows if row["lkey"] and row["inline"] != "yes" and not any(
            row["lkey"] == region[2] and region[3] <= number(row, "local_addr") < region[4]
            for region in regions)])


def check_peers(trace: Trace, rows: list, pid: int, peer_pid: int) -> list:
    """Every row's peer is a queue pair of the other process (of the same one, where UCX talks to
    itself), which in turn names this one."""
    mine, theirs = trace.queue_pairs(pid), trace.queue_pairs(peer_pid)

    def is_right(row: dict) -> bool:
        if row["queue"] == "recv" and row["status"] == "unfinished" and \
                (row["qp_type"] == "ud" or not row["qp_num"]):
            return True      # nobody sent to it; a shared receive queue's has no queue pair either
        own = (row["device"], number(row, "qp_num"))
        for (device, qp_num), qp in [*theirs.items(), *mine.items()]:
            # A UD receive's completion names the sender's number; its GID stands in the data only.
            peer = "" if row["qp_type"] == "ud" and row["queue"] == "recv" else GIDS.get(device)
            if qp_num == number(row, "peer_qp_num") and row["peer"] == peer:
                return own in mine and (row["qp_type"] == "ud" or qp["peer_qp_num"] == own[1])
        return False

    return shown("the peer is not the other process's queue pair",
                 [row for row in rows if not is_right(row)])


def check_no_peers(rows: list) -> list:
    """What nobody tells is empty, never guessed."""
    return shown("a peer, on a device that tells none",
                 [row for row in rows if row["peer"] or row["peer_qp_num"]])


LINK = re.compile(r"(local|remote)(?: address)?:?.*?QPN:?\s+(0x[0-9a-fA-F]+|\d+)")


def check_printed_peers(rows: list, stdout: str) -> list:
    """Against the queue pair numbers that the program itself printed (perftest, pingpong,
    verbs_job): the n-th local one talks to the n-th remote one."""
    sides = {"local": [], "remote": []}
    for side, text in LINK.findall(stdout):
        sides[side].append(int(text, 0))
    peers = dict(zip(sides["local"], sides["remote"]))
    return shown(f"peer_qp_num differs from what the program printed ({peers})", [
        row for row in rows if number(row, "qp_num") in peers and row["peer_qp_num"] and
        number(row, "peer_qp_num") != peers[number(row, "qp_num")]])


def check_coverage(trace: Trace, names_peers=True) -> list:
    """The side file's totals agree with the rows, and nothing was lost. Where no queue pair's peer
    can be known, each one with operations is counted."""
    rows, counters, findings = trace.rows, trace.counters, []
    totals = {"rows_written": len(rows), "operations": len(rows),
              "unfinished": sum(row["status"] == "unfinished" for row in rows),
              "errors_flushed": sum(row["status"] == "wr_flush_err" for row in rows),
              "qps_peer_unknown": 0 if names_peers else
              len({(row["pid"], row["device"], row["qp_num"]) for row in rows})}
    for name, total in totals.items():
        if counters.get(name) != total:
            findings.append(f"coverage counter {name} is {counters.get(name)}, the CSV has {total}")
    for name in ("records_dropped", "records_malformed", "rows_lost", "operations_evicted",
                 "work_requests_omitted", "completions_omitted", "ambiguous", "probes_failed",
                 "completions_unmatched", "calls_not_tracked"):
        if counters.get(name):
            findings.append(f"coverage counter {name} is {counters[name]}, expected 0")
    if counters["records_attempted"] != counters["records_consumed"] + counters["records_dropped"]:
        findings.append(f"attempted {counters['records_attempted']} != consumed "
                        f"{counters['records_consumed']} + dropped {counters['records_dropped']}")
    if not trace.meta.get("complete"):
        findings.append("the side file does not say that the trace is complete")
    return findings
