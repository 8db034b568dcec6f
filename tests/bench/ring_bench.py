#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""bench ring: what it costs a job that its queues are read, and how much of them is seen.

The job posts RDMA writes over 16 queue pairs of 1,024 slots on an emulated ConnectX without its log. It has a core, and
sigmatrace the others: on two cores that is one for all of it, its reader, its matching and its observer, and what is lost
there may be lost for want of a core. The rows' notes say what each took.

The device is where a row's question wants it (traced_job.Cores). What is judged asks what a job loses whose core is its
own, as beside a NIC: the device is apart, and with two cores it comes before sigmatrace on the other one for the moments
that it needs. The rows `seen` and `observer` tell that sigmatrace did its work in what is left. In `flat` the device
shares the job's core: then the observer is the first that takes a block's cache line from there, and on cores that share
no cache that costs the job most.

`bench_ring PART...` runs those parts only (PARTS below). All take some fifteen minutes; the job's ratios most of them.
"""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import traced_job  # noqa: E402
from paired import WAYS, Estimate, InTurn, QueueJobs, judge, row  # noqa: E402
from traced_job import run_directory, traced_run  # noqa: E402

SEEN_PERCENT = 99.9
LEAST_JOBS, MOST_JOBS, JOB_SECONDS = 6, 12, 20  # and of rounds with each
ENOUGH_NEAR = 60                               # rounds on cores that share a cache
PAUSE_US = 100                                 # of the device; a twentieth of what the job has in flight
DOORBELLS_ONLY = ("--observer-cpu", "0.1")     # so little that nothing else is left
UNTIL_PRESSED_S = 2.2                          # when it has come to that


# ---- the observer's own cost -----------------------------------------------------------------------------------------

def share(before, after, seconds):
    observer = 100e-9 * (after.observer_ns - before.observer_ns) / seconds
    everything = 100e-9 * (after.all_ns - before.all_ns) / seconds
    return observer, f"all of sigmatrace: {everything:.1f}%"


def observer_cpu(cores):
    with run_directory() as directory, traced_job.Job(f"{directory}/run", cores.job) as job, \
            traced_job.Tracer(job, traced_job.TRACED_BY_RING, None, cores.tracer) as tracer:
        job.set_up()
        for name, rate, most in (("100k", 1e5, 30), ("1m", 1e6, None)):
            before = tracer.cpu()
            seconds = job.run(seconds=3, rate=rate).seconds
            percent, note = share(before, tracer.cpu(), seconds)
            row(f"ring.observer_cpu.{name}", percent, "% of a core", most, most is None or percent < most, note)
        time.sleep(1.5)
        before, start = tracer.cpu(), time.monotonic()
        time.sleep(3)
        percent, note = share(before, tracer.cpu(), time.monotonic() - start)
        row("ring.observer_cpu.idle", percent, "% of a core", 1, percent < 1, note)


# ---- how much is seen ------------------------------------------------------------------------------------------------

def seen(cores):
    off = 0
    rows = [(f"1m_batch_{batch}", {"rate": 1e6, "batch": batch}, True) for batch in (1, 4, 16)]
    rows += [("1m_all_signaled", {"rate": 1e6, "signaled": 1}, True),
             ("1m_all_signaled_csv", {"rate": 1e6, "signaled": 1}, True),
             ("100k", {"rate": 1e5}, False), ("flat", {}, False), ("flat_all_signaled", {"signaled": 1}, False)]
    for name, request, judged in rows:
        output = "ops.csv" if name.endswith("_csv") else "trace"
        result, blocks, counters, differs, (before, after) = traced_run(cores, {"seconds": 4, **request}, output=output)
        off += differs
        observer, note = share(before, after, result.seconds)
        completions = 100 * counters["ring_completions"] / (result.operations / request.get("signaled", 16))
        percent = 100 * blocks["seen"] / result.operations
        row(f"ring.seen.{name}", percent, "% of blocks posted", SEEN_PERCENT if judged else None,
            not judged or percent >= SEEN_PERCENT,
            f"{result.rate / 1e6:.2f} M ops/s; completions {completions:.2f}%; observer {observer:.1f}%, {note}")
    row("ring.exact", off, "blocks off: seen + gaps = posted", 0, off == 0)


def looks(cores):
    for name, queues, rate in (("1_qp_100k", 1, 1e5), ("16_qps_100k", 16, 1e5), ("16_qps_1m", 16, 1e6)):
        result, _, counters, _, (before, after) = traced_run(cores, {"seconds": 3, "rate": rate}, queues=queues)
        count = max(1, counters["observer_looks"])
        row(f"ring.look.{name}", (after.observer_ns - before.observer_ns) / count / 1e3, "us CPU a look",
            reason=f"{count / result.seconds:.0f} looks/s")


# ---- what the job pays -----------------------------------------------------------------------------------------------

def work_for(modes, rate):
    """What the job must compute between two posts for its greatest rate to be just below this one."""
    work = 0
    for _ in range(4):
        work = max(0, work + 1e9 / rate - 1e9 / modes.untraced(work_ns=work).rate)
    return work


def judge_pair(name, cores, request, **options):
    """Judged is what the targets speak of, cores that share a cache; the others are told. Several processes, since what the
    observer costs may depend on where their memory lies too."""
    rounds, jobs, observer = None, 0, []
    while jobs < LEAST_JOBS or (jobs < MOST_JOBS and rounds.near() < ENOUGH_NEAR):
        with InTurn(cores, list(WAYS)[:3], **options) as turns:
            rounds, jobs = turns.compare(JOB_SECONDS, known=0, more=rounds, **request), jobs + 1
            observer += turns.observer
    row(f"{name}.untraced", rounds.compared("untraced").absolute["rate"].median / 1e6, "M ops/s", reason=rounds.where())
    share = Estimate.of(observer)
    row(f"{name}.observer", share.median, "% of a core", reason=share.spread)
    for near, suffix in ((True, ""), (False, ".far")):
        traced, again = (rounds.compared(way, near) for way in ("ring_ring", "untraced_again"))
        if traced is None:
            continue
        for what, figure, target in (("rate", "rate", {"at_least": 0.99}), ("cpu", "cpu_ns", {"at_most": 1.01}),
                                     ("p99", "p99_ns", {"at_most": 1.01})):
            judge(f"{name}.{what}{suffix}", traced.ratio[figure], "x of untraced", **target,
                  why_not="" if near else "these cores share no cache")
            judge(f"{name}.{what}_a_a{suffix}", again.ratio[figure], "x of untraced", why_not="untraced against itself")
        added = traced.added["p99_ns"]
        row(f"{name}.added_p99{suffix}", added.median, "ns/post", reason=added.spread)


def costs(cores):
    apart = {"device": cores.apart, "pause_us": PAUSE_US}
    with QueueJobs(cores, ["untraced"], **apart) as modes:
        request = {"work_ns": work_for(modes, 1.9e6)}
    row("ring.up_to_2m.work", request["work_ns"], "ns/op, the job's own")
    result, blocks, _, off, _ = traced_run(cores, {"seconds": 4, **request}, **apart)
    row("ring.up_to_2m.seen", 100 * blocks["seen"] / result.operations, "% of blocks posted",
        reason=f"{result.rate / 1e6:.2f} M ops/s, traced to files")
    row("ring.up_to_2m.exact", off, "blocks off: seen + gaps = posted", 0, off == 0)
    judge_pair("ring.up_to_2m", cores, request, **apart)


def doorbells(cores):
    """Beyond: doorbell records only, of a job whose own work is just so much that it does not wait for the device, and of
    one that posts lists."""
    apart = {"device": cores.apart, "pause_us": PAUSE_US}
    with QueueJobs(cores, ["untraced"], **apart) as modes:
        requests = {"doorbells": {"work_ns": work_for(modes, 4e6)}, "doorbells_lists": {"batch": 16}}
    for name, request in requests.items():
        result, blocks, counters, off, _ = traced_run(cores, {"seconds": 4, **request}, DOORBELLS_ONLY, **apart)
        row(f"ring.{name}.only", 100 * blocks["missed"] / blocks["posted"], "% of blocks",
            reason=f"counted and not read; {counters['observer_pressed_ms'] / 1e3:.1f} of {result.seconds:.1f} s")
        row(f"ring.{name}.exact", off, "blocks off: seen + gaps = posted", 0, off == 0)
        judge_pair(f"ring.{name}", cores, request, more=DOORBELLS_ONLY, traced_warm_s=UNTIL_PRESSED_S, **apart)


def table(cores):
    """By where the tracer's core is: with cores that share a cache, and with others."""
    with QueueJobs(cores, WAYS) as modes:
        for name, request in (("flat", {}), ("flat_batch_16", {"batch": 16})):
            rounds = modes.compare(70, known=0, **request)
            row(f"ring.{name}.rounds", len(rounds.rounds), "rounds", reason=rounds.where())
            for way in WAYS:
                for place, near in (("near", True), ("far", False)):
                    compared = rounds.compared(way, near)
                    if compared is None:
                        continue
                    prefix = f"ring.{name}.{way}.{place}"
                    row(f"{prefix}.rate", compared.absolute["rate"].median / 1e6, "M ops/s",
                        reason=f"{compared.ratio['rate'].median:.3f}x of untraced, {compared.ratio['rate'].spread}")
                    row(f"{prefix}.cpu", compared.absolute["cpu_ns"].median, "ns CPU/op")
                    row(f"{prefix}.p50", compared.absolute["p50_ns"].median, "ns/post")
                    row(f"{prefix}.p99", compared.absolute["p99_ns"].median, "ns/post")


PARTS = {"observer_cpu": observer_cpu, "looks": looks, "seen": seen, "costs": costs, "doorbells": doorbells, "table": table}


def main():
    traced_job.end_by_sigterm()
    cores = traced_job.find_cores()
    row("ring.core_to_core", cores.distance_ns(), "ns", reason=f"less than {traced_job.NEAR_NS}: they share a cache")
    for part in sys.argv[1:] or PARTS:
        PARTS[part](cores)


if __name__ == "__main__":
    main()
