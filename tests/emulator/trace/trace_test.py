#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What sigmatrace says of real applications on emulated devices, against what the devices did.

    trace_test.py --list
    trace_test.py NAME --sigmatrace FILE --workloads DIR [--keep DIR]       (the library by SIGMA_CONNECTX_LIBRARY)

Each test is a row of TESTS: how to run, and what must hold (trace_judges.py) beyond trace = oracle (compare.py).
--keep leaves the run and its trace there.
"""
import collections
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import named_tests  # noqa: E402
from compare import Comparison  # noqa: E402
from trace_judges import (  # noqa: E402
    all_placed, churned, comparison_can_fail, completions_unplaced, errors, flat,
    forgotten_at_exec, hooked, inferred, inline, lives, lost, map_entries, missed, much_of, none_missed,
    none_passed, paced_link, post_full, pressed, real_time, receives_found, recovered, require, scattered,
    sessions_found, slow_peer, stamps, Stop, threads, tracer_memory, two_threads, typed)
from traced_run import Failed, remove, run_late, run_started, run_traced  # noqa: E402


PROBES = ("--posts", "probe", "--completions", "probe")


class Test:
    """`least`: send operations; `check(trace, counts)`: what else must hold; `differs`: the comparison must fail, saying
    this; `watch`, `by_name`: see run_traced; `by_run`: see run_started. The rest as for Comparison."""

    def __init__(self, run_options, command, least, check=None, trace_options=PROBES, clock_error_ns=0, differs=None, watch=None,
                 by_name=False, by_run=False, **comparison):
        self.by_name, self.by_run = by_name, by_run
        self.run_options, self.command, self.least = run_options, command, least
        self.check, self.trace_options, self.comparison = check, trace_options, comparison
        self.clock_error_ns, self.differs, self.watch = clock_error_ns, differs, watch

    def with_options(self, *run_options):
        self.run_options = [*self.run_options, *run_options]
        return self

    late = False  # the program runs already when the tracer comes
    in_guest = False  # hooks the kernel: where that can be (tests/vm/scenarios/late_contexts.py)
    compared = True  # else only what `check` says
    sends = None  # likewise: it is stopped after so many sends; else it waits by itself

    def but(self, trace_options, **comparison):
        return Test(self.run_options, self.command, self.least, self.check, trace_options, self.clock_error_ns, self.differs,
                    self.watch, **{**self.comparison, **comparison})


def pair(command, least, *options, check=None, **comparison):
    """Server and client with the same arguments."""
    words = command.split()
    server = f"{words[0]} -p {{port}} {' '.join(words[1:])}"
    return Test(["--server", server, *options], [words[0], "-p", "{port}", *words[1:], "localhost"], least, check, **comparison)


def single(command, least, *options, check=None, **more):
    return Test(list(options), command.split(), least, check, **more)


def ucx(tls, least):
    """UCX ends its queue pairs with completions that nobody polls."""
    environment = ["--env", f"UCX_TLS={tls}", "--env", "UCX_NET_DEVICES=mlx5_0:1"]
    client = "ucx_perftest -p {port} -t tag_lat -s 8 -n 300 -w 10 localhost".split()
    return Test(["--server", "ucx_perftest -p {port}", *environment], client, least, unfinished=True, some_unindexed=True)


def mpi(ranks, tls, least, **how):
    command = ("mpirun --allow-run-as-root --oversubscribe -np {} --mca pml ucx --mca osc ucx --mca btl ^openib "
               "{{workloads}}/mpi_check").format(ranks).split()

    def check(trace, _):
        senders = {row["pid"] for row in trace.rows if row["queue"] == "send"}
        require(len(senders) == ranks, f"{len(senders)} processes sent, not {ranks}")
    return Test(["--env", f"UCX_TLS={tls}"], command, least, check, unfinished=True, some_unindexed=True, **how)


NO_CHECK = (*PROBES, "--no-post-check")

TESTS = {
    "comparison_can_fail": pair("ib_write_bw -n 200 -s 64", 200, check=comparison_can_fail),
    "rc_pingpong_events": pair("ibv_rc_pingpong -n 300 -e", 600),
    # With -e as well the program gives up at the first event whose completion it has already polled.
    "rc_pingpong_time_stamps": pair("ibv_rc_pingpong -n 300 -t", 600, source="nic"),
    # Extended CQs: variants of start_poll and next_poll; two devices whose clocks drift apart.
    "extended_poll": single("env VERBS_POLL=extended {workloads}/verbs_data mlx5_0 mlx5_1 600 5", 600, "--devices", "2",
                            some_unindexed=True, source="nic"),
    "extended_poll_stamps": single("env VERBS_POLL=stamps {workloads}/verbs_data mlx5_0 mlx5_1 600 6", 600, "--devices", "2",
                                   "--link", "eth", some_unindexed=True, source="nic", check=stamps(2)),
    "extended_poll_single": single("env VERBS_POLL=stamps_single {workloads}/verbs_data mlx5_1 mlx5_0 600 7", 600,
                                   "--devices", "2", some_unindexed=True, source="nic", check=stamps(2)),
    "extended_poll_wall_clock": single("env VERBS_POLL=wall_clock {workloads}/verbs_data mlx5_0 mlx5_0 300 8", 300,
                                       some_unindexed=True, check=real_time),
    "extended_poll_threads": single("env VERBS_POLL=extended {workloads}/verbs_threads mlx5_0 8 64 50 3", 3200, source="nic",
                                    check=threads),
    # A clock that is read 5 us wrongly does not go unnoticed.
    "extended_poll_wrong_clock": single("env VERBS_POLL=stamps {workloads}/verbs_data mlx5_0 mlx5_0 300 9", 300,
                                        some_unindexed=True, source="nic", clock_error_ns=5000, differs="ns off, stated error"),
    "extended_poll_errors": single("env VERBS_POLL=stamps {workloads}/verbs_errors mlx5_0 access", 3, check=errors, source="nic"),
    "rc_pingpong_roce": pair("ibv_rc_pingpong -n 200 -e -g 3", 400, "--link", "eth"),
    "ud_pingpong_events": pair("ibv_ud_pingpong -n 300 -e -s 1024", 600),
    "ud_pingpong_roce": pair("ibv_ud_pingpong -n 300 -e -g 3 -s 1024", 600, "--link", "eth"),
    "srq_pingpong_events": pair("ibv_srq_pingpong -n 300 -e", 600, unfinished=True),
    "write_bw": pair("ib_write_bw -n 2000 -s 4096", 2000),
    "write_bw_old_post": pair("ib_write_bw -n 2000 -s 4096 --use_old_post_send", 2000),
    "write_bw_inline": pair("ib_write_bw -n 1000 -s 150 -I 200", 1000, check=inline),
    "write_bw_inline_old_post": pair("ib_write_bw -n 1000 -s 150 -I 200 --use_old_post_send", 1000, check=inline),
    "write_bw_lists": pair("ib_write_bw -n 1000 -s 64 -l 4", 1000),
    "write_bw_lists_old_post": pair("ib_write_bw -n 1000 -s 64 -l 4 --use_old_post_send", 1000),
    "write_bw_all_options": pair("ib_write_bw -n 400 -s 64 -q 4 -b -l 8 -Q 8 -I 100", 3200),
    "write_bw_all_options_old_post": pair("ib_write_bw -n 400 -s 64 -q 4 -b -l 8 -Q 8 -I 100 --use_old_post_send", 3200),
    "write_bw_moderation": pair("ib_write_bw -n 2000 -s 64 -Q 50", 2000, check=inferred),
    "write_bw_moderation_old_post": pair("ib_write_bw -n 2000 -s 64 -Q 50 --use_old_post_send", 2000, check=inferred),
    "write_bw_qps_both": pair("ib_write_bw -n 300 -s 1024 -q 8 -b", 4800),
    "send_bw_events": pair("ib_send_bw -n 500 -s 1024 -e", 500),
    "read_bw": pair("ib_read_bw -n 1000 -s 4096", 1000),
    "read_bw_old_post": pair("ib_read_bw -n 1000 -s 4096 --use_old_post_send", 1000),
    "send_bw": pair("ib_send_bw -n 1000 -s 1024", 1000),
    "send_bw_srq": pair("ib_send_bw -n 1000 -s 512 --use-srq", 1000),
    "send_bw_srq_qps_old_post": pair("ib_send_bw -n 500 -s 512 -q 2 --use-srq --use_old_post_send", 1000),
    "send_bw_ud": pair("ib_send_bw -n 300 -s 1024 -c UD -r 512", 300),
    "send_bw_ud_roce": pair("ib_send_bw -n 300 -s 1024 -c UD -r 512 -x 3", 300, "--link", "eth"),
    "send_bw_ud_old_post": pair("ib_send_bw -n 300 -s 1024 -c UD -r 512 --use_old_post_send", 300),
    "atomic_bw_fadd": pair("ib_atomic_bw -n 1000", 1000),
    "atomic_bw_cas_old_post": pair("ib_atomic_bw -n 1000 -A CMP_AND_SWAP --use_old_post_send", 1000),
    "write_lat": pair("ib_write_lat -n 300 -s 8", 600),
    "send_lat_events": pair("ib_send_lat -n 300 -s 8 -e", 600),
    "ucx_rc_verbs": ucx("rc_v,self", 600),
    "ucx_ud_verbs": ucx("ud_v,self", 600),
    "mpi_rc_verbs": mpi(4, "rc_v,ud_v,self", 100),
    "mpi_ud_verbs": mpi(4, "ud_v,self", 100),
    # mpirun is not known to the tracer: its ranks are found by their name, at their first call.
    "mpi_by_name": mpi(4, "rc_v,ud_v,self", 100, by_name=True),
    # `sigmatrace run` starts it: the ranks are children of mpirun's.
    "mpi_by_run": mpi(2, "rc_v,ud_v,self", 50, by_run=True),
    "threads": single("{workloads}/verbs_threads mlx5_0 8 64 50 2", 3200, check=threads),
    "churn": single("{workloads}/verbs_churn mlx5_0 1000 3", 3000, check=churned(2000), unfinished=True),
    "churn_10000": single("{workloads}/verbs_churn mlx5_0 5000 2", 10000, check=lambda *a: (churned(10000)(*a), flat(*a)),
                          watch=tracer_memory, unfinished=True),
    "churn_same_numbers": single("{workloads}/verbs_churn mlx5_0 300 3", 900, "--env", "SIGMA_CONNECTX_REUSE_QPN=1",
                                 check=churned(600), unfinished=True),
    "verbs_data_roce": single("{workloads}/verbs_data mlx5_0 mlx5_1 1500 9", 1000, "--devices", "2", "--link", "eth", some_unindexed=True),
    # Payloads over the CQE's first fields, as libmlx5 gets them from hardware by default.
    "scatter_to_cqe": single("{workloads}/verbs_data mlx5_0 mlx5_0 1500 17 signal_all", 1000, "--env", "SIGMA_CONNECTX_SCATTER_CQE=1", check=scattered),
    **{f"errors_{name}": single(f"{{workloads}}/verbs_errors mlx5_0 {name}", 3, check=errors)
       for name in ("access", "bounds", "protection", "length", "rnr", "retry", "link_down")},
    "losses": single("{workloads}/verbs_data mlx5_0 mlx5_0 150 11", 100, "--env", "SIGMA_CONNECTX_DROP=0.05", check=lost),
    "slow_peer": pair("ib_write_bw -n 200 -s 64", 200, "--env", "SIGMA_CONNECTX_DELAY_US=3000",
                      "--client-env", "SIGMA_CONNECTX_DELAY_US=0", check=slow_peer(3000)),
    "paced": pair("ib_write_bw -n 200 -s 65536", 200, "--env", "SIGMA_CONNECTX_GBPS=1", check=paced_link(1)),
    "rnr_recovers": single("{workloads}/verbs_errors mlx5_0 rnr_recovers", 3, check=recovered),
    "reset": single("{workloads}/verbs_errors mlx5_0 reset", 33, check=lambda *a: (errors(*a), lives(*a))),
    "sqd": single("{workloads}/verbs_errors mlx5_0 sqd", 2),
    "post_full": single("{workloads}/post_full mlx5_0 60 1", 1000, check=post_full(False)),
    "post_full_lists": single("{workloads}/post_full mlx5_0 60 7", 1000, check=post_full(True)),
    "post_full_no_check": single("{workloads}/post_full mlx5_0 60 1", 1000, check=post_full(False), trace_options=NO_CHECK),
    "post_full_lists_no_check": single("{workloads}/post_full mlx5_0 60 7", 1000, check=post_full(True),
                                       trace_options=NO_CHECK),
    "two_threads_one_qp": single("{workloads}/post_full mlx5_0 2000 1 threads", 4000, check=two_threads),
    "threads_shared_qps": single("{workloads}/verbs_threads mlx5_0 4 4 500 2 shared", 2000),
    "cq_resize": single("{workloads}/verbs_errors mlx5_0 resize", 30, check=none_passed),
}


# The same programs, seen in other ways; beside the rows above, which are probe and probe.
PROBE_RING = dict(trace_options=(), source="ring")  # what `auto` is on mlx5
RING_RING = dict(trace_options=("--posts", "ring", "--completions", "ring"), source="ring", sources=("ring",))


def seen_otherwise():
    rows = {}
    for name in ("rc_pingpong_events", "rc_pingpong_roce", "ud_pingpong_roce", "srq_pingpong_events", "write_bw", "write_bw_old_post",
                 "write_bw_inline", "write_bw_lists", "write_bw_lists_old_post", "write_bw_all_options", "write_bw_moderation",
                 "write_bw_qps_both", "send_bw_events",
                 "read_bw", "send_bw", "send_bw_srq", "atomic_bw_fadd", "atomic_bw_cas_old_post", "threads", "churn",
                 "churn_same_numbers", "verbs_data_roce", "scatter_to_cqe", "errors_access", "errors_rnr", "reset",
                 "cq_resize"):
        rows[f"{name}.probe_ring"] = TESTS[name].but(**PROBE_RING)
    for name in ("rc_pingpong_events", "ud_pingpong_roce", "write_bw", "write_bw_inline", "write_bw_moderation", "write_bw_qps_both",
                 "read_bw", "send_bw", "send_bw_srq", "atomic_bw_fadd", "churn", "churn_same_numbers", "scatter_to_cqe",
                 "errors_access", "reset", "cq_resize"):
        rows[f"{name}.ring_ring"] = TESTS[name].but(**RING_RING)
    return rows


def paced(arguments, posts, check, options=(), **more):
    return single(f"{{workloads}}/verbs_paced mlx5_0 {arguments}", posts, check=check, **more).but(
        **{**RING_RING, "trace_options": (*RING_RING["trace_options"], *options)})


def observed():
    """Rings read at a rate, with the reader held still, and across what 16 bits tell apart."""
    stop = Stop()
    return {
        # 16 rings of 1,024 slots; the reader may take what it needs.
        "paced_100k": paced("16 256 16 100000 102400", 102400, much_of(102400), ("--observer-cpu", "100")),
        "paced_wrap": paced("1 256 16 50000 70000", 70000, None),
        "stopped": paced(f"4 256 16 20000 4032 20032 4032 {Stop.prefix}", 28096, missed(8000), watch=stop),
        # 65,536 blocks pass unseen, twice: the completion ring's counter tells.
        "stopped_lapped": paced(f"1 256 16 20000 4000 150000 4000 {Stop.prefix}", 158000, missed(140000), watch=stop),
        # 65,536 and more pass unseen of both, and which completions were whose is not known.
        "stopped_lapped_shared": paced(f"2 256 16 20000 4000 150016 4000 {Stop.prefix}", 26944, missed(10000), watch=stop,
                                       modulo=True),
        # So little time for the reader that it only counts for a while.
        "observer_bound": paced("16 256 16 20000 81920", 81920, pressed, ("--observer-cpu", "0.05")),
        "churn_reset.probe_ring": single("{workloads}/verbs_churn mlx5_0 1000 3 reset", 3000, unfinished=True).but(**PROBE_RING),
        "churn_reset.ring_ring": single("{workloads}/verbs_churn mlx5_0 1000 3 reset", 3000, unfinished=True).but(**RING_RING),
        "exec.ring_ring": Test([], ["sh", "-c", "for i in $(seq 8); do {workloads}/verbs_churn mlx5_0 3 5 exec & done; wait"], 120,
                               check=forgotten_at_exec, watch=map_entries, unfinished=True, ends_unseen=True).but(**RING_RING),
        "processes.probe_ring": Test([], ["sh", "-c", "for i in $(seq 1000); do {workloads}/verbs_churn mlx5_0 1 5 || exit 1; done"],
                                     5000).but(**PROBE_RING),
        "mpi_rc_mlx5": mpi(2, "rc_x,self", 50).but((), source="ring", sources=("ring",)),
    }


def ucx_direct(test, least, devx, size=8, tls="rc_x,self", iterations=500):
    """UCX's own way to the device: no function of libibverbs posts."""
    environment = ["--env", f"UCX_TLS={tls}", "--env", "UCX_NET_DEVICES=mlx5_0:1"]
    if not devx:
        environment += ["--env", "UCX_IB_MLX5_DEVX=n"]
    client = f"ucx_perftest -p {{port}} -t {test} -s {size} -n {iterations} -w 10 localhost".split()
    return Test(["--server", "ucx_perftest -p {port}", *environment], client, least, unfinished=True,
                source="ring", sources=("ring",), trace_options=PROBE_RING["trace_options"])


