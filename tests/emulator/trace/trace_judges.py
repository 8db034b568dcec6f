# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What a row of trace_test.py asks beyond trace = oracle: judges, called with the trace and the comparison's counts, and
what looks at the tracer meanwhile (`watch`)."""
import atexit
import collections
import os
import signal
import subprocess
import time

import oracle
from compare import Comparison, read_expected
from traced_run import Failed, bpf_map_entries


def require(good, what):
    if not good:
        raise Failed(what)


def errors(trace, _):
    """First causes and flushes, apart, as many as the device reported."""
    syndromes = collections.Counter(cqe.syndrome for cqe in oracle.records(trace.directory, {"cqe"}) if cqe.syndrome)
    flushed = syndromes.pop(5, 0)
    require(trace.counters["errors_flushed"] == flushed, f"{trace.counters['errors_flushed']} flushed, expected {flushed}")
    first = sum(syndromes.values())
    require(trace.counters["errors_first"] == first, f"{trace.counters['errors_first']} first causes, expected {first}")
    require(flushed + first > 0, "the workload provoked no error")


def lost(trace, _):
    """What is lost is sent again, and only takes longer."""
    events = collections.Counter(oracle.WIRE_EVENTS[r.event] for r in oracle.records(trace.directory, {"wire"}))
    require(events["lost"] > 0 and events["retransmit"] > 0, f"nothing was lost and sent again: {dict(events)}")
    require({row["status"] for row in trace.rows} == {"success"}, "a loss shows as an error")


def slow_peer(delay_us):
    """Every operation towards the slow device takes at least its delay, and no other is named."""
    def check(trace, _):
        sends = [row for row in trace.rows if row["queue"] == "send"]
        quick = [row for row in sends if int(row["complete_ns"]) - int(row["time_ns"]) < delay_us * 1000]
        require(not quick, f"{len(quick)} of {len(sends)} operations took less than {delay_us} us")
        require(len({(row["peer"], row["peer_qp_num"]) for row in sends}) == 1, "more than one peer")
    return check


def paced_link(gbit_per_s):
    """From the first post to the last completion the link needs its time for all but the last message."""
    def check(trace, _):
        sends = [row for row in trace.rows if row["queue"] == "send"]
        bits = 8 * sum(int(row["bytes"]) for row in sends[:-1])
        spent_ns = max(int(row["complete_ns"]) for row in sends) - min(int(row["time_ns"]) for row in sends)
        require(spent_ns >= bits / gbit_per_s, f"{bits} bits took {spent_ns} ns")
    return check


def scattered(trace, _):
    payloads = collections.Counter(oracle.CQE_OPCODES[r.opcode] for r in oracle.records(trace.directory, {"cqe"}) if r.scattered)
    require(payloads["REQ"] > 0 and payloads["RESP_SEND"] > 0, f"no payloads in CQEs: {dict(payloads)}")


def typed(*types):
    """Among the queue pairs are some of each of these types, and none whose type is not known."""
    def check(trace, _):
        found = collections.Counter(qp["qp_type"] for qp in trace.meta["qps"])
        require(set(types) <= set(found) and None not in found, f"types of queue pairs: {dict(found)}")
    return check


def sessions(trace):
    """How many completions have no CQE of their own."""
    return sum(cqe.session_index > 0 for cqe in oracle.records(trace.directory, {"cqe"}))


def sessions_found(trace, counts):
    require(sessions(trace) > 1000, f"{sessions(trace)} completions without a CQE of their own")
    # Read, or said to be missed: how many, is a matter of the machine's load (measured: 60 to all).
    require(counts["receives"] > 0, f"{counts['receives']} receives, {counts['missed receives']} missed")
    made = sum(1 for _ in oracle.records(trace.directory, {"cqe"}))
    read = sum(row["complete_source"] in ("ring", "nic") for row in trace.rows)
    said = trace.counters["ring_completions_missed"]
    require(read + said <= made, f"{read} completions read, {said} said to be missed, of {made}")


def recovered(trace, _):
    nak_sent = [r for r in oracle.records(trace.directory, {"wire"}) if oracle.WIRE_EVENTS[r.event] == "nak_sent"]
    require(nak_sent, "no RNR NAK was sent")
    require({row["status"] for row in trace.rows} == {"success"}, "a retried send shows as an error")


def lives(trace, _):
    """RESET begins a new life, and each is told apart."""
    wanted = collections.Counter((r.device, r.qpn) for r in oracle.records(trace.directory, {"qp"})
                                 if r.event == 0 or (r.event == 1 and r.state == 0))
    got = collections.Counter((int(qp["device"].rsplit("_", 1)[1]), qp["qp_num"])
                              for qp in trace.meta["qps"])
    require(got == wanted, f"lives of queue pairs: {got}, expected {wanted}")


def churned(count):
    def check(trace, _):
        require(trace.counters["qps_seen"] == count, f"{trace.counters['qps_seen']} queue pairs seen, expected {count}")
    return check


MAX_ENTRIES = 256             # of what lives: 2 queue pairs, a few threads and contexts
MAX_GROWTH = 24 * 1024 * 1024  # what is kept of ended queue pairs for the side file, of 10,000


def tracer_memory(pid):
    """The tracer's anonymous memory in bytes, and the entries of each of its BPF hash maps."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        anonymous = [int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:")][0]
    return anonymous, bpf_map_entries(pid)


