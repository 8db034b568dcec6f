#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""cli_test.py SIGMATRACE CASE: what the program answers to its command line.

Each case is a function below, and a CTest test of its own; it fails by an assertion.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

NOBODY = 65534


def run(*args, as_nobody=False, stdout=subprocess.PIPE):
    """The program's (status, output, errors). As nobody: with no capability at all."""
    command = [PROGRAM, *args]
    copy = None
    if as_nobody and os.geteuid() == 0:
        # a copy, because nobody may not be allowed into the build folder
        copy = tempfile.mkdtemp()
        os.chmod(copy, 0o755)
        command[0] = shutil.copy(PROGRAM, copy)
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                   "--bounding-set=-all", "--inh-caps=-all", *command]
    try:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True,
                              stdin=subprocess.DEVNULL)
    finally:
        if copy:
            shutil.rmtree(copy)
    return done.returncode, done.stdout or "", done.stderr


def refuses(*args, names):
    """Usage errors: status 2, nothing on standard output, what was wrong and a hint."""
    status, output, errors = run(*args)
    assert status == 2, (status, errors)
    assert output == "", output
    lines = errors.splitlines()
    assert lines[0].startswith("sigmatrace: "), errors
    assert names in lines[0], errors
    assert lines[1].startswith("  hint: sigmatrace") and lines[1].endswith("--help"), errors
    assert len(lines) == 2, errors


def case_version():
    status, output, errors = run("--version")
    assert (status, errors) == (0, ""), (status, errors)
    name, number = output.split()
    assert name == "sigmatrace" and number.count(".") == 2, output


def case_help():
    status, output, errors = run("--help")
    assert (status, errors) == (0, ""), (status, errors)
    for word in ("attach", "report", "export", "list", "demo", "doctor", "EXAMPLES", "sudo sigmatrace attach --pid"):
        assert word in output, word
    # nothing is offered that does not exist
    for word in ("merge", "metrics"):
        assert word not in output, word


def case_subcommand_help():
    status, output, _ = run("attach", "--help")
    assert status == 0
    for word in ("--pid", "--all", "--comm", "--cgroup", "--uid", "-o", "--duration", "--follow-forks", "--posts", "--completions",
                 "--no-post-check", "--budget", "--ring-size", "EXAMPLES"):
        assert word in output, word
    status, output, _ = run("doctor", "--help")
    assert status == 0 and "--json" in output and "EXAMPLES" in output


def case_no_subcommand():
    refuses(names="subcommand")


def case_unknown_subcommand():
    refuses("frobnicate", names="there is no subcommand 'frobnicate'")
    refuses("exprot", "trace", "--format", "csv", names="there is no subcommand 'exprot'")


def case_unknown_option():
    refuses("--frobnicate", names="--frobnicate")
    refuses("attach", "--pid", "1", "--frobnicate", names="--frobnicate")
    refuses("doctor", "--frobnicate", names="--frobnicate")


def case_missing_pid():
    refuses("attach", names="--pid")
    refuses("attach", "--follow-forks", names="--all")


def case_targets_that_contradict():
    refuses("attach", "--pid", "1", "--all", names="--pid")
    refuses("attach", "--pid", "1", "--comm", "a", names="--pid")
    refuses("attach", "--pid", "1", "--cgroup", "/sys/fs/cgroup", names="--pid")
    refuses("attach", "--all", "--comm", "a", names="--all")
    refuses("attach", "--comm", "a-name-of-16-byte", names="15 bytes")
    refuses("attach", "--uid", "no-such-user", names="'no-such-user'")


def case_bad_values():
    refuses("attach", "--pid", "abc", names="'abc'")
    refuses("attach", "--pid", "0", names="'0'")
    refuses("attach", "--pid", "1", "--duration", "soon", names="'soon'")
    refuses("attach", "--pid", "1", "--budget", "many", names="'many'")
    refuses("attach", "--pid", "1", "--posts", "magic", names="'magic'")
    refuses("attach", "--pid", "1", "--completions", "magic", names="'magic'")


