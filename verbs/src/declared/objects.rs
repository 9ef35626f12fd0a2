//! The objects that an application holds, and what they are created with.

use super::*;
use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

structs! {
    ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    ibv_td_init_attr {
        comp_mask: u32,
    }

    ibv_td {
        context: *mut ibv_context,
    }

    ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                pd_context: *mut c_void,
                size: usize,
                alignment: usize,
                resource_type: u64,
            ) -> *mut c_void,
        >,
        free: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                pd_context: *mut c_void,
                ptr: *mut c_void,
                resource_type: u64,
            ),
        >,
        pd_context: *mut c_void,
    }

    ibv_xrcd {
        context: *mut ibv_context,
    }

    /// Carries neither its access flags nor its iova.
    ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        type_: c_uint,
    }

    ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }

    ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }

    ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }

    ibv_moderate_cq {
        cq_count: u16,
        cq_period: u16,
    }

    ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: ibv_moderate_cq,
    }

    ibv_poll_cq_attr {
        comp_mask: u32,
    }

    ibv_wc_tm_info {
        tag: u64,
        priv_: u32,
    }

    /// Begins as `ibv_cq` does.
    ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: c_uint,
        wr_id: u64,
        start_poll: Option<
            unsafe extern "C" fn(current: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int,
        >,
        next_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex)>,
        read_opcode: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_uint>,
        read_vendor_err: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_uint>,
        read_slid: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_sl: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
        read_dlid_path_bits: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
        read_completion_ts: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
        read_cvlan: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u16>,
        read_flow_tag: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_tm_info:
            Option<unsafe extern "C" fn(current: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info)>,
        read_completion_wallclock_ns: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
    }

    ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }

    ibv_tm_cap {
        max_num_tags: u32,
        max_ops: u32,
    }

    ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: c_uint,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }

    ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    ibv_grh {
        version_tclass_flow: u32,
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }

    ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    ibv_ece {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }

    ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }

    ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }

    /// Begins as `ibv_qp_init_attr` does.
    ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut ibv_rwq_ind_table,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }

    ibv_qp_open_attr {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut ibv_xrcd,
        qp_context: *mut c_void,
        qp_type: c_uint,
    }

    ibv_qp_attr {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }

    ibv_qp_rate_limit_attr {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }

    ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                rkey: u32,
                remote_addr: u64,
                compare: u64,
                swap: u64,
            ),
        >,
        wr_atomic_fetch_add: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64),
        >,
        wr_bind_mw: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                mw: *mut ibv_mw,
                rkey: u32,
                bind_info: *const ibv_mw_bind_info,
            ),
        >,
        wr_local_inv: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
        wr_rdma_write:
            Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
        wr_rdma_write_imm: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: u32),
        >,
        wr_send: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        wr_send_imm: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, imm_data: u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>,
        wr_send_tso: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16),
        >,
        wr_set_ud_addr: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                ah: *mut ibv_ah,
                remote_qpn: u32,
                remote_qkey: u32,
            ),
        >,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, remote_srqn: u32)>,
        wr_set_inline_data:
            Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize)>,
        wr_set_inline_data_list: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                num_buf: usize,
                buf_list: *const ibv_data_buf,
            ),
        >,
        wr_set_sge: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32),
        >,
        wr_set_sge_list: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge),
        >,
        wr_start: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        wr_complete: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        wr_atomic_write: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                rkey: u32,
                remote_addr: u64,
                atomic_wr: *const c_void,
            ),
        >,
    }
}

structs! {
    /// In network byte order.
    ibv_gid_global_t {
        subnet_prefix: u64,
        interface_id: u64,
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_gid {
    pub raw: [u8; 16],
    pub global: ibv_gid_global_t,
}

opaque!(ibv_rwq_ind_table);
