// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Commands in the old write() layout that libibverbs sends through the ioctl (INVOKE_WRITE):
// structures of <rdma/ib_user_verbs.h>.
#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include <bit>
#include <cerrno>

#include "clock.h"
#include "uverbs.h"

namespace connectx {
namespace {

template <typename T>
int with_input(Command& command, int (*handler)(Command&, const T&)) {
  if (command.in(UVERBS_ATTR_CORE_IN).size() < sizeof(T)) return ENOSPC;
  return handler(command, command.in_struct<T>(UVERBS_ATTR_CORE_IN));
}

void device_attributes(const DeviceConfig& settings, ib_uverbs_query_device_resp& attributes) {
  attributes.fw_ver = uint64_t{22} << 32 | 31 << 16 | 1014;
  attributes.node_guid = htobe64(settings.node_guid);
  attributes.sys_image_guid = attributes.node_guid;
  attributes.max_mr_size = ~uint64_t{0};
  attributes.page_size_cap = ~uint64_t{0xfff};
  attributes.vendor_id = 0x02c9;
  attributes.vendor_part_id = 0x101d;  // ConnectX-6 Dx, as the PCI device id in sysfs
  attributes.max_qp = kQpsPerDevice;
  attributes.max_qp_wr = 32768;
  attributes.device_cap_flags = 0x21361c36;
  attributes.max_sge = 30;
  attributes.max_sge_rd = 30;
  attributes.max_cq = 1 << 20;
  attributes.max_cqe = (1 << 22) - 1;
  attributes.max_mr = 1 << 20;
  attributes.max_pd = 1 << 20;
  attributes.max_qp_rd_atom = 16;
  attributes.max_res_rd_atom = 1 << 20;
  attributes.max_qp_init_rd_atom = 16;
  attributes.atomic_cap = IBV_ATOMIC_HCA;
  attributes.max_ah = 0x7fffffff;
  attributes.max_srq = 1 << 20;
  attributes.max_srq_wr = 32767;
  attributes.max_srq_sge = 31;
  attributes.max_pkeys = 128;
  attributes.local_ca_ack_delay = 16;
  attributes.phys_port_cnt = 1;
}

int query_device(Command& command) {
  ib_uverbs_query_device_resp response{};
  device_attributes(*command.device.config, response);
  command.out_struct(UVERBS_ATTR_CORE_OUT, response);
  return 0;
}

int query_device_ex(Command& command) {
  ib_uverbs_ex_query_device_resp response{};
  const size_t room = command.out_bytes(UVERBS_ATTR_CORE_OUT).size();
  device_attributes(*command.device.config, response.base);
  response.response_length = static_cast<uint32_t>(std::min(room, sizeof response));
  response.timestamp_mask = ~uint64_t{0} >> 1;
  response.hca_core_clock = command.device.config->clock.nominal_khz;
  response.device_cap_flags_ex = response.base.device_cap_flags;
  command.out_struct(UVERBS_ATTR_CORE_OUT, response);
  // No striding receive queues, packet pacing or TSO.
  mlx5_ib_query_device_resp driver{};
  if (config().compress_cqe) {
    driver.cqe_comp_caps = {kLongestSession,
                            MLX5_IB_CQE_RES_FORMAT_HASH | MLX5_IB_CQE_RES_FORMAT_CSUM};
    driver.flags = MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP;
  }
  driver.response_length =
      static_cast<uint32_t>(std::min(command.out_bytes(UVERBS_ATTR_UHW_OUT).size(), sizeof driver));
  command.out_struct(UVERBS_ATTR_UHW_OUT, driver);
  return 0;
}

int alloc_pd(Command& command) {
  const uint32_t number = nic().fabric->devices[command.device.index].next_pdn.fetch_add(1) + 1;
  ib_uverbs_alloc_pd_resp response{};
  response.pd_handle = number;
  mlx5_ib_alloc_pd_resp driver{};
  driver.pdn = number;
  command.out_struct(UVERBS_ATTR_CORE_OUT, response);
  command.out_struct(UVERBS_ATTR_UHW_OUT, driver);
  return 0;
}

int reg_mr(Command& command, const ib_uverbs_reg_mr& request) {
  const MemoryKey* key = register_memory(command.device, request.start, request.length,
                                         request.hca_va, request.access_flags);
  if (!key) return EOPNOTSUPP;
  ib_uverbs_reg_mr_resp response{};
  response.mr_handle = key->key >> 8;
  response.lkey = response.rkey = key->key;
  command.out_struct(UVERBS_ATTR_CORE_OUT, response);
  return 0;
}

int rereg_mr(Command& command, const ib_uverbs_rereg_mr& request) {
  const auto found = command.device.keys.find(request.mr_handle);
  if (found == command.device.keys.end()) return EINVAL;
  MemoryKey& key = found->second;
  if (request.flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
    key.address = request.start;
    if (!reach(key.address, request.length)) return EFAULT;
    key.length = request.length;
    key.iova = request.hca_va;
  }
  if (request.flags & IBV_REREG_MR_CHANGE_ACCESS) key.access = request.access_flags;
  log_mr(command.device, key);
  ib_uverbs_rereg_mr_resp response{};
  response.lkey = response.rkey = key.key;
  command.out_struct(UVERBS_ATTR_CORE_OUT, response);
  return 0;
}

int create_comp_channel(Command& command) {
  const EventChannel* channel = create_channel(command.device);
  if (!channel) return EMFILE;
  ib_uverbs_create_comp_channel_resp response{};
  response.fd = static_cast<uint32_t>(channel->read_fd);
  command.out_struct(UVERBS_ATTR_CORE_OUT, response);
  return 0;
}

Qp* qp_of(Command& command, uint32_t handle) {
  const auto found = command.device.qps.find(handle);
  return found == command.device.qps.end() ? nullptr : found->second.get();
}

void take_attributes(Qp& qp, const ib_uverbs_modify_qp& request) {
  const uint32_t mask = request.attr_mask;
  if (mask & IBV_QP_ACCESS_FLAGS) qp.access = request.qp_access_flags;
  if (mask & IBV_QP_QKEY) qp.qkey = request.qkey;
  if (mask & IBV_QP_DEST_QPN) qp.peer_qpn = request.dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) qp.receive_psn_start = request.rq_psn & kPsnMask;
  if (mask & IBV_QP_SQ_PSN) qp.send_psn_start = request.sq_psn & kPsnMask;
  if (mask & IBV_QP_PATH_MTU) qp.path_mtu = request.path_mtu;
  if (mask & IBV_QP_TIMEOUT) qp.timeout = request.timeout;
  if (mask & IBV_QP_RETRY_CNT) qp.retry_count = request.retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) qp.rnr_retry = request.rnr_retry;
  if (mask & IBV_QP_MIN_RNR_TIMER) qp.min_rnr_timer = request.min_rnr_timer;
  if (mask & IBV_QP_AV) {
    memcpy(qp.peer_gid.data(), request.dest.dgid, qp.peer_gid.size());
    qp.peer_lid = request.dest.dlid;
    qp.peer_global = request.dest.is_global || qp.device->config->ethernet;
    qp.service_level = request.dest.sl;
    qp.traffic_class = request.dest.traffic_class;
  }
}

