// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// RDMA netlink: answers as the kernel writes them, and as it never would.
#include <algorithm>
#include <cerrno>

#include "attach/rdma_netlink.h"
#include "catch.h"
#include "netlink_builder.h"

using namespace sigma;

namespace {

// A copy of exactly the wanted size on the heap, so that the sanitizer sees a read beyond it.
template <typename Parse>
NetlinkBatch parse_exactly(const std::vector<std::byte>& bytes, size_t size, const Parse& parse) {
  std::vector<std::byte> exact(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
  exact.shrink_to_fit();
  return parse(std::span<const std::byte>(exact));
}

NetlinkBatch qps_of(const std::vector<std::byte>& bytes, std::vector<RdmaQp>& out) {
  return parse_exactly(bytes, bytes.size(), [&](auto span) { return parse_qps(span, 7, out); });
}

}  // namespace

TEST_CASE("a netlink list of queue pairs is parsed") {
  for (uint16_t flag : {0, NLA_F_NESTED}) {
    std::vector<RdmaQp> qps;
    NetlinkBatch batch = qps_of(qp_list(flag), qps);
    CHECK(batch.done);
    CHECK(batch.error == 0);
    CHECK(batch.malformed == 0);
    CHECK_FALSE(batch.interrupted);
    REQUIRE(qps.size() == 3);

    CHECK(qps[0].device == "rxe0");
    CHECK(qps[0].number == 17);
    CHECK(qps[0].peer_number == std::optional<uint32_t>(18));
    CHECK(qps[0].rq_psn == std::optional<uint32_t>(0x111));
    CHECK(qps[0].sq_psn == std::optional<uint32_t>(0x222));
    CHECK(qps[0].port == 1);
    CHECK(qps[0].type == 2);
    CHECK(qps[0].state == 3);
    CHECK(qps[0].pid == 1234);
    CHECK(qps[0].kernel_name.empty());

    CHECK(qps[1].device == "rxe0");
    CHECK(qps[1].pid == 0);
    CHECK(qps[1].kernel_name == "nvme_rdma");
    CHECK_FALSE(qps[1].sq_psn.has_value());
    CHECK_FALSE(qps[2].peer_number.has_value());

    RdmaResources resources;
    resources.qps = qps;
    CHECK(resources.kernel_users() == std::map<std::string, size_t>{{"nvme_rdma on rxe0", 1}});
  }
}

TEST_CASE("peers of queue pairs become records, for the asked processes alone") {
  RdmaResources resources;
  REQUIRE(qps_of(qp_list(), resources.qps).done);
  RdmaQp unconnected = resources.qps[0];
  unconnected.peer_number = 0;
  RdmaQp datagram = resources.qps[0];
  datagram.peer_number.reset();
  resources.qps.insert(resources.qps.end(), {unconnected, datagram});

  const uint32_t asked[] = {1, 1234}, others[] = {1, 2};
  CHECK(peer_records(resources, others, 5).empty());
  for (std::span<const uint32_t> pids :
       {std::span<const uint32_t>(asked), std::span<const uint32_t>()}) {
    auto records = peer_records(resources, pids, 5);
    REQUIRE(records.size() == 1);
    CHECK(records[0].h.type == SIGMA_QP_PEER);
    CHECK(records[0].h.size == sizeof(sigma_qp_peer));
    CHECK(records[0].h.time_ns == 5);
    CHECK(records[0].h.pid == 1234);
    CHECK(std::string(records[0].device) == "rxe0");
    CHECK(records[0].qp_num == 17);
    CHECK(records[0].peer_qp_num == 18);
    CHECK(records[0].sq_psn == 0x222);
    CHECK(records[0].rq_psn == 0x111);
    CHECK(records[0].state == 3);
    CHECK(records[0].qp_type == 2);
  }
}

TEST_CASE("netlink lists of devices and memory regions are parsed") {
  NetlinkBuilder b;
  b.nldev(RDMA_NLDEV_CMD_GET)
      .u32(RDMA_NLDEV_ATTR_DEV_INDEX, 0)
      .text(RDMA_NLDEV_ATTR_DEV_NAME, "mlx5_0")
      .u32(RDMA_NLDEV_ATTR_PORT_INDEX, 2)
      .u64(RDMA_NLDEV_ATTR_NODE_GUID, 0x1122334455667788);
  b.nldev(RDMA_NLDEV_CMD_GET)
      .u32(RDMA_NLDEV_ATTR_DEV_INDEX, 5)
      .text(RDMA_NLDEV_ATTR_DEV_NAME, "rxe0");
  b.nldev(RDMA_NLDEV_CMD_GET).text(RDMA_NLDEV_ATTR_DEV_NAME, "no_index");
  b.ending(NLMSG_DONE, 0);
  std::vector<RdmaDevice> devices;
  NetlinkBatch batch = parse_devices(b.bytes(), 7, devices);
  CHECK(batch.done);
  CHECK(batch.malformed == 1);
  REQUIRE(devices.size() == 2);
  CHECK(devices[0].name == "mlx5_0");
  CHECK(devices[0].ports == 2);
  CHECK(devices[1].index == 5);

  NetlinkBuilder m;
  m.nldev(RDMA_NLDEV_CMD_RES_MR_GET)
      .text(RDMA_NLDEV_ATTR_DEV_NAME, "mlx5_0")
      .begin(RDMA_NLDEV_ATTR_RES_MR)
      .begin(RDMA_NLDEV_ATTR_RES_MR_ENTRY)
      .u32(RDMA_NLDEV_ATTR_RES_RKEY, 0xa5)
      .u32(RDMA_NLDEV_ATTR_RES_LKEY, 0x5a)
      .u64(RDMA_NLDEV_ATTR_RES_MRLEN, 1 << 20)
      .u32(RDMA_NLDEV_ATTR_RES_MRN, 9)
      .u32(RDMA_NLDEV_ATTR_RES_PID, 77)
      .close()
      .close();
  std::vector<RdmaMr> mrs;
  batch = parse_mrs(m.bytes(), 7, mrs);
  CHECK_FALSE(batch.done);
  CHECK(batch.malformed == 0);
  REQUIRE(mrs.size() == 1);
  CHECK(mrs[0].device == "mlx5_0");
  CHECK(mrs[0].lkey == std::optional<uint32_t>(0x5a));
  CHECK(mrs[0].rkey == std::optional<uint32_t>(0xa5));
  CHECK(mrs[0].length == 1 << 20);
  CHECK_FALSE(mrs[0].iova.has_value());
  CHECK(mrs[0].number == 9);
  CHECK(mrs[0].pid == 77);
}

TEST_CASE("a netlink answer about one queue pair has the device's own account") {
  const uint32_t words[] = {0x11223344, 0x55667788};
  for (const unsigned command : {RDMA_NLDEV_CMD_RES_QP_GET_RAW, RDMA_NLDEV_CMD_RES_QP_GET}) {
    NetlinkBuilder b;
    b.nldev(command, 0)
        .u32(RDMA_NLDEV_ATTR_DEV_INDEX, 0)
        .text(RDMA_NLDEV_ATTR_DEV_NAME, "mlx5_0")
        .attribute(RDMA_NLDEV_ATTR_RES_RAW, words, sizeof words);
    std::vector<RdmaQpDump> dumps;
    const NetlinkBatch batch = parse_qp_dumps(b.bytes(), 7, dumps);
    CHECK((batch.done && batch.error == 0 && batch.malformed == 0));
    REQUIRE(dumps.size() == 1);
    CHECK(dumps[0].device == "mlx5_0");
    CHECK(dumps[0].bytes.size() == sizeof words);
  }
  NetlinkBuilder empty;
  empty.nldev(RDMA_NLDEV_CMD_RES_QP_GET_RAW, 0).text(RDMA_NLDEV_ATTR_DEV_NAME, "mlx5_0");
  std::vector<RdmaQpDump> dumps;
  CHECK(parse_qp_dumps(empty.bytes(), 7, dumps).malformed == 1);
  CHECK(dumps.empty());
}

TEST_CASE("netlink endings: done, errors, a changed list, another's answer") {
  std::vector<RdmaQp> qps;
  NetlinkBatch batch = parse_qps(NetlinkBuilder().ending(NLMSG_ERROR, -EPERM).bytes(), 7, qps);
  CHECK(batch.done);
  CHECK(batch.error == EPERM);

  batch = parse_qps(NetlinkBuilder().ending(NLMSG_DONE, -ENOENT).bytes(), 7, qps);
  CHECK(batch.done);
  CHECK(batch.error == ENOENT);

  batch = parse_qps(NetlinkBuilder().message(NLMSG_DONE, NLM_F_MULTI | NLM_F_DUMP_INTR).bytes(), 7,
                    qps);
  CHECK(batch.done);
  CHECK(batch.interrupted);

  batch = parse_qps(NetlinkBuilder(8).ending(NLMSG_ERROR, -EPERM).bytes(), 7, qps);
  CHECK_FALSE(batch.done);
  CHECK(batch.error == 0);

  batch = parse_qps(NetlinkBuilder().nldev(RDMA_NLDEV_CMD_RES_CQ_GET).bytes(), 7, qps);
  CHECK(batch.malformed == 1);
  batch = parse_qps(NetlinkBuilder().message(0x1234).bytes(), 7, qps);
  CHECK(batch.malformed == 1);
  CHECK(qps.empty());
}

TEST_CASE("netlink attributes of a wrong size or form are counted and left out") {
  const struct {
    const char* what;
    std::vector<std::byte> bytes;
    size_t qps;
  } cases[] = {
      {"a number of two bytes",
       NetlinkBuilder()
           .nldev(RDMA_NLDEV_CMD_RES_QP_GET)
           .begin(RDMA_NLDEV_ATTR_RES_QP)
           .begin(RDMA_NLDEV_ATTR_RES_QP_ENTRY)
           .attribute(RDMA_NLDEV_ATTR_RES_LQPN, "ab", 2)
           .close()
           .close()
           .bytes(),
       0},
      {"a name without its end",
       NetlinkBuilder()
           .nldev(RDMA_NLDEV_CMD_RES_QP_GET)
           .attribute(RDMA_NLDEV_ATTR_DEV_NAME, "abcd", 4)
           .begin(RDMA_NLDEV_ATTR_RES_QP)
           .begin(RDMA_NLDEV_ATTR_RES_QP_ENTRY)
           .u32(RDMA_NLDEV_ATTR_RES_LQPN, 5)
           .close()
           .close()
           .bytes(),
       1},
      {"a name with an escape sequence",
       NetlinkBuilder()
           .nldev(RDMA_NLDEV_CMD_RES_QP_GET)
           .text(RDMA_NLDEV_ATTR_DEV_NAME, "\033[2J")
           .begin(RDMA_NLDEV_ATTR_RES_QP)
           .begin(RDMA_NLDEV_ATTR_RES_QP_ENTRY)
           .u32(RDMA_NLDEV_ATTR_RES_LQPN, 5)
           .close()
           .close()
           .bytes(),
       1},
      {"an attribute shorter than its header",
       NetlinkBuilder().nldev(RDMA_NLDEV_CMD_RES_QP_GET).raw32(0x00010003).bytes(), 0},
      {"an attribute longer than its message",
       NetlinkBuilder().nldev(RDMA_NLDEV_CMD_RES_QP_GET).raw32(0x0001ffff).bytes(), 0},
  };
  for (const auto& c : cases) {
    INFO(c.what);
    std::vector<RdmaQp> qps;
    NetlinkBatch batch = qps_of(c.bytes, qps);
    CHECK(batch.malformed >= 1);
    CHECK(qps.size() == c.qps);
    for (const RdmaQp& qp : qps) CHECK(qp.device.empty());
  }
}

TEST_CASE("a netlink answer cut anywhere gives what was whole and says so") {
  const std::vector<std::byte> whole = qp_list();
  std::vector<RdmaQp> all;
  REQUIRE(qps_of(whole, all).done);
  const size_t ending = 20;  // the message that says "done"
  for (size_t size = 0; size < whole.size(); ++size) {
    INFO("cut at " << size);
    std::vector<RdmaQp> qps;
    NetlinkBatch batch = parse_exactly(whole, size, [&](auto s) { return parse_qps(s, 7, qps); });
    bool at_boundary = size == 0 || size == whole.size() - ending;
    CHECK(batch.malformed == (at_boundary ? 0 : 1));
    CHECK_FALSE(batch.done);
    CHECK(qps.size() == (size >= whole.size() - ending ? 3 : 0));
  }
}

TEST_CASE("what the kernel answers here is either parsed or explained") {
  auto resources = read_rdma_resources({.memory_regions = true});
  if (resources.ok()) {
    CHECK(resources->malformed == 0);
    for (const RdmaQp& qp : resources->qps) CHECK_FALSE(qp.device.empty());
  } else {
    CHECK_THAT(resources.error().what, ContainsSubstring("RDMA netlink"));
    CHECK_FALSE(resources.error().hint.empty());
  }
}
