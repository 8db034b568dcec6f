#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""tests/failed_output.py tells of ctest's own log which tests failed, how each began and how it ended."""
import os
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "failed_output.py")

TESTS = """
add_test(well sh -c "echo nothing to see")
add_test(long sh -c "echo FAILED: 2 differences; seq 100; echo the end; exit 1")
add_test("two words" sh -c "echo; echo ----------------------; echo Output: of a kind; exit 1")
add_test(absent /nonexistent/program)
"""


def require(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "CTestTestfile.cmake"), "w", encoding="ascii") as file:
            file.write(TESTS)
        ran = subprocess.run(["ctest", "--test-dir", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        require(ran.returncode != 0, f"ctest passed: {ran.stdout}")
        told = subprocess.run([sys.executable, "-B", SCRIPT, folder, "30"], stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = told.splitlines()
    require("well" not in told and "nothing" not in told, f"told of what passed:\n{told}")
    require(len(lines) <= 30, f"{len(lines)} lines:\n{told}")
    for name in ("long", "two words", "absent"):
        require(f"--- {name}" in lines, f"{name} is not told of:\n{told}")
    long = lines[lines.index("--- long") + 1:lines.index("--- two words")]
    require(long[0].strip() == "FAILED: 2 differences" and long[-1].strip() == "the end" and "    ..." in long,
            f"not how it began and ended:\n{told}")
    require("    Output: of a kind" in lines and "    ----------------------" not in lines, f"not what it said:\n{told}")


if __name__ == "__main__":
    main()
