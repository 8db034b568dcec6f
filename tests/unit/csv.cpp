// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a row says, read back by a parser of the test's own.
#include "output/csv.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>

#include <map>
#include <sstream>

#include "catch.h"
#include "csv_support.h"
#include "decode/wqe.h"
#include "output/names.h"

using namespace sigma;
using namespace sigma::test;

namespace {

using Named = std::map<std::string, std::string>;

// Monotonic 1000 is the Unix time 1700000000 s.
const ClockPair kPair{1000, 1'700'000'000'000'000'000, 10};

std::array<uint8_t, 16> gid(const char* text) {
  std::array<uint8_t, 16> bytes{};
  if (inet_pton(AF_INET6, text, bytes.data()) != 1) throw std::runtime_error("not an address");
  return bytes;
}

// The rows that these operations give, by column name.
std::vector<Named> rows_of(const std::vector<Operation>& operations,
                           const std::string& node = "n1") {
  const TemporaryFolder folder;
  const std::string path = folder / "ops.csv";
  auto sink = CsvSink::create(path, {node, UtcClock(kPair)});
  REQUIRE(sink.ok());
  for (const auto& operation : operations) (*sink)->on_operation(operation);
  (*sink)->finish();
  CHECK_FALSE((*sink)->error());
  CHECK((*sink)->rows_written() == operations.size());
  CHECK((*sink)->rows_lost() == 0);

  const auto rows = parse_csv(read_file(path));
  REQUIRE(rows.size() == operations.size() + 1);
  std::vector<Named> result;
  for (size_t i = 1; i < rows.size(); ++i) {
    REQUIRE(rows[i].size() == rows[0].size());
    Named named;
    for (size_t column = 0; column < rows[0].size(); ++column)
      named[rows[0][column]] = rows[i][column];
    result.push_back(std::move(named));
  }
  return result;
}

Named row_of(const Operation& operation) {
  return rows_of({operation})[0];
}

Operation complete_operation() {
  auto qp = std::make_shared<QueuePair>();
  qp->device = "mlx5_0";
  qp->qp_num = 17;
  qp->type = IBV_QPT_RC;
  qp->port = 1;
  qp->peer_qp_num = 99;
  qp->peer.gid = gid("fe80::1");
  Operation operation;
  operation.qp = qp;
  operation.time_ns = 2000;
  operation.time_error_ns = 3;
  operation.complete_ns = 6000;
  operation.complete_error_ns = 4;
  operation.latency_ns = 4000;
  operation.complete_source = CompleteSource::poll;
  operation.pid = 4711;
  operation.tid = 4712;
  operation.comm = "job";
  operation.queue = Queue::send;
  operation.opcode = Opcode::rdma_write_with_imm;
  operation.bytes = 65536;
  operation.sge_count = 2;
  operation.signaled = true;
  operation.is_inline = false;
  operation.wr_id = UINT64_MAX;
  operation.local_addr = 0x7f0012345678;
  operation.remote_addr = 0;
  operation.lkey = 0xdeadbeef;
  operation.rkey = 0x1;
  operation.imm = 258;
  operation.peer_qp_num = 18;
  operation.peer.gid = gid("::ffff:10.77.0.2");
  operation.status = IBV_WC_SUCCESS;
  operation.vendor_err = 0;
  operation.index = 65536;
  operation.tier = 1;
  operation.flags = kUnverified | kTruncated;
  return operation;
}

}  // namespace

TEST_CASE("the CSV header has the columns of the contract, in its order") {
  const std::string contract =
      "time_ns time_error_ns complete_ns latency_ns complete_source node pid tid comm device port "
      "qp_num qp_type "
      "peer_qp_num peer queue opcode bytes sge_count signaled inline wr_id local_addr lkey "
      "remote_addr rkey imm status "
      "vendor_err initiator source index complete_error_ns tier flags";
  std::istringstream words(contract);
  const std::vector<std::string> expected{std::istream_iterator<std::string>(words), {}};

  const TemporaryFolder folder;
  auto sink = CsvSink::create(folder / "ops.csv", {"n1", UtcClock(kPair)});
  REQUIRE(sink.ok());
  (*sink)->finish();
  const auto rows = parse_csv(read_file(folder / "ops.csv"));
  REQUIRE(rows.size() == 1);
  CHECK(rows[0] == expected);
  CHECK((*sink)->rows_written() == 0);
}

TEST_CASE("a CSV row has every known value in its column") {
  const Named expected{
      {"time_ns", "1700000000000001000"},
      {"time_error_ns", "3"},
      {"complete_ns", "1700000000000005000"},
      {"latency_ns", "4000"},
      {"complete_source", "poll"},
      {"node", "n1"},
      {"pid", "4711"},
      {"tid", "4712"},
      {"comm", "job"},
      {"device", "mlx5_0"},
      {"port", "1"},
      {"qp_num", "17"},
      {"qp_type", "rc"},
      {"peer_qp_num", "18"},
      {"peer", "::ffff:10.77.0.2"},
      {"queue", "send"},
      {"opcode", "rdma_write_with_imm"},
      {"bytes", "65536"},
      {"sge_count", "2"},
      {"signaled", "yes"},
      {"inline", "no"},
      {"wr_id", "18446744073709551615"},
      {"local_addr", "0x7f0012345678"},
      {"lkey", "0xdeadbeef"},
      {"remote_addr", "0x0"},
      {"rkey", "0x1"},
      {"imm", "258"},
      {"status", "success"},
      {"vendor_err", "0"},
      {"initiator", "cpu"},
      {"source", "probe"},
      {"index", "65536"},
      {"complete_error_ns", "4"},
      {"tier", "1"},
      {"flags", "unverified truncated"},
  };
  CHECK(row_of(complete_operation()) == expected);
}

