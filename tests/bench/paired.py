# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The same job traced in several ways, in rounds that go from one way to the next, so that what the machine does besides
falls on all alike. SideBySide: each way has a job and a tracer of its own, and all stand by. InTurn: all ways have one
job, and a tracer is attached for its turns only. Rows as in measure.h."""
import contextlib
import json
import math
import os
import statistics
import time
from dataclasses import dataclass

import traced_job
from traced_job import run_directory

# The first is what the others are compared with, the second its like: what the machine alone does.
WAYS = {
    "untraced": None,
    "untraced_again": None,
    "ring_ring": traced_job.TRACED_BY_RING,
    "probe_ring": ("--posts", "probe", "--completions", "ring"),
    "probe_probe": ("--posts", "probe", "--completions", "probe"),
    "preload": None,
}
LEAST_ROUNDS = 9
SPARSE = 4  # ways that are only told of run in every so many rounds
UNSTEADY = "the machine is too unsteady to resolve it"


def row(name, value, unit, target=None, ok=True, reason=""):
    print(json.dumps({"name": name, "value": float(f"{value:.4g}"), "unit": unit, "target": target, "ok": bool(ok),
                      **({"reason": reason} if reason else {})}), flush=True)


@dataclass
class Estimate:
    median: float
    low: float   # low..high: 95% confidence
    high: float
    count: int

    @staticmethod
    def of(values):
        """By order statistics: no assumption on the distribution."""
        values = sorted(values)
        count = len(values)
        reach = 0.98 * math.sqrt(count)
        low = max(0, math.floor(count / 2 - reach))
        high = min(count - 1, math.ceil(count / 2 + reach))
        return Estimate(statistics.median(values), values[low], values[high], count)

    @property
    def spread(self):
        return f"95% of {self.count}: {self.low:.4g} to {self.high:.4g}"


def judge(name, estimate, unit, at_least=None, at_most=None, why_not=""):
    """An interval that spans the target decides nothing. `why_not`: why it is told and not judged."""
    if why_not:
        return row(name, estimate.median, unit, reason=f"{estimate.spread}; {why_not}")
    if at_least is not None:
        good, bad, target = estimate.low >= at_least, estimate.high < at_least, at_least
    else:
        good, bad, target = estimate.high <= at_most, estimate.low > at_most, at_most
    return row(name, estimate.median, unit, target, good, estimate.spread + ("" if good or bad else "; " + UNSTEADY))


@dataclass
class Compared:
    """Of one way over some rounds, by name: rate, cpu_ns, p50_ns, p99_ns; `ratio` and `added` against the first way, round
    by round."""
    absolute: dict
    ratio: dict
    added: dict


@dataclass
class Round:
    results: dict       # by way
    near: bool | None   # job and tracer shared a cache all the time, or at neither end; None: it changed


class Rounds:
    def __init__(self, ways, figures):
        self.ways, self.figures, self.rounds = ways, figures, []

    def ratios(self, way, figure="rate"):
        return self.pairs(self.rounds, way, figure, lambda one, base: one / base)

    def pairs(self, rounds, way, figure, combine):
        return [combine(getattr(round.results[way], figure), getattr(round.results[self.ways[0]], figure))
                for round in rounds if way in round.results]

    def compared(self, way, near=None):
        """None: there are too few of these rounds to say anything."""
        rounds = [round for round in self.rounds if near is None or round.near == near]
        if sum(way in round.results for round in rounds) < LEAST_ROUNDS:
            return None
        return Compared(*({figure: Estimate.of(self.pairs(rounds, way, figure, combine)) for figure in self.figures}
                          for combine in (lambda one, base: one, lambda one, base: one / base, lambda one, base: one - base)))

    def near(self):
        return sum(round.near is True for round in self.rounds)

    def where(self):
        near, far = self.near(), sum(round.near is False for round in self.rounds)
        return f"{near} rounds of {len(self.rounds)} on cores that shared a cache, {far} on cores that did not"


class Comparison:
    """What both have in common. `turn` runs the job in one way; `warm_up` whatever a first run has to bring about."""
    FIGURES = ("rate", "cpu_ns", "p50_ns", "p99_ns")
    TURN_SECONDS = 0.15

    def __init__(self, cores, ways):
        self.cores, self.ways, self.stack = cores, list(ways), contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def compare(self, seconds, known=0.002, sparse=(), more=None, **request):
        """Rounds for `seconds`, or until the rates' ratios of all but the `sparse` ways are known to that part; but
        LEAST_ROUNDS. A sparse way runs in every SPARSE-th round only. Added to `more`, of other processes."""
        request.setdefault("seconds", self.TURN_SECONDS)
        self.warm_up(request)
        done, begun = more or Rounds(self.ways, self.FIGURES), len(more.rounds) if more else 0
        deadline, distance = time.monotonic() + seconds, self.cores.distance_ns()
        while len(done.rounds) - begun < LEAST_ROUNDS or (time.monotonic() < deadline and
                                                          not self.is_known(done, known, sparse)):
            count = len(done.rounds)
            ways = [way for way in self.ways if way not in sparse or count % SPARSE == 0]
            results = {}
            for n in range(len(ways)):
                way = ways[(n + count) % len(ways)]
                results[way] = self.turn(way, request)
            before, distance = distance, self.cores.distance_ns()
            ends = {before < traced_job.NEAR_NS, distance < traced_job.NEAR_NS}
            done.rounds.append(Round(results, ends.pop() if len(ends) == 1 else None))
        return done

    def is_known(self, done, known, sparse):
        for way in self.ways[1:]:
            if way in sparse:
                continue
            ratio = Estimate.of(done.ratios(way))
            if (ratio.high - ratio.low) / 2 > known * ratio.median:
                return False
        return True


def settle(tracers):
    """Until the tracers have done with what the last run left them: it is not the next one's."""
    def used():
        return sum(tracer.cpu().all_ns for tracer in tracers)
    for _ in range(200):
        before = used()
        time.sleep(0.01)
        if used() - before < 2_000_000:
            return


