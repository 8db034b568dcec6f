# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Trace = oracle minus declared gaps, field by field.

Per queue pair, over all its lives in order: the trace's send operations are the WQEs that the device fetched, and
its receives are the CQEs of receives that the device wrote. What the trace leaves empty must be something that it
may not know; what the program never polled may stand as unfinished, at the end of a life only.
"""
import collections
import ipaddress
import os

import oracle
from traced_run import Failed

OPCODES = {"SEND": "send", "SEND_IMM": "send_with_imm", "SEND_INVAL": "send_with_inv", "RDMA_WRITE": "rdma_write",
           "RDMA_WRITE_IMM": "rdma_write_with_imm", "RDMA_READ": "rdma_read", "ATOMIC_CS": "atomic_cmp_and_swp",
           "ATOMIC_FA": "atomic_fetch_and_add", "ATOMIC_MASKED_CS": "atomic_cmp_and_swp", "ATOMIC_MASKED_FA": "atomic_fetch_and_add"}
REMOTE = {"RDMA_WRITE", "RDMA_WRITE_IMM", "RDMA_READ", "ATOMIC_CS", "ATOMIC_FA", "ATOMIC_MASKED_CS", "ATOMIC_MASKED_FA"}
IMMEDIATE = {"SEND_IMM", "RDMA_WRITE_IMM"}
# MLX5_CQE_SYNDROME_* and what verbs make of them.
STATUS = {0x00: "success", 0x01: "loc_len_err", 0x02: "loc_qp_op_err", 0x04: "loc_prot_err", 0x05: "wr_flush_err",
          0x06: "mw_bind_err", 0x10: "bad_resp_err", 0x11: "loc_access_err", 0x12: "rem_inv_req_err",
          0x13: "rem_access_err", 0x14: "rem_op_err", 0x15: "retry_exc_err", 0x16: "rnr_retry_exc_err",
          0x22: "rem_abort_err"}
RECEIVES = {"RESP_WR_IMM": "recv_rdma_with_imm", "RESP_SEND": "recv", "RESP_SEND_IMM": "recv", "RESP_SEND_INV": "recv",
            "RESP_ERR": "recv"}
UD, RC = 4, 2  # enum ibv_qp_type
MAX_OUTSTANDING = 32  # more than any of the programs that are stopped anywhere has on a queue pair


class Expected:
    """One process's queue pairs as the device saw them, by (device, qpn)."""

    def __init__(self):
        self.sends = collections.defaultdict(list)     # WQEs, over all lives
        self.own_cqe = {}                              # (device, qpn, life, position): CQE
        self.receives = collections.defaultdict(list)  # CQEs
        self.types, self.peers = {}, {}                # by (device, qpn, life)
        self.older = set()                             # (device, qpn, life) made before the tracer came


def read_expected(directory, since_ns=0, by_time=True):
    """By process id. `since_ns`: a tracer that came late knows nothing of before; of sends only if they are told
    `by_time`."""
    processes = collections.defaultdict(Expected)
    for record in oracle.records(directory, {"send_wqe", "cqe", "qp"}):
        process = processes[record.pid]
        queue = (record.device, record.qpn)
        if record.type == "send_wqe":
            if record.time_ns < since_ns and by_time:
                continue
            process.sends[queue].append(record)
        elif record.type == "cqe":
            if oracle.CQE_OPCODES[record.opcode] in ("REQ", "REQ_ERR"):
                process.own_cqe[(*queue, record.life, record.wqe_position)] = record
            elif record.time_ns >= since_ns:
                process.receives[queue].append(record)
        else:
            if record.time_ns < since_ns:
                process.older.add((*queue, record.life))
            process.types[(*queue, record.life)] = record.qp_type
            if record.peer_qpn:
                process.peers[(*queue, record.life)] = record
    return processes


def moves_nothing(wqe):
    """It takes its place in the ring, and is no operation."""
    return oracle.WQE_OPCODES.get(wqe.opcode) == "NOP"


