// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which queue pairs commands tell of, whether their rings can be placed or not.
#include "observe/directory.h"

#include <rdma/mlx5_user_ioctl_cmds.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <vector>

#include "catch.h"
#include "prm/prm_blobs.h"
#include "unit/decode_uverbs_record.h"

using namespace sigma;

namespace {

constexpr uint32_t kPid = 7;
constexpr uint64_t kContext = 0x5000, kOther = 0x6000;

struct Made : Directory::Events {
  std::vector<RingOwner> made;
  std::vector<uint64_t> at_ns;
  void on_send(const SendSpec&) override {}
  void on_cq(const CqSpec&) override {}
  void on_resize(const RingOwner&, const CqSpec&) override {}
  void on_resume_send(const RingOwner&, uint64_t) override {}
  void on_resume_cq(const RingOwner&, uint64_t) override {}
  void on_end_send(const RingOwner&, uint64_t) override {}
  void on_end_cq(const RingOwner&, uint64_t) override {}
  void on_made(const RingOwner& owner, uint64_t time_ns) override {
    made.push_back(owner);
    at_ns.push_back(time_ns);
  }
  std::vector<std::tuple<uint64_t, ObjectKind, uint32_t>> gone;
  void on_unknown_gone(uint32_t, uint64_t context, ObjectKind kind, uint32_t handle) override {
    gone.emplace_back(context, kind, handle);
  }
};

template <size_t kBytes>
std::array<uint8_t, kBytes> as_array(const prm_blobs::Blob& blob) {
  std::array<uint8_t, kBytes> bytes{};
  REQUIRE(blob.size() == kBytes);
  std::memcpy(bytes.data(), blob.data(), kBytes);
  return bytes;
}

UverbsRecord devx(uint16_t method) {
  return UverbsRecord(MLX5_IB_OBJECT_DEVX_OBJ, method).driver(RDMA_DRIVER_MLX5);
}

// In pieces of memory that nobody registered, as those of a device are: its ring has no place.
UverbsRecord create_devx_qp(uint32_t handle, uint32_t number) {
  prm_blobs::Writer answer(16);
  answer.put(8, 8, 24, number);
  return devx(MLX5_IB_METHOD_DEVX_OBJ_CREATE)
      .handle(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, handle)
      .in(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN,
          as_array<0x110>(prm_blobs::create_qp({.log_send_blocks = 7, .ring = {5, 0}, .doorbell = {6, 0}})))
      .out(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, as_array<16>(answer.take()));
}

UverbsRecord create_devx_dct(uint32_t handle, uint32_t number, uint8_t status = 0) {
  prm_blobs::Writer command(0x90), answer(16);
  command.put(0, 0, 16, 0x710);
  answer.put(0, 0, 8, status);
  answer.put(8, 8, 24, number);
  return devx(MLX5_IB_METHOD_DEVX_OBJ_CREATE)
      .handle(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, handle)
      .in(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, as_array<0x90>(command.take()))
      .out(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, as_array<16>(answer.take()));
}

// Without what the driver adds it has receives only.
UverbsRecord create_qp(uint32_t handle, uint32_t number) {
  return UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE)
      .driver(RDMA_DRIVER_MLX5)
      .handle(UVERBS_ATTR_CREATE_QP_HANDLE, handle)
      .in(UVERBS_ATTR_CREATE_QP_USER_HANDLE, uint64_t{0x5555deadbe10})
      .in(UVERBS_ATTR_CREATE_QP_TYPE, uint64_t{2})
      .out(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, number);
}

}  // namespace

