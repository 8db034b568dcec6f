#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What the preloaded GPU library links must need nothing of a C++ runtime: it is loaded into any
program, also into those of another or of none.

usage: freestanding_test.py ARCHIVE..."""
import re
import subprocess
import sys

# Allocation, exceptions, type information, the standard library; what a compiler may call instead
# of memory functions of libc is libc's.
FORBIDDEN = re.compile(r"^(_Zn[aw]|_Zd[al]|__cxa_|__gxx_|_Unwind_|_ZSt|_ZNSt|_ZNKSt|_ZTI|_ZTV|"
                       r"_ZNK?9__gnu_cxx|(c|m|re)?alloc$|free$|__popcount)")


def undefined(archive):
    out = subprocess.run(["nm", "--undefined-only", "--format=posix", archive], check=True,
                         capture_output=True, text=True).stdout
    member = archive
    for line in out.splitlines():
        if line.endswith(":"):
            member = line
        elif line:
            yield member, line.split()[0]


def main():
    found, symbols = [], 0
    for archive in sys.argv[1:]:
        for member, symbol in undefined(archive):
            symbols += 1
            if FORBIDDEN.match(symbol):
                found.append(f"{member} {symbol}")
    print(f"{symbols} undefined symbols", *found, sep="\n")
    return 1 if found or symbols == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