def flat(trace, _):
    require(len(trace.watched) > 4, "the run was too short to see anything")
    sizes = [anonymous for anonymous, _ in trace.watched]
    quarter = len(sizes) // 4
    require(max(sizes) - sizes[quarter] < MAX_GROWTH, f"the tracer's memory grew: {sizes}")
    for _, entries in trace.watched:
        require(set(entries) >= {"queue_pairs", "calls", "targets"}, f"maps: {entries}")
        require(max(entries.values()) <= MAX_ENTRIES, f"map entries: {entries}")


def much_of(count):
    """All of it where the reader gets its time; a machine that is busy otherwise makes gaps, whose size is checked."""
    def check(trace, counts):
        require(counts["sends"] > count / 4, f"{counts['sends']} of {count} operations, {counts['missed blocks']} blocks in gaps")
    return check


def none_passed(trace, counts):
    """Each request has its own completion, however soon its ring was gone."""
    require(counts["passed"] == 0, f"{counts['passed']} completions were not read")


def missed(least):
    def check(trace, counts):
        require(counts["missed blocks"] >= least, f"{counts['missed blocks']} blocks in gaps: the tracer was not stopped")
    return check


def pressed(trace, counts):
    require(trace.counters["observer_pressed_ms"] > 0 and counts["missed blocks"] > 0, "the bound was not felt")


class Stop:
    """Holds the tracer still while the workload posts (verbs_paced.c: SYNC). Its answers: since when, and until when."""
    prefix = f"/dev/shm/sigma-sync-{os.getpid()}"

    def __init__(self):
        atexit.register(lambda: [self.take(name) for name in ("stop", "stopped", "resume", "resumed")])

    def take(self, name):
        try:
            os.remove(f"{self.prefix}.{name}")
            return True
        except FileNotFoundError:
            return False

    def say(self, name):
        with open(f"{self.prefix}.{name}", "x", encoding="ascii"):
            pass

    def __call__(self, pid):
        if self.take("stop"):
            os.kill(pid, signal.SIGSTOP)
            while self.state(pid) != "T":
                time.sleep(0.001)
            stopped_ns = time.monotonic_ns()
            self.say("stopped")
            return stopped_ns
        if self.take("resume"):
            resumed_ns = time.monotonic_ns()
            os.kill(pid, signal.SIGCONT)
            self.say("resumed")
            return resumed_ns
        return None

    @staticmethod
    def state(pid):
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0]


def threads(trace, counts):
    require({row["wr_id"] for row in trace.rows} == {"0"}, "wr_ids other than 0")
    require(len({row["tid"] for row in trace.rows}) == 8, "not 8 posting threads")
    require(len({row["qp_num"] for row in trace.rows}) == 64, "not 64 queue pairs")


def inline(trace, _):
    require(all(row["inline"] == "yes" for row in trace.rows if row["queue"] == "send"), "not all inline")


def inferred(trace, counts):
    require(counts["inferred"] > 0, "no completion stands for several")


def post_full(lists):
    """What was refused does not stand in the trace, and is counted."""
    def check(trace, counts):
        said = {words[0]: int(words[1]) for words in map(str.split, trace.output.splitlines()) if len(words) == 2}
        require(said["refused"] > 0 and (said["partly"] > 0) == lists, f"the workload did not do its work: {said}")
        require(counts["sends"] == said["accepted"], f"{counts['sends']} operations, {said['accepted']} accepted")
        require(trace.counters["refused"] == said["refused"],
                f"{trace.counters['refused']} refused by the trace, {said['refused']} by the program")
    return check


def two_threads(trace, counts):
    """Every operation is right (compare.py), or says that it may not be."""
    require(len({row["tid"] for row in trace.rows if row["queue"] == "send"}) == 3, "not two posting threads and the main one")
    require(counts["indexed"] > 0, "no operation has an index")
    require({row["flags"] for row in trace.rows} <= {"", "concurrent"}, "other marks than concurrent")


