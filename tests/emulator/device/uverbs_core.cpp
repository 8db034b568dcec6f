// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Core objects by ioctl methods: attribute ids of <rdma/ib_user_ioctl_cmds.h>, driver data of
// <rdma/mlx5-abi.h>.
#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include <bit>
#include <cerrno>
#include <set>

#include "clock.h"
#include "uverbs.h"

namespace connectx {
namespace {

template <typename T>
T* at(std::map<uint32_t, std::unique_ptr<T>>& objects, uint64_t handle) {
  const auto found = objects.find(static_cast<uint32_t>(handle));
  return found == objects.end() ? nullptr : found->second.get();
}

template <typename T = uint8_t>
T* pointer(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

EventChannel* use(EventChannel* channel) {
  if (channel) ++channel->users;
  return channel;
}

int get_context(Command& command) {
  mlx5_ib_alloc_ucontext_resp response{};
  response.qp_tab_size = 1 << 18;
  response.bf_reg_size = 512;
  response.tot_bfregs = 0;  // every UAR page is allocated as an object
  response.cache_line_size = 64;
  response.max_sq_desc_sz = 1024;
  response.max_rq_desc_sz = 512;
  response.max_send_wqebb = 32768;
  response.max_recv_wr = 32768;
  response.max_srq_recv_wr = 32767;
  response.num_ports = 1;
  response.comp_mask = MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET |
                       MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS |
                       MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS;
  response.response_length = sizeof response;
  response.cqe_version = 1;
  response.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH;
  response.eth_min_inline = MLX5_USER_INLINE_MODE_NONE;
  response.clock_info_versions = 1 << MLX5_IB_CLOCK_INFO_V1;
  response.log_uar_size = 12;
  response.num_uars_per_page = 1;
  command.out_struct(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, uint32_t{2});
  command.out_struct(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT,
                     uint64_t{1});  // optional MR access flags
  command.out_struct(UVERBS_ATTR_UHW_OUT, response);
  return 0;
}

int query_port(Command& command) {
  if (command.in_value(UVERBS_ATTR_QUERY_PORT_PORT_NUM) != 1) return EINVAL;
  const DeviceConfig& settings = *command.device.config;
  const bool down = nic().fabric->devices[command.device.index].link_down.load() != 0;
  ib_uverbs_query_port_resp_ex response{};
  auto& port = response.legacy_resp;
  port.port_cap_flags = settings.ethernet ? 0x04010000 : 0x2651e84a;
  port.max_msg_sz = 1u << 30;
  port.gid_tbl_len = static_cast<int32_t>(settings.gids.size());
  port.pkey_tbl_len = settings.ethernet ? 1 : 128;
  port.lid = settings.lid;
  port.sm_lid = settings.ethernet ? 0 : 1;
  port.state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  port.max_mtu = IBV_MTU_4096;
  port.active_mtu = settings.ethernet ? IBV_MTU_1024 : IBV_MTU_4096;
  port.max_vl_num = settings.ethernet ? 1 : 4;
  port.subnet_timeout = settings.ethernet ? 0 : 18;
  port.active_width = 2;   // 4X
  port.active_speed = 64;  // HDR: 200 Gb/s
  port.phys_state = down ? 3 : 5;
  port.link_layer = settings.ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  if (settings.ethernet) port.flags = 1;  // IB_UVERBS_QPF_GRH_REQUIRED
  command.out_struct(UVERBS_ATTR_QUERY_PORT_RESP, response);
  return 0;
}

ib_uverbs_gid_entry gid_entry(const DeviceConfig& settings, size_t index) {
  ib_uverbs_gid_entry entry{};
  entry.gid_index = static_cast<uint32_t>(index);
  entry.port_num = 1;
  entry.gid_type = settings.gids[index].type;
  memcpy(entry.gid, settings.gids[index].bytes.data(), sizeof entry.gid);
  return entry;
}

int query_gid_entry(Command& command) {
  const auto& gids = command.device.config->gids;
  const uint64_t index = command.in_value(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX);
  if (command.in_value(UVERBS_ATTR_QUERY_GID_ENTRY_PORT) != 1) return EINVAL;
  if (index >= gids.size()) return ENODATA;
  command.out_struct(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY,
                     gid_entry(*command.device.config, index));
  return 0;
}

int query_gid_table(Command& command) {
  const auto& gids = command.device.config->gids;
  const size_t size =
      command.in_value(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, sizeof(ib_uverbs_gid_entry));
  const auto out = command.out_bytes(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES);
  uint64_t count = 0;
  for (; count < gids.size() && (count + 1) * size <= out.size(); ++count) {
    const auto entry = gid_entry(*command.device.config, count);
    memcpy(out.data() + count * size, &entry, std::min(size, sizeof entry));
  }
  if (auto* attribute = command.find(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES))
    attribute->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
  command.out_struct(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, count);
  return 0;
}

int alloc_async_events(Command& command) {
  EventChannel* channel = create_channel(command.device);
  if (!channel) return EMFILE;
  command.context().async_events = use(channel);
  command.out_handle(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE,
                     static_cast<uint64_t>(channel->read_fd));
  return 0;
}

int nothing_to_do(Command&) {
  return 0;
}

// Newer than the headers of the oldest supported distribution: Linux 6.18,
// include/uapi/rdma/ib_user_ioctl_cmds.h. rdma-core 65 registers memory by it.
constexpr uint32_t kMethodRegMr = UVERBS_METHOD_REG_DMABUF_MR + 1;
enum RegMr : uint16_t {
  kRegMrHandle = 0,
  kRegMrIova = 3,
  kRegMrAddress = 4,
  kRegMrLength = 5,
  kRegMrAccess = 6,
  kRegMrFd = 7,
  kRegMrLkey = 9,
  kRegMrRkey = 10
};

int reg_mr(Command& command) {
  if (command.has(kRegMrFd)) return EOPNOTSUPP;
  const MemoryKey* key = register_memory(
      command.device, command.in_value(kRegMrAddress), command.in_value(kRegMrLength),
      command.in_value(kRegMrIova), static_cast<uint32_t>(command.in_value(kRegMrAccess)));
  if (!key) return EOPNOTSUPP;
  command.out_struct(kRegMrLkey, key->key);
  command.out_struct(kRegMrRkey, key->key);
  command.out_handle(kRegMrHandle, key->key >> 8);
  return 0;
}

int destroy_mr(Command& command) {
  const auto index = static_cast<uint32_t>(command.in_handle(UVERBS_ATTR_DESTROY_MR_HANDLE));
  if (!command.device.keys.contains(index)) return EINVAL;
  destroy_key(command.device, command.device.keys[index].key);
  return 0;
}

int reg_dmabuf_mr(Command& command) {
  uint64_t address;
  const uint64_t length = command.in_value(UVERBS_ATTR_REG_DMABUF_MR_LENGTH);
  if (!reach_descriptor(static_cast<int>(command.in_handle(UVERBS_ATTR_REG_DMABUF_MR_FD)),
                        command.in_value(UVERBS_ATTR_REG_DMABUF_MR_OFFSET), length, address))
    return EBADF;
  const MemoryKey* key = register_memory(
      command.device, address, length, command.in_value(UVERBS_ATTR_REG_DMABUF_MR_IOVA),
      static_cast<uint32_t>(command.in_value(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS)));
  if (!key) return EOPNOTSUPP;
  command.out_struct(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, key->key);
  command.out_struct(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, key->key);
  command.out_handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, key->key >> 8);
  return 0;
}

int create_cq(Command& command) {
  const auto driver = command.in_struct<mlx5_ib_create_cq>(UVERBS_ATTR_UHW_IN);
  const auto wanted = command.in_value(UVERBS_ATTR_CREATE_CQ_CQE);
  if (!driver.buf_addr || !driver.db_addr || wanted == 0 ||
      (driver.cqe_size != 64 && driver.cqe_size != 128))
    return EINVAL;
  if (driver.cqe_comp_en && !config().compress_cqe) return EOPNOTSUPP;
  Cq& cq = *connectx::create_cq(command.device);
  cq.entries = std::bit_ceil(static_cast<uint32_t>(wanted + 1));
  cq.cqe_bytes = driver.cqe_size;
  cq.ring = pointer(driver.buf_addr);
  cq.doorbell = pointer<volatile uint32_t>(driver.db_addr);
  cq.session_limit = driver.cqe_comp_en ? kLongestSession : 0;
  cq.real_time = driver.flags & MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS;
  cq.ignores_overrun =
      command.in_value(UVERBS_ATTR_CREATE_CQ_FLAGS) & 2;  // IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN
  cq.user_handle = command.in_value(UVERBS_ATTR_CREATE_CQ_USER_HANDLE);
  if (const auto* attribute = command.find(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL)) {
    for (const auto& channel : command.device.channels) {
      if (channel->read_fd == attribute->data_s64) cq.channel = use(channel.get());
    }
  }
  cq.async_channel = use(command.context().async_events);
  OracleCq record{};
  record.header = oracle_header(command.device, monotonic_ns());
  record.cqn = cq.cqn;
  record.entries = cq.entries;
  record.cqe_bytes = cq.cqe_bytes;
  record.real_time = cq.real_time;
  record.ring = driver.buf_addr;
  record.doorbell = driver.db_addr;
  oracle_log(OracleType::cq, record);
  mlx5_ib_create_cq_resp response{};
  response.cqn = cq.cqn;
  command.out_struct(UVERBS_ATTR_CREATE_CQ_RESP_CQE, uint32_t{cq.entries - 1});
  command.out_struct(UVERBS_ATTR_UHW_OUT, response);
  command.out_handle(UVERBS_ATTR_CREATE_CQ_HANDLE, cq.cqn);
  return 0;
}

int destroy_cq(Command& command) {
  Cq* cq = at(command.device.cqs, command.in_handle(UVERBS_ATTR_DESTROY_CQ_HANDLE));
  if (!cq) return EINVAL;
  if (cq->users) return EBUSY;
  ib_uverbs_destroy_cq_resp response{};
  // libibverbs waits until the application acknowledged this many events.
  response.comp_events_reported =
      cq->events_sent -
      drain_events(cq->channel, sizeof(ib_uverbs_comp_event_desc), cq->user_handle);
  connectx::destroy_cq(*cq);
  command.out_struct(UVERBS_ATTR_DESTROY_CQ_RESP, response);
  return 0;
}

// What the type attribute and the driver's flags ask for; false: not emulated.
bool service_of(uint64_t type, uint32_t driver_flags, Service& service) {
  switch (type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_UD:
      service = static_cast<Service>(type);
      return true;
    case IBV_QPT_DRIVER:
      service = driver_flags & MLX5_QP_FLAG_TYPE_DCT ? Service::dct : Service::dci;
      return driver_flags & (MLX5_QP_FLAG_TYPE_DCT | MLX5_QP_FLAG_TYPE_DCI);
    default:
      return false;
  }
}

void take_rings(Qp& qp, const mlx5_ib_create_qp& driver) {
  qp.receive_ring = pointer(driver.buf_addr);
  qp.receive_entries = qp.srq ? 0 : driver.rq_wqe_count;
  qp.receive_shift = driver.rq_wqe_shift;
  qp.send_ring = qp.receive_ring + (uint64_t{driver.rq_wqe_count} << driver.rq_wqe_shift);
  qp.send_blocks = driver.sq_wqe_count;
  qp.doorbell = pointer<volatile uint32_t>(driver.db_addr);
}

int create_qp(Command& command) {
  Device& device = command.device;
  const auto driver = command.in_struct<mlx5_ib_create_qp>(UVERBS_ATTR_UHW_IN);
  const auto cap = command.in_struct<ib_uverbs_qp_cap>(UVERBS_ATTR_CREATE_QP_CAP);
  Service service;
  if (!service_of(command.in_value(UVERBS_ATTR_CREATE_QP_TYPE), driver.flags, service))
    return EOPNOTSUPP;
  const bool target = service == Service::dct;
  Cq* send_cq = at(device.cqs, command.in_handle(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE));
  Cq* receive_cq = at(device.cqs, command.in_handle(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE));
  Srq* srq = at(device.srqs, command.in_handle(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE));
  if ((!send_cq && !target) || !receive_cq) return EINVAL;
  if (!target && (!driver.buf_addr || !driver.db_addr)) return EINVAL;
  if ((target || command.has(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE)) && !srq) return EINVAL;
  if (!std::has_single_bit(std::max(driver.sq_wqe_count, 1u))) return EINVAL;
  Qp* created = connectx::create_qp(device);
  if (!created) return ENOMEM;
  Qp& qp = *created;
  qp.service = service;
  qp.async_channel = use(command.context().async_events);
  qp.cap = {cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge,
            cap.max_inline_data};
  qp.user_index = driver.uidx;
  qp.user_handle = command.in_value(UVERBS_ATTR_CREATE_QP_USER_HANDLE);
  qp.send_cq = send_cq;
  qp.receive_cq = receive_cq;
  qp.srq = srq;
  if (target)
    qp.dc_key = driver.access_key;
  else
    take_rings(qp, driver);
  // As the kernel driver: responses only where every request is signaled, unless asked for.
  const bool always =
      command.in_value(UVERBS_ATTR_CREATE_QP_FLAGS) & IB_UVERBS_QP_CREATE_SQ_SIG_ALL;
  if ((driver.flags & MLX5_QP_FLAG_SCATTER_CQE) &&
      (service == Service::rc || service == Service::uc))
    grant_scatter_to_cqe(qp, true, always || (driver.flags & MLX5_QP_FLAG_ALLOW_SCATTER_CQE));
  if (send_cq) ++send_cq->users;
  ++receive_cq->users;
  if (srq) ++srq->users;
  log_qp(qp, 0);
  command.out_struct(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, qp.qpn);
  command.out_struct(UVERBS_ATTR_CREATE_QP_RESP_CAP, cap);
  command.out_struct(UVERBS_ATTR_UHW_OUT, mlx5_ib_create_qp_resp{});
  command.out_handle(UVERBS_ATTR_CREATE_QP_HANDLE, qp.handle);
  return 0;
}

int destroy_qp(Command& command) {
  Qp* qp = at(command.device.qps, command.in_handle(UVERBS_ATTR_DESTROY_QP_HANDLE));
  if (!qp) return EINVAL;
  static std::set<uint32_t> refused;  // by number
  if (config().faults.busy && refused.insert(qp->qpn).second) return EBUSY;
  refused.erase(qp->qpn);
  ib_uverbs_destroy_qp_resp response{};
  const unsigned unread =
      drain_events(qp->async_channel, sizeof(ib_uverbs_async_event_desc), qp->user_handle);
  response.events_reported = qp->async_events - std::min(unread, qp->async_events);
  connectx::destroy_qp(*qp);
  command.out_struct(UVERBS_ATTR_DESTROY_QP_RESP, response);
  return 0;
}

int create_srq(Command& command) {
  const auto driver = command.in_struct<mlx5_ib_create_srq>(UVERBS_ATTR_UHW_IN);
  if (command.in_value(UVERBS_ATTR_CREATE_SRQ_TYPE) != IBV_SRQT_BASIC) return EOPNOTSUPP;
  if (!driver.buf_addr || !driver.db_addr) return EINVAL;
  const auto max_wr = static_cast<uint32_t>(command.in_value(UVERBS_ATTR_CREATE_SRQ_MAX_WR));
  const auto max_sge = static_cast<uint32_t>(command.in_value(UVERBS_ATTR_CREATE_SRQ_MAX_SGE));
  // As libmlx5 sizes its buffer: a power of two above max_wr, strides of a power of two from 32.
  Srq& srq = *connectx::create_srq(command.device);
  srq.entries = std::bit_ceil(max_wr + 1);
  srq.stride_shift = static_cast<uint32_t>(std::bit_width(std::max(32u, 16 + 16 * max_sge) - 1));
  srq.max_wr = srq.entries - 1;
  srq.async_channel = use(command.context().async_events);
  srq.max_sge = ((1u << srq.stride_shift) - 16) / 16;
  srq.limit = static_cast<uint32_t>(command.in_value(UVERBS_ATTR_CREATE_SRQ_LIMIT));
  srq.ring = pointer(driver.buf_addr);
  srq.doorbell = pointer<volatile uint32_t>(driver.db_addr);
  srq.user_handle = command.in_value(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE);
  mlx5_ib_create_srq_resp response{};
  response.srqn = srq.srqn;
  command.out_struct(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, srq.max_wr);
  command.out_struct(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, srq.max_sge);
  command.out_struct(UVERBS_ATTR_UHW_OUT, response);
  command.out_handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, srq.srqn);
  return 0;
}

int destroy_srq(Command& command) {
  Srq* srq = at(command.device.srqs, command.in_handle(UVERBS_ATTR_DESTROY_SRQ_HANDLE));
  if (!srq) return EINVAL;
  if (srq->users) return EBUSY;
  if (srq->async_channel) --srq->async_channel->users;
  command.device.srqs.erase(srq->srqn);
  command.out_struct(UVERBS_ATTR_DESTROY_SRQ_RESP, ib_uverbs_destroy_srq_resp{});
  return 0;
}

constexpr Method kMethods[] = {
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, invoke_write},
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, get_context},
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT, query_port},
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY, query_gid_entry},
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE, query_gid_table},
    {UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC, alloc_async_events},
    {UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, nothing_to_do},
    {UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY, nothing_to_do},
    {UVERBS_OBJECT_MR, kMethodRegMr, reg_mr},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY, destroy_mr},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, nothing_to_do},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, reg_dmabuf_mr},
    {UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, create_cq},
    {UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY, destroy_cq},
    {UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, create_qp},
    {UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY, destroy_qp},
    {UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, create_srq},
    {UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY, destroy_srq},
};

}  // namespace

std::span<const Method> core_methods() {
  return kMethods;
}

int dispatch(Device& device, int fd, ib_uverbs_ioctl_hdr& header) {
  Guard guard;
  Command command(device, fd, header);
  for (const auto table : {core_methods(), mlx5_methods()}) {
    for (const Method& method : table) {
      if (method.object == header.object_id && method.method == header.method_id)
        return method.handler(command);
    }
  }
  complain("%s: object %#x, method %#x is not emulated", device.config->name.c_str(),
           header.object_id, header.method_id);
  return EOPNOTSUPP;
}

}  // namespace connectx
