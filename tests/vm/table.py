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
RPING_PORT = 7174


@dataclass
class Row:
    name: str
    program: str
    options: list                    # of both sides
    expect: dict
    bytes: dict                      # opcode -> each request's size (receives: as completed)
    api: str = "ibv_post_send"
    signaled: dict = field(default_factory=dict)    # side -> send requests asking for completion
    left: dict = field(default_factory=dict)        # side -> requests unfinished, or flushed at the end
    loose: dict = field(default_factory=dict)       # side -> {(queue, opcode): why not fixed}
    inline: bool = False
    note: str = ""

    @property
    def group(self) -> str:
        """The rows that one test runs together."""
        return "librdmacm" if "-R" in self.options else GROUPS[self.program]


# One test each: an attach costs far more than a row, so rows share one.
GROUPS = {"ib_write_bw": "writes", "ib_read_bw": "read_atomic", "ib_atomic_bw": "read_atomic",
          "ib_write_lat": "latency", "ib_send_lat": "latency", "ib_send_bw": "sends",
          "ibv_rc_pingpong": "pingpong", "ibv_ud_pingpong": "pingpong", "rping": "librdmacm",
          "verbs_job": "verbs_job", "ucx_perftest": "ucx", "mpi_ring": "mpi"}


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


UCT_N = 100
REFILL = "UCX refills its receive queue in batches, as it polls: by timing"
WIREUP = "UCX's connection set-up, keep-alive and flow control: by timing"
NOP = "UCX flushes with an empty write when nothing else carries a completion: by timing"


