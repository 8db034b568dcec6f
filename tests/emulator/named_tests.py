# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The command line of a file of named tests, each of which CTest runs by itself."""
import argparse
import os


def main(doc, tests, execute, where="build"):
    """`--list` prints the names; NAME runs execute(NAME, directory), which exits where it fails, with the directory of
    the option called `where`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=list(tests))
    parser.add_argument("--list", action="store_true")
    parser.add_argument(f"--{where}", default="build" if where == "build" else ".")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(tests))
    elif arguments.name:
        execute(arguments.name, os.path.abspath(getattr(arguments, where)))
        print(f"{arguments.name}: ok")
    else:
        parser.error("no test named")