int modify_qp(Command& command, const ib_uverbs_modify_qp& request) {
  Qp* qp = qp_of(command, request.qp_handle);
  if (!qp) return EINVAL;
  const bool changes = request.attr_mask & IBV_QP_STATE;
  if (changes && request.qp_state > static_cast<uint8_t>(QpState::err)) return EINVAL;
  take_attributes(*qp, request);
  if (changes && !set_qp_state(*qp, static_cast<QpState>(request.qp_state))) return EINVAL;
  return 0;
}

int modify_qp_ex(Command& command) {
  const auto request = command.in_struct<ib_uverbs_modify_qp>(UVERBS_ATTR_CORE_IN);
  ib_uverbs_ex_modify_qp_resp response{};
  response.response_length = sizeof response;
  mlx5_ib_modify_qp_resp driver{};
  driver.response_length = sizeof driver;
  // A DCT gets its number when it goes to RTR.
  const Qp* target = qp_of(command, request.qp_handle);
  if (target && target->service == Service::dct) driver.dctn = target->qpn;
  command.out_struct(UVERBS_ATTR_CORE_OUT, response);
  command.out_struct(UVERBS_ATTR_UHW_OUT, driver);
  return with_input<ib_uverbs_modify_qp>(command, modify_qp);
}

int query_qp(Command& command, const ib_uverbs_query_qp& request) {
  const Qp* qp = qp_of(command, request.qp_handle);
  if (!qp) return EINVAL;
  ib_uverbs_query_qp_resp response{};
  memcpy(response.dest.dgid, qp->peer_gid.data(), sizeof response.dest.dgid);
  response.dest.dlid = qp->peer_lid;
  response.dest.is_global = qp->peer_global;
  response.dest.sl = qp->service_level;
  response.dest.traffic_class = qp->traffic_class;
  response.dest.port_num = 1;
  response.max_send_wr = qp->cap.max_send_wr;
  response.max_recv_wr = qp->cap.max_recv_wr;
  response.max_send_sge = qp->cap.max_send_sge;
  response.max_recv_sge = qp->cap.max_recv_sge;
  response.max_inline_data = qp->cap.max_inline_data;
  response.qkey = qp->qkey;
  response.rq_psn = qp->stream.expected_psn;
  response.sq_psn = qp->next_psn;
  response.dest_qp_num = qp->peer_qpn;
  response.qp_access_flags = qp->access;
  response.qp_state = response.cur_qp_state = static_cast<uint8_t>(qp->state);
  response.path_mtu = qp->path_mtu;
  response.max_rd_atomic = response.max_dest_rd_atomic = 16;
  response.min_rnr_timer = qp->min_rnr_timer;
  response.port_num = 1;
  response.timeout = qp->timeout;
  response.retry_cnt = qp->retry_count;
  response.rnr_retry = qp->rnr_retry;
  command.out_struct(UVERBS_ATTR_CORE_OUT, response);
  return 0;
}

