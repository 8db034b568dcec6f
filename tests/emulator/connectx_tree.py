# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The run directory of an emulated ConnectX: what the library reads, and what tools see as /sys.

    DIR/sys        stands for /sys (SIGMATRACE_SYSFS=DIR/sys)
    DIR/dev        stands for /dev
    DIR/devices    the devices, for the library
    DIR/clock/*    each device's NIC clock, for readers outside (SIGMATRACE_CLOCK=DIR/clock)
    DIR/fabric     shared memory between the processes (made by the first)
    DIR/oracle/*   one log per process
"""
import os
import re
import sys
from dataclasses import dataclass, field

PCI_ROOT = "pci00c5:00"  # a domain that real machines do not have; shim.cpp knows it too
NOMINAL_KHZ = 156250     # the ConnectX core clock's usual rate
HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Device:
    index: int
    ethernet: bool
    ppm: float
    gids: list = field(default_factory=list)  # (32 hex digits, sysfs type, type for the library)

    def __post_init__(self):
        i = self.index
        self.name = f"mlx5_{i}"
        self.guid = 0x0C42A10300E4E400 + (i << 8)
        self.lid = 0 if self.ethernet else i + 1
        self.mac = f"0c42a1e4e4{i:02x}"
        self.address = f"00c5:{i:02x}:00.0"
        self.clock_offset = 0x0003_0000_0000 * (i + 1) + 0x1234567
        self.clock_mult = round(NOMINAL_KHZ * 1e3 * (1 + self.ppm * 1e-6) / 1e9 * 2**64)
        if self.ethernet:
            link_local = f"fe80000000000000{'0e42a1fffee4e4'}{i:02x}"
            mapped = f"00000000000000000000ffff0a0000{i + 1:02x}"
            for gid in (link_local, mapped):
                self.gids.append((gid, "IB/RoCE v1", "roce_v1"))
                self.gids.append((gid, "RoCE v2", "roce_v2"))
        else:
            self.gids.append((f"fe80000000000000{self.guid:016x}", "IB/RoCE v1", "ib"))

    @property
    def guid_text(self):
        digits = f"{self.guid:016x}"
        return ":".join(digits[n:n + 4] for n in range(0, 16, 4))


def find_library():
    """libsigma_connectx.so: named by SIGMA_CONNECTX_LIBRARY, installed beside, or in the build directory."""
    candidates = [os.environ.get("SIGMA_CONNECTX_LIBRARY"), f"{HERE}/libsigma_connectx.so",
                  f"{HERE}/../lib/libsigma_connectx.so"]
    for path in filter(None, candidates):
        if os.path.exists(path):
            return os.path.realpath(path)
    sys.exit("libsigma_connectx.so not found; set SIGMA_CONNECTX_LIBRARY")


def workload_environment(directory, realtime=False):
    """What a program needs in its environment to see the devices of a directory made by make_tree."""
    environment = {"SIGMA_CONNECTX_DIR": directory,
                   "LD_PRELOAD": " ".join(filter(None, [find_library(), os.environ.get("LD_PRELOAD")]))}
    if realtime:
        environment["SIGMA_CONNECTX_REALTIME"] = "1"
    return environment


def release_prefix():
    """What starts a program in the root folder of another release, where tests/releases/with_release says so."""
    root = os.environ.get("SIGMA_RELEASE_ROOT")
    enter = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "releases", "enter")
    return [enter, root] if root else []


def release_options():
    """The same, for connectx-run."""
    prefix = release_prefix()
    return ["--under", " ".join(prefix)] if prefix else []


def gid_text(digits):
    return ":".join(digits[n:n + 4] for n in range(0, 32, 4))


def counter_names():
    with open(os.path.join(HERE, "counters.def"), encoding="utf-8") as file:
        return re.findall(r"^COUNTER\((\w+), (\w+)\)", file.read(), re.M)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")


def link(target, path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(target, path)


def pci_files(device):
    return {
        "modalias": "pci:v000015B3d0000101Dsv000015B3sd00000006bc02sc07i00",
        "vendor": "0x15b3", "device": "0x101d", "subsystem_vendor": "0x15b3", "subsystem_device": "0x0006",
        "class": "0x020000" if device.ethernet else "0x020700", "numa_node": "0", "local_cpus": "3",
        "local_cpulist": "0-1", "current_link_width": "16", "current_link_speed": "16.0 GT/s PCIe",
        "max_link_width": "16", "max_link_speed": "16.0 GT/s PCIe",
    }


def port_files(device):
    files = {
        "state": "4: ACTIVE", "phys_state": "5: LinkUp", "lid": hex(device.lid), "sm_lid": "0x0" if device.ethernet else "0x1",
        "sm_sl": "0", "lid_mask_count": "0", "cap_mask": "0x2651e84a", "rate": "200 Gb/sec (4X HDR)",
        "link_layer": "Ethernet" if device.ethernet else "InfiniBand", "pkeys/0": "0xffff",
    }
    if not device.ethernet:
        files["pkeys/1"] = "0x7fff"
    for index, (digits, kind, _) in enumerate(device.gids):
        files[f"gids/{index}"] = gid_text(digits)
        files[f"gid_attrs/types/{index}"] = kind
        if device.ethernet:
            files[f"gid_attrs/ndevs/{index}"] = f"sigmaeth{device.index}"
    for directory, name in counter_names():
        files[f"{directory}/{name}"] = "0"
    files["hw_counters/lifespan"] = "10"
    return files


def make_device(root, device):
    pci = f"{root}/sys/devices/{PCI_ROOT}/{device.address}"
    verbs, ib = f"{pci}/infiniband_verbs/uverbs{device.index}", f"{pci}/infiniband/{device.name}"
    for name, value in pci_files(device).items():
        write(f"{pci}/{name}", value)
    for name, value in {"ibdev": device.name, "abi_version": "1", "dev": f"231:{192 + device.index}"}.items():
        write(f"{verbs}/{name}", value)
    for name, value in {
            "node_type": "1: CA", "fw_ver": "22.31.1014", "hw_rev": "0", "board_id": "MT_0000000359", "hca_type": "MT4125",
            "node_guid": device.guid_text, "sys_image_guid": device.guid_text, "node_desc": f"emulated {device.name}"}.items():
        write(f"{ib}/{name}", value)
    for name, value in port_files(device).items():
        write(f"{ib}/ports/1/{name}", value)
    for directory in (verbs, ib):
        link(f"../../../{device.address}", f"{directory}/device")
    below = f"../../devices/{PCI_ROOT}/{device.address}"
    link(f"{below}/infiniband/{device.name}", f"{root}/sys/class/infiniband/{device.name}")
    link(f"{below}/infiniband_verbs/uverbs{device.index}", f"{root}/sys/class/infiniband_verbs/uverbs{device.index}")
    link(f"../../../devices/{PCI_ROOT}/{device.address}", f"{root}/sys/bus/pci/devices/{device.address}")
    # Only has to exist: opening it is the library's business.
    write(f"{root}/dev/infiniband/uverbs{device.index}", "")
    write(f"{root}/clock/{device.name}", f"offset_ticks {device.clock_offset}\nmult_2_64 {device.clock_mult}\n"
                                         f"nominal_khz {NOMINAL_KHZ}")


def library_lines(device):
    lines = [f"device {device.name}", f"uverbs {device.index}", f"guid {device.guid:016x}", f"lid {device.lid}",
             f"link {'ethernet' if device.ethernet else 'infiniband'}", f"mac {device.mac}"]
    lines += [f"gid {digits} {kind}" for digits, _, kind in device.gids]
    lines += [f"clock_offset {device.clock_offset}", f"clock_mult {device.clock_mult}", f"clock_khz {NOMINAL_KHZ}"]
    return "\n".join(lines)


def make_tree(root, links, ppm=50.0):
    """Makes the directory for len(links) devices; links is a list of "ib" and "eth"."""
    devices = [Device(i, kind == "eth", ppm if i % 2 == 0 else -ppm) for i, kind in enumerate(links)]
    write(f"{root}/sys/class/infiniband_verbs/abi_version", "6")
    os.makedirs(f"{root}/oracle", exist_ok=True)
    for device in devices:
        make_device(root, device)
    write(f"{root}/devices", "\n".join(library_lines(device) for device in devices))
    return devices
