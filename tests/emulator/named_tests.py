# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The command line of a file of named tests, each of which CTest runs by itself."""
import argparse
import os
import sys


def parse(doc, tests, listed=None, **options):
    """What is asked for: `name`, which is one of the tests, and the options, each with its default here. `--list` prints
    the names, those of `listed` where these are not all, and ends the program."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=list(tests))
    parser.add_argument("--list", action="store_true")
    for option, default in options.items():
        parser.add_argument("--" + option.replace("_", "-"), default=default)
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(tests if listed is None else listed))
        sys.exit()
    if not arguments.name:
        parser.error("no test named")
    return arguments


def main(doc, tests, execute, where="build"):
    """NAME runs execute(NAME, directory), which exits where it fails, with the directory of the option called `where`."""
    arguments = parse(doc, tests, **{where: "build" if where == "build" else "."})
    execute(arguments.name, os.path.abspath(getattr(arguments, where)))
    print(f"{arguments.name}: ok")
