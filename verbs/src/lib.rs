//! The one place that names verbs types and calls.
#![allow(non_camel_case_types)]

mod constants;
pub use constants::*;

#[cfg(feature = "rdma-sys")]
pub use rdma_sys::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_context_ops, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_gid,
    ibv_global_route, ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_parent_domain_init_attr,
    ibv_pd, ibv_poll_cq_attr, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_query_device_ex_input, ibv_recv_wr, ibv_send_wr,
    ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_td,
    ibv_td_init_attr, ibv_wc, verbs_context,
};