class SideBySide(Comparison):
    """`jobs`, `tracers`: by way."""

    def __init__(self, cores, ways):
        super().__init__(cores, ways)
        self.jobs, self.tracers = {}, {}

    def warm_up(self, request):
        for job in self.jobs.values():
            job.run(**request)

    def turn(self, way, request):
        settle(self.tracers.values())
        return self.jobs[way].run(**request)


class QueueJobs(SideBySide):
    def __init__(self, cores, ways, **job_options):
        super().__init__(cores, ways)
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(run_directory())
            for way in ways:
                job = stack.enter_context(traced_job.Job(os.path.join(directory, way), cores.job, preload=way == "preload",
                                                         **job_options))
                if WAYS[way]:
                    self.tracers[way] = stack.enter_context(traced_job.Tracer(job, WAYS[way], None, cores.tracer))
                job.set_up()
                self.jobs[way] = job
            self.stack = stack.pop_all()

    def untraced(self, **request):
        return self.jobs[self.ways[0]].run(**request)


class InTurn(Comparison):
    """Where a process's memory lies makes it some percent faster or slower for as long as it lives (untraced jobs against
    each other: 0.93 to 1.06); here that falls on all ways alike. `observer`: of each traced turn, the share of a core that
    the observer took, in percent. `traced_warm_s`: how long the job runs before a traced turn is measured."""
    WARM_S = 0.05

    def __init__(self, cores, ways, more=(), traced_warm_s=WARM_S, **job_options):
        super().__init__(cores, ways)
        self.more, self.traced_warm_s, self.observer = more, traced_warm_s, []
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(run_directory())
            self.job = stack.enter_context(traced_job.Job(os.path.join(directory, "job"), cores.job, **job_options))
            self.job.set_up()
            self.stack = stack.pop_all()

    def warm_up(self, request):
        self.job.run(**request)

    def turn(self, way, request):
        with contextlib.ExitStack() as stack:
            tracers = [stack.enter_context(traced_job.Tracer(self.job, [*WAYS[way], *self.more], None, self.cores.tracer))
                       ] if WAYS[way] else []
            self.job.run(**{**request, "seconds": self.traced_warm_s if tracers else self.WARM_S})
            settle(tracers)
            before = [tracer.cpu() for tracer in tracers]
            result = self.job.run(**request)
            self.observer += [1e-7 * (tracer.cpu().observer_ns - used.observer_ns) / result.seconds
                              for tracer, used in zip(tracers, before)]
            return result
