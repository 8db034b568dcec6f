#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Reads the logs of emulated devices: what each fetched and completed, field by field.

    oracle.py DIR                 a summary, as JSON
    oracle.py DIR --dump [TYPE]   one JSON object a record, in time order

As a module: records(DIR) yields named tuples; each has `type`, `pid`, `device` and `time_ns`.
The layouts are those of device/oracle.h; an unknown version is refused.
"""
import argparse
import collections
import glob
import json
import mmap
import os
import struct
import sys

VERSION = 2
FILE_HEADER = struct.Struct("<8sIIQ40s")
HEADER = struct.Struct("<HHIQ")

# type: (name, format after the header, field names; "_" is padding)
LAYOUTS = {
    1: ("send_wqe", "<IIQBBBBBBBBQQIIQIIIIQQ",
        "qpn life position opcode opmod fm_ce_se ds basic_blocks segments is_inline syndrome bytes local_address lkey "
        "rkey remote_address immediate destination_qpn destination_device psn operand compare"),
    2: ("receive_wqe", "<IIIIQIIQ", "qpn life srqn index local_address lkey segments capacity"),
    3: ("cqe", "<IIIIQQBBBBIIIIIQIHH",
        "cqn qpn life wqe_counter position nic_ticks opcode wqe_opcode syndrome vendor_syndrome bytes immediate "
        "srqn_or_uidx remote_qpn srqn wqe_position scattered session_size session_index"),
    4: ("qp", "<IIBBBBIIIIIIIQQQII16s",
        "qpn life event qp_type state devx send_cqn receive_cqn srqn peer_qpn peer_device peer_lid reserved send_ring "
        "receive_ring doorbell send_blocks receive_entries peer_gid"),
    5: ("cq", "<IBBBBIIQQ", "cqn event devx collapsed real_time entries cqe_bytes ring doorbell"),
    6: ("mr", "<IIQQQB7x", "key access address length iova event"),
    7: ("wire", "<IIIIII", "qpn life event psn detail reserved"),
    8: ("doorbell", "<IIIHH", "qpn life offset index record_index"),
}
DECODERS = {}
for _number, (_name, _format, _fields) in LAYOUTS.items():
    DECODERS[_number] = (_name, struct.Struct(_format), collections.namedtuple(_name, "type pid device time_ns " + _fields))

# As <infiniband/mlx5dv.h> numbers them.
WQE_OPCODES = {0x00: "NOP", 0x01: "SEND_INVAL", 0x08: "RDMA_WRITE", 0x09: "RDMA_WRITE_IMM", 0x0a: "SEND", 0x0b: "SEND_IMM",
               0x10: "RDMA_READ", 0x11: "ATOMIC_CS", 0x12: "ATOMIC_FA", 0x14: "ATOMIC_MASKED_CS", 0x15: "ATOMIC_MASKED_FA",
               0x1b: "LOCAL_INVAL", 0x23: "DUMP", 0x25: "UMR"}
CQE_OPCODES = {0: "REQ", 1: "RESP_WR_IMM", 2: "RESP_SEND", 3: "RESP_SEND_IMM", 4: "RESP_SEND_INV", 13: "REQ_ERR", 14: "RESP_ERR"}
DCI, DCT = 0xF0, 0xF1  # qp_type; the others as enum ibv_qp_type
QP_EVENTS = {0: "created", 1: "state", 2: "destroyed"}
QP_STATES = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"]
WIRE_EVENTS = {1: "retransmit", 2: "nak_sent", 3: "lost", 4: "timeout", 5: "discarded"}


class BadLog(Exception):
    pass


def signaled(wqe):
    return wqe.fm_ce_se & 0x0C >= 8


def read_log(path):
    """The records of one process. A log cut off in the middle of a record ends before it."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < FILE_HEADER.size:
            return
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            magic, version, pid, _, _ = FILE_HEADER.unpack_from(data)
            if magic != b"CXORACLE" or version != VERSION:
                raise BadLog(f"{path}: not an oracle's log of version {VERSION}")
            at = FILE_HEADER.size
            while at + HEADER.size <= len(data):
                kind, size, device, time_ns = HEADER.unpack_from(data, at)
                if kind == 0 or at + size > len(data):
                    return
                if kind not in DECODERS or DECODERS[kind][1].size + HEADER.size != size:
                    raise BadLog(f"{path}: offset {at}: record of type {kind}, size {size}")
                name, layout, record = DECODERS[kind]
                yield record(name, pid, device, time_ns, *layout.unpack_from(data, at + HEADER.size))
                at += size


def log_paths(directory):
    """In the order in which the processes opened their devices."""
    return sorted(glob.glob(os.path.join(directory, "oracle", "*.log")), key=lambda path: int(path.split(".")[-2]))


def records(directory, kinds=None):
    """All processes' records, one process after the other, each in the order in which the device acted."""
    for path in log_paths(directory):
        for record in read_log(path):
            if kinds is None or record.type in kinds:
                yield record


def summary_of(path):
    """One process: counts by opcode and status, bytes, queue pairs and their lives."""
    process = {"pid": int(os.path.basename(path).split(".")[0]), "send_wqes": collections.Counter(),
               "send_bytes": collections.Counter(), "signaled": 0, "inline": 0, "receive_wqes": 0,
               "cqes": collections.Counter(), "cqe_syndromes": collections.Counter(), "qps_created": 0,
               "qps_destroyed": 0, "lives": set(), "wire": collections.Counter()}
    for record in read_log(path):
        if record.type == "send_wqe":
            name = WQE_OPCODES.get(record.opcode, hex(record.opcode))
            process["send_wqes"][name] += 1
            process["send_bytes"][name] += record.bytes
            process["signaled"] += signaled(record)
            process["inline"] += record.is_inline
        elif record.type == "receive_wqe":
            process["receive_wqes"] += 1
        elif record.type == "cqe":
            process["cqes"][CQE_OPCODES.get(record.opcode, str(record.opcode))] += 1
            if record.syndrome:
                process["cqe_syndromes"][hex(record.syndrome)] += 1
        elif record.type == "qp":
            process["qps_created"] += record.event == 0
            process["qps_destroyed"] += record.event == 2
            process["lives"].add((record.device, record.qpn, record.life))
        elif record.type == "wire":
            process["wire"][WIRE_EVENTS.get(record.event, str(record.event))] += 1
    process["lives"] = len(process["lives"])
    return process


def summary(directory):
    return [summary_of(path) for path in log_paths(directory)]


def print_summary(directory):
    json.dump(summary(directory), sys.stdout, indent=1)
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--dump", nargs="?", const="all", metavar="TYPE")
    arguments = parser.parse_args()
    if not arguments.dump:
        print_summary(arguments.directory)
        return
    kinds = None if arguments.dump == "all" else {arguments.dump}
    for record in sorted(records(arguments.directory, kinds), key=lambda r: r.time_ns):
        fields = record._asdict()
        if "peer_gid" in fields:
            fields["peer_gid"] = fields["peer_gid"].hex()
        print(json.dumps(fields))


if __name__ == "__main__":
    try:
        main()
    except BadLog as error:
        sys.exit(f"oracle: {error}")
    except BrokenPipeError:
        sys.exit(0)
