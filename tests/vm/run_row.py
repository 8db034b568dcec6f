#!/usr/bin/env python3
"""run_row.py [--oracle] ROW: one row of the table under the tracer.

Both programs are held before their first instruction, the tracer attaches to both, they run
to their end, and the tracer ends by itself. Then the CSV must say exactly what the table
says. With --oracle the preloaded oracle counts along, and even the opcodes that the table
leaves open are compared exactly.
"""
import argparse
import os
import sys
import tempfile
from collections import Counter

import check
from launch import launch
from oracle import Oracle
from rig import Failure, Tracer, run_test
from table import ROWS, Row

SIDES = {"client": "server", "server": "client"}


def findings_of(trace: check.Trace, row: Row, started, oracle) -> list:
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
        mine += check.check_peers(trace, rows, pid, peer)
        mine += check.check_printed_peers(rows, started.stdout(side))
        found += [f"{side} (pid {pid}): {finding}" for finding in mine]
    strangers = [r for r in trace.rows if int(r["pid"]) not in started.pids.values()]
    return found + check.shown("of a process that is not traced", strangers) + \
        check.check_coverage(trace)


def run(row: Row, with_oracle: bool) -> None:
    oracle = Oracle() if with_oracle else None
    csv = os.path.join(tempfile.mkdtemp(prefix="row."), "ops.csv")
    started = launch(row, oracle.env if oracle else {})
    tracer = Tracer([started.pids["server"], started.pids["client"]], csv)
    started.go()
    tracer.finish()
    found = findings_of(check.Trace(csv), row, started, oracle)
    if found:
        raise Failure(f"row {row.name} ({row.program} {' '.join(row.options)}):\n  " +
                      "\n  ".join(found) + f"\n{tracer.tail()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("row")
    args = parser.parse_args()
    chosen = [row for row in ROWS if row.name == args.row]
    if not chosen:
        sys.exit(f"no such row: {args.row}; there are: {' '.join(row.name for row in ROWS)}")
    run_test(lambda: run(chosen[0], args.oracle))


if __name__ == "__main__":
    main()
