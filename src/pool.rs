//! The windows of one domain that are free, and which of them goes out next.
//!
//! A window with keys that were never used waits in line, first in, first out. One whose next key
//! has been used before rests until enough grants have gone by; those that rest go out first once
//! they are due, the longest unused before the others.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

#[derive(Default)]
pub struct Pool {
    ready: VecDeque<u32>,
    resting: BinaryHeap<Reverse<(u64, u32)>>,
    /// Grants that took a window from this pool so far.
    pub grants: u64,
    /// Windows that belong to the domain, free or bound.
    pub windows: usize,
}

impl Pool {
    /// Gives a window back. `due` is the count of grants from which its next key may be bound.
    pub fn give(&mut self, window: u32, due: u64) {
        if due <= self.grants {
            self.ready.push_back(window);
        } else {
            self.resting.push(Reverse((due, window)));
        }
    }

    pub fn take(&mut self) -> Option<u32> {
        let due = matches!(self.resting.peek(), Some(Reverse((due, _))) if *due <= self.grants);
        let window =
            if due { self.resting.pop().map(|Reverse((_, window))| window) } else { self.ready.pop_front() }?;
        self.grants += 1;
        Some(window)
    }

    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    pub fn resting(&self) -> usize {
        self.resting.len()
    }

    /// Takes any free window, due or not, to deallocate it.
    pub fn drain(&mut self) -> Option<u32> {
        self.ready.pop_front().or_else(|| self.resting.pop().map(|Reverse((_, window))| window))
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
        assert_eq!((pool.take(), pool.take(), pool.take()), (Some(1), Some(2), None));
    }

    #[test]
    fn a_resting_window_stays_in_until_it_is_due() {
        let mut pool = Pool::default();
        pool.give(7, 2);
        assert_eq!(pool.take(), None);
        for window in [1, 2] {
            pool.give(window, 0);
            assert_eq!(pool.take(), Some(window));
        }
        pool.give(3, 0);
        assert_eq!(pool.take(), Some(7));
    }
}
