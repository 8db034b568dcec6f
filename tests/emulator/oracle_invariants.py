# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What holds for every log, whatever ran: positions without gaps, completions that belong to a WQE
and follow it, time stamps on the device's clock."""
import collections
import os
import sys

import oracle


def fail(message):
    sys.exit(f"FAILED: {message}")


def require_equal(what, got, expected):
    if got != expected:
        fail(f"{what}: {got}, expected {expected}")


def clock_models(directory):
    """By device index: time in ns to ticks."""
    models = []
    for name in sorted(os.listdir(f"{directory}/clock"), key=lambda n: int(n.rsplit("_", 1)[1])):
        with open(f"{directory}/clock/{name}", encoding="ascii") as file:
            values = dict(line.split() for line in file)
        offset, mult = int(values["offset_ticks"]), int(values["mult_2_64"])
        models.append(lambda ns, offset=offset, mult=mult: (offset + (ns * mult >> 64)) & (2**64 - 1))
    return models


def check_log(path, models):
    next_send = collections.Counter()  # by life of a queue pair
    next_cqe = collections.Counter()   # by completion queue
    waiting = collections.defaultdict(collections.OrderedDict)  # WQEs not completed, by life
    created, real_time = set(), set()  # completion queues
    for record in oracle.read_log(path):
        where = f"{os.path.basename(path)}: {record}"
        if record.type == "send_wqe":
            life = (record.device, record.qpn, record.life)
            if record.position != next_send[life]:
                fail(f"WQE at {record.position} after {next_send[life]}: {where}")
            next_send[life] += record.basic_blocks
            waiting[life][record.position] = record
        elif record.type == "cqe":
            queue = (record.device, record.cqn)
            if queue not in created or record.position != next_cqe[queue]:
                fail(f"CQE at {record.position}, expected {next_cqe[queue]}: {where}")
            next_cqe[queue] += 1
            on_clock = queue in real_time or record.nic_ticks == models[record.device](record.time_ns)
            if record.syndrome == 0 and not on_clock:
                fail(f"time stamp off the device's clock: {where}")
            if oracle.CQE_OPCODES[record.opcode] in ("REQ", "REQ_ERR"):
                complete(waiting[record.device, record.qpn, record.life], record, where)
        elif record.type == "cq" and record.event == 0:
            created.add((record.device, record.cqn))
            if record.real_time:
                real_time.add((record.device, record.cqn))
        elif record.type == "cq" and record.event == 4:  # a RESIZE_CQ entry
            next_cqe[record.device, record.cqn] += 1


def complete(wqes, cqe, where):
    """A requester's CQE completes its WQE and the unsignaled ones before it."""
    wqe = wqes.get(cqe.wqe_position)
    if wqe is None:
        fail(f"completes a WQE that was not fetched: {where}")
    if wqe.position & 0xFFFF != cqe.wqe_counter or wqe.time_ns > cqe.time_ns:
        fail(f"does not fit its WQE {wqe}: {where}")
    if cqe.syndrome == 0 and (wqe.opcode != cqe.wqe_opcode or not oracle.signaled(wqe)):
        fail(f"does not fit its WQE {wqe}: {where}")
    for position in list(wqes):
        if position > cqe.wqe_position:
            break
        if position < cqe.wqe_position and oracle.signaled(wqes[position]):
            fail(f"overtakes a signaled WQE at {position}: {where}")
        del wqes[position]


def check_invariants(directory):
    models = clock_models(directory)
    for path in oracle.log_paths(directory):
        check_log(path, models)
