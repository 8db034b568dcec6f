#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What the preloaded library reads of the producer models' queues, against what the device fetched: each request
once and with its fields, in order, and what was not seen is declared; on its own, without a tracer.

    captured_test.py --list
    captured_test.py NAME --build DIR
"""
import collections
import glob
import os
import struct
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import models_test  # noqa: E402
import named_tests  # noqa: E402
from oracle_invariants import fail, require_equal  # noqa: E402

RING, RING_POST, RING_COMPLETION, RING_GAP = range(12, 16)
BEGIN, STATE, END = 1, 2, 3
SEND, MODULO = 1, 1 << 1
Post = collections.namedtuple("Post", "index remote_addr bytes number life rkey blocks flags tier raw_opcode")
Gap = collections.namedtuple("Gap", "first count number life kind reason")
Ring = collections.namedtuple("Ring", "first posted seen missed number life flags kind event mode tier reason")
Completion = collections.namedtuple("Completion", "number counter status vendor_err")


def records_of(directory):
    """{pid: [record]}: as the library handed them out."""
    found = {}
    for path in glob.glob(os.path.join(directory, "capture.*")):
        with open(path, "rb") as file:
            data = file.read()
        out, at = [], 0
        while at < len(data):
            kind, size = struct.unpack_from("<HH", data, at + 8)
            body = data[at:at + size]
            if kind == RING:
                first, posted, seen, missed, number, life = struct.unpack_from("<4Q2I", body, 48)
                flags, ring_kind, event, _, mode, _, tier = struct.unpack_from("<H6B", body, 96)
                out.append(Ring(first, posted, seen, missed, number, life, flags, ring_kind, event, mode, tier,
                                body[104:128].split(b"\0")[0].decode()))
            elif kind == RING_POST:
                index, _, remote, _, size_bytes, number, life, _, rkey = struct.unpack_from("<3Q6I", body, 40)
                blocks, flags = struct.unpack_from("<2H", body, 114)
                tier, raw = struct.unpack_from("<2B", body, 122)
                out.append(Post(index, remote, size_bytes, number, life, rkey, blocks, flags, tier, raw))
            elif kind == RING_COMPLETION:
                number = struct.unpack_from("<I", body, 60)[0]
                out.append(Completion(number, struct.unpack_from("<H", body, 100)[0], *struct.unpack_from("<2B", body, 106)))
            elif kind == RING_GAP:
                first, count = struct.unpack_from("<2Q", body, 32)
                number, life = struct.unpack_from("<2I", body, 64)
                out.append(Gap(first, count, number, life, *struct.unpack_from("<2B", body, 74)))
            else:
                fail(f"a record of type {kind}")
            at += size
        found[int(path.rsplit(".", 1)[1])] = out
    return found


class TooBusy(Exception):
    """The machine, for the reader to be where the row wants it: the index was not certified before the queue's end, or
    nothing was seen of queues that live for a fifth of a second."""


class Rounds:
    """Where requests stand whose index may be some rounds of 65,536 short and says so: by no less than those before."""

    def __init__(self, truth, end):
        self.truth, self.end, self.short = truth, end, 0

    def find(self, post):
        first = post.index + self.short if post.flags & MODULO else post.index
        for index in range(first, self.end if post.flags & MODULO else first + 1, 1 << 16):
            wqe = self.truth.get(index)
            if wqe and self.says_of(post) == self.says_of(post, wqe):
                if post.flags & MODULO:
                    self.short = index - post.index
                return
        fail(f"queue {post.number:#x}: the device never fetched {post}; it has {self.truth.get(first)}")

    @staticmethod
    def says_of(post, wqe=None):
        has_address = post.raw_opcode in (0x08, 0x09, 0x10)
        if wqe is None:
            return post.raw_opcode, post.blocks, (post.remote_addr, post.bytes) if has_address else None
        return wqe.opcode, wqe.basic_blocks, (wqe.remote_address, wqe.bytes) if has_address else None


def judge(run, records, row, was_lapped):
    """All queues in device memory. `was_lapped`: the reader was held up behind a certified index, for as long as the row
    wants it."""
    if row.lapped and not was_lapped:
        raise TooBusy
    totals = collections.Counter()
    rings = [each for each in records if isinstance(each, Ring) and each.kind == SEND]
    numbers = {each.number for each in rings if each.tier in (2, 3, 5)}
    if not numbers:
        fail("no queue was read")
    tiers = {each.tier for each in rings if each.event == BEGIN}
    require_equal("tiers", tiers, row.tiers)
    reasons = {each.reason for each in rings if each.event == BEGIN and each.tier == 3}
    if not reasons <= set(row.reasons):
        fail(f"reasons for tier 3: {reasons}")
    for number in numbers:
        ends = [each for each in rings if each.number == number and each.event == END]
        if row.lapped and (not ends or ends[0].reason == "its end was not seen"):
            raise TooBusy  # too late, and the job is gone
        require_equal(f"ends of queue {number:#x}", len(ends), 1)
        truth, at = {}, 0
        for wqe in run.wqes[number]:
            at += (wqe.position - at) & 0xffff
            truth[at] = wqe
            at += wqe.basic_blocks
        covered, rounds = [], Rounds(truth, at)
        for each in records:
            if isinstance(each, Post) and each.number == number:
                rounds.find(each)
                covered.append((each.index, each.index + each.blocks))
                totals["seen"] += each.blocks
            elif isinstance(each, Gap) and each.number == number and each.kind == SEND:
                covered.append((each.first, each.first + each.count))
                totals["missed"] += each.count
        place = ends[0].first
        for begin, end in sorted(covered):
            require_equal(f"queue {number:#x}: the next index", begin, place)
            place = end
        require_equal(f"queue {number:#x}: seen and missed", ends[0].seen + ends[0].missed, ends[0].posted)
        # What was posted when the queue ended is what the device had fetched; unless the library had to let it go.
        # Without a doorbell record it never knows.
        may_not_know = row.environment and row.tiers != {2} or row.model == "doca_no_dbr"
        if ends[0].reason == "its end was not seen" and may_not_know and place < at:
            totals["not known of"] += at - place
        elif ends[0].flags & MODULO and not row.lapped:  # by rounds that went by unseen, and it says so
            require_equal(f"queue {number:#x}: posted, modulo 65,536", place & 0xffff, at & 0xffff)
            if not rounds.short <= at - place:
                fail(f"queue {number:#x}: posted {place}, of {at}, and a request was told {rounds.short} further on")
        else:
            require_equal(f"queue {number:#x}: posted", place, at)
        for each in records:
            if isinstance(each, Completion) and each.number == number:
                require_equal("status", each.status, 0)
    if row.lapped and max((each.count for each in records if isinstance(each, Gap)), default=0) < 65_536:
        fail("no round of 65,536 was missed")
    print(f"{len(numbers)} queues: {totals['seen']} blocks seen, {totals['missed']} missed, "
          f"{totals['not known of']} not known of")
    if totals["seen"] == 0:
        raise TooBusy


class Row:
    """`reasons`: why tier 3, where it is. `command`: another one than the model's row has. `lapped`: the reader misses a
    round of 65,536 blocks, which the stack's own index tells."""

    def __init__(self, model, environment=None, tiers=(3,), reasons=("no libgdrapi.so.2",), command=None, lapped=False):
        self.model, self.environment = model, environment or {}
        self.command, self.lapped = command, lapped
        self.tiers, self.reasons = set(tiers), reasons


