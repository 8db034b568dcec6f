#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What jobs do to their queues beside posting (models/lives.cpp), while the preloaded library reads them: the job ends as
without it, with its own data right; each life of a queue is told by itself, with nothing of another in it, and what was
not seen of it is declared.

    safety_test.py --list
    safety_test.py NAME --build DIR
"""
import collections
import os
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
from captured_test import BEGIN, END, SEND, Completion, Gap, Post, Ring, records_of  # noqa: E402
from models_test import EMULATOR, TIMEOUT_S  # noqa: E402
import named_tests  # noqa: E402
import oracle  # noqa: E402
from oracle_invariants import check_invariants, fail, require_equal  # noqa: E402

ENDLESS = "its end was not seen"


def lives_of(wqes):
    """The device's lives of each number that were posted to, in their order: [(number, [WQE])]."""
    found = {}
    for wqe in wqes:
        found.setdefault((wqe.qpn, wqe.life), []).append(wqe)
    return found


def told_lives(records):
    found = collections.defaultdict(list)
    for each in records:
        if isinstance(each, Post) or (isinstance(each, (Gap, Ring)) and each.kind == SEND):
            found[each.number, each.life].append(each)
    return found


def judge_life(name, told, wqes, whole):
    """One life against what the device fetched of it. Returns how much was seen."""
    truth = {wqe.position: wqe for wqe in wqes}
    end = max(wqe.position + wqe.basic_blocks for wqe in wqes) if wqes else 0
    last = [each for each in told if isinstance(each, Ring)][-1]
    covered = []
    for each in told:
        if isinstance(each, Post):
            wqe = truth.get(each.index)
            if wqe is None:
                fail(f"{name}: a request at {each.index} that the device never fetched; there are {end}")
            require_equal(f"{name}: at {each.index}", (each.raw_opcode, each.blocks, each.remote_addr, each.bytes),
                          (wqe.opcode, wqe.basic_blocks, wqe.remote_address, wqe.bytes))
            covered.append((each.index, each.index + each.blocks))
        elif isinstance(each, Gap):
            covered.append((each.first, each.first + each.count))
    place = last.first
    for begin, until in sorted(covered):
        require_equal(f"{name}: the next index", begin, place)
        place = until
    if whole:
        require_equal(f"{name}: its last record", (last.event, last.reason == ENDLESS), (END, False))
        require_equal(f"{name}: posted, from {last.first} on", place, end)
        require_equal(f"{name}: the first index", last.first, 0)
    elif place > end:
        fail(f"{name}: told up to {place} of {end}")
    return sum(1 for each in told if isinstance(each, Post))


def compare(run, records, whole=True, missing=()):
    """Lives of one number come in the same order in both; one that was not posted to may be in the records alone."""
    told, real = told_lives(records), lives_of(run.wqes)
    seen = 0
    for number in {number for number, _ in real}:
        ours = [told[key] for key in sorted(told) if key[0] == number]
        ours = [life for life in ours if any(each.posted for each in life if isinstance(each, Ring))
                or any(isinstance(each, (Post, Gap)) for each in life)]
        theirs = [real[key] for key in real if key[0] == number]
        if not ours and all((number, at) in missing or not whole for at in range(len(theirs))):
            continue
        if len(ours) != len(theirs):
            fail(f"lives of {number:#x}: {len(ours)}, expected {len(theirs)}: {[each for each in records if isinstance(each, Ring)]}")
        for at, (one, other) in enumerate(zip(ours, theirs)):
            expected = whole and (number, at) not in missing
            seen += judge_life(f"{number:#x}, life {at}", one, other, expected)
    if whole and not seen:
        fail("nothing was seen")
    for each in records:
        if isinstance(each, Completion):
            require_equal("status", each.status, 0)
    print(f"{len(real)} lives, {seen} of {len(run.wqes)} requests seen")


