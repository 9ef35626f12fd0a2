//! Growing arrays whose elements never move: readers index them without a lock.

use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Elements a page. Pages are allocated as needed and live as long as the slab.
const PAGE: usize = 1024;

pub struct Slab<T> {
    pages: Box<[OnceLock<Box<[T]>>]>,
    len: AtomicUsize,
    grow: Mutex<()>,
}

impl<T: Default> Slab<T> {
    /// A slab for up to `capacity` elements, rounded up to whole pages.
    pub fn new(capacity: usize) -> Self {
        let pages = (0..capacity.div_ceil(PAGE)).map(|_| OnceLock::new()).collect();
        Slab { pages, len: AtomicUsize::new(0), grow: Mutex::new(()) }
    }

    /// Elements made so far.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let index = index as usize;
        self.pages.get(index / PAGE)?.get()?.get(index % PAGE)
    }

    /// The element at an index that came from `push`.
    #[inline]
    pub fn at(&self, index: u32) -> &T {
        self.get(index).expect("an index that push returned")
    }

    /// Makes one more element and returns its index; `None` when the slab is full.
    pub fn push(&self) -> Option<u32> {
        let _growing = self.grow.lock();
        let index = self.len.load(Ordering::Relaxed);
        let page = self.pages.get(index / PAGE)?;
        page.get_or_init(|| (0..PAGE).map(|_| T::default()).collect());
        self.len.store(index + 1, Ordering::Release);
        Some(index as u32)
    }
}

/// A sparse map from 24-bit numbers (rkey indexes, QP numbers) to slab indexes.
pub struct Index24 {
    pages: Box<[OnceLock<Box<[AtomicU32]>>]>,
}

const INDEX_PAGE: usize = 4096;

impl Index24 {
    pub fn new() -> Self {
        Index24 { pages: (0..(1 << 24) / INDEX_PAGE).map(|_| OnceLock::new()).collect() }
    }

    #[inline]
    pub fn get(&self, number: u32) -> Option<u32> {
        let page = self.pages.get(number as usize / INDEX_PAGE)?.get()?;
        page[number as usize % INDEX_PAGE].load(Ordering::Acquire).checked_sub(1)
    }

    /// Maps `number` to `value`, or to nothing.
    pub fn set(&self, number: u32, value: Option<u32>) {
        let page = self.pages[number as usize / INDEX_PAGE]
            .get_or_init(|| (0..INDEX_PAGE).map(|_| AtomicU32::new(0)).collect());
        let stored = value.map_or(0, |v| v + 1);
        page[number as usize % INDEX_PAGE].store(stored, Ordering::Release);
    }

    /// Maps `number` to nothing, if it was mapped to `value`.
    pub fn unset(&self, number: u32, value: u32) {
        if let Some(page) = self.pages[number as usize / INDEX_PAGE].get() {
            let place = &page[number as usize % INDEX_PAGE];
            let _ = place.compare_exchange(value + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// A slab whose indexes are given back and handed out again, oldest first, so that a number
/// in use by a stale holder stays unused as long as possible.
pub struct Recycled<T> {
    slab: Slab<T>,
    free: Mutex<std::collections::VecDeque<u32>>,
    /// Below so many free indexes a new element is made instead.
    rest: usize,
}

impl<T: Default> Recycled<T> {
    pub fn new(capacity: usize, rest: usize) -> Self {
        Recycled { slab: Slab::new(capacity), free: Mutex::new(Default::default()), rest }
    }

    pub fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        if free.len() > self.rest {
            return free.pop_front();
        }
        drop(free);
        self.slab.push().or_else(|| self.free.lock().pop_front())
    }

    pub fn give(&self, index: u32) {
        self.free.lock().push_back(index);
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.slab.get(index)
    }

    #[inline]
    pub fn at(&self, index: u32) -> &T {
        self.slab.at(index)
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_slab_says_so_and_elements_stay() {
        let slab: Slab<AtomicU32> = Slab::new(PAGE);
        let first = slab.push().unwrap();
        slab.at(first).store(7, Ordering::Relaxed);
        for _ in 1..PAGE {
            assert!(slab.push().is_some());
        }
        assert_eq!(slab.push(), None);
        assert_eq!(slab.at(first).load(Ordering::Relaxed), 7);
        assert!(slab.get(PAGE as u32).is_none());
    }

    #[test]
    fn index24_covers_the_first_and_the_last_number() {
        let index = Index24::new();
        for number in [0, 4095, 4096, 0xff_ffff] {
            assert_eq!(index.get(number), None);
            index.set(number, Some(number));
            assert_eq!(index.get(number), Some(number));
            index.unset(number, 7);
            assert_eq!(index.get(number), Some(number));
            index.unset(number, number);
            assert_eq!(index.get(number), None);
        }
        assert_eq!(index.get(1 << 24), None);
    }

    #[test]
    fn recycled_indexes_come_back_oldest_first_after_a_rest() {
        let slab: Recycled<AtomicU32> = Recycled::new(PAGE, 2);
        let taken: Vec<u32> = (0..3).map(|_| slab.take().unwrap()).collect();
        for index in &taken {
            slab.give(*index);
        }
        assert_eq!(slab.take(), Some(taken[0]));
        assert_eq!(slab.take(), Some(3));
    }
}
