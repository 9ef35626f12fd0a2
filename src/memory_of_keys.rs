//! The key rings of windows that were deallocated: a device may hand out their numbers again, also to
//! another domain.

use std::collections::{HashMap, VecDeque};

use crate::keys::KeyRing;

/// Rings that are remembered.
const REMEMBERED: usize = 1 << 16;

#[derive(Default)]
pub struct MemoryOfKeys {
    rings: HashMap<u32, KeyRing>,
    /// The numbers in the order in which they came.
    oldest_first: VecDeque<u32>,
}

impl MemoryOfKeys {
    /// The window with this number is about to be deallocated. Returns whether an older one is forgotten for
    /// it.
    pub fn remember(&mut self, number: u32, keys: KeyRing) -> bool {
        if !keys.is_used() {
            return false;
        }
        if self.rings.insert(number, keys).is_none() {
            self.oldest_first.push_back(number);
        }
        if self.rings.len() <= REMEMBERED {
            return false;
        }
        while let Some(oldest) = self.oldest_first.pop_front() {
            if self.rings.remove(&oldest).is_some() {
                break;
            }
        }
        true
    }

    /// Whether a window with this number, deallocated since, had this key.
    pub fn was_taken(&self, number: u32, key: u8) -> bool {
        self.rings.get(&number).is_some_and(|keys| keys.was_taken(key))
    }

    /// The keys of the former window with this number. Its past uses count as of `now`, the count of
    /// grants of the domain that it is for: where it was used may have counted otherwise.
    pub fn recall(&mut self, number: u32, now: u64, time: u64) -> Option<KeyRing> {
        let mut keys = self.rings.remove(&number)?;
        self.oldest_first.retain(|other| *other != number);
        keys.rebase(now, time);
        Some(keys)
    }

    /// The window was not deallocated after all.
    pub fn forget(&mut self, number: u32) {
        if self.rings.remove(&number).is_some() {
            self.oldest_first.retain(|other| *other != number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_recalled_once_and_counts_from_then_on() {
        let mut memory = MemoryOfKeys::default();
        assert!(!memory.remember(77, KeyRing::new(3, 9)));
        assert!(memory.recall(77, 0, 0).is_none());
        let mut ring = KeyRing::new(3, 9);
        let mut current = 9;
        for now in 0..300 {
            current = ring.take(now, 1, current);
        }
        assert!(!memory.remember(77, ring));
        assert!(memory.was_taken(77, 9) && !memory.was_taken(78, 9));
        let ring = memory.recall(77, 5, 1).unwrap();
        assert_eq!(ring.due(1000, 9), 1005);
        assert!(memory.recall(77, 5, 1).is_none());
    }
}