TEST_CASE("directory: of each queue pair that a command makes it is told, also without a ring that can be placed") {
  Made events;
  Directory directory(events);
  directory.on_uverbs(create_devx_qp(1, 0x11).from(100, kPid, kContext).bytes());
  directory.on_uverbs(create_qp(2, 0x12).from(200, kPid, kContext).bytes());
  directory.on_uverbs(create_qp(3, 0x13).from(300, kPid, kContext).result(-12).bytes());
  REQUIRE(events.made.size() == 2);
  for (size_t i = 0; i < events.made.size(); ++i) {
    CHECK(events.made[i].pid == kPid);
    CHECK(events.made[i].context == kContext);
    CHECK(events.made[i].number == 0x11 + i);
    CHECK(events.at_ns[i] == 100 + 100 * i);
  }
  CHECK(directory.unplaced() == 1);
  CHECK(directory.has_heard_of(kPid, kContext, 0x11));
  CHECK(directory.has_heard_of(kPid, kContext, 0x12));
  CHECK_FALSE(directory.has_heard_of(kPid, kContext, 0x13));
  CHECK_FALSE(directory.has_heard_of(kPid + 1, kContext, 0x11));
}

TEST_CASE("directory: a DCT is heard of, though it has no ring, until it is destroyed") {
  Made events;
  Directory directory(events);
  directory.on_uverbs(create_devx_dct(1, 0x31).from(100, kPid, kContext).bytes());
  directory.on_uverbs(create_devx_dct(2, 0x32, 5).from(200, kPid, kContext).bytes());
  REQUIRE(events.made.size() == 1);
  CHECK((events.made[0].number == 0x31 && events.at_ns[0] == 100));
  CHECK(directory.has_heard_of(kPid, kContext, 0x31));
  CHECK_FALSE(directory.has_heard_of(kPid, kContext, 0x32));
  CHECK(directory.unplaced() == 0);
  directory.on_uverbs(devx(MLX5_IB_METHOD_DEVX_OBJ_DESTROY)
                          .handle(MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, 1)
                          .from(300, kPid, kContext)
                          .bytes());
  CHECK_FALSE(directory.has_heard_of(kPid, kContext, 0x31));
  CHECK(events.gone.empty());
}

TEST_CASE("directory: what was found in memory was not told by a command") {
  Made events;
  Directory directory(events);
  SendSpec found;
  found.owner = {.pid = kPid, .context = kContext, .by_file = false, .number = 0x21};
  found.ring_addr = 0x10000;
  found.doorbell_addr = 0x20000;
  found.blocks = 64;
  found.origin = SIGMA_RING_BY_SCAN;
  directory.add_found(found, 1, 0);
  CHECK_FALSE(directory.has_heard_of(kPid, kContext, 0x21));
  found.owner.number = 0x22;
  found.origin = SIGMA_RING_BY_COMMAND;
  directory.add_found(found, 2, 0);
  CHECK(directory.has_heard_of(kPid, kContext, 0x22));
  CHECK_FALSE(directory.has_heard_of(kPid, kOther, 0x22));
  CHECK(events.made.empty());
}

TEST_CASE("directory: of objects that commands destroy it tells where it did not know them") {
  Made events;
  Directory directory(events);
  const auto qp = [](uint32_t handle) {
    return UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY)
        .driver(RDMA_DRIVER_MLX5)
        .handle(UVERBS_ATTR_DESTROY_QP_HANDLE, handle);
  };
  directory.on_uverbs(create_qp(2, 0x12).from(100, kPid, kContext).bytes());
  directory.on_uverbs(qp(2).from(200, kPid, kContext).bytes());
  CHECK(events.gone.empty());
  directory.on_uverbs(qp(3).from(300, kPid, kOther).result(-EBUSY).bytes());
  CHECK(events.gone.empty());
  directory.on_uverbs(qp(3).from(400, kPid, kOther).bytes());
  directory.on_uverbs(UverbsRecord(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY)
                          .driver(RDMA_DRIVER_MLX5)
                          .handle(UVERBS_ATTR_DESTROY_CQ_HANDLE, 4)
                          .from(500, kPid, kContext)
                          .bytes());
  directory.on_uverbs(devx(MLX5_IB_METHOD_DEVX_OBJ_DESTROY)
                          .handle(MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, 5)
                          .from(600, kPid, kContext)
                          .bytes());
  using Gone = std::tuple<uint64_t, ObjectKind, uint32_t>;
  CHECK(events.gone == std::vector<Gone>{{kOther, ObjectKind::qp, 3}, {kContext, ObjectKind::cq, 4},
                                         {kContext, ObjectKind::devx, 5}});
}
