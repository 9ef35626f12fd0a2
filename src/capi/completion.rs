//! Completions and asynchronous events.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::types::*;
use super::{Status, enter_or};
use crate::device::{Completion, Cq};

/// Stands in for ibv_poll_cq, with the same arguments, results and order, for any CQ: the
/// application's completions come out, ours are taken in. It returns 0 only when the queue was
/// seen empty. Negative on an error, as ibv_poll_cq, and from a thread that does not own a queue
/// with an owner_thread.
/// With a completion channel as ever: ibv_req_notify_cq, then this until it returns 0, then sleep. No
/// wake-up is lost, for what a waiting call kept comes out of this as well. Completions of ours are
/// events, too, but never solicited ones: whoever arms for solicited ones alone hears of an
/// asynchronous call no sooner than at its deadline.
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
            let Some(cq) = NonNull::new(cq) else { return -1 };
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
/// or a key is taken to heart. `cq` is the queue it came from; another device's is let pass, for its
/// numbers mean other things. wc is read during the call alone.
/// Negative on an error (minus the status), and then the completion is the application's: what it
/// handles itself is all for which this returns <= 0.
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
            let (Some(cq), Some(wc)) = (NonNull::new(cq), unsafe { wc.as_ref() }) else {
                return -(Status::InvalidArgument as c_int);
            };
            // SAFETY: the caller's queue, for this call.
            c_int::from(core.offer(unsafe { Cq::new(cq) }, &Completion::from(wc)))
        },
    )
}

/// The same for the extended interface: offers the completion that ibv_start_poll or ibv_next_poll
/// shows, between those and ibv_end_poll, on the thread that polls. 1: it was ours. 0: it is the
/// application's. Nothing is posted, polled or called back here: what follows from the completion
/// is done by the next mwctl_tick, to be called after ibv_end_poll or when the event fd says so;
/// other calls of this library but the questions wait until then, too. For polling YOURS. Make the
/// queue with IBV_WC_EX_WITH_QP_NUM and IBV_WC_EX_WITH_IMM: without the first an error says of no
/// queue pair that it is in error, and a SEND_WITH_INV is taken for the key's own client's; without
/// the second a SEND_WITH_INV is not seen at all. Negative on an error, as mwctl_take_wc.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_take_ex(ctx: *mut mwctl_context, cq: *mut verbs::ibv_cq_ex) -> c_int {
    enter_or(
        ctx,
        |status: Status| -(status as c_int),
        |core| {
            let (Some(shown), Some(cq)) = (NonNull::new(cq), NonNull::new(cq.cast())) else {
                return -(Status::InvalidArgument as c_int);
            };
            // SAFETY: the caller polls this queue; its head is that of a plain one.
            let (cq, seen) = unsafe { (Cq::new(cq), Completion::shown_by(shown)) };
            c_int::from(core.offer_within(cq, &seen, true))
        },
    )
}

/// Before ibv_destroy_cq, after the last peer that used the queue was detached: drops completions
/// that a waiting call of ours had kept for the application and that it will not poll any more.
/// Without this, or polling by mwctl_poll_cq until it returns 0, a later queue at the same address
/// would inherit them. BUSY while an attached peer uses the queue.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_cq_gone(ctx: *mut mwctl_context, cq: *mut verbs::ibv_cq) -> Status {
    super::enter(ctx, |core| core.queues.forget(cq).map(drop))
}

/// For an application that polls by itself: its last poll found the queue empty. Call it whenever a
/// poll does, before the next tick; the queue of the sends is the one that counts. By it the deadline of a
/// revocation tells a lost completion from one that nobody has polled: it takes two such calls in the
/// second half of the time from the post to the deadline, and a millisecond or more behind the post (the
/// poll before the first may have begun earlier). Without them, and without some four times as many
/// completions offered in that time as the queue holds, no queue pair is moved to ERR, and the grant is
/// reported as still open. For a loop that sleeps mwctl_next_timeout and the event fd come at five, six
/// and seven eighths of the time and 2 ms before its end; one that is woken too late for two of them may
/// revoke again. Does what is due besides, as mwctl_take_wc does: deadlines, callbacks, events. From the
/// owner_thread alone, if that is declared: WRONG_THREAD otherwise. UNKNOWN_QUEUE if no attached peer
/// uses the queue.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_cq_empty(ctx: *mut mwctl_context, cq: *mut verbs::ibv_cq) -> Status {
    super::enter(ctx, |core| core.seen_empty(cq))
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