STALLS = {"SIGMA_CUDA_STALL": "0.02:5", "SIGMA_CUDA_JITTER_US": "50", "SIGMA_CUDA_SEED": "7"}
MAPPED = {"LD_LIBRARY_PATH": "{build}/fake_cuda:{build}/fake_gdrcopy"}
LAPPED = {"SIGMA_GPU_CAPTURE_LAP": "66000", "SIGMATRACE_GPU_MOST_POSTS": "5000000"}
TESTS = {
    **{model: Row(model) for model in ("nvshmem_rc", "nvshmem_dci", "nvshmem_wraps", "doca_db", "doca_no_dbr", "ucx_gda",
                                       "deepep", "mooncake")},
    "doca_stalls": Row("doca_wraps", STALLS),
    # One large ring: NOPs are posted a quarter of it at a time.
    **{f"{model}_lapped{suffix}": Row(model + "_wraps", {**LAPPED, **mapped}, tiers=(tier,), lapped=True,
                                      command=f"{model} --start 150000 --operations 200 --queues 1 --depth 256")
       for model, mapped, tier, suffix in (("nvshmem", {}, 3, ""), ("nvshmem", MAPPED, 2, "_mapped"), ("ucx_gda", {}, 3, ""))},
    "nvshmem_snapshot": Row("nvshmem_rc", {"SIGMATRACE_GPU_TIER": "5"}, tiers=(5,)),
    **{f"{model}_mapped": Row(model, MAPPED, tiers=(2,))
       for model in ("nvshmem_dci", "doca_db", "doca_no_dbr", "ucx_gda", "deepep", "mooncake")},
    "nvshmem_coherent": Row("nvshmem_rc", {"SIGMA_CUDA_COHERENT": "1"}, tiers=(2,)),
    # Not enough of the BAR for all: the rest is copied, and it is said why.
    "nvshmem_partly_mapped": Row("nvshmem_rc", {**MAPPED, "SIGMA_GDR_PINS": "3"}, (2, 3), ("gdrcopy cannot pin it",)),
}


def execute(name, build):
    for _ in range(16):
        try:
            return execute_once(name, build)
        except TooBusy:
            print("the machine was too busy: once more")
    fail("nothing was seen, or the index was never certified")


def execute_once(name, build):
    row = TESTS[name]
    test = models_test.TESTS[row.model]
    library = os.path.join(build, "lib", "libsigmatrace_gpu.so")
    os.environ["LD_PRELOAD"] = f"{library} {os.path.join(build, 'tests', 'libgpu_capture.so')}"
    with tempfile.TemporaryDirectory(prefix="sigma-capture-") as directory:
        def judged(run):
            found = records_of(directory)
            require_equal("processes that were read", len(found), 1)
            judge(run, next(iter(found.values())), row, os.path.exists(os.path.join(directory, "capture-lapped")))
        own = {name: value.replace("{build}", build) for name, value in row.environment.items()}
        environment = {**test.environment, **own, "SIGMA_GPU_CAPTURE": os.path.join(directory, "capture")}
        models_test.TESTS[name] = models_test.Test(row.command or " ".join(test.command), judged, environment, test.complete,
                                                   test.device_options)
        models_test.execute(name, os.path.join(build, "tests", "models"))


if __name__ == "__main__":
    named_tests.main(__doc__, TESTS, execute)
