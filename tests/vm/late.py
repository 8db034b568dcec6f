"""Checks shared by the scenarios in which the tracer comes after the queue pairs."""
import check
from rig import expect


def check_late_peers(trace: check.Trace, job) -> None:
    """Each row's peer_qp_num is the one that the program printed, or empty; empty ones are
    counted. The kernels of this rig tell it by netlink, so it has to be there."""
    for process in (job.client, job.server):
        rows = trace.of(process.pid)
        found = check.check_printed_peers(rows, process.stdout())
        expect(not found, "\n".join(found))
        empty = [row for row in rows if not row["peer_qp_num"]]
        if empty:
            expect(trace.counters["qps_peer_unknown"] > 0,
                   "peers are empty, but qps_peer_unknown is 0")
        expect(not empty, "".join(check.shown("no peer_qp_num, though netlink has it", empty)))
