#!/usr/bin/env python3
"""run_row.py [--oracle] ROW|GROUP...: rows of the table under the tracer.

All programs are held before their first instruction, one tracer attaches to them, row after
row runs to its end, and the tracer ends by itself. Then the CSV must say exactly what the
table says. With --oracle the preloaded oracle counts along, and even the opcodes that the table
leaves open are compared exactly.
"""
import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections import Counter

import check
from launch import launch
from oracle import Oracle
from rig import ROCE, Failure, Fabric, Tracer, run_test
from table import ROWS, Row

SIDES = {"client": "server", "server": "client"}


def findings_of(trace: check.Trace, row: Row, started, oracle, fabric: Fabric) -> list:
    """What the row's own processes show that the table does not say."""
    found = []
    for side, other in SIDES.items():
        pid, peer = started.pids[side], started.pids[other]
        rows, loose = trace.of(pid), row.loose.get(side, {})
        expected = Counter({(queue, opcode): count
                            for queue, opcodes in row.expect.get(side, {}).items()
                            for opcode, count in opcodes.items()})
        if oracle:
            expected, loose = oracle.posted(pid), {}
        left = None if row.loose else row.left.get(side, 0)
        mine = check.check_counts(trace, pid, side, expected, loose)
        mine += check.check_bytes(rows, row.bytes)
        mine += check.check_completion(rows, left)
        if side in row.signaled:
            mine += check.check_signaled(rows, row.signaled[side])
        if row.inline:
            mine += check.shown("inline is not yes", [r for r in rows if r["inline"] != "yes"])
        mine += check.check_remote_memory(trace, rows, peer)
        mine += check.check_local_memory(trace, rows, pid)
        mine += check.check_peers(trace, rows, pid, peer) if fabric.names_peers else \
            check.check_no_peers(rows)
        if "-R" not in row.options:  # librdmacm connects several in an order of its own
            mine += check.check_printed_peers(rows, started.stdout(side))
        found += [f"{side} (pid {pid}): {finding}" for finding in mine]
    return found


def go(started) -> list:
    """Run a row's programs to their end; a failure is a finding, and ends them."""
    try:
        started.go()
        return []
    except Failure as failure:
        for pid in started.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [str(failure)]


def run(rows: list, with_oracle: bool, fabric: Fabric = ROCE) -> None:
    """All rows under one tracer, one after another: an attach costs far more than a row."""
    oracle = Oracle() if with_oracle else None
    csv = os.path.join(tempfile.mkdtemp(prefix="rows."), "ops.csv")
    started = [launch(row, oracle.env if oracle else {}, fabric) for row in rows]
    pids = [pid for each in started for pid in each.pids.values()]
    tracer = Tracer(pids, csv)
    failures = [go(each) for each in started]
    tracer.finish()

    trace, failed = check.Trace(csv), []
    for row, each, found in zip(rows, started, failures):
        found = found or findings_of(trace, row, each, oracle, fabric)
        print(f"{'FAIL' if found else 'ok  '} {row.name}")
        if found:
            failed.append(f"row {row.name} ({row.program} {' '.join(row.options)}):\n  " +
                          "\n  ".join(found))
    strangers = [r for r in trace.rows if int(r["pid"]) not in pids]
    found = check.shown("of a process that is not traced", strangers) + check.check_coverage(trace, fabric.names_peers)
    if found:
        failed.append("the trace as a whole:\n  " + "\n  ".join(found))
    if failed:
        raise Failure("\n".join(failed) + f"\n{tracer.tail()}")


def chosen(names: list) -> list:
    """The rows of these names or groups, in the table's order."""
    unknown = set(names) - {row.name for row in ROWS} - {row.group for row in ROWS}
    if unknown:
        sys.exit(f"no such row or group: {' '.join(unknown)}; there are: " +
                 " ".join([*dict.fromkeys(row.group for row in ROWS), *(row.name for row in ROWS)]))
    return [row for row in ROWS if row.name in names or row.group in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("rows", nargs="+", metavar="ROW|GROUP")
    args = parser.parse_args()
    rows = chosen(args.rows)
    run_test(lambda: run(rows, args.oracle))


if __name__ == "__main__":
    main()