def devx_rows():
    """Queues that a program makes by firmware commands and drives by itself; or that it made by verbs."""
    rows = {"mlx5dv_post": single("{workloads}/mlx5dv_post mlx5_0 1000 7", 1000).but((), source="ring", sources=("ring",))}
    for form in ("plain", "collapsed"):
        direct = dict(source="ring", sources=("ring",), uncounted=True)
        rows[f"devx_{form}"] = single(f"{{workloads}}/devx_queues mlx5_0 300 {form}", 2700).but((), **direct)
        rows[f"devx_short_{form}"] = single(f"{{workloads}}/devx_queues mlx5_0 1 {form} 100", 900, check=none_missed).but((), **direct)
    return rows


def devx_targets():
    """DCTs that UCX makes by firmware commands: none of them is older than the tracer."""
    rows = {}
    for test in ("tag_lat", "ucp_put_lat"):
        rows[f"ucx_dc_{test}_devx"] = ucx_direct(test, 500, True, tls="dc_x,self")
        rows[f"ucx_dc_{test}_devx"].check = typed("dci", "dct")
    return rows


COMPRESS = ("--env", "SIGMA_CONNECTX_COMPRESS_CQE=1")
SCATTER = ("--env", "SIGMA_CONNECTX_SCATTER_CQE=1")


