# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What the device did, and the judgement that all rows rest on: the trace is that, minus what it declares as gaps."""
import collections

from traced_run import require  # first: it says where the emulator's modules are
import oracle
from compare import STATUS

OPCODES = {"RDMA_WRITE": "rdma_write", "RDMA_WRITE_IMM": "rdma_write_with_imm", "RDMA_READ": "rdma_read",
           "ATOMIC_FA": "atomic_fetch_and_add", "ATOMIC_MASKED_FA": "atomic_fetch_and_add",
           "ATOMIC_MASKED_CS": "atomic_cmp_and_swp", "ATOMIC_CS": "atomic_cmp_and_swp"}


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
    """What the device did, by queue (traced_run.py)."""

    def __init__(self, directory):
        self.wqes, self.cqes = collections.defaultdict(dict), {}
        doorbells, first = collections.defaultdict(list), {}
        for record in oracle.records(directory, {"send_wqe", "cqe", "doorbell", "qp"}):
            # The device counts a number's lives on, whichever process has it.
            life = record.life - first.setdefault((record.pid, record.qpn), record.life)
            number = record.pid, record.qpn, life
            if record.type == "send_wqe":
                self.wqes[number][record.position] = record
            elif record.type == "doorbell":
                doorbells[number].append(record)
            elif record.type == "cqe" and oracle.CQE_OPCODES[record.opcode] in ("REQ", "REQ_ERR"):
                self.cqes[(*number, record.wqe_position)] = record
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
        number, first = run.number_of_gap(gap), int(gap["first_index"])
        gaps[number].append((first, first + int(gap["entries"])))
    shifts = {number: shift(qp["observed"], truth.end(number)) for number, qp in run.qps().items()}
    for row in run.rows:
        number, index = run.number_of_row(row), int(row["index"])
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
    early = sum(row["initiator"] == "" for row in run.rows) if run.test.initiator else 0
    require(run.counter("initiators_late") == early, f"{early} rows without an initiator, said: {run.counter('initiators_late')}")
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


