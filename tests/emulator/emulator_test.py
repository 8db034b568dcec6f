#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Checks of the emulator itself: real applications run on it, verify their own data, and must have
done exactly what their parameters say, by the oracle's log.

    emulator_test.py --list
    emulator_test.py NAME --workloads DIR       (the library by SIGMA_CONNECTX_LIBRARY)

Each test is a row of TESTS: how to run, and a function that judges the run directory.
"""
import collections
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import connectx_tree  # noqa: E402
import named_tests  # noqa: E402
import oracle  # noqa: E402
from oracle_invariants import check_invariants, fail, require_equal  # noqa: E402

RUN = os.path.join(HERE, "connectx-run")


class Run:
    """What a finished run left behind."""

    def __init__(self, directory, output):
        self.directory, self.output = directory, output
        self.processes = [oracle.summary_of(path) for path in oracle.log_paths(directory)]  # in the order of their start

    def counter(self, device, name):
        with open(f"{self.directory}/sys/class/infiniband/{device}/ports/1/{name}", encoding="ascii") as file:
            return int(file.read())

    def total(self, group, name):
        return sum(process[group][name] for process in self.processes)


def expect_process(process, sends, receives=0, bytes_each=None):
    """Exactly these send WQEs (a dict by opcode), all completed without error, and this many receives consumed."""
    require_equal("send WQEs", dict(process["send_wqes"]), sends)
    require_equal("receives consumed", process["receive_wqes"], receives)
    require_equal("error CQEs", dict(process["cqe_syndromes"]), {})
    require_equal("REQ CQEs", process["cqes"]["REQ"], process["signaled"])
    if bytes_each is not None:
        require_equal("bytes", dict(process["send_bytes"]), {name: n * bytes_each for name, n in sends.items()})


def pingpong(count, size):
    def judge(run):
        require_equal("processes", len(run.processes), 2)
        for process in run.processes:
            expect_process(process, {"SEND": count}, count, size)
            require_equal("signaled", process["signaled"], count)
    return judge


def srq_pingpong(count, qps):
    """The program stops at `count` or a little later, depending on what its queue pairs have in flight."""
    def judge(run):
        for sender, receiver in (run.processes, run.processes[::-1]):
            sent = sender["send_wqes"]["SEND"]
            if not count <= sent <= count + qps:
                fail(f"{sent} sends instead of {count}")
            expect_process(receiver, dict(receiver["send_wqes"]), sent, 4096)
    return judge


def one_way(opcode, count, size, receives=False):
    """The server posts no sends; the client `count` of one opcode."""
    def judge(run):
        server, client = run.processes
        expect_process(server, {}, count if receives else 0)
        expect_process(client, {opcode: count}, 0, size)
    return judge


def both_ways(opcode, count, size, receives=False):
    def judge(run):
        for process in run.processes:
            expect_process(process, {opcode: count}, count if receives else 0, size)
    return judge


def write_counters(count, size):
    def judge(run):
        one_way("RDMA_WRITE", count, size)(run)
        require_equal("rx_write_requests", run.counter("mlx5_0", "hw_counters/rx_write_requests"), count)
        require_equal("port_xmit_data", run.counter("mlx5_0", "counters/port_xmit_data"), count * size // 4)
        packets = count * -(-size // 4096)
        require_equal("port_rcv_packets", run.counter("mlx5_0", "counters/port_rcv_packets"), packets)
    return judge


def inline_writes(count, size):
    def judge(run):
        one_way("RDMA_WRITE", count, size)(run)
        require_equal("inline", run.processes[1]["inline"], count)
    return judge


def devinfo(run):
    for text in ("mlx5_0", "mlx5_1", "InfiniBand", "Ethernet", "PORT_ACTIVE", "RoCE v2", "156250kHZ"):
        if text not in run.output:
            fail(f"ibv_devinfo does not say {text}")


def verbs_data(run):
    posted, posted_bytes = {}, {}
    for line in run.output.splitlines():
        words = line.split()
        if words[:1] == ["posted"]:
            posted[words[1]] = int(words[2])
        elif words[:1] == ["posted_bytes"]:
            posted_bytes[words[1]] = int(words[2])
    (process,) = run.processes
    receives = posted["RDMA_WRITE_IMM"] + posted["SEND"] + posted["SEND_IMM"]
    expect_process(process, posted, receives)
    require_equal("bytes by opcode", dict(process["send_bytes"]), posted_bytes)


def verbs_losses(run):
    verbs_data(run)
    wire = run.processes[0]["wire"]
    if not (wire["lost"] and wire["retransmit"]):
        fail(f"nothing was lost and sent again: {dict(wire)}")


def scattered(run):
    """The completions whose payload stands in the CQE, by what they complete."""
    names = collections.Counter()
    for cqe in oracle.records(run.directory, {"cqe"}):
        if cqe.scattered:
            name = oracle.CQE_OPCODES[cqe.opcode]
            names[oracle.WQE_OPCODES[cqe.wqe_opcode] if name == "REQ" else name] += 1
    return names


def scatter_to_cqe(most, responses):
    """Payloads up to `most` bytes; answers to reads and atomics only where every request is signaled."""
    def judge(run):
        verbs_data(run)
        for cqe in oracle.records(run.directory, {"cqe"}):
            name = oracle.CQE_OPCODES[cqe.opcode]
            answer = responses and name == "REQ" and oracle.WQE_OPCODES[cqe.wqe_opcode] in ("RDMA_READ", "ATOMIC_CS", "ATOMIC_FA")
            may = name.startswith("RESP_SEND") or answer
            require_equal(f"{cqe.bytes} bytes of {name} in the CQE", cqe.scattered, int(may and cqe.bytes <= most))
        wanted = {"RESP_SEND", "RESP_SEND_IMM"} | ({"RDMA_READ", "ATOMIC_CS", "ATOMIC_FA"} if responses else set())
        require_equal("kinds of scattered payloads", set(scattered(run)), wanted)
    return judge


def ucx_scatter_to_cqe(judge_first, name):
    def judge(run):
        judge_first(run)
        if not scattered(run)[name]:
            fail(f"no {name} had its payload in the CQE")
    return judge


def compressed(judge_first, least):
    """At least this many completions had no CQE of their own."""
    def judge(run):
        judge_first(run)
        restored = sum(r.session_index > 0 for r in oracle.records(run.directory, {"cqe"}))
        if restored < least:
            fail(f"{restored} completions were compressed, expected at least {least}")
    return judge


def cqe_sessions(run):
    said = {words[-2]: int(words[-1]) for words in map(str.split, run.output.splitlines()) if len(words) > 1}
    restored = said.pop("restored")
    expect_process(run.processes[0], said, said["SEND"])
    compressed(lambda _: None, restored)(run)
    require_equal("completions restored", restored,
                  sum(r.session_index > 0 for r in oracle.records(run.directory, {"cqe"})))


def verbs_errors(run):
    expected = {}
    for line in run.output.splitlines():
        if line.startswith("expect "):
            _, syndrome, count = line.split()
            expected[syndrome] = int(count)
    require_equal("error CQEs", dict(run.processes[0]["cqe_syndromes"]), expected)


def rnr_recovers(run):
    verbs_errors(run)
    if run.processes[0]["wire"]["nak_sent"] == 0 or run.counter("mlx5_0", "hw_counters/out_of_buffer") == 0:
        fail("no RNR NAK was sent")


def threads(run):
    posted = next(int(line.split()[2]) for line in run.output.splitlines() if line.startswith("posted "))
    expect_process(run.processes[0], {"ATOMIC_FA": posted}, 0, 8)


def alltoall(ranks, rounds, size):
    """Rank 0 sends rank 1 four times as many blocks as any other pair exchanges."""
    def judge(run):
        blocks = sorted(p["send_wqes"]["RDMA_WRITE"] for p in run.processes)
        require_equal("blocks written by each rank", blocks, [rounds * (ranks - 1)] * (ranks - 1) + [rounds * (ranks + 2)])
        for process in run.processes:
            require_equal("notifications", process["send_wqes"]["SEND_IMM"], process["send_wqes"]["RDMA_WRITE"])
            require_equal("bytes", process["send_bytes"]["RDMA_WRITE"], process["send_wqes"]["RDMA_WRITE"] * size)
            require_equal("error CQEs", dict(process["cqe_syndromes"]), {})
        require_equal("receives", run.total("cqes", "RESP_SEND_IMM"), run.total("send_wqes", "SEND_IMM"))
    return judge


def devx_queues(run):
    posted = {words[1]: int(words[2]) for words in map(str.split, run.output.splitlines()) if words[:1] == ["posted"]}
    expect_process(run.processes[0], posted)
    require_equal("signaled", run.processes[0]["signaled"], sum(posted.values()))


def cq_wallclock(count):
    """The program checks the stamps; here, that they were of the other format."""
    def judge(run):
        expect_process(run.processes[0], {"RDMA_WRITE": count}, 0, 64)
        real_time = {(r.device, r.cqn) for r in oracle.records(run.directory, {"cq"}) if r.real_time}
        stamped = sum((r.device, r.cqn) in real_time for r in oracle.records(run.directory, {"cqe"}))
        require_equal("CQEs with real-time stamps", stamped, count)
    return judge


def churn(rounds, writes, numbers=None):
    def judge(run):
        (process,) = run.processes
        expect_process(process, {"RDMA_WRITE": rounds * writes}, 0, 8)
        require_equal("queue pairs", (process["qps_created"], process["qps_destroyed"], process["lives"]), (2 * rounds,) * 3)
        if numbers:
            used = {r.qpn for r in oracle.records(run.directory, {"qp"})}
            require_equal("queue pair numbers", len(used), numbers)
    return judge


def ucx(group, name, least):
    """UCX posts what its protocols need: at least `least` of the expected kind, and no errors."""
    def judge(run):
        require_equal("processes", len(run.processes), 2)
        for process in run.processes:
            require_equal("error CQEs", dict(process["cqe_syndromes"]), {})
        if run.total(group, name) < least:
            fail(f"{run.total(group, name)} {name}, expected at least {least}")
        # What one side sends on its RC queue pairs arrives at the other.
        if run.total("cqes", "RESP_SEND") + run.total("wire", "discarded") < run.total("send_wqes", "SEND") * 0.9:
            fail("sends went nowhere")
    return judge


def devx(judge_first):
    def judge(run):
        judge_first(run)
        pairs = [r for r in oracle.records(run.directory, {"qp"}) if r.event == 0 and r.devx]
        if not any(r.srqn for r in pairs):
            fail("no queue pair made by DevX on a shared receive queue: UCX did not run with its defaults")
    return judge


def dc(judge_first):
    """The traffic went over DCIs to DCTs."""
    def judge(run):
        judge_first(run)
        services = {(r.pid, r.qpn): r.qp_type for r in oracle.records(run.directory, {"qp"})}
        sends = [services[r.pid, r.qpn] for r in oracle.records(run.directory, {"send_wqe"}) if r.opcode]
        if sends.count(oracle.DCI) < len(sends) * 0.8:
            fail(f"{sends.count(oracle.DCI)} of {len(sends)} WQEs on DCIs")
    return judge


def mpi(ranks):
    def judge(run):
        if f"ok {ranks}" not in run.output:
            fail("the MPI program did not say ok")
        # mpirun itself may open the device.
        workers = [p for p in run.processes if p["qps_created"] and p["send_wqes"]]
        require_equal("ranks that sent", len(workers), ranks)
        for process in workers:
            require_equal("error CQEs other than flushes", {k: n for k, n in process["cqe_syndromes"].items() if k != "0x5"}, {})
        if run.total("send_wqes", "RDMA_WRITE") == 0:
            fail("no RDMA write for MPI_Put")
    return judge


def pair(command, judge, *options):
    """Server and client with the same arguments."""
    words = command.split()
    return (["--server", f"{words[0]} -p {{port}} {' '.join(words[1:])}", *options], [words[0], "-p", "{port}", *words[1:], "localhost"], judge)


def single(command, judge, *options):
    return (list(options), command.split(), judge)


def ucx_pair(tls, test, count, judge, *options, size=8):
    environment = ["--env", f"UCX_TLS={tls}", "--env", "UCX_NET_DEVICES=mlx5_0:1", *options]
    client = ["ucx_perftest", "-p", "{port}", "-t", test, "-s", str(size), "-n", str(count), "-w", "10", "localhost"]
    return (["--server", "ucx_perftest -p {port}", *environment], client, judge)


def uct_pair(transport, test, count, judge, *options, size=8):
    client = ["ucx_perftest", "-p", "{port}", "-d", "mlx5_0:1", "-x", transport, "-t", test, "-s", str(size), "-n", str(count),
              "-w", "10", "localhost"]
    return (["--server", "ucx_perftest -p {port}", *options], client, judge)


def mpi_job(ranks, tls, *options):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), "--mca", "pml", "ucx", "--mca", "osc", "ucx",
               "--mca", "btl", "^openib", "{workloads}/mpi_check"]
    return (["--env", f"UCX_TLS={tls}", *options], command, mpi(ranks))


SCATTER = ("--env", "SIGMA_CONNECTX_SCATTER_CQE=1")
COMPRESS = ("--env", "SIGMA_CONNECTX_COMPRESS_CQE=1")

TESTS = {
    "devinfo": single("ibv_devinfo -v", devinfo, "--devices", "2", "--link", "ib,eth"),
    "rc_pingpong": pair("ibv_rc_pingpong -n 300", pingpong(300, 4096)),
    "rc_pingpong_events": pair("ibv_rc_pingpong -n 300 -e", pingpong(300, 4096)),
    "rc_pingpong_time_stamps": pair("ibv_rc_pingpong -n 300 -t", pingpong(300, 4096)),
    "rc_pingpong_roce": pair("ibv_rc_pingpong -n 300 -e -g 3", pingpong(300, 4096), "--link", "eth"),
    "ud_pingpong_events": pair("ibv_ud_pingpong -n 300 -e -s 2048", pingpong(300, 2048)),
    "ud_pingpong_roce": pair("ibv_ud_pingpong -n 300 -e -g 3 -s 1024", pingpong(300, 1024), "--link", "eth"),
    "srq_pingpong_events": pair("ibv_srq_pingpong -n 300 -e", srq_pingpong(300, 16)),
    "ib_write_bw": pair("ib_write_bw -n 2000 -s 8192", write_counters(2000, 8192)),
    "ib_write_bw_old_post": pair("ib_write_bw -n 1000 -s 64 --use_old_post_send", one_way("RDMA_WRITE", 1000, 64)),
    "ib_write_bw_inline": pair("ib_write_bw -n 1000 -s 150 -I 200", inline_writes(1000, 150)),
    "ib_write_bw_lists": pair("ib_write_bw -n 1000 -s 64 -l 4", one_way("RDMA_WRITE", 1000, 64)),
    "ib_write_bw_qps": pair("ib_write_bw -n 500 -s 1024 -q 8", one_way("RDMA_WRITE", 4000, 1024)),
    "ib_write_bw_moderation": pair("ib_write_bw -n 1000 -s 64 -Q 1", one_way("RDMA_WRITE", 1000, 64)),
    "ib_write_bw_both": pair("ib_write_bw -n 1000 -s 64 -b", both_ways("RDMA_WRITE", 1000, 64)),
    "ib_read_bw": pair("ib_read_bw -n 1000 -s 4096", one_way("RDMA_READ", 1000, 4096)),
    "ib_send_bw": pair("ib_send_bw -n 1000 -s 4096", one_way("SEND", 1000, 4096, receives=True)),
    "ib_send_bw_srq": pair("ib_send_bw -n 1000 -s 512 --use-srq", one_way("SEND", 1000, 512, receives=True)),
    "ib_send_bw_ud": pair("ib_send_bw -n 300 -s 1024 -c UD -r 512", one_way("SEND", 300, 1024, receives=True)),
    "ib_atomic_bw_fadd": pair("ib_atomic_bw -n 1000", one_way("ATOMIC_FA", 1000, 8)),
    "ib_atomic_bw_cas": pair("ib_atomic_bw -n 1000 -A CMP_AND_SWAP", one_way("ATOMIC_CS", 1000, 8)),
    "ib_write_lat": pair("ib_write_lat -n 300 -s 8", both_ways("RDMA_WRITE", 300, 8)),
    "ib_send_lat_events": pair("ib_send_lat -n 300 -s 8 -e", both_ways("SEND", 300, 8, receives=True)),
    "verbs_data": single("{workloads}/verbs_data mlx5_0 mlx5_0 3000", verbs_data),
    "verbs_data_two_devices": single("{workloads}/verbs_data mlx5_0 mlx5_1 3000 5", verbs_data, "--devices", "2"),
    "verbs_data_roce": single("{workloads}/verbs_data mlx5_0 mlx5_1 2000 9", verbs_data, "--devices", "2", "--link", "eth"),
    "verbs_data_losses": single("{workloads}/verbs_data mlx5_0 mlx5_0 150 11", verbs_losses, "--env", "SIGMA_CONNECTX_DROP=0.05"),
    **{f"errors_{name}": single(f"{{workloads}}/verbs_errors mlx5_0 {name}", verbs_errors)
       for name in ("access", "bounds", "protection", "length", "rnr", "retry", "reset", "sqd", "resize", "link_down")},
    "errors_rnr_recovers": single("{workloads}/verbs_errors mlx5_0 rnr_recovers", rnr_recovers),
    "scatter_to_cqe": single("{workloads}/verbs_data mlx5_0 mlx5_0 2000 13", scatter_to_cqe(32, False), *SCATTER),
    "scatter_to_cqe_responses": single("{workloads}/verbs_data mlx5_0 mlx5_0 2000 17 signal_all", scatter_to_cqe(32, True), *SCATTER),
    # libmlx5 44 takes responses of 128-byte CQEs from one byte before their place: those are UCX's to check.
    "scatter_to_cqe_128": single("{workloads}/verbs_data mlx5_0 mlx5_0 2000 19", scatter_to_cqe(64, False), *SCATTER,
                                 "--env", "MLX5_CQE_SIZE=128"),
    "cqe_sessions": single("{workloads}/cqe_sessions mlx5_0 200", cqe_sessions, *COMPRESS),
    "cqe_sessions_128": single("{workloads}/cqe_sessions mlx5_0 200 128", cqe_sessions, *COMPRESS),
    "threads": single("{workloads}/verbs_threads mlx5_0 8 64 50 2", threads),
    "threads_shared_qps": single("{workloads}/verbs_threads mlx5_0 4 4 500 2 shared", threads),
    "churn": single("{workloads}/verbs_churn mlx5_0 2000 3", churn(2000, 3)),
    "churn_same_numbers": single("{workloads}/verbs_churn mlx5_0 500 3", churn(500, 3, numbers=2), "--env", "SIGMA_CONNECTX_REUSE_QPN=1"),
    "cq_wallclock": single("{workloads}/cq_wallclock mlx5_0 300", cq_wallclock(300)),
    "devx_queues": single("{workloads}/devx_queues mlx5_0 200", devx_queues),
    "devx_queues_collapsed": single("{workloads}/devx_queues mlx5_0 200 collapsed", devx_queues),
    "alltoall": single("{workloads}/alltoall {directory} 4 30 4096", alltoall(4, 30, 4096)),
    "ucx_rc_verbs": ucx_pair("rc_v,self", "tag_lat", 300, ucx("send_wqes", "SEND", 600)),
    "ucx_ud_verbs": ucx_pair("ud_v,self", "tag_lat", 300, ucx("send_wqes", "SEND", 600)),
    "ucx_rc_mlx5": ucx_pair("rc_x,self", "tag_lat", 300, devx(ucx("send_wqes", "SEND", 600))),
    "ucx_rc_mlx5_put": ucx_pair("rc_x,self", "ucp_put_lat", 300, devx(ucx("send_wqes", "RDMA_WRITE", 600))),
    "ucx_rc_mlx5_get": ucx_pair("rc_x,self", "ucp_get", 300, devx(ucx("send_wqes", "RDMA_READ", 300))),
    "ucx_rc_mlx5_fadd": uct_pair("rc_mlx5", "fadd", 300, ucx("send_wqes", "ATOMIC_FA", 300)),
    "ucx_rc_mlx5_fadd_4_bytes": uct_pair("rc_mlx5", "fadd", 300, ucx("send_wqes", "ATOMIC_MASKED_FA", 300), size=4),
    "ucx_rc_mlx5_swap_4_bytes": uct_pair("rc_mlx5", "swap", 300, ucx("send_wqes", "ATOMIC_MASKED_CS", 300), size=4),
    "ucx_rc_mlx5_cswap_4_bytes": uct_pair("rc_mlx5", "cswap", 300, ucx("send_wqes", "ATOMIC_MASKED_CS", 300), size=4),
    "ucx_rc_mlx5_scatter_to_cqe": ucx_pair("rc_x,self", "tag_lat", 300, ucx_scatter_to_cqe(ucx("send_wqes", "SEND", 600), "RESP_SEND"),
                                           *SCATTER),
    "ucx_rc_mlx5_scatter_to_cqe_get": ucx_pair("rc_x,self", "ucp_get", 300,
                                               ucx_scatter_to_cqe(ucx("send_wqes", "RDMA_READ", 300), "RDMA_READ"), *SCATTER),
    "ucx_rc_mlx5_cqe_sessions": ucx_pair("rc_x,self", "tag_bw", 3000, compressed(ucx("send_wqes", "SEND", 3000), 100), *COMPRESS,
                                         "--env", "UCX_RC_MLX5_CQE_ZIPPING_ENABLE=yes"),
    "ucx_rc_mlx5_verbs_objects": ucx_pair("rc_x,self", "tag_lat", 300, ucx("send_wqes", "SEND", 600), "--env", "UCX_IB_MLX5_DEVX=n"),
    "ucx_ud_mlx5": ucx_pair("ud_x,self", "tag_lat", 300, ucx("send_wqes", "SEND", 600)),
    "ucx_dc_mlx5": ucx_pair("dc_x,self", "tag_lat", 300, dc(devx(ucx("send_wqes", "SEND", 600)))),
    "ucx_dc_mlx5_put": ucx_pair("dc_x,self", "ucp_put_lat", 300, dc(ucx("send_wqes", "RDMA_WRITE", 600))),
    "ucx_dc_mlx5_verbs_objects": ucx_pair("dc_x,self", "tag_lat", 300, dc(ucx("send_wqes", "SEND", 600)), "--env", "UCX_IB_MLX5_DEVX=n"),
    "ucx_rendezvous_roce": ucx_pair("ib", "tag_bw", 100, devx(ucx("send_wqes", "RDMA_READ", 50)), "--link", "eth", size=100000),
    "mpi_rc_verbs": mpi_job(2, "rc_v,ud_v,self"),
    "mpi_dc_mlx5": mpi_job(4, "dc_x,self"),
    "mpi_defaults": mpi_job(4, "ib"),
}


def execute(name, workloads):
    options, command, judge = TESTS[name]
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="connectx-test-", dir=base) as directory:
        meeting = os.path.join(directory, "meeting")  # for workloads whose processes meet through files
        command = [word.replace("{workloads}", workloads).replace("{directory}", meeting) for word in command]
        run_directory = os.path.join(directory, "run")
        os.mkdir(meeting)
        result = subprocess.run([RUN, "--dir", run_directory, "--realtime", "--timeout", "240", *options,
                                 *connectx_tree.release_options(), "--", *command],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if result.returncode != 0:
            fail(f"exit status {result.returncode}\n{result.stdout}")
        try:
            check_invariants(run_directory)
            judge(Run(run_directory, result.stdout))
        except SystemExit:
            print(result.stdout)
            raise


if __name__ == "__main__":
    named_tests.main(__doc__, TESTS, execute, "workloads")
