//! One memory window and its state.
//!
//! What a lookup reads stands in one cache line of its own and is read under a sequence count.
//! Everything is atomic, so that a late reader sees an old value and never a torn one; who may
//! *write* is a matter of ownership:
//! a free window belongs to its domain's pool (the pool's lock), any other to its peer (the
//! peer's lock).

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use crate::keys::KeyRing;

/// "No window", "no peer", "no region" in the 32-bit links below.
pub const NONE: u32 = u32::MAX;

/// Loops over windows load them so many before their turn.
pub const AHEAD: usize = 8;

/// What became of a window at the end of its grant.
#[derive(Clone, Copy, Debug)]
pub enum Left {
    /// It may be bound anew; its key has been out of use since then.
    Free(u64),
    Deallocated,
}

#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No `ibv_mw` behind it.
    Empty = 0,
    /// Unbound, in its domain's pool.
    Free = 1,
    /// Its bind is prepared, queued or posted and not known to have completed.
    Binding = 2,
    /// Bound: a live grant.
    Valid = 3,
    /// A revocation is asked for; no LOCAL_INV is posted.
    Revoking = 4,
    /// Its LOCAL_INV is prepared or posted.
    Invalidating = 5,
    /// Being deallocated.
    Deallocating = 6,
    /// Not proved gone: the right may still be usable.
    Uncertain = 7,
}

impl State {
    fn from_raw(raw: u32) -> State {
        match raw {
            1 => State::Free,
            2 => State::Binding,
            3 => State::Valid,
            4 => State::Revoking,
            5 => State::Invalidating,
            6 => State::Deallocating,
            7 => State::Uncertain,
            _ => State::Empty,
        }
    }

    /// Whether a client may be able to use the right.
    pub fn is_open(self) -> bool {
        !matches!(self, State::Empty | State::Free)
    }
}

/// What a lookup sees, all of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    pub state: State,
    pub confirmed: bool,
    pub generation: u32,
    pub rkey: u32,
    pub peer: u32,
    pub region: u32,
    pub access: u32,
    pub addr: u64,
    pub length: u64,
}

impl Right {
    pub fn covers(&self, addr: u64, length: u64) -> bool {
        addr >= self.addr && addr - self.addr <= self.length && self.length - (addr - self.addr) >= length
    }

    pub fn overlaps(&self, addr: u64, length: u64) -> bool {
        addr < self.addr + self.length && self.addr < addr.saturating_add(length)
    }
}

/// The part that lookups read.
#[derive(Default)]
#[repr(align(64))]
struct Hot {
    /// Odd while a writer is at work.
    sequence: AtomicU32,
    /// State in the low byte, "confirmed" above it.
    state: AtomicU32,
    generation: AtomicU32,
    rkey: AtomicU32,
    peer: AtomicU32,
    region: AtomicU32,
    access: AtomicU32,
    addr: AtomicU64,
    length: AtomicU64,
}

const CONFIRMED: u32 = 1 << 8;

/// An operation's slot, and which use of it is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpId {
    pub index: u32,
    pub generation: u32,
}

/// Bits of a packed waiter: operation, generation, item.
const OP_BITS: u32 = 20;
const OP_GENERATION_BITS: u32 = 20;
const ITEM_BITS: u32 = 24;

/// Operations, and items of one, that a waiter can tell apart.
pub const MAX_OPS: usize = 1 << OP_BITS;
pub const MAX_ITEMS: usize = (1 << ITEM_BITS) - 1;
pub const OP_GENERATIONS: u32 = 1 << OP_GENERATION_BITS;

/// Who waits for this window: an operation and the item in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub op: OpId,
    pub item: u32,
}

impl Waiter {
    const NOBODY: u64 = u64::MAX;

    fn pack(waiter: Option<Waiter>) -> u64 {
        waiter.map_or(Self::NOBODY, |w| {
            let op = (w.op.index as u64) << OP_GENERATION_BITS | w.op.generation as u64;
            op << ITEM_BITS | w.item as u64
        })
    }

