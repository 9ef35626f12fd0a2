//! Completions and asynchronous events.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use super::types::*;
use super::{Status, enter_or};
use crate::device::{Completion, Cq};

/// Stands in for ibv_poll_cq, with the same arguments, results and order, for any CQ: the
/// application's completions come out, ours are taken in. It returns 0 only when the queue was
/// seen empty. Negative on an error, as ibv_poll_cq.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_poll_cq(
    ctx: *mut mwctl_context,
    cq: *mut verbs::ibv_cq,
    num_entries: c_int,
    wc: *mut verbs::ibv_wc,
) -> c_int {
    enter_or(
        ctx,
        |_| -1,
        |core| {
            let Some(cq) = std::ptr::NonNull::new(cq) else { return -1 };
            if num_entries < 0 || (wc.is_null() && num_entries > 0) {
                return -1;
            }
            if num_entries == 0 {
                return 0;
            }
            // SAFETY: the caller's array of completions, written before it is read.
            let room = unsafe {
                std::slice::from_raw_parts_mut(wc.cast::<MaybeUninit<verbs::ibv_wc>>(), num_entries as usize)
            };
            // SAFETY: the caller's queue, for this call or while it has peers.
            let polled = core.poll_cq(unsafe { Cq::new(cq) }, room);
            polled.map_or(-1, |n| n as c_int)
        },
    )
}

/// For an application that polls by itself: offers a completion. 1: it was ours, forget it. 0: it
/// is the application's. Offer every one, also those with an error: what they say of a queue pair
/// or a key is taken to heart. `cq` is the queue it came from. wc is read during the call alone.
/// Negative on an error, and then the completion is the application's.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_take_wc(
    ctx: *mut mwctl_context,
    cq: *mut verbs::ibv_cq,
    wc: *const verbs::ibv_wc,
) -> c_int {
    enter_or(
        ctx,
        |status: Status| -(status as c_int),
        |core| {
            // SAFETY: the caller's completion.
            let Some(wc) = (unsafe { wc.as_ref() }) else { return -(Status::InvalidArgument as c_int) };
            c_int::from(core.offer((!cq.is_null()).then_some(cq), &Completion::from(wc)))
        },
    )
}

/// Offers an asynchronous event that ibv_get_async_event returned, before it is acknowledged. The
/// event stays the application's; what it says of a queue pair or the device is taken to heart.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_take_async_event(
    ctx: *mut mwctl_context,
    event: *const verbs::ibv_async_event,
) -> Status {
    super::enter(ctx, |core| {
        // SAFETY: the caller's event.
        let event = unsafe { event.as_ref() }.ok_or(Status::InvalidArgument)?;
        core.async_event(crate::device::AsyncEvent::from(event));
        Ok(())
    })
}
