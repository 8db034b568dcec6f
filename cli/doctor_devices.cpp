// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// doctor: the RDMA devices of this machine.
#include <fmt/format.h>

#include "attach/rdma_sysfs.h"
#include "cli/findings.h"

namespace sigma {

void add_device_findings(Findings& findings) {
  const auto devices = rdma_devices();
  if (devices.empty())
    findings.push_back({"devices", "none", Verdict::note,
                        fmt::format("no device under {}/class/infiniband", sysfs_root()),
                        "load the NIC's driver (modprobe mlx5_ib), or try soft-RoCE: rdma link add "
                        "rxe0 type rxe netdev eth0"});
  for (const SysfsDevice& device : devices) {
    Finding finding{"devices", device.name, Verdict::ok, {}, {}};
    bool active = false;
    for (const SysfsPort& port : device.ports) {
      finding.detail += fmt::format("{}port {} {} {}", finding.detail.empty() ? "" : ", ",
                                    port.number, port.state, port.link_layer);
      active = active || port.state == "ACTIVE";
    }
    if (!device.firmware.empty()) finding.detail += fmt::format(", firmware {}", device.firmware);
    if (!active) {
      finding.verdict = Verdict::note;
      finding.mend = "no port is active: check the cable, and bring the link up";
    }
    if (device.uverbs.empty()) {
      finding.verdict = Verdict::note;
      finding.mend = "no verbs node, so no process can use it: modprobe ib_uverbs";
    }
    findings.push_back(std::move(finding));
  }
}

}  // namespace sigma
