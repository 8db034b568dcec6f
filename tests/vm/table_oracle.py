#!/usr/bin/env python3
"""table_oracle.py [ROW...]: check the table itself, without the tracer.

Every row runs under the preloaded oracle, whose counts must be the table's. So a row that
fails under the tracer tells of the tracer.
"""
import sys
from collections import Counter

from launch import launch
from oracle import Oracle
from rig import Failure, expect, kill_children
from table import ROWS, Row


def expected(row: Row, side: str) -> Counter:
    return Counter({(queue, opcode): count
                    for queue, opcodes in row.expect.get(side, {}).items()
                    for opcode, count in opcodes.items()})


def check(row: Row) -> str:
    oracle = Oracle()
    started = launch(row, oracle.env)
    started.go()
    seen_all = []
    for side, pid in sorted(started.pids.items()):
        seen, loose = oracle.posted(pid), row.loose.get(side, {})
        fixed = Counter({key: n for key, n in seen.items() if key not in loose})
        detail = f"signaled {oracle.signaled(pid)}, completed {oracle.completed(pid, 'send')}" \
                 f" sends {oracle.completed(pid, 'recv')} receives"
        expect(fixed == expected(row, side),
               f"{side} posted {dict(seen)}, the table says {dict(expected(row, side))}; {detail}")
        if side in row.signaled:
            expect(oracle.signaled(pid) == row.signaled[side],
                   f"{side}: {detail}, the table says {row.signaled[side]} signaled")
        seen_all.append(f"{side} {dict(seen)} {detail}")
    return "; ".join(seen_all)


def main() -> int:
    failed = 0
    for row in ROWS:
        if len(sys.argv) > 1 and row.name not in sys.argv[1:]:
            continue
        try:
            print(f"ok   {row.name}: {check(row)}", flush=True)
        except Failure as failure:
            failed += 1
            print(f"FAIL {row.name}: {failure}", flush=True)
            kill_children()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