class Run:
    def __init__(self, scenario, environment, build):
        self.base = tempfile.TemporaryDirectory(prefix="sigma-safety-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.directory = os.path.join(self.base.name, "run")
        library = os.path.join(build, "lib", "libsigmatrace_gpu.so")
        capture = os.path.join(build, "tests", "libgpu_capture.so")
        self.before, self.after = (os.path.join(self.base.name, name) for name in ("before", "after"))
        for path in (self.before, self.after):
            os.mkdir(path)
        cuda = os.path.join(build, "fake_cuda")
        values = {"SIGMA_GPU_CAPTURE": os.path.join(self.before, "capture"),
                  "SIGMA_LIVES_CAPTURE_AFTER": os.path.join(self.after, "capture"),
                  "SIGMA_GDR_LOG": os.path.join(self.base.name, "gdr"), "SIGMA_CONNECTX_REUSE": "1",
                  "SIGMATRACE_GPU_WAIT_MS": "10000",  # on a loaded machine a last look takes its time
                  "LD_LIBRARY_PATH": cuda, **environment}
        values = {name: value.replace("{build}", build).replace("{cuda}", cuda) for name, value in values.items()}
        words = [os.path.join(EMULATOR, "connectx-run"), "--dir", self.directory, "--realtime", "--timeout", str(TIMEOUT_S)]
        words += [word for pair in values.items() for word in ("--env", "=".join(pair))]
        words += ["--", os.path.join(build, "tests", "models", "lives"), scenario]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              env={**os.environ, "LD_PRELOAD": f"{library} {capture}"})
        self.output = done.stdout
        print(self.output, end="")
        require_equal("status", done.returncode, 0)
        if "ok" not in self.output.splitlines():
            fail("the job did not come to its end")
        check_invariants(self.directory)
        self.logs = [list(oracle.read_log(path)) for path in oracle.log_paths(self.directory)]
        self.wqes = [each for log in self.logs for each in log if each.type == "send_wqe"]

    def records(self):
        found = records_of(self.before)
        require_equal("processes that told of queues", len(found), 1)
        return next(iter(found.values()))


def lives(run):
    """Resets, a fork, a refused free, numbers and addresses that come again: all of each life is told. Then an exec."""
    require_equal("images", len(run.logs), 2)
    if "after: ok" not in run.output:
        fail("the image after the exec did not come to its end")
    records = run.records()
    run.wqes = [each for each in run.logs[0] if each.type == "send_wqe"]
    last = list(lives_of(run.wqes))[-1]
    # The last life of all ends with the image.
    own = [key for key in lives_of(run.wqes) if key[0] == last[0]]
    # A queue whose memory's free was refused is a new life from there on, in the middle of its indices.
    refused = [key for key in told_lives(records) if key[0] not in {last[0]}]
    del refused
    compare_lives(run, records, {last[0]: len(own) - 1})
    after = records_of(run.after)
    require_equal("images that told of queues after", len(after), 1)
    run.wqes = [each for each in run.logs[1] if each.type == "send_wqe"]
    compare(run, next(iter(after.values())))


def compare_lives(run, records, endless):
    """As compare(), but the second queue is told in two lives: its memory's free was refused in between."""
    told, real = told_lives(records), lives_of(run.wqes)
    numbers = sorted({number for number, _ in real})
    kept = numbers[1]
    parts = [key for key in sorted(told) if key[0] == kept]
    require_equal("lives told of the queue whose free was refused", len(parts), 2)
    first, second = (told[key] for key in parts)
    posts = real[next(key for key in real if key[0] == kept)]
    cut = [each for each in first if isinstance(each, Ring)][-1].posted
    judge_life("before the refusal", first, [wqe for wqe in posts if wqe.position < cut], True)
    require_equal("before the refusal", cut, 130)
    begin = [each for each in second if isinstance(each, Ring)][-1]
    require_equal("taken up where it stood", (begin.first, begin.posted), (130, 30))
    require_equal("after the refusal", sorted(each.index for each in second if isinstance(each, Post)), list(range(130, 160)))
    run.wqes = [wqe for wqe in run.wqes if wqe.qpn != kept]
    compare(run, [each for each in records if getattr(each, "number", None) != kept or isinstance(each, Completion)],
            missing=set(endless.items()))


