#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What the tests of a build folder that failed last said, in few lines: how each began and how it ended.

    failed_output.py BUILD [LINES]    in about so many lines in all (30)

For where only the end of a long output is kept. All of it stands in BUILD/Testing/Temporary/LastTest.log.
"""
import os
import re
import sys

LEAST = 4  # lines of a test
MOST = 15
BEGIN = 3  # of these, from the beginning: there most judges say what is wrong
WIDTH = 300


def outputs(path):
    """(name, lines of output) of each test in ctest's log."""
    name, lines, inside = None, [], False
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            line = line.rstrip("\n")
            begins = re.fullmatch(r"\d+/\d+ Testing: (.+)", line)
            if begins and not inside:
                name, lines = begins[1], []
            elif line == "Output:":
                inside = True
            elif line == "<end of output>" and inside:
                inside = False
                yield name, lines
            elif inside:
                lines.append(line)
    if inside:
        yield name, lines


# Of a test's output, what says nothing of the failure.
IDLE = re.compile(r"|[-=~.*]{20,}|Filters: .*|Randomness seeded to: .*|Run with -\? for options|.* is a Catch2? .*host application\."
                  r"|(test cases|assertions): .*")


def short(lines, count):
    lines = [line[:WIDTH] for line in lines if not IDLE.fullmatch(line.strip())]
    if len(lines) <= count:
        return lines
    begin = min(BEGIN, count // 2)
    return [*lines[:begin], "...", *lines[len(lines) - (count - begin - 1):]]


def failed(build):
    """Names, in the order of their numbers."""
    try:
        with open(os.path.join(build, "Testing/Temporary/LastTestsFailed.log"), encoding="utf-8") as file:
            return [line.rstrip("\n").split(":", 1)[1] for line in file if ":" in line]
    except FileNotFoundError:
        return []


def tell(build, budget=30):
    names = failed(build)
    if not names:
        return
    said = dict(outputs(os.path.join(build, "Testing/Temporary/LastTest.log")))
    count = min(MOST, max(LEAST, budget // len(names)))
    shown = names[:max(1, budget // LEAST)]
    for name in shown:
        print(f"--- {name}")
        for line in short(said.get(name, ["(it did not run)"]), count):
            print(f"    {line}")
    if len(names) > len(shown):
        print(f"--- and {len(names) - len(shown)} more: {' '.join(names[len(shown):])}"[:WIDTH])
    sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    tell(sys.argv[1], *map(int, sys.argv[2:]))
