# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The job of late_job.c and `sigmatrace attach`, driven from Python. Waiting is for conditions; what
never comes is ended by the limit below, generously, for loaded machines."""
import csv
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

LIMIT_S = 90
BYTES = 64


def wait_for(condition, what):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.01)


class Process:
    """`popen`, killed where the test fails."""
    popen = None

    @property
    def pid(self):
        return self.popen.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


class Driven(Process):
    """A program that a test tells what to do by lines, and that ends with its input."""

    def __init__(self, command, before=None, env=None):
        self.popen = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=before,
                                      env={**os.environ, **(env or {})})

    def line(self):
        return self.popen.stdout.readline().rstrip("\n")

    def answer(self):
        """The lines before "ok"."""
        lines = []
        for line in self.popen.stdout:
            if line == "ok\n":
                return lines
            lines.append(line.rstrip("\n"))
        raise AssertionError("the job ended")

    def tell(self, command):
        self.popen.stdin.write(command + "\n")
        self.popen.stdin.flush()

    def ask(self, command):
        self.tell(command)
        return self.answer()

    def end(self):
        """What it says last, or an empty line."""
        self.popen.stdin.close()
        assert self.popen.wait(LIMIT_S) == 0, "the job failed"
        return self.line()


class Job(Driven):
    """A running late_job. `sent` counts its sends, each checked by the provider's own account. `under`: the words of
    a command that starts it; `root`: the folder that is its root then, by whose paths the others are; `before`: run in
    its process first."""

    def __init__(self, program, libibverbs, provider, under=(), root="", before=None, env=None):
        self.progress = tempfile.NamedTemporaryFile(prefix="sigma-late-job-", dir=root or None)
        self.progress.truncate(8)
        os.chmod(self.progress.name, 0o666)  # the job may be another user's
        super().__init__([*under, program, libibverbs, provider, self.progress.name[len(root):]], before, env)
        self.sent = 0
        self.answer()

    def __exit__(self, *what):
        super().__exit__(*what)
        self.progress.close()

    def load(self):
        self.ask("load")

    def _take(self, line):
        word, first, count, account = line.split()
        first, count = int(first), int(count)
        assert word == "sent" and first == self.sent + 1, line
        self.sent += count
        wanted = sum(range(first, first + count)) + count * (3 * BYTES + 1)
        assert int(account) == wanted, f"{line}: the provider should have counted {wanted}"
        return count

    def send(self, count):
        assert self._take(self.ask(f"send {count}")[0]) == count

    def threads(self, threads, each):
        assert self._take(self.ask(f"threads {threads} {each}")[0]) == threads * each

    def fork(self, count):
        """A child posts, and has ended when this returns: its pid."""
        child, sent = self.ask(f"fork {count}")
        word, first, posted, account = sent.split()
        first, posted = int(first), int(posted)
        wanted = sum(range(first, first + posted)) + posted * (3 * BYTES + 1)
        assert word == "sent" and posted == count and int(account) == wanted, sent
        return int(child.split()[1])

    def poll(self, most):
        """One poll; how many completions it gave."""
        _, count, _, _ = self.ask(f"poll {most}")[0].split()
        return int(count)

    def spin(self):
        self.ask("spin")

    def stop(self):
        return self._take(self.ask("stop")[0])

    def at(self):
        with open(self.progress.name, "rb") as file:
            return int.from_bytes(file.read(8), "little")


class Attach(Process):
    """`sigmatrace attach ARGUMENTS`, running."""

    def __init__(self, program, *arguments, env=None, before=None):
        self.popen = subprocess.Popen([program, "attach", *arguments], stderr=subprocess.PIPE, text=True,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=before,
                                      env={**os.environ, **(env or {})})
        self.text = ""
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.popen.stderr:
            self.text += line
            self.lines.put(line)

    def says(self, pattern):
        """Waits for a line; returns it."""
        while True:
            try:
                line = self.lines.get(timeout=LIMIT_S)
            except queue.Empty:
                raise AssertionError(f"never said: {pattern}\n{self.text}") from None
            if re.search(pattern, line):
                return line

    def interrupt(self):
        self.popen.send_signal(signal.SIGINT)
        return self.status()

    def status(self):
        status = self.popen.wait(LIMIT_S)
        self.reader.join(LIMIT_S)
        return status


class Output:
    """x.csv and its side file, read back strictly: whole rows only."""

    def __init__(self, path):
        with open(path, newline="", encoding="utf-8") as file:
            text = file.read()
        assert text.endswith("\r\n") or text.endswith("\n"), f"a torn row: {text[-80:]!r}"
        self.header, *rows = list(csv.reader(text.splitlines()))
        for row in rows:
            assert len(row) == len(self.header), f"a torn row: {row}"
        self.rows = [dict(zip(self.header, row)) for row in rows]
        with open(path + ".meta.json", encoding="utf-8") as file:
            self.meta = json.load(file)
        self.coverage = self.meta["coverage"]
        self.counters = self.coverage["counters"]

    def ids(self, pid):
        return [int(row["wr_id"]) for row in self.rows if row["pid"] == str(pid) and row["queue"] == "send"]


def links_of(pid):
    """Ids of the BPF links and programs that a process holds."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fdinfo"):
        try:
            with open(f"/proc/{pid}/fdinfo/{name}", encoding="utf-8") as file:
                fields = dict(line.rstrip("\n").split(":", 1) for line in file if ":" in line)
        except FileNotFoundError:
            continue
        if "link_id" in fields:
            found.add(("link", int(fields["link_id"])))
        elif "prog_id" in fields:
            found.add(("prog", int(fields["prog_id"])))
    return found


def in_kernel():
    found = set()
    for kind in ("link", "prog"):
        shown = subprocess.run(["bpftool", "-j", kind, "show"], stdout=subprocess.PIPE, check=True)
        found |= {(kind, entry["id"]) for entry in json.loads(shown.stdout or b"[]")}
    return found


def run_case(functions):
    """For a test file's end: `FILE BUILD --list`, `FILE BUILD CASE`, for its functions case_*(scratch folder)."""
    cases = {name[len("case_"):]: value for name, value in functions.items() if name.startswith("case_")}
    if sys.argv[2] == "--list":
        print("\n".join(cases))
    else:
        with tempfile.TemporaryDirectory(prefix="sigma-case-") as scratch:
            cases[sys.argv[2]](scratch)