def completion_forms():
    """Completions that have no entry of their own, or whose entry has a payload in it; of verbs and of UCX."""
    rows = {}
    for mode, name in ((PROBE_RING, "probe_ring"), (RING_RING, "ring_ring")):
        rows[f"scatter_to_cqe.{name}"] = TESTS["scatter_to_cqe"].but(**mode)
    # UCX goes through each session in place, while it is read.
    zipped = ucx_direct("tag_bw", 500, True, iterations=20000).with_options(*COMPRESS, "--env", "UCX_RC_MLX5_CQE_ZIPPING_ENABLE=yes")
    zipped.check = sessions_found
    rows["ucx_tag_bw_zipped"] = zipped
    for test in ("tag_lat", "ucp_get"):
        rows[f"ucx_{test}_scatter_to_cqe"] = ucx_direct(test, 500, True).with_options(*SCATTER)
    return rows


def ucx_transports():
    """UCX's datagrams, whose peer each request names; and masked atomics."""
    rows = {}
    for test in ("tag_lat", "ucp_put_lat"):
        rows[f"ucx_dc_{test}_nodevx"] = ucx_direct(test, 500, False, tls="dc_x,self")
    rows["ucx_ud_tag_lat"] = ucx_direct("tag_lat", 500, True, tls="ud_x,self")
    for test in ("fadd", "swap", "cswap"):
        rows[f"ucx_ucp_{test}_4_bytes"] = ucx_direct(f"ucp_{test}", 500, True, size=4)
    return rows