TEST_CASE("unknown values are empty in a CSV row, never 0") {
  Operation operation;
  operation.pid = 5;
  operation.queue = Queue::recv;
  operation.initiator = Initiator::unknown;
  Named row = row_of(operation);
  CHECK(row["pid"] == "5");
  CHECK(row["node"] == "n1");
  CHECK(row["queue"] == "recv");
  CHECK(row["status"] == "unfinished");
  CHECK(row["source"] == "probe");
  for (const char* known : {"pid", "node", "queue", "status", "source"}) row.erase(known);
  for (const auto& [column, value] : row) {
    INFO(column);
    CHECK(value.empty());
  }
}

TEST_CASE("the peer of a CSV row is the queue pair's where the operation has none") {
  Operation operation = complete_operation();
  operation.peer = {};
  operation.peer_qp_num.reset();
  Named row = row_of(operation);
  CHECK(row["peer"] == "fe80::1");
  CHECK(row["peer_qp_num"] == "99");

  operation.peer.lid = 42;
  CHECK(row_of(operation)["peer"] == "42");
}

TEST_CASE("names of other processes cannot break a CSV file") {
  const std::string nasty = "a,\"b\"\r\nx\x1b[31m\x01\xff\xc3\xa9";
  Operation operation = complete_operation();
  operation.comm = nasty;
  auto qp = std::make_shared<QueuePair>(*operation.qp);
  qp->device = "dev\nice";
  operation.qp = qp;
  const auto rows = rows_of({operation, complete_operation()}, "node, \"one\"");
  CHECK(rows[0].at("comm") == "a,\"b\"\\x0d\\x0ax\\x1b[31m\\x01\\xff\xc3\xa9");
  CHECK(rows[0].at("device") == "dev\\x0aice");
  CHECK(rows[0].at("node") == "node, \"one\"");
  CHECK(rows[1].at("comm") == "job");
}

TEST_CASE("GIDs read as RFC 5952 text") {
  // The RFC's own examples and the forms that RoCE and InfiniBand use.
  const std::map<std::string, std::string> forms{
      {"2001:0db8:0000:0000:0001:0000:0000:0001", "2001:db8::1:0:0:1"},
      {"2001:0db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"},
      {"fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "fe80::e42:a1ff:fe00:1"},
      {"0:0:0:0:0:ffff:0a4d:0002", "::ffff:10.77.0.2"},
      {"0:0:0:0:0:0:0:1", "::1"},
      {"FD00::ABCD", "fd00::abcd"},
  };
  for (const auto& [given, expected] : forms) {
    const Address address{gid(given.c_str()), std::nullopt};
    CHECK(address_text(address) == expected);
    CHECK(gid(expected.c_str()) == *address.gid);
  }
  CHECK(address_text({std::nullopt, uint16_t{65535}}) == "65535");
  CHECK(address_text({}).empty());
}

TEST_CASE("consecutive CSV rows show each its own peer") {
  std::vector<Operation> operations(4, complete_operation());
  operations[1].peer.gid = gid("fe80::2");
  operations[2].peer = {std::nullopt, uint16_t{7}};
  const auto rows = rows_of(operations);
  CHECK(rows[0].at("peer") == "::ffff:10.77.0.2");
  CHECK(rows[1].at("peer") == "fe80::2");
  CHECK(rows[2].at("peer") == "7");
  CHECK(rows[3].at("peer") == "::ffff:10.77.0.2");
}

TEST_CASE("enums in a CSV row are names") {
  const std::map<uint32_t, std::string> statuses{
      {IBV_WC_LOC_LEN_ERR, "loc_len_err"},
      {IBV_WC_LOC_PROT_ERR, "loc_prot_err"},
      {IBV_WC_WR_FLUSH_ERR, "wr_flush_err"},
      {IBV_WC_REM_ACCESS_ERR, "rem_access_err"},
      {IBV_WC_RETRY_EXC_ERR, "retry_exc_err"},
      {IBV_WC_RNR_RETRY_EXC_ERR, "rnr_retry_exc_err"},
      {IBV_WC_GENERAL_ERR, "general_err"},
      {IBV_WC_REM_INV_REQ_ERR, "rem_inv_req_err"},
      {IBV_WC_RESP_TIMEOUT_ERR, "resp_timeout_err"},
      {4096, "status_4096"},
  };
  for (const auto& [status, name] : statuses) {
    Operation operation = complete_operation();
    operation.status = status;
    CHECK(row_of(operation).at("status") == name);
  }
  const std::map<uint8_t, std::string> types{
      {IBV_QPT_RC, "rc"},
      {IBV_QPT_UC, "uc"},
      {IBV_QPT_UD, "ud"},
      {IBV_QPT_RAW_PACKET, "raw_packet"},
      {IBV_QPT_XRC_SEND, "xrc_send"},
      {IBV_QPT_XRC_RECV, "xrc_recv"},
      {IBV_QPT_DRIVER, "driver"},
      {kQpTypeDci, "dci"},
      {kQpTypeDct, "dct"},
      {77, ""},
  };
  for (const auto& [type, name] : types) {
    Operation operation = complete_operation();
    auto qp = std::make_shared<QueuePair>(*operation.qp);
    qp->type = type;
    operation.qp = qp;
    CHECK(row_of(operation).at("qp_type") == name);
  }
  Operation operation = complete_operation();
  operation.source = Source::gpu;
  operation.initiator = Initiator::gpu;
  operation.complete_source = CompleteSource::inferred;
  operation.flags = 0xff;
  Named row = row_of(operation);
  CHECK(row["source"] == "gpu");
  CHECK(row["initiator"] == "gpu");
  CHECK(row["complete_source"] == "inferred");
  CHECK(row["flags"] == "unverified ambiguous concurrent truncated modulo");
}
