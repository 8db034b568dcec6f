#!/usr/bin/env python3
"""The guest's side of the command channel: runs one command at a time for the host.

Both sides speak JSON lines over a virtio-serial port.
  host:  {"id", "ping": true}  or  {"id", "run": [argv], "env": {}, "timeout": seconds}
         or {"id", "off": true}
  guest: {"id", "ready": release}, {"id", "out" | "err": base64}, {"id", "exit": status,
         "timeout": bool}
Lines of another id are left over from an earlier client. Each command lives in a cgroup of
its own; the whole cgroup is killed when the command ends, exceeds its time, its client
goes away, or a new request comes.
"""
import base64
import fcntl
import glob
import json
import os
import select
import signal
import subprocess
import sys
import time

PORT_NAME = "sigma.agent"
CGROUP = "/sys/fs/cgroup/command"
IDLE_LIMIT_S = 3600        # nobody left to take the guest down: it goes by itself
MAX_PENDING = 1 << 20      # the command waits when the host reads more slowly than it writes
COMMAND_NICE = 20          # from the agent's -10 to +10: soft-RoCE's kworkers must win


def port_path() -> str:
    """The device node of our virtio-serial port (there is no udev to name it)."""
    for name in glob.glob("/sys/class/virtio-ports/*/name"):
        with open(name) as file:
            if file.read().strip() == PORT_NAME:
                return "/dev/" + name.split("/")[-2]
    sys.exit("agent: no virtio port " + PORT_NAME)


def kill_cgroup() -> None:
    """Kill what is left of a command and wait until it is gone."""
    if not os.path.isdir(CGROUP):
        return
    with open(CGROUP + "/cgroup.kill", "w") as file:
        file.write("1")
    for _ in range(600):
        with open(CGROUP + "/cgroup.events") as file:
            if "populated 0" in file.read():
                os.rmdir(CGROUP)
                return
        time.sleep(0.05)
    print("agent: processes of a command survive SIGKILL", flush=True)
    os.system("ps -eo pid,stat,wchan:30,args >&2")
    sys.exit(1)             # an unkillable process spoils all later results: the guest ends


class Command:
    """One running command with its two output pipes."""

    def __init__(self, request: dict):
        self.id = request["id"]
        self.deadline = time.monotonic() + request["timeout"]
        self.timed_out = False
        os.mkdir(CGROUP)
        enter = os.path.join(os.path.dirname(os.path.abspath(__file__)), "enter")
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "bash", enter, *request["run"]],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **request.get("env", {})}, preexec_fn=self._join, bufsize=0)
        self.pipes = {}
        for kind, pipe in (("out", self.process.stdout), ("err", self.process.stderr)):
            fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_NONBLOCK)
            self.pipes[pipe.fileno()] = kind

    @staticmethod
    def _join() -> None:
        os.setsid()
        os.nice(COMMAND_NICE)
        with open(CGROUP + "/cgroup.procs", "w") as file:
            file.write("0")

    def read(self, fd: int) -> bytes:
        """What the pipe has now; a pipe that ended is dropped."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return b""
        if not data:
            del self.pipes[fd]
        return data

    def rest(self):
        """All that the pipes still hold once no writer is left."""
        for fd, kind in list(self.pipes.items()):
            while data := self.read(fd):
                yield kind, data

    def end(self) -> None:
        kill_cgroup()
        self.process.wait()

    def close(self) -> None:
        self.process.stdout.close()
        self.process.stderr.close()

    def status(self) -> int:
        code = self.process.returncode
        return code if code >= 0 else 128 - code


class Agent:
    """Reads requests, runs them, sends output and results; one loop, no threads."""

    def __init__(self):
        self.port = os.open(port_path(), os.O_RDWR | os.O_NONBLOCK)
        self.incoming = b""
        self.outgoing = b""
        self.command = None
        self.last_use = time.monotonic()

    def send(self, message: dict) -> None:
        self.outgoing += json.dumps(message).encode() + b"\n"

    def flush(self) -> None:
        try:
            written = os.write(self.port, self.outgoing[:32768])
            self.outgoing = self.outgoing[written:]
        except (BlockingIOError, OSError):
            pass

    def drop_command(self) -> None:
        if self.command:
            self.command.end()
            self.command.close()
            self.command = None

    def on_request(self, line: bytes) -> None:
        try:
            request = json.loads(line)
        except ValueError:
            return                      # the torn line of a client that was killed
        self.drop_command()
        self.outgoing = b"\n"           # ends a line that may have been cut off
        if "run" in request:
            self.command = Command(request)
        elif "off" in request:
            sys.exit(0)
        else:
            self.send({"id": request["id"], "ready": os.uname().release})

    def read_port(self) -> bool:
        """Take requests in; False when no host is connected."""
        try:
            data = os.read(self.port, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        self.last_use = time.monotonic()
        *lines, self.incoming = (self.incoming + data).split(b"\n")
        for line in filter(None, lines):
            self.on_request(line)
        return True

    def send_output(self, kind: str, data: bytes) -> None:
        self.send({"id": self.command.id, kind: base64.b64encode(data).decode()})

    def finish_command(self) -> None:
        """Report a command that has ended, with all that its pipes still hold."""
        command = self.command
        if command.process.poll() is None:
            if time.monotonic() < command.deadline:
                return
            command.timed_out = True
        command.end()
        for kind, data in command.rest():
            self.send_output(kind, data)
        command.close()
        self.send({"id": command.id, "exit": 124 if command.timed_out else command.status(),
                   "timeout": command.timed_out})
        self.command = None
        self.last_use = time.monotonic()

    def step(self) -> None:
        poll = select.poll()
        poll.register(self.port, select.POLLIN | (select.POLLOUT if self.outgoing else 0))
        if self.command and len(self.outgoing) < MAX_PENDING:
            for fd in self.command.pipes:
                poll.register(fd, select.POLLIN)
        events = dict(poll.poll(100))
        if events.get(self.port, 0) & select.POLLHUP:
            self.drop_command()
            self.outgoing = self.incoming = b""
            time.sleep(0.05)
        elif self.port in events:
            self.read_port()
        if self.command:
            for fd in [fd for fd in events if fd in self.command.pipes]:
                kind = self.command.pipes[fd]
                if data := self.command.read(fd):
                    self.send_output(kind, data)
            self.finish_command()
        if self.outgoing:
            self.flush()
        if not self.command and time.monotonic() - self.last_use > IDLE_LIMIT_S:
            print("agent: unused for an hour", flush=True)
            sys.exit(0)


def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    agent = Agent()
    while True:
        agent.step()


if __name__ == "__main__":
    main()
