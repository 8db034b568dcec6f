"""Checks shared by the scenarios in which a queue pair fails."""
import check
from jobs import results
from rig import expect


def check_error(trace: check.Trace, job, opcode: str, status: str, tracer) -> dict:
    """The client's rows are its successes, one first error and the flushes, as verbs_job
    counted them itself; returns the row of the first error."""
    told = results(job.client)
    rows = trace.of(job.client.pid)
    seen = {name: [row for row in rows if row["status"] == name]
            for name in ("success", status, "wr_flush_err")}
    wanted = {"success": told["success"], status: 1, "wr_flush_err": told["flushed"]}
    counts = {name: len(found) for name, found in seen.items()}
    expect(counts == wanted and sum(wanted.values()) == len(rows),
           f"{len(rows)} rows, by status {counts}; the job counted {wanted}\n{tracer.tail()}")
    wrong = [row for row in rows if row["opcode"] != opcode]
    expect(not wrong, "".join(check.shown(f"opcode is not {opcode}", wrong)))
    found = check.check_peers(trace, rows, job.client.pid, job.server.pid)
    expect(not found, "\n".join(found))
    for name, wanted_count in (("errors_first", 1), ("errors_flushed", told["flushed"])):
        expect(trace.counters[name] == wanted_count,
               f"coverage counter {name} is {trace.counters[name]}, expected {wanted_count}")
    return seen[status][0]
