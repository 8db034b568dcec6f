#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""trace_dir.py BUILD CASE: `sigmatrace attach -o DIR` on a real process, and what report, export and
babeltrace2 say of the folder. Each case is a function below, and a CTest test of its own; it fails by
an assertion."""
import csv
import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from late_job import LIMIT_S, Attach, Job, run_case

BUILD = sys.argv[1]
PROGRAM = os.path.join(BUILD, "bin", "sigmatrace")
SECRET = "do-not-keep-this-word"


def built(name):
    return os.path.join(BUILD, "tests", name)


def loaded_job(**environment):
    os.environ.update(environment)
    new = Job(built("late_job"), built("unit/resolve/libibverbs.so.1"), built("late_job_provider.so"))
    new.load()
    return new


def attach(target, path, *arguments, **more):
    return Attach(PROGRAM, "--pid", str(target.pid), "--budget", "off", "-o", path, *arguments, **more)


def output_of(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def report(path):
    return json.loads(output_of(PROGRAM, "report", path, "--json"))


def rows(path, table="ops"):
    return list(csv.DictReader(output_of(PROGRAM, "export", path, "--format", "csv", "--table", table).splitlines()))


def exchange(target, rounds=20):
    for _ in range(rounds):
        target.send(100)
        while target.poll(64):
            pass


def case_babeltrace2_counts_the_same(folder):
    """The events of a live trace, counted by others, are those that were consumed and what attach added."""
    path = os.path.join(folder, "t")
    with loaded_job() as target, attach(target, path) as tracer:
        tracer.says("^attached: ")
        exchange(target)
        assert tracer.interrupt() == 0, tracer.text
        target.end()
    with open(os.path.join(path, "meta.json"), encoding="utf-8") as file:
        meta = json.load(file)
    counters = meta["coverage"]["counters"]
    assert counters["records_dropped"] == 0, counters
    text = output_of("babeltrace2", path)
    events = [line for line in text.splitlines() if line]
    assert len(events) == meta["records"], (len(events), meta["records"])
    posts = [line for line in events if " post: " in line]
    assert len(posts) == 2000, len(posts)
    assert report(path)["totals"]["operations"] == 2000
    assert len(rows(path)) == 2000


def case_discarded_events(folder):
    """A ring that is too small: babeltrace2, the coverage and the gaps table tell the same loss."""
    path = os.path.join(folder, "t")
    with loaded_job() as target:
        with attach(target, path, "--ring-size", "16K", env={"SIGMATRACE_DRAIN_DELAY_MS": "200"}) as tracer:
            tracer.says("^attached: ")
            target.send(5000)
            assert tracer.interrupt() == 0, tracer.text
        target.end()
    with open(os.path.join(path, "meta.json"), encoding="utf-8") as file:
        dropped = json.load(file)["coverage"]["counters"]["records_dropped"]
    assert dropped > 0
    done = subprocess.run(["babeltrace2", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    words = done.stdout.split("racer discarded ")[1:]
    assert sum(int(word.split()[0]) for word in words) == dropped, (words, dropped)
    gaps = [gap for gap in rows(path, "gaps") if gap["kind"] == "dropped"]
    assert sum(int(gap["records"]) for gap in gaps) == dropped, gaps
    found = report(path)
    assert any("ring buffer had no room" in line and f"{dropped:,}" in line for line in found["coverage"]), found["coverage"]
    assert any(finding["kind"] == "loss" for finding in found["verdict"]), found["verdict"]


def size_of(path):
    folder = os.path.join(path, "ctf")
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder) if name != "metadata")


def case_flight_recorder(folder):
    """Within its size while it runs, the newest are there, and what was overwritten is counted."""
    path = os.path.join(folder, "t")
    bound = 4 << 20
    with loaded_job() as target:
        with attach(target, path, "--max-size", "4M", "--ring-size", "64M") as tracer:
            tracer.says("^attached: ")
            largest = 0
            while target.sent < 150_000:  # not as fast as it can: the ring takes all of it
                target.send(2000)
                largest = max(largest, size_of(path))
            assert tracer.interrupt() == 0, tracer.text
        target.end()
    assert largest <= bound and size_of(path) <= bound, (largest, size_of(path))
    assert "overwritten" in tracer.text, tracer.text
    found = report(path)
    assert any("overwritten" in line for line in found["coverage"]), found["coverage"]
    with open(os.path.join(path, "meta.json"), encoding="utf-8") as file:
        counters = json.load(file)["coverage"]["counters"]
    assert counters["trace_overwritten"] > 0 and counters["records_dropped"] == 0, counters
    gaps = [gap for gap in rows(path, "gaps") if gap["kind"] == "overwritten"]
    assert sum(int(gap["records"]) for gap in gaps) == counters["trace_overwritten"], (gaps, counters)
    kept = [int(row["wr_id"]) for row in rows(path) if row["time_ns"]]
    assert 1000 < len(kept) < target.sent and max(kept) == target.sent, (len(kept), target.sent)


def case_max_size_needs_a_directory(folder):
    for output in ([], ["-o", os.path.join(folder, "x.csv")]):
        done = subprocess.run([PROGRAM, "attach", "--pid", "1", "--max-size", "4M", *output], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 2 and "--max-size" in done.stderr, done


def case_marks(folder):
    """SIGUSR1, and a queue that does not move."""
    path = os.path.join(folder, "t")
    with loaded_job() as target, attach(target, path, "--hang-after", "500ms") as tracer:
        tracer.says("^attached: ")
        exchange(target, 3)
        tracer.popen.send_signal(signal.SIGUSR1)
        tracer.says("^marked: SIGUSR1")
        target.send(7)  # and nobody polls
        tracer.says("^marked: .* 7 posted, none complete for ")
        while target.poll(64):
            pass
        assert tracer.interrupt() == 0, tracer.text
        target.end()
    assert tracer.text.count("\nmarked: ") == 2, tracer.text
    marks = report(path)["marks"]
    assert [mark["reason"] for mark in marks] == ["user", "hang"], marks
    assert marks[0]["time_ns"] < marks[1]["time_ns"], marks


def case_sigusr1_without_a_directory(folder):
    path = os.path.join(folder, "ops.csv")
    with loaded_job() as target, attach(target, path) as tracer:
        tracer.says("^attached: ")
        tracer.popen.send_signal(signal.SIGUSR1)
        tracer.says("marks a trace directory")
        exchange(target, 1)
        assert tracer.interrupt() == 0, tracer.text
        target.end()


def case_facts_of_processes(folder):
    """By the allow-list, in the trace and beside CSV; nothing else of the environment is anywhere."""
    for name in ("t", "ops.csv"):
        path = os.path.join(folder, name)
        environment = {"SLURM_JOB_ID": "4242", "OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "9", "API_TOKEN": SECRET}
        with loaded_job(**environment) as target, attach(target, path) as tracer:
            tracer.says("^attached: ")
            exchange(target, 2)
            assert tracer.interrupt() == 0, tracer.text
            target.end()
        side_file = path + ".meta.json" if name.endswith(".csv") else os.path.join(path, "meta.json")
        with open(side_file, encoding="utf-8") as file:
            [process] = [each for each in json.load(file)["processes"] if each["pid"] == target.pid]
        assert process["facts"]["slurm_job_id"] == "4242" and process["facts"]["rank"] == "3", process
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            assert process["facts"].get("cgroup", "/") in file.read(), process
    found = report(os.path.join(folder, "t"))
    assert [group["name"].split(" (")[0] for group in found["by"]["process"]] == ["rank 3 late_job"], found["by"]["process"]
    for where, _, files in os.walk(folder):
        for file in files:
            with open(os.path.join(where, file), "rb") as content:
                assert SECRET.encode() not in content.read(), file


def case_port_counters(folder):
    """Sampled from sysfs while the trace runs; of those that moved, how far."""
    port = os.path.join(folder, "sys/class/infiniband/mlx5_7/ports/1")

    def write(name, value):
        os.makedirs(os.path.dirname(os.path.join(port, name)), exist_ok=True)
        with open(os.path.join(port, name), "w", encoding="utf-8") as file:
            file.write(f"{value}\n")
    for name, value in (("counters/port_xmit_data", 1000), ("hw_counters/out_of_sequence", 3),
                        ("hw_counters/lifespan", 10), ("counters/port_rcv_data", "N/A (no PMA)")):
        write(name, value)
    path = os.path.join(folder, "t")
    with loaded_job() as target:
        with attach(target, path, env={"SIGMATRACE_SYSFS": os.path.join(folder, "sys")}) as tracer:
            tracer.says("^attached: ")
            exchange(target, 2)
            write("hw_counters/out_of_sequence", 45)
            assert tracer.interrupt() == 0, tracer.text
        target.end()
    samples = rows(path, "counters")
    values = {}
    for sample in samples:
        assert sample["device"] == "mlx5_7" and sample["port"] == "1", sample
        values.setdefault(sample["counter"], []).append(int(sample["value"]))
    assert set(values) == {"port_xmit_data", "out_of_sequence"}, values
    assert values["out_of_sequence"][0] == 3 and values["out_of_sequence"][-1] == 45, values
    [moved] = report(path)["port_counters"]
    assert (moved["port"], moved["counter"], moved["increase"]) == ("mlx5_7/1", "out_of_sequence", 42), moved


if __name__ == "__main__":
    run_case(globals())
