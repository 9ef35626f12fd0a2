//! Completion channels.

use crate::context::{self, Context};
use crate::cq::Cq;
use crate::guard::{guard, guard_int, guard_ptr};
use crate::misuse::{self, Rule};
use crate::notify::Notifier;
use crate::object::{self, Live, Object, Users};
use libc::{c_int, c_uint, c_void};
use std::cell::UnsafeCell;
use verbs::*;

#[repr(C)]
pub struct Channel {
    base: UnsafeCell<ibv_comp_channel>,
    live: Live,
    pub events: Notifier<&'static Cq>,
    users: Users,
}

// SAFETY: `base` is written before the application knows the object; its count only by the
// calls that create and destroy completion queues.
unsafe impl Sync for Channel {}

impl Object for Channel {
    type C = ibv_comp_channel;
    const MAGIC: u32 = 0x6368_3031;
    const NAME: &'static str = "completion channel";

    fn live(&self) -> &Live {
        &self.live
    }
}

impl Channel {
    pub fn enter(&self) {
        self.users.enter();
        self.show_count();
    }

    pub fn leave(&self) {
        self.users.leave();
        self.show_count();
    }

    /// `refcnt` is there for everybody to see.
    fn show_count(&self) {
        unsafe { (*self.base.get()).refcnt = self.users.count() as c_int };
    }
}

/// # Safety
/// `context` is open.
#[no_mangle]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    guard_ptr(|| {
        let context = unsafe { Context::get(context)? };
        context::refuse_if_fatal()?;
        let events = Notifier::new()?;
        // Channels are few: their memory is not used again.
        let channel: &'static Channel = Box::leak(Box::new(Channel {
            base: UnsafeCell::new(ibv_comp_channel { context: context.as_c(), fd: events.fd(), refcnt: 0 }),
            live: Live::new(),
            events,
            users: Users::new(),
        }));
        channel.live.begin(Channel::MAGIC);
        Ok(channel.as_c())
    })
}

/// # Safety
/// `channel` came from this device.
#[no_mangle]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    guard_int(|| {
        let channel = unsafe { object::get::<Channel>(channel)? };
        if !channel.users.close() {
            misuse::report(
                Rule::DestroyBusy,
                0,
                0,
                format_args!("a completion channel was destroyed with completion queues on it"),
            );
            return Err(libc::EBUSY);
        }
        channel.live.end();
        channel.events.close();
        Ok(())
    })
}

/// # Safety
/// `channel` came from this device; the two others are writable.
#[no_mangle]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    guard(-1, || {
        let taken = unsafe { object::get::<Channel>(channel) }.and_then(|c| c.events.take());
        match taken {
            Ok(from) => {
                from.event_acks.take();
                unsafe {
                    *cq = from.as_c();
                    *cq_context = (*from.as_c()).cq_context;
                }
                0
            }
            Err(e) => {
                verbs::set_errno(e);
                -1
            }
        }
    })
}

/// # Safety
/// `cq` came from this device.
#[no_mangle]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, n: c_uint) {
    guard((), || {
        if let Ok(cq) = unsafe { object::get::<Cq>(cq) } {
            let acked = cq.event_acks.ack(n);
            unsafe { (*cq.as_c()).comp_events_completed = acked };
        }
    })
}
