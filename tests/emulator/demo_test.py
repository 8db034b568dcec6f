#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""demo_test.py BUILD CASE: `sigmatrace demo` as users run it, judged by the CSV alone.

Each case is a function below, and a CTest test of its own; it fails by an assertion. Runs as root,
like the demo."""
import collections
import csv
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LIMIT_S = 60  # for the whole demo, on two cores that others use as well
RANKS = 4
SLOW_NS = 2_000_000  # what alltoall gives its last rank
NOBODY = 65534


def program(build):
    return os.path.join(build, "bin", "sigmatrace")


def processes_with(word):
    """Those that have it among the words of their command, by process id."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if word in words:
            found[int(pid)] = " ".join(words)
    return found


def jobs(build):
    """The processes of demos of this build: the launchers, which name the job, and the ranks."""
    return processes_with(os.path.join(build, "tests/workloads/alltoall"))


class Demo:
    """A demo that runs: what it says, line by line, and that nothing is left of it."""

    def __init__(self, build, *arguments):
        self.build = build
        self.text = ""
        self.process = subprocess.Popen([program(build), "demo", *arguments], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def says(self, pattern):
        deadline = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.text, re.M):
            assert time.monotonic() < deadline, f"no {pattern!r} in: {self.text}"
            if select.select([self.process.stderr], [], [], 1)[0]:
                more = os.read(self.process.stderr.fileno(), 65536)
                assert more, f"ended without {pattern!r}: {self.text}"
                self.text += more.decode()

    def directory(self):
        """The run directory, as a process of the job knows it."""
        for pid in jobs(self.build):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    match = re.search(rb"(?:^|\0)SIGMA_CONNECTX_DIR=([^\0]+)", file.read())
            except OSError:
                continue
            if match:
                return match[1].decode()
        raise AssertionError("no process of the job")

    def end(self):
        """(exit status, what it said)"""
        _, rest = self.process.communicate(timeout=LIMIT_S)
        self.text += rest.decode()
        return self.process.returncode, self.text


def expect_gone(build, directory):
    """At once after an end in order; within a while where the launcher had to notice a kill."""
    deadline = time.monotonic() + LIMIT_S
    while jobs(build) or os.path.exists(directory):
        assert time.monotonic() < deadline, (jobs(build), directory)
        time.sleep(0.05)


def read_rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run_whole(build, *arguments):
    """Runs a demo to its end. Returns what it said."""
    with Demo(build, *arguments) as demo:
        status, text = demo.end()
    assert status == 0, text
    assert not jobs(build), jobs(build)
    return text


def case_figures(build, folder):
    """At least 1,000 operations, 95% complete and with their peer, within the limit."""
    path = os.path.join(folder, "ops.csv")
    text = run_whole(build, "-o", path)
    rows = read_rows(path)
    assert len(rows) >= 1000, len(rows)
    complete = [r for r in rows if r["status"] == "success" and r["complete_ns"] and r["peer"] and r["peer_qp_num"]]
    assert len(complete) >= 0.95 * len(rows), (len(complete), len(rows))
    assert len({r["pid"] for r in rows}) == RANKS, {r["pid"] for r in rows}
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.path.exists(path + ".meta.json")
    assert path in text.splitlines()[-1], text
    assert re.search(rf"^{len(rows):,} operations, .* 12 queue pairs", text, re.M), text


def case_skewed_pair(build, folder):
    """Rank 0, on mlx5_0, writes four times as much to rank 1 as any other pair does."""
    path = os.path.join(folder, "ops.csv")
    run_whole(build, "-o", path)
    sent = collections.Counter()
    for row in read_rows(path):
        if row["opcode"] == "rdma_write":
            sent[row["device"], row["peer"]] += int(row["bytes"])
    assert len(sent) == RANKS * (RANKS - 1), sent
    assert {device for device, _ in sent} == {f"mlx5_{i}" for i in range(RANKS)}, sent
    (pair, most), (_, second) = sent.most_common(2)
    assert pair == ("mlx5_0", "::ffff:10.0.0.2"), sent
    assert most == 4 * second == 4 * min(sent.values()), sent


def case_slow_peer(build, folder):
    """The device of the last rank serves each request 2 ms later; no other keeps all operations waiting so long."""
    path = os.path.join(folder, "ops.csv")
    run_whole(build, "-o", path)
    quickest = collections.defaultdict(list)
    for row in read_rows(path):
        if row["queue"] == "send" and row["latency_ns"]:
            quickest[row["peer"]].append(int(row["latency_ns"]))
    slow = {peer for peer, latencies in quickest.items() if min(latencies) >= SLOW_NS}
    assert slow == {"::ffff:10.0.0.4"}, {peer: min(latencies) for peer, latencies in quickest.items()}


def trace_of_demo(build, folder):
    path = os.path.join(folder, "trace")
    run_whole(build, "-o", path)
    return path