def stamps(devices):
    """Both directions of drift; the errors are small, or they would prove nothing."""
    def check(trace, counts):
        timed = {row["device"] for row in trace.rows if row["complete_source"] == "nic"}
        require(timed == {f"mlx5_{i}" for i in range(devices)}, f"stamps of {sorted(timed)}")
        widest = max(int(row["complete_error_ns"]) for row in trace.rows if row["complete_error_ns"])
        require(widest < 50_000, f"an error of {widest} ns")
    return check


def real_time(trace, _):
    require(trace.counters["nic_stamps_real_time"] > 0, "no stamp in the real-time format")


def comparison_can_fail(trace, _):
    """Each single untruth in the trace is found."""
    def found(what, mutate):
        rows, counters = trace.rows, trace.counters
        trace.rows, trace.counters = [dict(row) for row in rows], dict(counters)
        mutate(trace)
        trace.counters["rows_written"] = len(trace.rows)
        try:
            Comparison(trace).run()
        except Failed:
            return
        finally:
            trace.rows, trace.counters = rows, counters
        raise Failed(f"{what} was not noticed")

    at = [i for i, row in enumerate(trace.rows) if row["queue"] == "send" and row["complete_source"] == "poll"][0]
    values = {"pid": "1", "device": "mlx5_1", "qp_num": "1", "peer_qp_num": "1", "peer": "99", "queue": "recv", "opcode": "send",
              "bytes": "63", "signaled": "", "inline": "yes", "local_addr": "0x1", "lkey": "0x1", "remote_addr": "0x1",
              "rkey": "0x1", "imm": "7", "status": "wr_flush_err", "complete_source": "nic", "index": "99999", "flags": "ambiguous",
              "time_ns": "9" * 19, "complete_ns": "1", "latency_ns": "1"}
    for name, value in values.items():
        found(f"{name} {value!r}", lambda t, name=name, value=value: t.rows[at].update({name: value}))
    found("a mark of several threads' posts", lambda t: t.rows[at].update(flags="concurrent"))
    found("an unfinished operation", lambda t: t.rows[at].update(status="unfinished"))
    found("a missing operation", lambda t: t.rows.pop(at))
    found("an operation told twice", lambda t: t.rows.insert(at, dict(t.rows[at])))
    found("a dropped record", lambda t: t.counters.update(records_dropped=1))
    Comparison(trace).run()


def map_entries(pid):
    """None where entries were deleted under the eyes of bpftool."""
    try:
        return bpf_map_entries(pid)
    except subprocess.CalledProcessError:
        return None


def forgotten_at_exec(trace, counts):
    """What stood in the rings then was copied, and nothing is kept of them while the other program runs."""
    none_missed(trace, counts)
    running = [seen for seen in trace.watched if seen and seen["targets"] > 0]  # the very last look may come behind their end
    require(running, f"nobody was seen: {trace.watched}")
    entries = running[-1]
    require(entries["ring_objects"] == 0 and entries["ring_cqs"] == 0, f"map entries of rings: {entries}")


def none_missed(trace, counts):
    """Queues that have gone before the tracer has heard of them: their end's copy has all of them."""
    require(counts["missed blocks"] == 0, f"{counts['missed blocks']} blocks in gaps")


def all_placed(trace, _):
    """Every queue pair is observed by its ring, and none is said to be missing."""
    without = [qp["qp_num"] for qp in trace.meta["qps"] if not qp["observed"]]
    require(not without, f"queue pairs without a ring: {without}")
    require("have shown no ring" not in str(trace.meta["coverage"]), "the coverage says that rings are missing")


def hooked(trace, counts):
    all_placed(trace, counts)
    none_missed(trace, counts)
    require("control plane by ib_uverbs_ioctl" in trace.said, f"the kernel was not hooked: {trace.said}")


def receives_found(trace, counts):
    """The ring of its receives' completions is found as well, whom no queue pair names where DevX made them: after the
    attach all are told but those that the library takes out, unpolled, with their queue pair."""
    completed = sum(len(cqes) for process in read_expected(trace.directory, trace.since_ns, False).values()
                    for cqes in process.receives.values())
    unread = trace.counters["ring_completions_missed"] + trace.counters["ring_records_stale"]
    require(counts["receives"] >= completed - unread, f"{counts['receives']} receives, the device completed {completed}")
    require(trace.counters["devx_completions_unplaced"] == 0, "completions of DevX queues are said not to be found")


def completions_unplaced(trace, _):
    """Of CQs that no library made nothing in memory tells the place: it is said of how many queue pairs."""
    require(trace.counters["devx_completions_unplaced"] == 2,
            f"devx_completions_unplaced: {trace.counters['devx_completions_unplaced']}")