int create_ah(Command& command, const ib_uverbs_create_ah& request) {
  ib_uverbs_create_ah_resp response{};
  response.ah_handle = command.device.next_handle++;
  mlx5_ib_create_ah_resp driver{};
  driver.response_length = sizeof driver;
  GidBytes gid;
  memcpy(gid.data(), request.attr.grh.dgid, gid.size());
  const int device = find_device(0, gid, true);
  if (device >= 0) memcpy(driver.dmac, config().devices[device].mac.data(), sizeof driver.dmac);
  command.out_struct(UVERBS_ATTR_CORE_OUT, response);
  command.out_struct(UVERBS_ATTR_UHW_OUT, driver);
  return 0;
}

Srq* srq_of(Command& command, uint32_t handle) {
  const auto found = command.device.srqs.find(handle);
  return found == command.device.srqs.end() ? nullptr : found->second.get();
}

int query_srq(Command& command, const ib_uverbs_query_srq& request) {
  const Srq* srq = srq_of(command, request.srq_handle);
  if (!srq) return EINVAL;
  ib_uverbs_query_srq_resp response{};
  response.max_wr = srq->max_wr;
  response.max_sge = srq->max_sge;
  response.srq_limit = srq->limit;
  command.out_struct(UVERBS_ATTR_CORE_OUT, response);
  return 0;
}

int modify_srq(Command& command, const ib_uverbs_modify_srq& request) {
  Srq* srq = srq_of(command, request.srq_handle);
  if (!srq) return EINVAL;
  if (request.attr_mask & IBV_SRQ_LIMIT) srq->limit = request.srq_limit;
  return 0;
}

