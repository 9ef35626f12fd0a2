//! Asynchronous events of a context.

use crate::context::Context;
use crate::counters;
use crate::cq::Cq;
use crate::guard::guard;
use crate::object::{self, Object};
use crate::qp::Qp;
use crate::srq::Srq;
use libc::c_int;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU32, Ordering::*};
use verbs::{ibv_async_event, ibv_async_event_element_t, ibv_context};

/// What an event is about.
#[derive(Clone, Copy)]
pub enum Subject {
    Qp(&'static Qp),
    Cq(&'static Cq),
    Srq(&'static Srq),
    Port(c_int),
}

#[derive(Clone, Copy)]
pub struct Event {
    pub subject: Subject,
    pub event_type: u32,
}

/// Events taken and acknowledged of one object. Destroying it waits until the two are equal.
pub struct Acks {
    taken: AtomicU32,
    acked: Mutex<u32>,
    changed: Condvar,
}

impl Acks {
    pub const fn new() -> Self {
        Self { taken: AtomicU32::new(0), acked: Mutex::new(0), changed: Condvar::new() }
    }

    pub fn open(&self) {
        self.taken.store(0, Relaxed);
        *self.acked.lock() = 0;
    }

    pub fn take(&self) {
        self.taken.fetch_add(1, AcqRel);
    }

    /// Returns how many are acknowledged by now.
    pub fn ack(&self, n: u32) -> u32 {
        let mut acked = self.acked.lock();
        *acked = acked.wrapping_add(n);
        self.changed.notify_all();
        *acked
    }

    pub fn wait_all(&self) {
        let mut acked = self.acked.lock();
        while *acked != self.taken.load(Acquire) {
            self.changed.wait(&mut acked);
        }
    }
}

impl Subject {
    fn acks(&self) -> Option<&'static Acks> {
        match self {
            Subject::Qp(qp) => Some(&qp.acks),
            Subject::Cq(cq) => Some(&cq.async_acks),
            Subject::Srq(srq) => Some(&srq.acks),
            Subject::Port(_) => None,
        }
    }
}

pub fn raise(context: &Context, subject: Subject, event_type: u32) {
    counters::bump(counters::ASYNC_EVENTS);
    context.events.push(Event { subject, event_type });
}

pub fn raise_qp(qp: &'static Qp, event_type: u32) {
    raise(qp.context(), Subject::Qp(qp), event_type);
}

/// # Safety
/// `context` is an open context of this device, `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, out: *mut ibv_async_event) -> c_int {
    guard(-1, || {
        let taken = unsafe { Context::get(context) }.and_then(|c| c.events.take());
        let event = match taken {
            Ok(event) => event,
            Err(e) => {
                verbs::set_errno(e);
                return -1;
            }
        };
        if let Some(acks) = event.subject.acks() {
            acks.take();
        }
        let element = match event.subject {
            Subject::Qp(qp) => ibv_async_event_element_t { qp: qp.as_c() },
            Subject::Cq(cq) => ibv_async_event_element_t { cq: cq.as_c() },
            Subject::Srq(srq) => ibv_async_event_element_t { srq: srq.as_c() },
            Subject::Port(port_num) => ibv_async_event_element_t { port_num },
        };
        unsafe { *out = ibv_async_event { element, event_type: event.event_type as c_int } };
        0
    })
}

/// # Safety
/// `event` came from `ibv_get_async_event` and was not acknowledged before.
#[no_mangle]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    guard((), || {
        let event = unsafe { &*event };
        match event.event_type as u32 {
            verbs::IBV_EVENT_CQ_ERR => {
                if let Ok(cq) = unsafe { object::get::<Cq>(event.element.cq) } {
                    let acked = cq.async_acks.ack(1);
                    unsafe { (*cq.as_c()).async_events_completed = acked };
                }
            }
            verbs::IBV_EVENT_QP_FATAL
            | verbs::IBV_EVENT_QP_REQ_ERR
            | verbs::IBV_EVENT_QP_ACCESS_ERR
            | verbs::IBV_EVENT_COMM_EST
            | verbs::IBV_EVENT_SQ_DRAINED
            | verbs::IBV_EVENT_PATH_MIG
            | verbs::IBV_EVENT_PATH_MIG_ERR
            | verbs::IBV_EVENT_QP_LAST_WQE_REACHED => {
                if let Ok(qp) = unsafe { object::get::<Qp>(event.element.qp) } {
                    let acked = qp.acks.ack(1);
                    unsafe { (*qp.as_c()).events_completed = acked };
                }
            }
            verbs::IBV_EVENT_SRQ_ERR | verbs::IBV_EVENT_SRQ_LIMIT_REACHED => {
                if let Ok(srq) = unsafe { object::get::<Srq>(event.element.srq) } {
                    let acked = srq.acks.ack(1);
                    unsafe { (*srq.as_c()).events_completed = acked };
                }
            }
            _ => {}
        }
    })
}