def marked_by_reader(cqe):
    """UCX goes through a session of compressed completions by marks that it writes over byte counts: every eighth of them,
    and others of a session that it has begun when it is read. These are unknown, then."""
    return cqe.session_size > 0


def device_index(row):
    return int(row["device"].rsplit("_", 1)[1]) if row["device"] else None


def by_queue(rows, side):
    queues = collections.defaultdict(list)
    for row in rows:
        if row["queue"] == side:
            key = (int(row["pid"]), device_index(row), int(row["qp_num"]) if row["qp_num"] else None)
            queues[key].append(row)
    return queues


def address_of(text):
    """A peer as the trace writes it: a LID, a GID, or None."""
    if not text:
        return None
    return int(text) if text.isdigit() else ipaddress.IPv6Address(text)


def device_addresses(directory):
    """By device index: its LID and GIDs."""
    addresses = []
    base = os.path.join(directory, "sys/class/infiniband")
    for name in sorted(os.listdir(base), key=lambda n: int(n.rsplit("_", 1)[1])):
        port = os.path.join(base, name, "ports/1")
        with open(os.path.join(port, "lid"), encoding="ascii") as file:
            own = {int(file.read(), 0)} - {0}
        for gid in os.listdir(os.path.join(port, "gids")):
            with open(os.path.join(port, "gids", gid), encoding="ascii") as file:
                own.add(ipaddress.IPv6Address(file.read().strip()))
        addresses.append(own)
    return addresses