def case_ring_too_small():
    refuses("attach", "--pid", "1", "--ring-size", "4K", names="16K")


def case_not_root():
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "ops.csv")
        status, _, errors = run("attach", "--pid", str(os.getpid()), "-o", output, as_nobody=True)
        assert status == 1, (status, errors)
        lines = errors.splitlines()
        assert lines[0].startswith("sigmatrace: ") and "CAP_" in lines[0], errors
        assert any(line.startswith("  hint: ") and "sudo" in line for line in lines), errors
        assert not os.path.exists(output)


def case_no_such_process():
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "ops.csv")
        with open(output, "w") as file:
            file.write("earlier")
        ended = subprocess.Popen(["true"])
        ended.wait()
        status, _, errors = run("attach", "--pid", str(ended.pid), "-o", output)
        assert status == 1, (status, errors)
        assert str(ended.pid) in errors and "  hint: " in errors, errors
        with open(output) as file:
            assert file.read() == "earlier", "the earlier output is gone"


def case_unwritable_output():
    with tempfile.TemporaryDirectory() as folder:
        for path in (os.path.join(folder, "missing", "ops.csv"), folder, "/dev/full"):
            status, _, errors = run("attach", "--pid", str(os.getpid()), "-o", path)
            assert status == 1, (status, errors)
            assert path in errors and "  hint: " in errors, errors


def case_doctor_json():
    status, output, errors = run("doctor", "--json")
    found = json.loads(output)
    assert errors == "", errors
    verdicts = {finding["verdict"] for finding in found["findings"]}
    assert verdicts <= {"ok", "note", "problem"}, verdicts
    assert found["possible"] == ("problem" not in verdicts)
    assert status == (0 if found["possible"] else 1)
    for finding in found["findings"]:
        assert finding["area"] and finding["name"], finding
        if finding["verdict"] == "problem":
            assert finding["mend"], finding
    assert {"privileges", "kernel", "devices", "libraries"} <= {f["area"] for f in found["findings"]}
    for library in found["libraries"]:
        for function in library["functions"]:
            assert function["route"] and function["instruction"] and function["expected_ns"] > 0, function
        for function in library["uncovered"]:
            assert function["reason"], function


def case_doctor_text():
    json_status, output, _ = run("doctor", "--json")
    status, text, errors = run("doctor")
    assert (status, errors) == (json_status, ""), (status, errors)
    assert "\033" not in text, "colours in a pipe"
    for finding in json.loads(output)["findings"]:
        assert finding["name"] in text, finding


def case_doctor_finds_libraries():
    """mlx5 and rxe come with the distribution's rdma-core, which the build needs anyhow."""
    _, output, _ = run("doctor", "--json")
    libraries = {library["name"]: library for library in json.loads(output)["libraries"]}
    assert {"libibverbs", "libmlx5", "librxe"} <= libraries.keys(), libraries.keys()
    for name in ("libmlx5", "librxe"):
        assert len(libraries[name]["build_id"]) == 40, libraries[name]
        functions = {function["function"] for function in libraries[name]["functions"]}
        assert {"post_send", "post_recv", "poll_cq"} <= functions, functions


def case_doctor_not_root():
    status, output, _ = run("doctor", "--json", as_nobody=True)
    assert status == 1, status
    found = json.loads(output)
    assert found["possible"] is False
    problems = [f for f in found["findings"] if f["verdict"] == "problem"]
    assert any(f["name"].startswith("CAP_") and "sudo" in f["mend"] for f in problems), problems


def case_closed_output():
    """A reader that goes away is no reason to die by a signal."""
    reader, writer = os.pipe()
    os.close(reader)
    status, _, _ = run("doctor", stdout=writer)
    os.close(writer)
    assert status in (0, 1), status


CASES = {name[len("case_"):]: value for name, value in list(globals().items()) if name.startswith("case_")}

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(CASES))
    else:
        PROGRAM = sys.argv[1]
        CASES[sys.argv[2]]()
