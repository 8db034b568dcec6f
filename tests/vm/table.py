"""The table: program x options -> exact number of work requests, posted and received.

A row's expectation is {side: {queue: {opcode: count}}}. An opcode that is not listed must
not appear, except those in `loose`, whose number the parameters do not fix; why stands
beside them, and for such rows the preloaded oracle counts along, so that even these are
compared exactly. The counts follow from the programs' sources (perftest 4.5, rdma-core 44,
UCX 1.13) as the notes say; `table_oracle.py` verifies every row without the tracer.

perftest: `-n` requests a queue pair, no warm-up posts; every Q-th request asks for a
completion (-Q, 100 by default; 1 above 8 KiB; the list's length with -l; never more than the
send queue's depth). Its handshakes go over TCP and post nothing, except with -R. A receiver
posts min(512, n) receives, rounded up to even, and then one for each that arrived while
posted < n. On soft-RoCE perftest 4.5 always takes ibv_post_send: its use of ibv_wr_* is
limited to devices that it knows. So rows with --use_old_post_send and without say the
same, and the ibv_wr_* API is covered by verbs_job and ibv_rc_pingpong -N.
"""
from dataclasses import dataclass, field

PERFTEST_PORT = 18515


@dataclass
class Row:
    name: str
    program: str
    options: list                    # of both sides
    expect: dict
    bytes: dict                      # opcode -> the size of each request (receives: as completed)
    api: str = "ibv_post_send"
    signaled: dict = field(default_factory=dict)    # side -> send requests asking for completion
    unfinished: dict = field(default_factory=dict)  # side -> requests left at the end
    loose: dict = field(default_factory=dict)       # side -> {(queue, opcode): why not fixed}
    inline: bool = False
    note: str = ""


def client(**opcodes) -> dict:
    return {"client": {"send": opcodes}}


def both(sends: dict, receives: dict) -> dict:
    return {side: {"send": dict(sends), "recv": dict(receives)} for side in ("client", "server")}


def stream(opcode: str, count: int, receive="recv", extra=0) -> dict:
    """The client sends, the server receives."""
    return {"client": {"send": {opcode: count}}, "server": {"recv": {receive: count + extra}}}


def perftest(name, tool, options, expect, size, **more) -> Row:
    sizes = size if isinstance(size, dict) else {op: size for op in
                                                 ("send", "recv", "rdma_write", "rdma_read",
                                                  "atomic_fetch_and_add", "atomic_cmp_and_swp")}
    return Row(name, tool, options.split(), expect, sizes, **more)


def verbs(name, options, expect, size, **more) -> Row:
    return Row(name, "verbs_job", options.split(), expect,
               {op: size for queues in expect.values() for ops in queues.values() for op in ops},
               **more)


ROWS = [
    # one-sided: only the client posts; the server's side is passive and makes no row
    perftest("write_bw", "ib_write_bw", "-n 1000 -s 65536", client(rdma_write=1000), 65536,
             signaled={"client": 1000}),
    perftest("write_bw_old", "ib_write_bw", "-n 1000 -s 65536 --use_old_post_send",
             client(rdma_write=1000), 65536, signaled={"client": 1000}),
    perftest("write_bw_small", "ib_write_bw", "-n 2000 -s 8", client(rdma_write=2000), 8,
             signaled={"client": 20}, note="one in 100 asks for a completion"),
    perftest("write_bw_odd_size", "ib_write_bw", "-n 400 -s 4097 --use_old_post_send",
             client(rdma_write=400), 4097, signaled={"client": 4}),
    perftest("write_bw_4_qps", "ib_write_bw", "-n 500 -s 1024 -q 4", client(rdma_write=2000), 1024,
             signaled={"client": 20}),
    perftest("write_bw_list", "ib_write_bw", "-n 1000 -s 512 -l 10", client(rdma_write=1000), 512,
             signaled={"client": 100}, note="ten requests a call, the last one signalled"),
    perftest("write_bw_list_qps", "ib_write_bw", "-n 640 -s 64 -l 32 -q 2 --use_old_post_send",
             client(rdma_write=1280), 64, signaled={"client": 40}),
    perftest("write_bw_inline", "ib_write_bw", "-n 1000 -s 64 --inline_size 64",
             client(rdma_write=1000), 64, signaled={"client": 10}, inline=True),
    perftest("write_bw_all_signaled", "ib_write_bw", "-n 500 -s 2 -Q 1", client(rdma_write=500), 2,
             signaled={"client": 500}),
    perftest("read_bw", "ib_read_bw", "-n 500 -s 16384", client(rdma_read=500), 16384,
             signaled={"client": 500}),
    perftest("read_bw_old", "ib_read_bw", "-n 500 -s 256 -q 2 --use_old_post_send",
             client(rdma_read=1000), 256, signaled={"client": 10}),
    perftest("atomic_bw_add", "ib_atomic_bw", "-n 500 -A FETCH_AND_ADD",
             client(atomic_fetch_and_add=500), 8, signaled={"client": 5}),
    perftest("atomic_bw_swap", "ib_atomic_bw", "-n 500 -A CMP_AND_SWAP --use_old_post_send",
             client(atomic_cmp_and_swp=500), 8, signaled={"client": 5}),
    perftest("write_lat", "ib_write_lat", "-n 300 -s 8",
             {side: {"send": {"rdma_write": 300}} for side in ("client", "server")}, 8,
             signaled={"client": 300, "server": 300}),
    perftest("write_lat_old", "ib_write_lat", "-n 300 -s 2048 --use_old_post_send",
             {side: {"send": {"rdma_write": 300}} for side in ("client", "server")}, 2048,
             signaled={"client": 300, "server": 300}),

    # two-sided
    perftest("send_bw", "ib_send_bw", "-n 1000 -s 4096", stream("send", 1000), 4096,
             signaled={"client": 10}),
    perftest("send_bw_old", "ib_send_bw", "-n 600 -s 65536 --use_old_post_send",
             stream("send", 600), 65536, signaled={"client": 600}),
    perftest("send_bw_odd", "ib_send_bw", "-n 301 -s 128 -Q 1", stream("send", 301, extra=1), 128,
             signaled={"client": 301}, unfinished={"server": 1},
             note="302 receives for 301 messages: perftest rounds up to even"),
    perftest("send_bw_qps_list", "ib_send_bw", "-n 400 -s 256 -q 3 -l 4", stream("send", 1200), 256,
             signaled={"client": 300}),
    perftest("send_bw_ud", "ib_send_bw", "-n 1000 -s 1024 -c UD", stream("send", 1000),
             {"send": 1024, "recv": 1024 + 40}, signaled={"client": 10},
             note="a UD receive's length includes the 40 bytes of the global routing header"),
    perftest("send_bw_ud_old", "ib_send_bw", "-n 500 -s 64 -c UD --use_old_post_send",
             stream("send", 500), {"send": 64, "recv": 64 + 40}, signaled={"client": 5}),
    perftest("send_lat", "ib_send_lat", "-n 300 -s 16", both({"send": 300}, {"recv": 300}), 16,
             signaled={"client": 300, "server": 300}),
    perftest("send_lat_old", "ib_send_lat", "-n 300 -s 1024 --use_old_post_send",
             both({"send": 300}, {"recv": 300}), 1024, signaled={"client": 300, "server": 300}),
]