    fn unpack(raw: u64) -> Option<Waiter> {
        let field = |shift: u32, bits: u32| (raw >> shift) as u32 & ((1 << bits) - 1);
        (raw != Self::NOBODY).then(|| Waiter {
            op: OpId {
                index: field(ITEM_BITS + OP_GENERATION_BITS, OP_BITS),
                generation: field(ITEM_BITS, OP_GENERATION_BITS),
            },
            item: field(0, ITEM_BITS),
        })
    }
}

/// In this order: what a revocation touches fills the second cache line.
#[repr(C)]
pub struct Window {
    hot: Hot,
    /// The device's object; NULL while `Empty`.
    pub mw: AtomicPtr<verbs::ibv_mw>,
    /// The operation that waits for the bind.
    bind_waiter: AtomicU64,
    /// The newest revocation that waits; older ones hang behind it in their operations.
    revoke_waiter: AtomicU64,
    /// The key that the device holds: the last one bound, or the one it was allocated with.
    pub device_rkey: AtomicU32,
    pub domain: AtomicU32,
    /// Links of the peer's list of windows.
    pub previous: AtomicU32,
    pub next: AtomicU32,
    /// Work requests for it that are prepared or posted and not known to have ended.
    pub posted: AtomicU32,
    /// A request for it is in the application's hands, prepared and not committed.
    pub prepared: AtomicBool,
    /// Its LOCAL_INV is in line, prepared or posted: there is one for each bind.
    pub invalidate: AtomicBool,
    /// A revocation was reported as not proved.
    pub uncertain: AtomicBool,
    /// A grant of the library's own, whose key nobody is told: no answer to any question.
    pub hidden: AtomicBool,
    /// Its bind's post had an unclear outcome: nobody knows whether it is bound.
    pub unclear: AtomicBool,
    pub keys: Mutex<KeyRing>,
}

impl Default for Window {
    fn default() -> Self {
        Window {
            hot: Hot::default(),
            mw: AtomicPtr::default(),
            device_rkey: AtomicU32::new(0),
            keys: Mutex::default(),
            domain: AtomicU32::new(NONE),
            previous: AtomicU32::new(NONE),
            next: AtomicU32::new(NONE),
            posted: AtomicU32::new(0),
            prepared: AtomicBool::new(false),
            invalidate: AtomicBool::new(false),
            uncertain: AtomicBool::new(false),
            unclear: AtomicBool::new(false),
            hidden: AtomicBool::new(false),
            bind_waiter: AtomicU64::new(Waiter::NOBODY),
            revoke_waiter: AtomicU64::new(Waiter::NOBODY),
        }
    }
}

