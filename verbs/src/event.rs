//! Asynchronous events.

use crate::{ibv_cq, ibv_qp, ibv_srq};
use libc::{c_int, c_void};

/// What an event is about. Which member is valid follows from the event's type.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_event_element_t {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut c_void,
    pub port_num: c_int,
}

/// `struct ibv_async_event`, with the type as a plain number: a device newer than this code may
/// raise one that no enumeration here knows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_async_event {
    pub element: ibv_async_event_element_t,
    pub event_type: c_int,
}