class Comparison:
    """`unfinished`: the program leaves completions unpolled. `some_unindexed`: it posts lists with several SGEs a
    request, whose place in the ring does not follow from what was posted. `source`: what times its completions
    ("ring": they were read from memory); `sources`: of the posts. `modulo`: counts of posts are stated modulo
    65,536, for the tracer was held still (trace.watched: when, and until when). `anywhere`: the tracer came while
    the program was in the middle of it; what was posted before is what the device has fetched by then, and a few
    more. `ends_unseen`: rings end otherwise than by a command. `uncounted`: nobody counts the laps of its
    completion rings, so that it is known of requests only whether their completion was overwritten unread."""

    def __init__(self, trace, unfinished=False, some_unindexed=False, source="poll", sources=("probe",), modulo=False,
                 anywhere=False, uncounted=False,
                 ends_unseen=False):
        self.trace, self.unfinished, self.some_unindexed = trace, unfinished, some_unindexed
        self.source, self.sources, self.modulo, self.uncounted = source, sources, modulo, uncounted
        self.ends_unseen = ends_unseen
        if modulo:
            self.stopped_ns, self.resumed_ns = [at_ns for at_ns in trace.watched if at_ns]
        self.since_ns, self.anywhere = getattr(trace, "since_ns", 0), anywhere
        start = trace.meta["clocks"]["start"]
        self.utc_offset_ns = start["utc_ns"] - start["monotonic_ns"]
        self.addresses = device_addresses(trace.directory)
        self.differences = []
        self.counts = collections.Counter()

    def differ(self, what):
        self.differences.append(what)

    def check_rings(self):
        """Per life of a queue pair: what was posted is what was seen and what was missed."""
        # That 65,536 may have passed is also said where a reader that was held up for long cannot exclude it.
        if self.modulo and not any("modulo" in row["flags"] for row in self.trace.rows):
            self.differ("no index is said to be modulo 65,536")
        for qp in self.trace.meta["qps"]:
            ring = qp["observed"]
            if ring and ring["mode"] == "read" and ring["blocks_seen"] + ring["blocks_missed"] != ring["blocks_posted"]:
                self.differ(f"{qp['device']} {qp['qp_num']}: {ring}")

    def check_posts_by(self, sends):
        """Each queue pair's entry says who told of its requests, over all lives of its number."""
        said = collections.defaultdict(str)
        for qp in self.trace.meta["qps"]:
            if qp["observed"]:
                said[qp["pid"], device_index(qp), qp["qp_num"]] += " " + (qp["observed"]["posts_by"] or "")
        for key, words in said.items():
            by = {{"ring": "memory"}.get(row["source"], row["source"]) for row in sends.get(key, [])}
            if not by <= set(words.split()):
                self.differ(f"{key}: posts by {words!r}, rows by {by}")

    def run(self):
        expected = read_expected(self.trace.directory, self.since_ns, not self.anywhere)
        sends, receives = by_queue(self.trace.rows, "send"), by_queue(self.trace.rows, "recv")
        self.check_posts_by(sends)
        seen = set()
        self.counts["nic"] = sum(row["complete_source"] == "nic" for row in self.trace.rows)
        for pid, process in expected.items():
            for queue in sorted(set(process.sends) | set(process.receives)):
                key = (pid, *queue)
                seen.add(key)
                self.compare_sends(key, process, sends.get(key, []))
                self.compare_receives(key, process, receives.get(key, []))
        for key in set(sends) - seen:
            self.differ(f"{key}: {len(sends[key])} send operations of a queue pair that sent nothing: {sends[key][0]}")
        for key in set(receives) - seen:
            done = [row for row in receives[key] if row["status"] != "unfinished"]
            if done:
                self.differ(f"{key}: {len(done)} receives of a queue pair that received nothing: {done[0]}")
        self.check_coverage()
        self.check_rings()
        if self.differences:
            shown = "\n".join(self.differences[:12])
            raise Failed(f"{len(self.differences)} differences:\n{shown}\nsigmatrace said:\n{self.trace.said[-3000:]}")
        return self.counts

    # ---- sends

    def compare_sends(self, key, process, rows):
        fetched = process.sends.get(key[1:], [])
        wqes = [wqe for wqe in fetched if not moves_nothing(wqe)]
        # A program may end before the device has fetched what it posted last.
        unfetched = max(0, len(rows) - len(wqes))
        while len(rows) > len(wqes) and rows[-1]["status"] == "unfinished":
            rows = rows[:-1]
            self.counts["not fetched"] += 1
        if self.anywhere:
            wqes = self.since_attach(key, rows, wqes)
        missed = self.blocks(key, "missed")
        if self.sources == ("ring",) and not (self.anywhere or self.since_ns or self.modulo or unfetched):
            self.compare_blocks(key, fetched, missed)
        if missed:  # a declared gap: what is there is found by its index, and the rest is as large as stated
            wqes = self.without_gaps(key, rows, fetched, missed)
        if len(rows) != len(wqes):
            self.differ(f"{key}: {len(rows)} send operations, the device fetched {len(wqes)}")
            return
        concurrent = any("concurrent" in row["flags"] for row in rows)
        if concurrent and len({row["tid"] for row in rows}) == 1:
            self.differ(f"{key}: operations of one thread are said to be concurrent")
        if concurrent:  # threads posting at once: which came first is not known, what they posted is
            wanted = collections.Counter(self.posted(wqe) for wqe in wqes)
            got = collections.Counter(self.row_posted(row, wqe) for row, wqe in zip(rows, wqes))
            if wanted != got:
                self.differ(f"{key}: {got - wanted} instead of {wanted - got}")
            self.counts["concurrent"] += sum("concurrent" in row["flags"] for row in rows)
        ends = self.unfinished_may_begin(rows, wqes)  # by life
        for i, (row, wqe) in enumerate(zip(rows, wqes)):
            problems = [] if concurrent else self.compare_fields(row, wqe) + self.compare_times(process, row, wqe)
            problems += self.compare_common(key, process, row, wqe)
            problems += self.compare_completion(process, row, wqe, may_be_unfinished=i >= ends[wqe.life])
            if problems:
                self.differ(f"{key} operation {i} of {len(rows)}: {'; '.join(problems)}\n    {compact(row)}\n    {wqe}")
            self.counts["sends"] += 1

    def since_attach(self, key, rows, wqes):
        """From the first that is told; what was fetched later and is not told had been posted before."""
        first = next((i for i, wqe in enumerate(wqes) if rows and rows[0]["index"] and wqe.position == int(rows[0]["index"])
                      and wqe.time_ns >= self.since_ns), len(wqes))
        passed = [wqe for wqe in wqes[:first] if wqe.time_ns >= self.since_ns]
        if len(passed) > MAX_OUTSTANDING:
            self.differ(f"{key}: {len(passed)} sends after the attach stand before the first that is told")
        self.counts["outstanding"] += len(passed)
        return wqes[first:]

    def blocks(self, key, what):
        """Of its send ring, over all lives: "seen", or "missed" in gaps."""
        return sum(qp["observed"]["blocks_" + what] for qp in self.trace.meta["qps"]
                   if qp["observed"] and (qp["pid"], device_index(qp), qp["qp_num"]) == key)

    def compare_blocks(self, key, fetched, missed):
        """Seen and missed is what was posted, those included that are no operations."""
        seen, posted = self.blocks(key, "seen"), sum(wqe.basic_blocks for wqe in fetched)
        if seen + missed != posted:
            self.differ(f"{key}: {seen} blocks seen and {missed} missed, the device fetched {posted}")

    def without_gaps(self, key, rows, wqes, missed):
        """The WQEs that the rows tell of, if those in between take as many blocks as the gaps say."""
        found, skipped, at = [], 0, 0
        laps = self.unseen_laps(key, rows, wqes)
        for row in rows:
            index = int(row["index"] or -1) + (laps if self.is_behind_stop(row) and "modulo" in row["flags"] else 0)
            while at < len(wqes) and wqes[at].position != index:
                skipped += wqes[at].basic_blocks
                at += 1
            if at == len(wqes):
                self.differ(f"{key}: an operation that was not posted: {compact(row)}")
                return found
            found.append(wqes[at])
            at += 1
        skipped += sum(wqe.basic_blocks for wqe in wqes[at:])
        # Seen, and no operations.
        silent = 0
        if any(map(moves_nothing, wqes)):
            silent = self.blocks(key, "seen") - sum(wqe.basic_blocks for wqe in found)
        if not 0 <= silent <= sum(wqe.basic_blocks for wqe in wqes if moves_nothing(wqe)):
            self.differ(f"{key}: {silent} blocks seen of requests that move nothing")
        if skipped != missed + laps + silent:
            self.differ(f"{key}: {missed} blocks in gaps, {skipped - laps - silent} are missing")
        self.counts["missed blocks"] += missed
        return found

    def is_behind_stop(self, row):
        """It was read after the tracer had been held still: its interval ends behind the beginning of that."""
        if not self.modulo or not row["time_ns"]:
            return False
        return int(row["time_ns"]) + int(row["time_error_ns"] or 0) - self.utc_offset_ns > self.stopped_ns

    def unseen_laps(self, key, rows, wqes):
        """Blocks by which a ring has gone round while the tracer was held still, in multiples of 65,536: what was read
        after that says that it may have."""
        if not rows or not self.is_behind_stop(rows[-1]) or "modulo" not in rows[-1]["flags"]:
            return 0
        laps = (wqes[-1].position - int(rows[-1]["index"])) // 65536 * 65536
        posted = sum(wqe.basic_blocks for wqe in wqes if self.stopped_ns < wqe.time_ns < self.resumed_ns)
        if not 0 <= laps <= posted:
            self.differ(f"{key}: {laps} blocks in rounds that nobody saw, {posted} were posted while nobody looked")
        return laps

    @staticmethod
    def unfinished_may_begin(rows, wqes):
        """By life: from where on all its operations are unfinished."""
        ends = {}
        for i in reversed(range(len(rows))):
            life = wqes[i].life
            if rows[i]["status"] != "unfinished":
                ends[life] = max(ends.get(life, 0), i + 1)
            else:
                ends.setdefault(life, 0)
        return ends

    @staticmethod
    def posted(wqe):
        """What the program said. Times, order and completion are not part of it."""
        name = oracle.WQE_OPCODES[wqe.opcode]
        remote = name in REMOTE
        return (OPCODES.get(name, name), wqe.bytes, wqe.remote_address if remote else None, wqe.rkey if remote else None,
                None if wqe.is_inline or not wqe.segments else wqe.lkey, wqe.immediate if name in IMMEDIATE else None,
                bool(wqe.is_inline) if wqe.bytes else None, oracle.signaled(wqe))

    @staticmethod
    def row_posted(row, wqe):
        hexadecimal = lambda name: int(row[name], 16) if row[name] else None  # noqa: E731
        key = None if wqe.is_inline or not wqe.segments else hexadecimal("lkey")
        inline = row["inline"] == "yes" if wqe.bytes else None  # of nothing the device cannot tell
        return (row["opcode"], int(row["bytes"]) if row["bytes"] else None, hexadecimal("remote_addr"), hexadecimal("rkey"), key,
                int(row["imm"]) if row["imm"] else None, inline, {"yes": True, "no": False}.get(row["signaled"]))

    def compare_fields(self, row, wqe):
        names = ("opcode", "bytes", "remote_addr", "rkey", "lkey", "imm", "inline", "signaled")
        problems = [f"{name} {got!r}, expected {wanted!r}"
                    for name, got, wanted in zip(names, self.row_posted(row, wqe), self.posted(wqe)) if got != wanted]
        if not wqe.is_inline and wqe.segments and int(row["local_addr"] or "0", 16) != wqe.local_address:
            problems.append(f"local_addr {row['local_addr']}, expected {wqe.local_address:#x}")
        return problems

    def compare_times(self, process, row, wqe):
        """A post begins before the device fetches it, and a poll ends after the device has completed it."""
        problems = []
        if row["source"] not in self.sources:
            problems.append(f"source {row['source']}, expected one of {self.sources}")
        if (row["source"] == "ring") != bool(row["time_error_ns"]):
            problems.append(f"source {row['source']} with time_error_ns {row['time_error_ns']!r}")
        posted_ns = int(row["time_ns"]) - self.utc_offset_ns
        begin_ns = posted_ns - int(row["time_error_ns"] or 0)
        if begin_ns > wqe.time_ns:
            problems.append(f"posted {begin_ns - wqe.time_ns} ns after it was fetched")
        cqe = process.own_cqe.get((wqe.device, wqe.qpn, wqe.life, wqe.position))
        if row["complete_source"] != "inferred" and cqe and row["complete_ns"]:
            problems += self.compare_completion_time(row, cqe)
            completed_ns = int(row["complete_ns"]) - self.utc_offset_ns
            if row["latency_ns"] and int(row["latency_ns"]) != completed_ns - posted_ns:
                problems.append(f"latency_ns {row['latency_ns']}, expected {completed_ns - posted_ns}")
        return problems

    def compare_completion_time(self, row, cqe):
        """By a poll: after the device has completed it. By the device's stamp, or from the ring: then, within the error
        that the row states."""
        off_ns = int(row["complete_ns"]) - self.utc_offset_ns - cqe.time_ns
        if row["complete_source"] == "poll":
            return [] if off_ns >= 0 else [f"polled {-off_ns} ns before it was completed"]
        if row["complete_source"] not in ("nic", "ring"):
            return []
        if not row["complete_error_ns"]:
            return ["no complete_error_ns"]
        return [] if abs(off_ns) <= int(row["complete_error_ns"]) else \
            [f"complete_ns is {off_ns} ns off, stated error {row['complete_error_ns']}"]

    def compare_common(self, key, process, row, wqe):
        problems = []
        flags = set(row["flags"].split())
        if row["index"]:
            self.counts["indexed"] += 1
            if "concurrent" not in flags and int(row["index"]) & 0xFFFF != wqe.position & 0xFFFF:
                problems.append(f"index {row['index']}, expected {wqe.position & 0xFFFF}")
        elif "concurrent" not in flags and not self.some_unindexed:
            problems.append("no index")
        problems += flags & {"ambiguous", "truncated", "unverified"}
        life = (*key[1:], wqe.life)
        if process.types.get(life) in (UD, oracle.DCI):  # each request names its peer; so do those of DC
            if row["peer_qp_num"] != str(wqe.destination_qpn):
                problems.append(f"peer_qp_num {row['peer_qp_num']}, expected {wqe.destination_qpn}")
            addresses = self.addresses[wqe.destination_device]
            if address_of(row["peer"]) not in addresses:
                problems.append(f"peer {row['peer']}, expected one of {addresses}")
        elif life in process.older and not row["peer_qp_num"] and not row["peer"]:
            self.counts["peer unknown"] += 1  # no netlink here
        elif life in process.peers:
            peer = process.peers[life]
            if row["peer_qp_num"] != str(peer.peer_qpn):
                problems.append(f"peer_qp_num {row['peer_qp_num']}, expected {peer.peer_qpn}")
            wanted = {ipaddress.IPv6Address(peer.peer_gid)} | ({peer.peer_lid} if peer.peer_lid else set())
            if address_of(row["peer"]) not in wanted:
                problems.append(f"peer {row['peer']}, expected one of {wanted}")
        return problems

    def compare_completion(self, process, row, wqe, may_be_unfinished):
        cqe = process.own_cqe.get((wqe.device, wqe.qpn, wqe.life, wqe.position))
        if row["status"] == "unfinished":
            self.counts["unfinished"] += 1
            if self.unfinished and may_be_unfinished:
                return []
            return ["unfinished"] if cqe else ["unfinished, and it should be inferred"]
        if cqe is None:  # a later completion stands for it
            self.counts["inferred"] += 1
            return [] if (row["status"], row["complete_source"]) == ("success", "inferred") else \
                [f"{row['status']} by {row['complete_source']}, expected success, inferred"]
        problems = []
        if self.source == "ring" and row["complete_source"] == "inferred":  # its own was overwritten unread, which is counted
            self.counts["passed"] += 1
            return [] if row["status"] == "success" else [f"{row['status']} by inference"]
        if row["status"] != STATUS[cqe.syndrome]:
            problems.append(f"status {row['status']}, expected {STATUS[cqe.syndrome]}")
        if cqe.syndrome and row["vendor_err"] != str(cqe.vendor_syndrome):
            problems.append(f"vendor_err {row['vendor_err']}, expected {cqe.vendor_syndrome}")
        problems += self.compare_source(row, cqe)
        return problems

    def compare_source(self, row, cqe):
        """Error completions have no stamp."""
        if self.source == "ring":
            return [] if row["complete_source"] in ("ring", "nic") else [f"complete_source {row['complete_source']}"]
        wanted = self.source if cqe.syndrome == 0 else "poll"
        return [] if row["complete_source"] == wanted else [f"complete_source {row['complete_source']}, expected {wanted}"]

    # ---- receives

    def compare_receives(self, key, process, rows):
        rows = [row for row in rows if row["status"] != "unfinished"]
        cqes = self.told_receives(rows, process.receives.get(key[1:], []))
        if len(rows) > len(cqes) or (len(rows) < len(cqes) and not self.unfinished):
            self.differ(f"{key}: {len(rows)} receives, the device completed {len(cqes)}")
            return
        for i, (row, cqe) in enumerate(zip(rows, cqes)):
            name = oracle.CQE_OPCODES[cqe.opcode]
            wanted = {"status": STATUS[cqe.syndrome], "opcode": RECEIVES[name]}
            if cqe.syndrome == 0:
                wanted["bytes"] = str(cqe.bytes)
                if name in ("RESP_WR_IMM", "RESP_SEND_IMM"):
                    wanted["imm"] = str(cqe.immediate)
                if process.types.get((*key[1:], cqe.life)) == UD:
                    wanted["peer_qp_num"] = str(cqe.remote_qpn)
            if row["bytes"] == "" and marked_by_reader(cqe):
                del wanted["bytes"]
                self.counts["bytes unknown"] += 1
            problems = [f"{name} {row[name]!r}, expected {value!r}" for name, value in wanted.items() if row[name] != value]
            problems += self.compare_source(row, cqe) + self.compare_completion_time(row, cqe)
            if problems:
                self.differ(f"{key} receive {i}: {'; '.join(problems)}\n    {compact(row)}\n    {cqe}")
            self.counts["receives"] += 1

    def told_receives(self, rows, cqes):
        """Those that the rows tell of, where some were overwritten unread; check_coverage has how many."""
        if len(rows) >= len(cqes) or not self.trace.counters["ring_completions_missed"]:
            return cqes
        told, rest = [], iter(cqes)
        for row in rows:
            for cqe in rest:
                if not self.compare_completion_time(row, cqe) and row["bytes"] in ("", str(cqe.bytes)):
                    told.append(cqe)
                    break
        self.counts["missed receives"] += len(cqes) - len(told)
        return told

    # ---- the coverage statement

    def check_coverage(self):
        counters = self.trace.counters
        # Rings are sampled: what was overwritten before it could be read stands in a gap, whose size is checked.
        sampled = ("ring_gaps", "ring_blocks_missed", "completions_without_post", "ring_completions_missed", "ring_records_stale") \
            if self.source == "ring" else ()
        for name in ("records_dropped", "records_malformed", "work_requests_omitted", "completions_omitted", "reads_unreadable",
                     "calls_not_tracked", "completions_fields_unknown", "nic_stamps_refused", "nic_stamps_without_clock",
                     "datagram_peers_unknown", "uverbs_undecoded", "uverbs_truncated", "operations_evicted", "completions_unmatched",
                     "qps_older_than_attach", "governor_pauses", "completions_without_post", "rows_lost", "probes_failed",
                     "ring_gaps", "ring_blocks_missed", "ring_completions_missed", "ring_records_stale", "ring_ends_unseen",
                     "rings_unplaced"):
            if name == "qps_older_than_attach" and self.since_ns or name == "ring_ends_unseen" and self.ends_unseen:
                continue
            if counters[name] and name not in sampled:
                self.differ(f"{name}: {counters[name]}")
        unread = self.counts["missed receives"] + (0 if self.uncounted else self.counts["passed"])
        if unread > counters["ring_completions_missed"]:
            self.differ(f"{unread} completions are missing, {counters['ring_completions_missed']} are said to be")
        if counters["ring_completions_passed"] != self.counts["passed"]:
            self.differ(f"ring_completions_passed: {counters['ring_completions_passed']}, the rows say {self.counts['passed']}")
        if counters["nic_stamps_used"] != self.counts["nic"]:
            self.differ(f"nic_stamps_used: {counters['nic_stamps_used']}, the rows say {self.counts['nic']}")
        if counters["records_attempted"] != counters["records_consumed"]:
            self.differ(f"{counters['records_attempted']} records made, {counters['records_consumed']} consumed")
        unfinished = sum(row["status"] == "unfinished" for row in self.trace.rows)
        for name, wanted in (("rows_written", len(self.trace.rows)), ("unfinished", unfinished),
                             ("inferred", sum(row["complete_source"] == "inferred" for row in self.trace.rows))):
            if counters[name] != wanted:
                self.differ(f"{name}: {counters[name]}, the rows say {wanted}")


def compact(row):
    return {name: value for name, value in row.items() if value and name not in ("node", "time_ns", "complete_ns", "comm", "tid")}