def late_queues(pairs, used, before, after, *run_options, check=None, **options):
    """Queue pairs that have been used, and that have not."""
    command = f"{{workloads}}/late_queues mlx5_0 {pairs} {used} {before} {after} {{ready}} {{go}}"
    test = single(command, (pairs + 2) * after, *run_options, check=check, **options)
    test.late = True
    return test


def late_rows():
    rows = {}
    for mode, name in ((PROBE_RING, "probe_ring"), (RING_RING, "ring_ring")):
        for what, pairs, used, before in (("used", 12, 12, 100), ("some_used", 12, 3, 5), ("unused", 8, 0, 0),
                                          ("200", 200, 20, 10)):
            # Commands that destroy a queue pair fail at first: its ring goes on.
            busy = ("--env", "SIGMA_CONNECTX_BUSY=1") if what == "used" else ()
            rows[f"late.{what}.{name}"] = late_queues(pairs, used, before, 20, *busy, **mode, check=all_placed)
        # Commands name files there, and two contexts of one device have a file each.
        test = late_queues(8, 4, 10, 20, *(word for one in ("KERNEL_HOOK=1", "BUSY=1") for word in ("--env", f"SIGMA_CONNECTX_{one}")),
                           "--env", "LATE_CONTEXTS=1", **mode, check=hooked)
        test.in_guest = True
        rows[f"late.contexts.{name}"] = test
        for devx in (True, False):
            test = ucx_direct("tag_lat", 500, devx, iterations=12000)
            test.late, test.sends = True, 500
            test.trace_options = mode["trace_options"]
            test.comparison["anywhere"], test.check = True, receives_found
            rows[f"late.ucx_{'devx' if devx else 'nodevx'}.{name}"] = test
        test = single("{workloads}/devx_queues mlx5_0 200 plain 1 {ready} {go}", 0, check=completions_unplaced,
                      trace_options=mode["trace_options"])
        test.late, test.compared = True, False
        rows[f"late.devx.{name}"] = test
    return rows


