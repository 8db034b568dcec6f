"""Counts made by the preloaded oracle (programs/oracle.c): what a process really posted."""
import os
import tempfile
from collections import Counter

from rig import Failure, program


class Oracle:
    """A folder for the oracle's reports, and the environment that preloads it."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="oracle.")
        self.env = {"LD_PRELOAD": program("liboracle.so"), "VM_ORACLE_DIR": self.dir}

    def _lines(self, pid: int) -> list:
        try:
            with open(os.path.join(self.dir, str(pid))) as file:
                return [line.split() for line in file]
        except FileNotFoundError:
            raise Failure(f"the oracle left no report of pid {pid}") from None

    def posted(self, pid: int) -> Counter:
        """{(queue, opcode): work requests}"""
        return Counter({(words[1], words[2]): int(words[3])
                        for words in self._lines(pid) if words[0] == "post"})

    def signaled(self, pid: int) -> int:
        """Work requests of the send queue that asked for a completion."""
        return sum(int(words[4]) for words in self._lines(pid)
                   if words[0] == "post" and words[1] == "send")

    def completed(self, pid: int, queue: str) -> int:
        """Successful completions that the program polled."""
        return sum(int(words[3]) for words in self._lines(pid)
                   if words[:3] == ["done", queue, "success"])