impl Window {
    /// Starts to load what a revocation will touch.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint; both addresses are inside the window.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>((&raw const self.hot).cast());
                _mm_prefetch::<_MM_HINT_T0>((&raw const self.mw).cast());
            }
        }
    }

    /// The right as of one moment, without a lock.
    #[inline]
    pub fn right(&self) -> Right {
        loop {
            let before = self.hot.sequence.load(Ordering::Acquire);
            let right = self.read();
            fence(Ordering::Acquire);
            if before % 2 == 0 && self.hot.sequence.load(Ordering::Relaxed) == before {
                return right;
            }
            std::hint::spin_loop();
        }
    }

    fn read(&self) -> Right {
        let state = self.hot.state.load(Ordering::Relaxed);
        Right {
            state: State::from_raw(state & 0xff),
            confirmed: state & CONFIRMED != 0,
            generation: self.hot.generation.load(Ordering::Relaxed),
            rkey: self.hot.rkey.load(Ordering::Relaxed),
            peer: self.hot.peer.load(Ordering::Relaxed),
            region: self.hot.region.load(Ordering::Relaxed),
            access: self.hot.access.load(Ordering::Relaxed),
            addr: self.hot.addr.load(Ordering::Relaxed),
            length: self.hot.length.load(Ordering::Relaxed),
        }
    }

    #[inline]
    pub fn state(&self) -> State {
        State::from_raw(self.hot.state.load(Ordering::Acquire) & 0xff)
    }

    #[inline]
    pub fn peer(&self) -> u32 {
        self.hot.peer.load(Ordering::Acquire)
    }

    /// Changes the state, and nothing else that a lookup reads. Owner only.
    pub fn set_state(&self, state: State) {
        let confirmed = self.hot.state.load(Ordering::Relaxed) & CONFIRMED;
        self.hot.state.store(state as u32 | confirmed, Ordering::Release);
    }

    pub fn set_confirmed(&self) {
        self.hot.state.fetch_or(CONFIRMED, Ordering::Release);
    }

    /// Writes a new right under the current generation. Owner only.
    pub fn set_right(&self, right: &Right) {
        self.write(|hot| {
            hot.state.store(right.state as u32, Ordering::Relaxed);
            hot.rkey.store(right.rkey, Ordering::Relaxed);
            hot.peer.store(right.peer, Ordering::Relaxed);
            hot.region.store(right.region, Ordering::Relaxed);
            hot.access.store(right.access, Ordering::Relaxed);
            hot.addr.store(right.addr, Ordering::Relaxed);
            hot.length.store(right.length, Ordering::Relaxed);
        });
    }

    /// Ends the grant: its id is stale from here on. Owner only.
    pub fn end_grant(&self, state: State) {
        self.write(|hot| {
            hot.state.store(state as u32, Ordering::Relaxed);
            let generation = hot.generation.load(Ordering::Relaxed).wrapping_add(1);
            hot.generation.store(generation, Ordering::Relaxed);
            hot.peer.store(NONE, Ordering::Relaxed);
        });
    }

    fn write(&self, change: impl FnOnce(&Hot)) {
        let sequence = self.hot.sequence.load(Ordering::Relaxed);
        self.hot.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change(&self.hot);
        self.hot.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    pub fn set_bind_waiter(&self, waiter: Option<Waiter>) {
        self.bind_waiter.store(Waiter::pack(waiter), Ordering::Relaxed);
    }

    pub fn take_bind_waiter(&self) -> Option<Waiter> {
        Waiter::unpack(self.bind_waiter.swap(Waiter::NOBODY, Ordering::Relaxed))
    }

    pub fn bind_waiter(&self) -> Option<Waiter> {
        Waiter::unpack(self.bind_waiter.load(Ordering::Relaxed))
    }

    /// Puts a revocation in front of those that wait and returns the one behind it.
    pub fn swap_revoke_waiter(&self, waiter: Option<Waiter>) -> Option<Waiter> {
        Waiter::unpack(self.revoke_waiter.swap(Waiter::pack(waiter), Ordering::Relaxed))
    }

    pub fn revoke_waiter(&self) -> Option<Waiter> {
        Waiter::unpack(self.revoke_waiter.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lookup_reads_fills_one_cache_line() {
        assert_eq!(std::mem::size_of::<Hot>(), 64);
        assert_eq!(std::mem::align_of::<Window>(), 64);
        assert_eq!(std::mem::offset_of!(Window, mw), 64);
        assert!(std::mem::offset_of!(Window, keys) <= 128);
    }

    #[test]
    fn an_ended_grant_changes_the_generation() {
        let window = Window::default();
        let before = window.right().generation;
        window.end_grant(State::Free);
        assert_ne!(window.right().generation, before);
        assert_eq!(window.state(), State::Free);
    }

    #[test]
    fn a_range_covers_without_wrapping() {
        let window = Window::default();
        let right = Right { addr: 100, length: 50, ..window.right() };
        assert!(right.covers(100, 50) && right.covers(149, 1));
        assert!(!right.covers(99, 1) && !right.covers(149, 2) && !right.covers(u64::MAX, 2));
        assert!(right.overlaps(0, 101) && !right.overlaps(0, 100) && !right.overlaps(150, 1));
    }
}
