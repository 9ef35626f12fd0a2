//! Work requests and completions.

use super::*;
use libc::{c_int, c_uint, c_void};

structs! {
    ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }

    ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    ibv_mw_bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }

    rdma_t {
        remote_addr: u64,
        rkey: u32,
    }

    atomic_t {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    ud_t {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    xrc_t {
        remote_srqn: u32,
    }

    bind_mw_t {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }

    tso_t {
        hdr: *mut c_void,
        hdr_sz: u16,
        mss: u16,
    }

    ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
        wr: wr_t,
        qp_type: qp_type_t,
        bind_mw_tso_union: bind_mw_tso_union_t,
    }

    ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    ibv_wc {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
}

/// Immediate data in network byte order, or a key in the host's: one storage for both.
#[repr(C)]
#[derive(Clone, Copy)]
pub union imm_data_invalidated_rkey_union_t {
    pub imm_data: u32,
    pub invalidated_rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union wr_t {
    pub rdma: rdma_t,
    pub atomic: atomic_t,
    pub ud: ud_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union qp_type_t {
    pub xrc: xrc_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union bind_mw_tso_union_t {
    pub bind_mw: bind_mw_t,
    pub tso: tso_t,
}