// The old entries stay as they are; the next ones go to the new ring, after a RESIZE_CQ entry in
// the old one that tells the library to follow.
int resize_cq(Command& command, const ib_uverbs_resize_cq& request) {
  const auto found = command.device.cqs.find(request.cq_handle);
  const auto driver = command.in_struct<mlx5_ib_resize_cq>(UVERBS_ATTR_UHW_IN);
  if (found == command.device.cqs.end() || !driver.buf_addr) return EINVAL;
  if (request.cqe == 0) return EINVAL;
  Cq& cq = *found->second;
  connectx::resize_cq(cq, reinterpret_cast<uint8_t*>(driver.buf_addr),
                      std::bit_ceil(request.cqe + 1), driver.cqe_size);
  ib_uverbs_resize_cq_resp response{};
  response.cqe = cq.entries - 1;
  command.out_struct(UVERBS_ATTR_CORE_OUT, response);
  return 0;
}

struct WriteCommand {
  uint32_t number;
  bool extended;
  int (*handler)(Command&);
};

constexpr WriteCommand kCommands[] = {
    {IB_USER_VERBS_CMD_QUERY_DEVICE, false, query_device},
    {IB_USER_VERBS_EX_CMD_QUERY_DEVICE, true, query_device_ex},
    {IB_USER_VERBS_CMD_ALLOC_PD, false, alloc_pd},
    {IB_USER_VERBS_CMD_REG_MR, false,
     [](Command& c) { return with_input<ib_uverbs_reg_mr>(c, reg_mr); }},
    {IB_USER_VERBS_CMD_REREG_MR, false,
     [](Command& c) { return with_input<ib_uverbs_rereg_mr>(c, rereg_mr); }},
    {IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, false, create_comp_channel},
    {IB_USER_VERBS_CMD_MODIFY_QP, false,
     [](Command& c) { return with_input<ib_uverbs_modify_qp>(c, modify_qp); }},
    {IB_USER_VERBS_EX_CMD_MODIFY_QP, true, modify_qp_ex},
    {IB_USER_VERBS_CMD_QUERY_QP, false,
     [](Command& c) { return with_input<ib_uverbs_query_qp>(c, query_qp); }},
    {IB_USER_VERBS_CMD_CREATE_AH, false,
     [](Command& c) { return with_input<ib_uverbs_create_ah>(c, create_ah); }},
    {IB_USER_VERBS_CMD_QUERY_SRQ, false,
     [](Command& c) { return with_input<ib_uverbs_query_srq>(c, query_srq); }},
    {IB_USER_VERBS_CMD_MODIFY_SRQ, false,
     [](Command& c) { return with_input<ib_uverbs_modify_srq>(c, modify_srq); }},
    {IB_USER_VERBS_CMD_RESIZE_CQ, false,
     [](Command& c) { return with_input<ib_uverbs_resize_cq>(c, resize_cq); }},
    {IB_USER_VERBS_CMD_ATTACH_MCAST, false, [](Command&) { return 0; }},
    {IB_USER_VERBS_CMD_DETACH_MCAST, false, [](Command&) { return 0; }},
    {IB_USER_VERBS_EX_CMD_MODIFY_CQ, true, [](Command&) { return 0; }},
};

}  // namespace

const MemoryKey* register_memory(Device& device, uint64_t address, uint64_t length, uint64_t iova,
                                 uint32_t access) {
  if ((address == 0 && length == ~uint64_t{0}) || !reach(address, length)) return nullptr;
  MemoryKey& key = *create_key(device);
  key.address = address;
  key.length = length;
  key.iova = iova;
  key.access = access;
  log_mr(device, key);
  return &key;
}

int invoke_write(Command& command) {
  // libibverbs asks whether commands may come this way by sending one without data.
  if (!command.has(UVERBS_ATTR_CORE_IN) && !command.has(UVERBS_ATTR_CORE_OUT)) return ENOSPC;
  const auto word = static_cast<uint32_t>(command.in_value(UVERBS_ATTR_WRITE_CMD));
  const bool extended = word & IB_USER_VERBS_CMD_FLAG_EXTENDED;
  const uint32_t number = word & IB_USER_VERBS_CMD_COMMAND_MASK;
  for (const WriteCommand& row : kCommands) {
    if (row.number == number && row.extended == extended) return row.handler(command);
  }
  complain("%s: write command %u%s is not emulated", command.device.config->name.c_str(), number,
           extended ? " (extended)" : "");
  return EOPNOTSUPP;
}

}  // namespace connectx