def output_of(*command, **more):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
                          check=False, **more)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def case_report(build, folder):
    """The verdict names the skewed pair and the slow peer."""
    found = json.loads(output_of(program(build), "report", trace_of_demo(build, folder), "--json"))
    verdict = found["verdict"]
    subjects = {(finding["kind"], finding["subject"]) for finding in verdict}
    assert ("skew", "::ffff:10.0.0.2") in subjects, verdict
    assert ("straggler", "::ffff:10.0.0.4") in subjects, verdict
    # On a loaded machine others may be slow as well; the slow peer is the slowest.
    stragglers = [finding["subject"] for finding in verdict if finding["kind"] == "straggler"]
    assert stragglers[0] == "::ffff:10.0.0.4" and len(stragglers) < RANKS * (RANKS - 1) / 2, verdict
    [skew] = [finding for finding in verdict if finding["kind"] == "skew"]
    assert skew["ratio"] > 1.5, skew
    assert found["totals"]["operations"] >= 1000 and found["totals"]["processes"] == RANKS, found["totals"]
    assert found["memory"]["registrations"] >= RANKS, found["memory"]
    moved = {counter["counter"] for counter in found["port_counters"]}
    assert "port_xmit_data" in moved, moved


def case_trace_and_csv_agree(build, folder):
    """What export makes of the trace has the columns and the rows that -o ops.csv has."""
    exported = list(csv.DictReader(output_of(program(build), "export", trace_of_demo(build, folder), "--format",
                                             "csv").splitlines()))
    path = os.path.join(folder, "ops.csv")
    run_whole(build, "-o", path)
    live = read_rows(path)
    assert exported[0].keys() == live[0].keys()

    def told(rows):
        return collections.Counter((r["device"], r["peer"], r["opcode"], r["bytes"], r["status"]) for r in rows)
    assert told(exported) == told(live)


def case_babeltrace2(build, folder):
    path = trace_of_demo(build, folder)
    with open(os.path.join(path, "meta.json"), encoding="utf-8") as file:
        records = json.load(file)["records"]
    events = [line for line in output_of("babeltrace2", path).splitlines() if line]
    assert len(events) == records, (len(events), records)