TESTS.update(seen_otherwise())
TESTS.update(observed())
TESTS.update(devx_rows())
TESTS.update(devx_targets())
TESTS.update(completion_forms())
TESTS.update(ucx_transports())
TESTS.update(late_rows())
for _devx in (True, False):
    for _test, _least in (("ucp_put_lat", 500), ("ucp_get", 500), ("tag_lat", 500), ("ucp_am_lat", 500), ("ucp_fadd", 500),
                          ("ucp_cswap", 500)):
        TESTS[f"ucx_{_test}_{'devx' if _devx else 'nodevx'}"] = ucx_direct(_test, _least, _devx)


def compare(trace, test):
    if not test.compared:
        return collections.Counter()
    comparison = Comparison(trace, **test.comparison)
    if test.differs is None:
        return comparison.run()
    try:
        comparison.run()
    except Failed as failure:
        require(test.differs in str(failure), f"not {test.differs!r}, but {failure}")
        return comparison.counts
    raise Failed("the comparison noticed nothing")


def execute(name, arguments):
    test = TESTS[name]
    command = [word.replace("{workloads}", os.path.abspath(arguments.workloads)) for word in test.command]
    if test.by_run:
        trace = run_started(arguments.sigmatrace, test.run_options, command, test.trace_options, arguments.keep)
    elif test.late:
        trace = run_late(arguments.sigmatrace, test.run_options, command, test.trace_options, test.sends, arguments.keep)
    else:
        trace = run_traced(arguments.sigmatrace, test.run_options, command, test.trace_options, arguments.keep,
                           os.path.abspath(arguments.workloads), test.clock_error_ns, test.watch, test.by_name)
    try:
        counts = compare(trace, test)
        seen = counts["sends"] + counts["missed blocks"]
        require(seen >= test.least, f"{counts['sends']} send operations, expected at least {test.least}")
        if test.check:
            test.check(trace, counts)
    finally:
        if not arguments.keep:
            remove(trace)
    print(f"{name}: ok: {dict(counts)}")


def main():
    listed = [name for name, test in TESTS.items() if not test.in_guest]
    arguments = named_tests.parse(__doc__, TESTS, listed, sigmatrace="sigmatrace", workloads=".", keep=None)
    try:
        execute(arguments.name, arguments)
    except Failed as failure:
        sys.exit(f"FAILED: {arguments.name}: {failure}")


if __name__ == "__main__":
    main()
