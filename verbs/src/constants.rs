//! The enumerators of verbs as plain numbers, one name each, whatever the source of the types.

/// Hands every number, in its groups, to the macro `$visit`; the layout test visits them too.
///
/// A group's kind says what the binding crate makes of that enumeration: a `module` of numbers,
/// `signed` ones, `bits` (a newtype), a `rust` enumeration, `plain` constants, nothing (`unnamed`),
/// or nothing yet (`newer`: not in the oldest verbs.h that this crate builds with).
#[doc(hidden)]
#[macro_export]
macro_rules! every_number {
    ($visit:ident) => {
        $visit! {
            signed ibv_node_type {
                IBV_NODE_UNKNOWN = -1,
                IBV_NODE_CA = 1,
                IBV_NODE_SWITCH = 2,
                IBV_NODE_ROUTER = 3,
                IBV_NODE_RNIC = 4,
                IBV_NODE_USNIC = 5,
                IBV_NODE_USNIC_UDP = 6,
                IBV_NODE_UNSPECIFIED = 7,
            }
            signed ibv_transport_type {
                IBV_TRANSPORT_UNKNOWN = -1,
                IBV_TRANSPORT_IB = 0,
                IBV_TRANSPORT_IWARP = 1,
                IBV_TRANSPORT_USNIC = 2,
                IBV_TRANSPORT_USNIC_UDP = 3,
                IBV_TRANSPORT_UNSPECIFIED = 4,
            }
            bits ibv_device_cap_flags {
                IBV_DEVICE_RESIZE_MAX_WR = 1,
                IBV_DEVICE_BAD_PKEY_CNTR = 1 << 1,
                IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2,
                IBV_DEVICE_RAW_MULTI = 1 << 3,
                IBV_DEVICE_AUTO_PATH_MIG = 1 << 4,
                IBV_DEVICE_CHANGE_PHY_PORT = 1 << 5,
                IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
                IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
                IBV_DEVICE_SHUTDOWN_PORT = 1 << 8,
                IBV_DEVICE_INIT_TYPE = 1 << 9,
                IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
                IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
                IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
                IBV_DEVICE_SRQ_RESIZE = 1 << 13,
                IBV_DEVICE_N_NOTIFY_CQ = 1 << 14,
                IBV_DEVICE_MEM_WINDOW = 1 << 17,
                IBV_DEVICE_UD_IP_CSUM = 1 << 18,
                IBV_DEVICE_XRC = 1 << 20,
                IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
                IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
                IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
                IBV_DEVICE_RC_IP_CSUM = 1 << 25,
                IBV_DEVICE_RAW_IP_CSUM = 1 << 26,
                IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29,
            }
            module ibv_atomic_cap {
                IBV_ATOMIC_NONE = 0,
                IBV_ATOMIC_HCA = 1,
                IBV_ATOMIC_GLOB = 2,
            }
            module ibv_mtu {
                IBV_MTU_256 = 1,
                IBV_MTU_512 = 2,
                IBV_MTU_1024 = 3,
                IBV_MTU_2048 = 4,
                IBV_MTU_4096 = 5,
            }
            module ibv_port_state {
                IBV_PORT_NOP = 0,
                IBV_PORT_DOWN = 1,
                IBV_PORT_INIT = 2,
                IBV_PORT_ARMED = 3,
                IBV_PORT_ACTIVE = 4,
                IBV_PORT_ACTIVE_DEFER = 5,
            }
            unnamed link_layer {
                IBV_LINK_LAYER_UNSPECIFIED = 0,
                IBV_LINK_LAYER_INFINIBAND = 1,
                IBV_LINK_LAYER_ETHERNET = 2,
            }
            plain ibv_gid_type {
                IBV_GID_TYPE_IB = 0,
                IBV_GID_TYPE_ROCE_V1 = 1,
                IBV_GID_TYPE_ROCE_V2 = 2,
            }
            plain ibv_fork_status {
                IBV_FORK_DISABLED = 0,
                IBV_FORK_ENABLED = 1,
                IBV_FORK_UNNEEDED = 2,
            }
            bits ibv_access_flags {
                IBV_ACCESS_LOCAL_WRITE = 1,
                IBV_ACCESS_REMOTE_WRITE = 1 << 1,
                IBV_ACCESS_REMOTE_READ = 1 << 2,
                IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
                IBV_ACCESS_MW_BIND = 1 << 4,
                IBV_ACCESS_ZERO_BASED = 1 << 5,
                IBV_ACCESS_ON_DEMAND = 1 << 6,
                IBV_ACCESS_HUGETLB = 1 << 7,
                IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
            }
            newer ibv_access_flags {
                IBV_ACCESS_FLUSH_GLOBAL = 1 << 8,
                IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9,
            }
            module ibv_mw_type {
                IBV_MW_TYPE_1 = 1,
                IBV_MW_TYPE_2 = 2,
            }
            module ibv_qp_type {
                IBV_QPT_RC = 2,
                IBV_QPT_UC = 3,
                IBV_QPT_UD = 4,
                IBV_QPT_RAW_PACKET = 8,
                IBV_QPT_XRC_SEND = 9,
                IBV_QPT_XRC_RECV = 10,
                IBV_QPT_DRIVER = 0xff,
            }
            module ibv_qp_state {
                IBV_QPS_RESET = 0,
                IBV_QPS_INIT = 1,
                IBV_QPS_RTR = 2,
                IBV_QPS_RTS = 3,
                IBV_QPS_SQD = 4,
                IBV_QPS_SQE = 5,
                IBV_QPS_ERR = 6,
                IBV_QPS_UNKNOWN = 7,
            }
            module ibv_mig_state {
                IBV_MIG_MIGRATED = 0,
                IBV_MIG_REARM = 1,
                IBV_MIG_ARMED = 2,
            }
            bits ibv_qp_attr_mask {
                IBV_QP_STATE = 1,
                IBV_QP_CUR_STATE = 1 << 1,
                IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
                IBV_QP_ACCESS_FLAGS = 1 << 3,
                IBV_QP_PKEY_INDEX = 1 << 4,
                IBV_QP_PORT = 1 << 5,
                IBV_QP_QKEY = 1 << 6,
                IBV_QP_AV = 1 << 7,
                IBV_QP_PATH_MTU = 1 << 8,
                IBV_QP_TIMEOUT = 1 << 9,
                IBV_QP_RETRY_CNT = 1 << 10,
                IBV_QP_RNR_RETRY = 1 << 11,
                IBV_QP_RQ_PSN = 1 << 12,
                IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
                IBV_QP_ALT_PATH = 1 << 14,
                IBV_QP_MIN_RNR_TIMER = 1 << 15,
                IBV_QP_SQ_PSN = 1 << 16,
                IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
                IBV_QP_PATH_MIG_STATE = 1 << 18,
                IBV_QP_CAP = 1 << 19,
                IBV_QP_DEST_QPN = 1 << 20,
                IBV_QP_RATE_LIMIT = 1 << 25,
            }
            bits ibv_qp_init_attr_mask {
                IBV_QP_INIT_ATTR_PD = 1,
                IBV_QP_INIT_ATTR_XRCD = 1 << 1,
                IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
                IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3,
                IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4,
                IBV_QP_INIT_ATTR_RX_HASH = 1 << 5,
                IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,
            }
            bits ibv_qp_create_send_ops_flags {
                IBV_QP_EX_WITH_RDMA_WRITE = 1,
                IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,
                IBV_QP_EX_WITH_SEND = 1 << 2,
                IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3,
                IBV_QP_EX_WITH_RDMA_READ = 1 << 4,
                IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5,
                IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6,
                IBV_QP_EX_WITH_LOCAL_INV = 1 << 7,
                IBV_QP_EX_WITH_BIND_MW = 1 << 8,
                IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9,
                IBV_QP_EX_WITH_TSO = 1 << 10,
                IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12,
            }
            bits ibv_qp_open_attr_mask {
                IBV_QP_OPEN_ATTR_NUM = 1,
                IBV_QP_OPEN_ATTR_XRCD = 1 << 1,
                IBV_QP_OPEN_ATTR_CONTEXT = 1 << 2,
                IBV_QP_OPEN_ATTR_TYPE = 1 << 3,
            }
            module ibv_wr_opcode {
                IBV_WR_RDMA_WRITE = 0,
                IBV_WR_RDMA_WRITE_WITH_IMM = 1,
                IBV_WR_SEND = 2,
                IBV_WR_SEND_WITH_IMM = 3,
                IBV_WR_RDMA_READ = 4,
                IBV_WR_ATOMIC_CMP_AND_SWP = 5,
                IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
                IBV_WR_LOCAL_INV = 7,
                IBV_WR_BIND_MW = 8,
                IBV_WR_SEND_WITH_INV = 9,
                IBV_WR_TSO = 10,
                IBV_WR_DRIVER1 = 11,
                IBV_WR_ATOMIC_WRITE = 15,
            }
            bits ibv_send_flags {
                IBV_SEND_FENCE = 1,
                IBV_SEND_SIGNALED = 1 << 1,
                IBV_SEND_SOLICITED = 1 << 2,
                IBV_SEND_INLINE = 1 << 3,
                IBV_SEND_IP_CSUM = 1 << 4,
            }
            module ibv_wc_status {
                IBV_WC_SUCCESS = 0,
                IBV_WC_LOC_LEN_ERR = 1,
                IBV_WC_LOC_QP_OP_ERR = 2,
                IBV_WC_LOC_EEC_OP_ERR = 3,
                IBV_WC_LOC_PROT_ERR = 4,
                IBV_WC_WR_FLUSH_ERR = 5,
                IBV_WC_MW_BIND_ERR = 6,
                IBV_WC_BAD_RESP_ERR = 7,
                IBV_WC_LOC_ACCESS_ERR = 8,
                IBV_WC_REM_INV_REQ_ERR = 9,
                IBV_WC_REM_ACCESS_ERR = 10,
                IBV_WC_REM_OP_ERR = 11,
                IBV_WC_RETRY_EXC_ERR = 12,
                IBV_WC_RNR_RETRY_EXC_ERR = 13,
                IBV_WC_LOC_RDD_VIOL_ERR = 14,
                IBV_WC_REM_INV_RD_REQ_ERR = 15,
                IBV_WC_REM_ABORT_ERR = 16,
                IBV_WC_INV_EECN_ERR = 17,
                IBV_WC_INV_EEC_STATE_ERR = 18,
                IBV_WC_FATAL_ERR = 19,
                IBV_WC_RESP_TIMEOUT_ERR = 20,
                IBV_WC_GENERAL_ERR = 21,
                IBV_WC_TM_ERR = 22,
                IBV_WC_TM_RNDV_INCOMPLETE = 23,
            }
            module ibv_wc_opcode {
                IBV_WC_SEND = 0,
                IBV_WC_RDMA_WRITE = 1,
                IBV_WC_RDMA_READ = 2,
                IBV_WC_COMP_SWAP = 3,
                IBV_WC_FETCH_ADD = 4,
                IBV_WC_BIND_MW = 5,
                IBV_WC_LOCAL_INV = 6,
                IBV_WC_TSO = 7,
                IBV_WC_ATOMIC_WRITE = 9,
                IBV_WC_RECV = 1 << 7,
                IBV_WC_RECV_RDMA_WITH_IMM = (1 << 7) + 1,
            }
            bits ibv_wc_flags {
                IBV_WC_GRH = 1,
                IBV_WC_WITH_IMM = 1 << 1,
                IBV_WC_IP_CSUM_OK = 1 << 2,
                IBV_WC_WITH_INV = 1 << 3,
            }
            bits ibv_create_cq_wc_flags {
                IBV_WC_EX_WITH_BYTE_LEN = 1,
                IBV_WC_EX_WITH_IMM = 1 << 1,
                IBV_WC_EX_WITH_QP_NUM = 1 << 2,
                IBV_WC_EX_WITH_SRC_QP = 1 << 3,
                IBV_WC_EX_WITH_SLID = 1 << 4,
                IBV_WC_EX_WITH_SL = 1 << 5,
                IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
                IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
                IBV_WC_EX_WITH_CVLAN = 1 << 8,
                IBV_WC_EX_WITH_FLOW_TAG = 1 << 9,
                IBV_WC_EX_WITH_TM_INFO = 1 << 10,
                IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
            }
            bits ibv_cq_init_attr_mask {
                IBV_CQ_INIT_ATTR_MASK_FLAGS = 1,
                IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
            }
            bits ibv_create_cq_attr_flags {
                IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1,
                IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
            }
            bits ibv_cq_attr_mask {
                IBV_CQ_ATTR_MODERATE = 1,
            }
            bits ibv_parent_domain_init_attr_mask {
                IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1,
                IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
            }
            module ibv_srq_type {
                IBV_SRQT_BASIC = 0,
                IBV_SRQT_XRC = 1,
                IBV_SRQT_TM = 2,
            }
            bits ibv_srq_attr_mask {
                IBV_SRQ_MAX_WR = 1,
                IBV_SRQ_LIMIT = 1 << 1,
            }
            bits ibv_srq_init_attr_mask {
                IBV_SRQ_INIT_ATTR_TYPE = 1,
                IBV_SRQ_INIT_ATTR_PD = 1 << 1,
                IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
                IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
                IBV_SRQ_INIT_ATTR_TM = 1 << 4,
            }
            rust ibv_event_type {
                IBV_EVENT_CQ_ERR = 0,
                IBV_EVENT_QP_FATAL = 1,
                IBV_EVENT_QP_REQ_ERR = 2,
                IBV_EVENT_QP_ACCESS_ERR = 3,
                IBV_EVENT_COMM_EST = 4,
                IBV_EVENT_SQ_DRAINED = 5,
                IBV_EVENT_PATH_MIG = 6,
                IBV_EVENT_PATH_MIG_ERR = 7,
                IBV_EVENT_DEVICE_FATAL = 8,
                IBV_EVENT_PORT_ACTIVE = 9,
                IBV_EVENT_PORT_ERR = 10,
                IBV_EVENT_LID_CHANGE = 11,
                IBV_EVENT_PKEY_CHANGE = 12,
                IBV_EVENT_SM_CHANGE = 13,
                IBV_EVENT_SRQ_ERR = 14,
                IBV_EVENT_SRQ_LIMIT_REACHED = 15,
                IBV_EVENT_QP_LAST_WQE_REACHED = 16,
                IBV_EVENT_CLIENT_REREGISTER = 17,
                IBV_EVENT_GID_CHANGE = 18,
                IBV_EVENT_WQ_FATAL = 19,
            }
            bits ibv_values_mask {
                IBV_VALUES_MASK_RAW_CLOCK = 1,
            }
        }
    };
}

macro_rules! ty {
    (signed) => {
        i32
    };
    ($kind:ident) => {
        u32
    };
}

macro_rules! define {
    ($($kind:ident $group:ident { $($name:ident = $value:expr,)* })*) => {
        $($( pub const $name: ty!($kind) = $value; )*)*
    };
}

every_number!(define);