def ucx(name, test, options, expect, sizes, **more) -> Row:
    return Row(name, "ucx_perftest", ["-t", test, "-n", str(UCT_N), "-w", "0", *options.split()],
               expect, sizes, **more)


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
             client(rdma_write=1000), 64, signaled={"client": 10},
             note="perftest knows no inline on soft-RoCE and says so; verbs_job posts inline"),
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
    perftest("write_lat", "ib_write_lat", "-n 200 -s 8",
             {side: {"send": {"rdma_write": 200}} for side in ("client", "server")}, 8,
             signaled={"client": 200, "server": 200}),
    perftest("write_lat_old", "ib_write_lat", "-n 200 -s 2048 --use_old_post_send",
             {side: {"send": {"rdma_write": 200}} for side in ("client", "server")}, 2048,
             signaled={"client": 200, "server": 200}),

    # two-sided
    perftest("send_bw", "ib_send_bw", "-n 1000 -s 4096", stream("send", 1000), 4096,
             signaled={"client": 10}),
    perftest("send_bw_old", "ib_send_bw", "-n 600 -s 65536 --use_old_post_send",
             stream("send", 600), 65536, signaled={"client": 600}),
    perftest("send_bw_odd", "ib_send_bw", "-n 301 -s 128 -Q 1", stream("send", 301, extra=1), 128,
             signaled={"client": 301}, left={"server": 1},
             note="302 receives for 301 messages: perftest rounds up to even"),
    perftest("send_bw_qps_list", "ib_send_bw", "-n 400 -s 256 -q 3 -l 4", stream("send", 1200), 256,
             signaled={"client": 300}),
    perftest("send_bw_ud", "ib_send_bw", "-n 1000 -s 1024 -c UD", stream("send", 1000),
             {"send": 1024, "recv": 1024 + 40}, signaled={"client": 10},
             note="a UD receive's length includes the 40 bytes of the global routing header"),
    perftest("send_bw_ud_old", "ib_send_bw", "-n 500 -s 64 -c UD --use_old_post_send",
             stream("send", 500), {"send": 64, "recv": 64 + 40}, signaled={"client": 5}),
    perftest("send_lat", "ib_send_lat", "-n 200 -s 16", both({"send": 200}, {"recv": 200}), 16,
             signaled={"client": 200, "server": 200}),
    perftest("send_lat_old", "ib_send_lat", "-n 200 -s 1024 --use_old_post_send",
             both({"send": 200}, {"recv": 200}), 1024, signaled={"client": 200, "server": 200}),

    # over librdmacm: perftest exchanges its parameters by sends on the connection's own queue
    # pairs; how many depends on the test and its queue pairs only. Their sizes are those of
    # perftest's structures. One receive more than arrives is always posted.
    perftest("write_bw_cm", "ib_write_bw", "-R -n 500 -s 1024",
             {side: {"send": {"send": 16}, "recv": {"recv": 17}} for side in ("server",)} |
             {"client": {"send": {"rdma_write": 500, "send": 16}, "recv": {"recv": 17}}},
             {"rdma_write": 1024}, left={"client": 1, "server": 1}),
    perftest("read_bw_cm", "ib_read_bw", "-R -n 200 -s 64 -q 2 --use_old_post_send",
             {"client": {"send": {"rdma_read": 400, "send": 18}, "recv": {"recv": 19}},
              "server": {"send": {"send": 18}, "recv": {"recv": 19}}},
             {"rdma_read": 64}, left={"client": 1, "server": 1}),
    perftest("write_lat_cm", "ib_write_lat", "-R -n 200 -s 64",
             both({"rdma_write": 200, "send": 10}, {"recv": 11}),
             {"rdma_write": 64}, left={"client": 1, "server": 1}),

    # rdma-core's examples: -r receives at the start, refilled to -r when one is left: 100 and 99
    # after every 99th message
    Row("rc_pingpong", "ibv_rc_pingpong", "-n 300 -r 100 -s 1024".split(),
        both({"send": 300}, {"recv": 397}), {"send": 1024, "recv": 1024},
        signaled={"client": 300, "server": 300}, left={"client": 97, "server": 97}),
    Row("rc_pingpong_new", "ibv_rc_pingpong", "-N -n 300 -r 100 -s 256".split(),
        both({"send": 300}, {"recv": 397}), {"send": 256, "recv": 256}, api="ibv_wr_*",
        signaled={"client": 300, "server": 300}, left={"client": 97, "server": 97}),
    Row("ud_pingpong", "ibv_ud_pingpong", "-n 200 -r 100 -s 1024".split(),
        both({"send": 200}, {"recv": 298}), {"send": 1024, "recv": 1024 + 40},
        signaled={"client": 200, "server": 200}, left={"client": 98, "server": 98}),
    # a ping is: client advertises, server reads and says so, client advertises, server writes
    # and says so. Buffers are advertised in 16 bytes.
    Row("rping", "rping", "-C 20 -S 100".split(),
        {"client": {"send": {"send": 40}, "recv": {"recv": 41}},
         "server": {"send": {"send": 40, "rdma_read": 20, "rdma_write": 20}, "recv": {"recv": 41}}},
        {"send": 16, "recv": 16, "rdma_read": 100, "rdma_write": 100},
        signaled={"client": 40, "server": 80}, left={"client": 1, "server": 1}),

    # the ibv_wr_* builders, and what perftest does not do
    verbs("job_write_new", "new_api=1 op=rdma_write count=600 bytes=1024 list=4 signal_every=20",
          client(rdma_write=600), 1024, api="ibv_wr_*", signaled={"client": 30}),
    verbs("job_write_new_inline", "new_api=1 op=rdma_write count=300 bytes=64 use_inline=1",
          client(rdma_write=300), 64, api="ibv_wr_*", signaled={"client": 300}, inline=True),
    verbs("job_write_imm", "op=rdma_write_with_imm count=200 bytes=512",
          stream("rdma_write_with_imm", 200, "recv_rdma_with_imm"), 512, signaled={"client": 200}),
    verbs("job_write_imm_new", "new_api=1 op=rdma_write_with_imm count=200 bytes=4000",
          stream("rdma_write_with_imm", 200, "recv_rdma_with_imm"), 4000, api="ibv_wr_*",
          signaled={"client": 200}),
    verbs("job_send_sges_new", "new_api=1 op=send count=300 bytes=999 entries=3 list=10",
          stream("send", 300), 999, api="ibv_wr_*", signaled={"client": 300},
          note="three equal entries: librxe 44 takes the first one's length for all"),
    verbs("job_send_imm_srq_new", "new_api=1 op=send_with_imm count=200 bytes=128 use_srq=1",
          stream("send_with_imm", 200), 128, api="ibv_wr_*", signaled={"client": 200}),
    verbs("job_read_new", "new_api=1 op=rdma_read count=200 bytes=8192 queue_pairs=2",
          client(rdma_read=400), 8192, api="ibv_wr_*", signaled={"client": 400}),
    verbs("job_add_new", "new_api=1 op=atomic_fetch_and_add count=200 bytes=8",
          client(atomic_fetch_and_add=200), 8, api="ibv_wr_*", signaled={"client": 200}),
    verbs("job_swap_new", "new_api=1 op=atomic_cmp_and_swp count=200 bytes=8",
          client(atomic_cmp_and_swp=200), 8, api="ibv_wr_*", signaled={"client": 200}),
    verbs("job_resets", "op=send count=100 bytes=256 resets=3", stream("send", 400), 256,
          signaled={"client": 400}, note="four lives of one queue pair, through RESET"),
    verbs("job_unsignaled_tail", "op=rdma_write count=200 bytes=32 signal_every=10 "
          "unsignaled_tail=20", client(rdma_write=200), 32, signaled={"client": 18},
          left={"client": 20}, note="nothing ever tells that the last 20 completed"),
    verbs("job_refused", "op=rdma_write count=50 bytes=32 refuse=1", client(rdma_write=50), 32,
          signaled={"client": 50}, note="a 51st post has too many entries: refused, no row"),
    verbs("job_aborted", "new_api=1 abort_batch=1 op=rdma_write count=50 bytes=32 list=5",
          client(rdma_write=50), 32, api="ibv_wr_*", signaled={"client": 50},
          note="a 51st request is built and aborted: it was never posted"),

    # UCX's transport alone, without warm-up (which goes by time): n requests, and where the
    # test streams, one more that tells the other side of the end. 4,095 receives are posted
    # when the interface opens, and one-sided tests use none of them.
    ucx("ucx_put_short", "put_lat", "-s 8 -D short", both({"rdma_write": UCT_N}, {"recv": 4095}),
        {"rdma_write": 8}, left={"client": 4095, "server": 4095}),
    ucx("ucx_put_bcopy", "put_bw", "-s 1024 -D bcopy",
        {"client": {"send": {"rdma_write": UCT_N + 1}, "recv": {"recv": 4095}},
         "server": {"recv": {"recv": 4095}}},
        {"rdma_write": 1024}, left={"client": 4095, "server": 4095}),
    ucx("ucx_get_zcopy", "get", "-s 4096 -D zcopy",
        {"client": {"send": {"rdma_read": UCT_N}, "recv": {"recv": 4095}},
         "server": {"recv": {"recv": 4095}}},
        {"rdma_read": 4096},
        loose={"server": {("send", "rdma_read"): "the server reads as well, as long as it lasts"}}),
    ucx("ucx_fadd", "fadd", "-s 8",
        {"client": {"send": {"atomic_fetch_and_add": UCT_N + 1}, "recv": {"recv": 4095}},
         "server": {"recv": {"recv": 4095}}},
        {"atomic_fetch_and_add": 8}, left={"client": 4095, "server": 4095}),
    ucx("ucx_am_short", "am_lat", "-s 8 -D short",
        {side: {"send": {"send": UCT_N}} for side in ("client", "server")}, {},
        loose={side: {("recv", "recv"): REFILL, ("send", "rdma_write"): NOP}
               for side in ("client", "server")}),
    ucx("ucp_put", "ucp_put_lat", "-s 8",
        {}, {},
        loose={side: {("recv", "recv"): REFILL, ("send", "send"): WIREUP,
                      ("send", "rdma_write"): "100 puts, and " + NOP}
               for side in ("client", "server")}),
    ucx("ucp_get", "ucp_get", "-s 65536",
        {"client": {"send": {"rdma_read": UCT_N}}}, {"rdma_read": 65536},
        loose={side: {("recv", "recv"): REFILL, ("send", "send"): WIREUP,
                      ("send", "rdma_write"): NOP} for side in ("client", "server")}),

    # MPI: both ranks post the same kinds; nothing of it is fixed by the parameters
    Row("mpi_ring", "mpi_ring", ["50", "64"], {}, {},
        loose={side: {("recv", "recv"): REFILL, ("send", "rdma_write"): NOP,
                      ("send", "send"): "50 messages, and the start-up's and flow control's"}
               for side in ("client", "server")}),
]
