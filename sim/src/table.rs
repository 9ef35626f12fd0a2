//! Tables indexed by a 24-bit number (queue pairs by their number, keys by their index), read
//! without a lock.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::*};

const PAGE_BITS: u32 = 12;
const PAGE: usize = 1 << PAGE_BITS;
const PAGES: usize = 1 << (24 - PAGE_BITS);

/// Entries come in pages that are made when first needed and never freed.
pub struct Table<E: Default + Sync + 'static> {
    pages: [AtomicPtr<E>; PAGES],
}

impl<E: Default + Sync + 'static> Table<E> {
    #[allow(clippy::declare_interior_mutable_const)] // only ever an initializer
    const NOTHING: AtomicPtr<E> = AtomicPtr::new(null_mut());

    pub const fn new() -> Self {
        Self { pages: [Self::NOTHING; PAGES] }
    }

    /// The entry, if its page was made.
    pub fn get(&self, index: u32) -> Option<&'static E> {
        let page = self.pages.get(index as usize >> PAGE_BITS)?.load(Acquire);
        if page.is_null() {
            return None;
        }
        // SAFETY: a page has PAGE entries and lasts for ever.
        Some(unsafe { &*page.add(index as usize % PAGE) })
    }

    /// The entry, its page made if it was not there. `index` is below 2^24.
    pub fn entry(&self, index: u32) -> &'static E {
        if let Some(entry) = self.get(index) {
            return entry;
        }
        let fresh: Box<[E]> = (0..PAGE).map(|_| E::default()).collect();
        let fresh = Box::into_raw(fresh).cast::<E>();
        let place = &self.pages[index as usize >> PAGE_BITS];
        let page = match place.compare_exchange(null_mut(), fresh, AcqRel, Acquire) {
            Ok(_) => fresh,
            Err(other) => {
                let lost = std::ptr::slice_from_raw_parts_mut(fresh, PAGE);
                // SAFETY: another thread's page won, nobody saw this one.
                drop(unsafe { Box::from_raw(lost) });
                other
            }
        };
        // SAFETY: as in `get`.
        unsafe { &*page.add(index as usize % PAGE) }
    }
}

/// Gives out the indices of a table. One that came back rests while others do.
pub struct Indices {
    state: Mutex<State>,
    end: u32,
    quarantine: usize,
}

struct State {
    next: u32,
    resting: VecDeque<u32>,
}

impl Indices {
    pub const fn new(start: u32, end: u32, quarantine: usize) -> Self {
        Self { state: Mutex::new(State { next: start, resting: VecDeque::new() }), end, quarantine }
    }

    pub fn take(&self) -> Option<u32> {
        let mut s = self.state.lock();
        if s.resting.len() > self.quarantine || s.next == self.end {
            return s.resting.pop_front();
        }
        s.next += 1;
        Some(s.next - 1)
    }

    pub fn put(&self, index: u32) {
        self.state.lock().resting.push_back(index);
    }

    /// All indices that were ever given out are below this.
    pub fn high_water(&self) -> u32 {
        self.state.lock().next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn entries_stay_where_they_are() {
        static T: Table<AtomicU32> = Table::new();
        assert!(T.get(0xff_ffff).is_none());
        T.entry(0xff_ffff).store(7, Relaxed);
        assert_eq!(T.get(0xff_ffff).unwrap().load(Relaxed), 7);
        assert_eq!(T.get(0xff_fffe).unwrap().load(Relaxed), 0);
        assert!(T.get(0).is_none());
        assert!(T.get(1 << 24).is_none());
    }

    #[test]
    fn an_index_rests_until_the_space_is_used_up() {
        let indices = Indices::new(1, 4, 1);
        let (a, b) = (indices.take().unwrap(), indices.take().unwrap());
        indices.put(a);
        let c = indices.take().unwrap();
        assert!(c != a && c != b);
        assert_eq!(indices.take(), Some(a), "nothing else is left");
        assert_eq!(indices.take(), None);
        indices.put(b);
        indices.put(c);
        assert_eq!(indices.take(), Some(b));
    }
}