def parent_of(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def case_list(build, folder):
    """The job's processes with their devices and queue pairs, from outside, while it stands still."""
    path = os.path.join(folder, "ops.csv")
    with Demo(build, "-o", path) as demo:
        demo.says("^attached: ")
        directory = demo.directory()
        deadline = time.monotonic() + LIMIT_S
        while len(read_rows(path)) == 0:  # then all is set up
            assert time.monotonic() < deadline, demo.text
            time.sleep(0.01)
        found = jobs(build)
        ranks = [pid for pid in found if parent_of(pid) in found and not re.search(r"python|/bin/sh", found[parent_of(pid)])]
        assert len(ranks) == RANKS, found
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        try:
            found = json.loads(output_of(program(build), "list", "--json",
                                         env={**os.environ, "SIGMATRACE_SYSFS": os.path.join(directory, "sys")}))
            text = output_of(program(build), "list", "--qps",
                             env={**os.environ, "SIGMATRACE_SYSFS": os.path.join(directory, "sys")})
        finally:
            for pid in ranks:
                os.kill(pid, signal.SIGCONT)
        status, said = demo.end()
        assert status == 0, said
    processes = {process["pid"]: process for process in found["processes"]}
    assert set(ranks) <= set(processes), (ranks, found)
    for pid in ranks:
        process = processes[pid]
        assert process["command"] == "alltoall" and process["user"] == "root", process
        assert len(process["devices"]) == 1 and process["devices"][0].startswith("mlx5_"), process
        kinds = {(qp["device"], qp["qp_type"], qp["driven_by"]) for qp in process["qps"]}
        assert kinds == {(process["devices"][0], "rc", "verbs")} and len(process["qps"]) == RANKS - 1, process
        assert process["memory_regions"] >= 1 and process["memory_region_bytes"] > 0, process
        assert re.search(rf"^ *{pid} .*alltoall", text, re.M), text
    assert sorted(processes[pid]["devices"][0] for pid in ranks) == [f"mlx5_{i}" for i in range(RANKS)]


def case_summary_only(build, folder):
    """Without -o: no file, and nothing on standard output."""
    done = subprocess.run([program(build), "demo"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=LIMIT_S, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", done.stdout
    assert "rdma_write" in done.stderr and "::ffff:10.0.0.4" in done.stderr, done.stderr
    assert os.listdir(folder) == [], os.listdir(folder)


def case_standard_output(build, folder):
    done = subprocess.run([program(build), "demo", "-o", "-"], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=LIMIT_S, cwd=folder)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) >= 1000 and all(None not in r and None not in r.values() for r in rows), len(rows)


def interrupt(build, folder, number):
    """Ends a demo in the middle. Returns its status."""
    path = os.path.join(folder, "ops.csv")
    with Demo(build, "-o", path) as demo:
        demo.says("^attached: ")
        directory = demo.directory()
        assert os.path.isdir(directory), directory
        demo.process.send_signal(number)
        status, _ = demo.end()
    expect_gone(build, directory)
    return status


def case_interrupt(build, folder):
    assert interrupt(build, folder, signal.SIGINT) == 0


def case_terminate(build, folder):
    assert interrupt(build, folder, signal.SIGTERM) == 0


def case_kill(build, folder):
    assert interrupt(build, folder, signal.SIGKILL) == -signal.SIGKILL


def case_interrupt_at_once(build, folder):
    """Before the job began: nothing is traced, which is a failure, and no output is touched."""
    path = os.path.join(folder, "ops.csv")
    with Demo(build, "-o", path) as demo:
        demo.says("^starting ")
        demo.process.send_signal(signal.SIGINT)
        status, text = demo.end()
    assert not jobs(build), jobs(build)
    assert status in (0, 1), text  # 0: it had begun already
    assert (status == 1) == ("interrupted before" in text), text
    assert status == 0 or not os.path.exists(path), text


def case_output_refused(build, folder):
    """A failure after the job was started ends the job."""
    with Demo(build, "-o", os.path.join(folder, "none", "ops.csv")) as demo:
        status, text = demo.end()
    assert status == 1 and "none" in text, text
    assert not jobs(build), jobs(build)


def case_ended_as_it_starts(build, folder):
    """The launcher is asked to end by the program that it starts, before it may know that it has started it."""
    mark = f"sigma-demo-test-{os.getpid()}"
    asks = "kill -STOP $PPID; kill -TERM $PPID; kill -CONT $PPID; sleep 600; :"
    launcher = os.path.join(build, "connectx/connectx-run")
    environment = dict(os.environ, SIGMA_CONNECTX_LIBRARY=os.path.join(build, "lib/libsigma_connectx.so"))
    cpu = str(min(os.sched_getaffinity(0)))
    for _ in range(10):  # one CPU for both: without a guard seven of ten runs leave the program behind
        with subprocess.Popen(["taskset", "-c", cpu, launcher, "--", "sh", "-c", asks, mark], stdin=subprocess.DEVNULL,
                              env=environment) as process:
            assert process.wait(LIMIT_S) == 128 + signal.SIGTERM, process.returncode
        left = processes_with(mark)
        for pid in left:
            os.killpg(pid, signal.SIGKILL)
        assert not left, f"{len(left)} programs are left behind"


def case_without_privilege(build, folder):
    os.chmod(folder, 0o777)
    copy = os.path.join(folder, "sigmatrace")  # nobody may not be allowed into the build folder
    subprocess.run(["cp", program(build), copy], check=True)
    done = subprocess.run(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all",
                           "--inh-caps=-all", copy, "demo", "-o", os.path.join(folder, "ops.csv")],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1, done
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and lines[0].startswith("sigmatrace: ") and "CAP_" in lines[0], done.stderr
    assert lines[1].startswith("  hint: ") and "sudo" in lines[1], done.stderr
    assert os.listdir(folder) == ["sigmatrace"], os.listdir(folder)


def case_as_nobody(build, folder):
    """Another user with just the capabilities that tracing needs: the whole demo, into files of that user's."""
    os.chmod(folder, 0o777)
    place = os.path.join(folder, "place")  # nobody may not be allowed into the build folder
    for path in ("bin/sigmatrace", "lib/libsigma_connectx.so", "tests/workloads/alltoall"):
        os.makedirs(os.path.dirname(os.path.join(place, path)), exist_ok=True)
        shutil.copy(os.path.join(build, path), os.path.join(place, path))
    shutil.copytree(os.path.join(build, "connectx"), os.path.join(place, "connectx"))
    path = os.path.join(folder, "ops.csv")
    capabilities = "+bpf,+perfmon,+sys_ptrace"
    done = subprocess.run(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"--bounding-set=-all,{capabilities}",
                           f"--inh-caps=-all,{capabilities}", f"--ambient-caps=-all,{capabilities}",
                           os.path.join(place, "bin/sigmatrace"), "demo", "-o", path],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    rows = read_rows(path)
    assert len(rows) >= 1000 and os.stat(path).st_uid == NOBODY, (len(rows), done.stderr)
    complete = [r for r in rows if r["status"] == "success" and r["peer"] and r["peer_qp_num"]]
    assert len(complete) >= 0.95 * len(rows), (len(complete), len(rows))


def case_without_emulator(build, folder):
    copy = os.path.join(folder, "sigmatrace")
    subprocess.run(["cp", program(build), copy], check=True)
    done = subprocess.run([copy, "demo"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1, done
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and "emulated device" in lines[0] and "connectx-run" in lines[0], done.stderr
    assert lines[1].startswith("  hint: ") and "scripts/build" in lines[1], done.stderr


CASES = {name[len("case_"):]: function for name, function in list(globals().items()) if name.startswith("case_")}


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(CASES))
        return
    _, build, name = sys.argv
    with tempfile.TemporaryDirectory(prefix="demo-test-") as folder:
        CASES[name](os.path.realpath(build), folder)


if __name__ == "__main__":
    main()