def ended_context(stalled=False):
    """The queues end with the context, whatever was known of them then; those after it are told whole."""
    def judge(run):
        lives_told = lives_of(run.wqes)
        last = list(lives_told)[-1]
        compare(run, run.records(), not stalled, {(number, 0) for number, _ in lives_told if number != last[0]})
    return judge


def seen_by_signal(run):
    """At a signal all that stands in the rings is told: of the first 60 requests the last 32, which no later look could see."""
    records = run.records()
    compare(run, records)
    seen = {each.index for each in records if isinstance(each, Post)}
    require_equal("told at the signal", seen >= set(range(32, 60)), True)


def left(run):
    """The process ends, however the copies stand."""
    compare(run, run.records(), whole=False)


def torn(run):
    """The queue whose memory is gone is given up, or, where the reader came to it only as the queue was destroyed, its end is
    not seen; the other goes on; nothing faults."""
    records = run.records()
    gone = [each for each in records if isinstance(each, Ring) and each.reason in ("its memory is gone", ENDLESS)]
    require_equal("queues given up", len({each.number for each in gone}), 1)
    compare(run, records, missing={(gone[0].number, 0)})


def twice(run):
    """The second end of all that a queue had changes nothing: no queue is there again, the others are told whole."""
    records = run.records()
    compare(run, records)
    begins = collections.Counter((each.number, each.life) for each in records
                                 if isinstance(each, Ring) and each.kind == SEND and each.event == BEGIN)
    require_equal("lives", (len(begins), set(begins.values())), (3, {1}))


def unmapped(judge):
    """And no mapping is left."""
    def judged(run):
        judge(run)
        require_equal("tiers", {each.tier for each in run.records() if isinstance(each, Ring) and each.kind == SEND} - {0}, {2})
        with open(os.path.join(run.base.name, "gdr"), encoding="ascii") as file:
            told = [line.split() for line in file]
        require_equal("pinned, mapped at the end", {(words[3], words[5]) for words in told}, {("0", "0")})
        if all(words[1] == "0" for words in told):
            fail("nothing was ever pinned")
    return judged


MAPPED = {"LD_LIBRARY_PATH": "{cuda}:{build}/fake_gdrcopy"}
STALLED = {"SIGMA_CUDA_STALL": "0.2:30", "SIGMA_CUDA_JITTER_US": "300", "SIGMA_CUDA_SEED": "7"}
TESTS = {
    "lives": ("lives", lives, {}),
    "context": ("context", ended_context(), {}),
    "context_stalled": ("context", ended_context(stalled=True), {**STALLED, "SIGMATRACE_GPU_WAIT_MS": "20"}),
    "signal": ("signal", seen_by_signal, {"SIGMATRACE_GPU_TIER": "5", "SIGMATRACE_GPU_SIGNAL": str(int(signal.SIGUSR2))}),
    "exit": ("exit", left, {"SIGMA_CUDA_STALL": "0.5:3000", "SIGMA_CUDA_SEED": "7", "SIGMATRACE_GPU_WAIT_MS": "20"}),
    **{f"held_at_exit{suffix}": ("exit", left, {**mapped, "SIGMA_GPU_CAPTURE_HOLD": "1", "SIGMATRACE_GPU_WAIT_MS": "20"})
       for suffix, mapped in (("", {}), ("_mapped", MAPPED))},
    "torn": ("torn", torn, {}),
    "twice": ("twice", twice, {}),
    "twice_mapped": ("twice", twice, MAPPED),
    "lives_mapped": ("lives", lives, MAPPED),
    "context_mapped": ("context", ended_context(), MAPPED),
    "torn_mapped": ("torn", unmapped(torn), MAPPED),
}


def execute(name, build):
    scenario, judge, environment = TESTS[name]
    judge(Run(scenario, environment, build))


if __name__ == "__main__":
    named_tests.main(__doc__, TESTS, execute)
