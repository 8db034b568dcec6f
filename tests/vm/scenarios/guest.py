#!/usr/bin/env python3
"""The rig itself: what every other test in the guest relies on."""
import os
import subprocess
import sys

NEEDED = ["/sys/kernel/btf/vmlinux", "/sys/kernel/btf/ib_uverbs", "/sys/kernel/btf/rdma_rxe",
          "/sys/fs/bpf", "/sys/kernel/tracing/uprobe_events", "/sys/kernel/debug/sched",
          "/sys/fs/cgroup/cgroup.controllers", "/dev/infiniband/uverbs0",
          "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm",
          "/lib/modules/" + os.uname().release]


def main() -> int:
    missing = [path for path in NEEDED if not os.path.exists(path)]
    links = subprocess.run(["rdma", "link"], stdout=subprocess.PIPE, text=True, check=True).stdout
    for device in ("rxe0", "rxe1"):
        if f"link {device}/1 state ACTIVE" not in links:
            missing.append(f"an active {device}")
        with open(f"/sys/class/infiniband/{device}/ports/1/gids/1") as file:
            if not file.read().startswith("0000:0000:0000:0000:0000:ffff:0a4d:000"):
                missing.append(f"{device}'s IPv4 GID at index 1")
    if os.uname().release.startswith("6.12"):
        with open("/sys/kernel/debug/sched/preempt") as file:
            if "(full)" not in file.read():
                missing.append("full preemption")
    for name in missing:
        print(f"missing in the guest: {name}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
