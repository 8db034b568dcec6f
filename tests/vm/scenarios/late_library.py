#!/usr/bin/env python3
"""What needs a privilege while a trace runs already: a job maps providers that lie where none did at the attach, and
probes follow them there. A tracer that root started has given up most of its capabilities by then; Debian's kernels
(kernel.perf_event_paranoid is 3) give perf events to CAP_SYS_ADMIN alone, which on 6.1 are what probes are made of.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import check
from jobs import csv_path
from rig import SIGMATRACE, Held, Tracer, expect, is_listening, program, run_test, wait_for

COUNT = 200
PORT = 18650
PROVIDER = "librxe"
PROVIDERS = "/usr/lib/x86_64-linux-gnu/libibverbs"
# In a mount namespace of its own, on copies that are made as it starts.
OWN = f'mkdir "$0" && cp {PROVIDERS}/* "$0" && mount --bind "$0" {PROVIDERS} && exec "$@"'


def job(name: str, *words: str) -> Held:
    folder = os.path.join(os.path.dirname(csv_path(name)), "own")
    return Held(name, ["unshare", "--mount", "sh", "-c", OWN, folder, program("verbs_job"), "op=rdma_write", f"count={COUNT}",
                       "bytes=64", f"port={PORT}", "stages=qp", *words], stdin=subprocess.PIPE)


def without_sys_admin() -> None:
    """Says at once what is missing, and how to do without; nothing is written."""
    csv = csv_path("without")
    done = subprocess.run(["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", SIGMATRACE, "attach", "--pid", "1", "-o", csv],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    expect(done.returncode == 1 and "CAP_SYS_ADMIN is missing" in done.stderr and "perf_event_paranoid=2" in done.stderr, done.stderr)
    expect(not os.path.exists(csv), "an output that holds nothing")


def test() -> None:
    with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
        expect(int(file.read()) > 2, "the kernel restricts nothing: this shows nothing")
    without_sys_admin()
    server, client = job("server", "device=rxe1"), job("client", "device=rxe0", "127.0.0.1")
    csv = csv_path("late_library")
    tracer = Tracer([server.pid, client.pid], csv)

    server.go()
    wait_for(lambda: is_listening(PORT) or server.popen.poll() is not None, "the server listens")
    client.go()
    for process in (server, client):
        wait_for(lambda process=process: "stage qp\n" in process.stdout() or process.popen.poll() is not None, "stage qp")
    for process in (server, client):
        said = f"process {process.pid}: {PROVIDER} is probed from now on: "
        wait_for(lambda said=said: said in tracer.stderr() or tracer.popen.poll() is not None, said)
    for process in (server, client):
        process.say()
    client.wait_ok()
    server.wait_ok()
    tracer.finish()
    trace = check.Trace(csv)
    expect(trace.counters["probes_failed"] == 0, f"{trace.counters['probes_failed']} probes failed\n{tracer.tail()}")
    statuses = [row["status"] for row in trace.of(client.pid)]
    # Of several libraries the last may get its probes when the first posts are through.
    expect(set(statuses) == {"success"}, f"{len(statuses)} rows\n{tracer.tail()}")


if __name__ == "__main__":
    run_test(test)
