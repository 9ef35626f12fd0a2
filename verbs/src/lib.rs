//! The one place that names verbs types and calls.
//!
//! The types come from the binding crate (feature `rdma-sys`, the default; needs libclang) or from
//! our own declarations of the same names (feature `declared`). Code is written once and compiles
//! with either.
//!
//! # Safety
//! Every `unsafe` function here makes one verbs call: its pointers must be to live objects of the
//! device, or NULL where the call says so, and the verbs rules that its text states must hold.
#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)] // said once, above

#[cfg(not(any(feature = "rdma-sys", feature = "declared")))]
compile_error!(
    "mwctl-verbs has no verbs types: turn on the feature `rdma-sys` (needs libclang 14 or 15) or \
     `declared` (needs nothing)"
);

mod calls;
mod constants;
#[cfg(feature = "declared")]
#[allow(non_snake_case)] // the binding crate's names
pub mod declared;
mod errno;
mod event;
pub mod exported;
mod extended;
mod wr;

pub use calls::*;
pub use constants::*;
pub use errno::{errno, errno_of, set_errno};
pub use event::*;
pub use extended::*;
pub use wr::*;

/// The types, from one source or the other.
macro_rules! types {
    ($($name:ident),* $(,)?) => {
        #[cfg(feature = "rdma-sys")]
        pub use rdma_sys::{$($name),*};
        #[cfg(all(feature = "declared", not(feature = "rdma-sys")))]
        pub use declared::{$($name),*};
    };
}

types!(
    _compat_ibv_port_attr,
    ibv_ah,
    ibv_ah_attr,
    ibv_comp_channel,
    ibv_context,
    ibv_context_ops,
    ibv_cq,
    ibv_cq_ex,
    ibv_cq_init_attr_ex,
    ibv_data_buf,
    ibv_device,
    ibv_device_attr,
    ibv_device_attr_ex,
    ibv_gid,
    ibv_gid_entry,
    ibv_global_route,
    ibv_grh,
    ibv_modify_cq_attr,
    ibv_mr,
    ibv_mw,
    ibv_mw_bind,
    ibv_mw_bind_info,
    ibv_parent_domain_init_attr,
    ibv_pd,
    ibv_poll_cq_attr,
    ibv_port_attr,
    ibv_qp,
    ibv_qp_attr,
    ibv_qp_cap,
    ibv_qp_ex,
    ibv_qp_init_attr,
    ibv_qp_init_attr_ex,
    ibv_qp_open_attr,
    ibv_query_device_ex_input,
    ibv_recv_wr,
    ibv_send_wr,
    ibv_sge,
    ibv_srq,
    ibv_srq_attr,
    ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
    ibv_td,
    ibv_td_init_attr,
    ibv_values_ex,
    ibv_wc,
    ibv_wc_tm_info,
    ibv_xrcd,
    verbs_context,
);
