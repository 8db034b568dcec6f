#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The kernel's hook and mlx5 at once: the emulated device's commands pass a function of the kernel's, which the
tracer hooks in the place of ib_uverbs_ioctl. Two contexts of one device, older than the attach; their queue pairs'
last requests, posted just before the command that destroys them, are in what BPF copies then. The file that the
hooked function has is no device node: its number is 0:0, which is what the emulated sysfs says of the device."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ["SIGMA_BUILD"]

if __name__ == "__main__":
    row = os.path.join(HERE, "../../emulator/trace/trace_test.py")
    environment = dict(os.environ, SIGMA_CONNECTX_LIBRARY=os.path.join(BUILD, "lib/libsigma_connectx.so"))
    sys.exit(subprocess.run([sys.executable, "-B", row, "late.contexts.ring_ring", "--sigmatrace",
                             os.path.join(BUILD, "bin/sigmatrace"), "--workloads", os.path.join(BUILD, "tests/workloads")],
                            env=environment, check=False).returncode)
