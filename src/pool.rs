//! The windows of one domain that are free, and which of them goes out next.
//!
//! A window with keys that were never used waits in line, first in, first out. One whose next key
//! has been used before rests until enough grants have gone by; those that rest go out first once
//! they are due, the longest unused before the others. Where keys are never to come back while a
//! client lives that may remember them, a used-up window retires until all such clients have left.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

/// The due of a key that is not used again while a client lives that may remember it.
pub const NEVER: u64 = u64::MAX;

#[derive(Default)]
pub struct Pool {
    ready: VecDeque<u32>,
    resting: BinaryHeap<Reverse<(u64, u32)>>,
    /// Used-up windows, each with the count of clients that ever came when its last key went out.
    retired: VecDeque<(u64, u32)>,
    /// The clients that live, by when they came.
    clients: BTreeSet<u64>,
    /// Clients that ever came.
    arrivals: u64,
    /// Grants that took a window from this pool so far.
    pub grants: u64,
    /// Windows that belong to the domain, free or bound.
    pub windows: usize,
}

impl Pool {
    /// Gives a window back. `due` is the count of grants from which its next key may be bound.
    pub fn give(&mut self, window: u32, due: u64) {
        if due == NEVER {
            self.retired.push_back((self.arrivals, window));
        } else if due <= self.grants {
            self.ready.push_back(window);
        } else {
            self.resting.push(Reverse((due, window)));
        }
    }

    /// A window for the next grant, and whether its keys start over.
    pub fn take(&mut self) -> Option<(u32, bool)> {
        let renewed = self.take_retired();
        let window = renewed.or_else(|| self.take_due()).or_else(|| self.ready.pop_front())?;
        self.grants += 1;
        Some((window, renewed.is_some()))
    }

    /// A used-up window that no living client can remember.
    fn take_retired(&mut self) -> Option<u32> {
        let (came, _) = *self.retired.front()?;
        let oldest = self.clients.first().copied().unwrap_or(NEVER);
        if oldest < came {
            return None;
        }
        self.retired.pop_front().map(|(_, window)| window)
    }

    fn take_due(&mut self) -> Option<u32> {
        let Reverse((due, _)) = *self.resting.peek()?;
        if due > self.grants {
            return None;
        }
        self.resting.pop().map(|Reverse((_, window))| window)
    }

    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    pub fn resting(&self) -> usize {
        self.resting.len() + self.retired.len()
    }

    /// Takes any free window, due or not, to deallocate it.
    pub fn drain(&mut self) -> Option<u32> {
        let resting = || self.resting.pop().map(|Reverse((_, window))| window);
        let window = self.ready.pop_front().or_else(resting);
        window.or_else(|| self.retired.pop_front().map(|(_, window)| window))
    }

    /// A client comes; its number is what `leave` wants.
    pub fn enter(&mut self) -> u64 {
        let client = self.arrivals;
        self.clients.insert(client);
        self.arrivals += 1;
        client
    }

    pub fn leave(&mut self, client: u64) {
        self.clients.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_go_out_in_the_order_they_came() {
        let mut pool = Pool::default();
        pool.give(1, 0);
        pool.give(2, 0);
        assert_eq!((pool.take(), pool.take(), pool.take()), (Some((1, false)), Some((2, false)), None));
    }

    #[test]
    fn a_resting_window_stays_in_until_it_is_due() {
        let mut pool = Pool::default();
        pool.give(7, 2);
        assert_eq!(pool.take(), None);
        for window in [1, 2] {
            pool.give(window, 0);
            assert_eq!(pool.take(), Some((window, false)));
        }
        pool.give(3, 0);
        assert_eq!(pool.take(), Some((7, false)));
    }

    #[test]
    fn a_retired_window_waits_for_all_clients_that_may_remember_it() {
        let mut pool = Pool::default();
        let (old, other) = (pool.enter(), pool.enter());
        pool.give(5, NEVER);
        let young = pool.enter();
        pool.leave(old);
        assert_eq!(pool.take(), None);
        pool.leave(other);
        assert_eq!(pool.take(), Some((5, true)));
        pool.give(5, NEVER);
        assert_eq!(pool.take(), None);
        pool.leave(young);
        assert_eq!(pool.take(), Some((5, true)));
    }
}
