//! What a context has done, in plain counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a context since it was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Grants handed out.
    pub grants: u64,
    /// Revocations proved by a completed LOCAL_INV.
    pub proved_invalidated: u64,
    /// Revocations proved by deallocation.
    pub proved_deallocated: u64,
    /// Revocations proved by deallocation with the QP in ERR.
    pub proved_qp_fenced: u64,
    /// Grants ended by the peer's SEND_WITH_INV.
    pub proved_peer_invalidated: u64,
    /// Grants whose bind was never posted.
    pub proved_never_bound: u64,
    /// Results that reported a right as still open.
    pub reported_open: u64,
    /// `ibv_post_send` calls of ours.
    pub posts: u64,
    /// Binds that we posted or saw committed.
    pub binds_posted: u64,
    /// LOCAL_INVs that we posted or saw committed.
    pub invalidates_posted: u64,
    /// Completions of ours, successful.
    pub completions: u64,
    /// Completions of ours with an error.
    pub error_completions: u64,
    /// Completions of chains that were given up with their QP.
    pub late_completions: u64,
    /// Posts that were refused, in part or as a whole.
    pub post_errors: u64,
    /// Windows allocated.
    pub windows_allocated: u64,
    /// Windows deallocated.
    pub windows_deallocated: u64,
    /// Queue pairs that we moved to ERR.
    pub peers_killed: u64,
    /// Grants of another client ended by a peer's SEND_WITH_INV.
    pub foreign_invalidations: u64,
    /// Application completions kept for its next poll.
    pub completions_kept: u64,
    /// Grants refused because no window was ready.
    pub pool_misses: u64,
    /// Binds whose key had been used before on its window.
    pub keys_reused: u64,
    /// The smallest number of grants between two uses of one rkey; 0 while none came round.
    pub smallest_key_distance: u64,
    /// The shortest time between two uses of one rkey, in nanoseconds; 0 while none came round.
    pub smallest_key_age_ns: u64,
    /// Deallocated windows whose used keys are no longer remembered: should the device hand out
    /// their numbers again, the distance is not kept for them.
    pub keys_forgotten: u64,
}

macro_rules! counters {
    ($($name:ident,)*) => {
        /// `Stats` as it is counted.
        #[derive(Default)]
        pub struct Counters { $(pub $name: AtomicU64,)* }

        impl Counters {
            pub fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    grants,
    proved_invalidated,
    proved_deallocated,
    proved_qp_fenced,
    proved_peer_invalidated,
    proved_never_bound,
    reported_open,
    posts,
    binds_posted,
    invalidates_posted,
    completions,
    error_completions,
    late_completions,
    post_errors,
    windows_allocated,
    windows_deallocated,
    peers_killed,
    foreign_invalidations,
    completions_kept,
    pool_misses,
    keys_reused,
    smallest_key_distance,
    smallest_key_age_ns,
    keys_forgotten,
}

#[inline]
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[inline]
pub fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
