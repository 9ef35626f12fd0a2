//! The eight key bits of a window: which come next, and how long ago they were used.

use crate::controls::broken;

/// Keys of one window before the first comes round again.
pub const KEYS: u64 = 256;
/// Distances are kept for so many keys together, rounded down to the safe side.
const SEGMENT: u64 = 16;
const SEGMENTS: usize = (KEYS / SEGMENT) as usize;

/// The order in which one window's 256 keys are used: a random step through all of them, the
/// same in each round, so that every key rests for a whole round.
#[derive(Clone, Default)]
pub struct KeyRing {
    /// Odd, so that all 256 keys come up.
    step: u8,
    start: u8,
    /// Keys used so far.
    used: u64,
    /// The keys before this one need not rest.
    fresh_until: u64,
    /// For each segment, when a key of it was in use last.
    last_use: [Use; SEGMENTS],
    /// What stood there for the segment that is being walked, from the round before.
    previous: Use,
}

/// When a key was in use: the domain's count of grants, and the time.
#[derive(Clone, Copy, Default)]
struct Use {
    grants: u64,
    time: u64,
}

impl KeyRing {
    /// `current` is the key of the fresh window; it comes up last.
    pub fn new(random: u64, current: u8) -> Self {
        let step = (random as u8) | 1;
        let start = current.wrapping_add(step);
        KeyRing { step, start, fresh_until: KEYS, ..KeyRing::default() }
    }

    fn key(&self, turn: u64) -> u8 {
        self.start.wrapping_add(self.step.wrapping_mul(turn as u8))
    }

    fn segment(turn: u64) -> usize {
        ((turn % KEYS) / SEGMENT) as usize
    }

    /// The turn of the next key that is not `current`, the one that the window has: a bind changes it.
    fn next(&self, current: u8) -> u64 {
        self.used + u64::from(self.key(self.used) == current)
    }

    /// When the key of the next turn was last in use, or a little later: in a round before this one.
    fn last(&self, turn: u64) -> Use {
        let walked = self.used % SEGMENT != 0 && Self::segment(turn) == Self::segment(self.used);
        if walked { self.previous } else { self.last_use[Self::segment(turn)] }
    }

    /// The count of grants from which the next key may be bound, given the distance to keep.
    pub fn due(&self, distance: u64, current: u8) -> u64 {
        let next = self.next(current);
        if next < self.fresh_until || broken("distance") {
            return 0;
        }
        self.last(next).grants.saturating_add(distance)
    }

    /// Grants since the next key was last valid; `None` if it never was.
    pub fn distance(&self, now: u64, current: u8) -> Option<u64> {
        let next = self.next(current);
        (next >= KEYS).then(|| now - self.last(next).grants)
    }

    /// Nanoseconds since the next key was last valid; `None` if it never was.
    pub fn age(&self, time: u64, current: u8) -> Option<u64> {
        let next = self.next(current);
        (next >= KEYS).then(|| time.saturating_sub(self.last(next).time))
    }

    /// Takes the next key. `now` is the domain's count of grants.
    pub fn take(&mut self, now: u64, time: u64, current: u8) -> u8 {
        let next = self.next(current);
        while self.used <= next {
            let segment = Self::segment(self.used);
            if self.used % SEGMENT == 0 {
                self.previous = self.last_use[segment];
            }
            self.last_use[segment] = Use { grants: now, time };
            self.used += 1;
        }
        self.key(next)
    }

    /// The key that was taken last opens nothing any more: its rest begins.
    pub fn end(&mut self, now: u64, time: u64) {
        if let Some(turn) = self.used.checked_sub(1) {
            self.last_use[Self::segment(turn)] = Use { grants: now, time };
        }
    }

    /// Counts all past uses as of now.
    pub fn rebase(&mut self, grants: u64, time: u64) {
        let now = Use { grants, time };
        self.last_use = [now; SEGMENTS];
        self.previous = now;
    }

    /// Whether this key was taken since the ring began.
    pub fn was_taken(&self, key: u8) -> bool {
        (0..self.used.min(KEYS)).any(|turn| self.key(turn) == key)
    }

    pub fn is_used(&self) -> bool {
        self.used > 0
    }

    /// All that may remember a key of this ring is gone: for a round none needs to rest.
    pub fn renew(&mut self) {
        self.fresh_until = self.used + KEYS;
    }
}

/// A small generator for key orders, seeded by the kernel. Not for secrets: what keeps other
/// clients out is the pinning of a window to its QP.
pub struct Random(u64);

impl Random {
    pub fn seeded() -> Self {
        let mut seed = [0u8; 8];
        // SAFETY: the buffer is ours and its length is given.
        let got = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), libc::GRND_NONBLOCK) };
        if got != seed.len() as isize {
            seed = crate::time::now_ns().to_ne_bytes();
        }
        Random(u64::from_ne_bytes(seed))
    }

    /// One step of splitmix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

/// Spreads every input bit over the whole word.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_knows_which_keys_it_gave_out() {
        let mut ring = KeyRing::new(77, 42);
        let taken: Vec<u8> = (0..100).map(|n| ring.take(n, 0, 42)).collect();
        assert!((0..=255).all(|key| ring.was_taken(key) == taken.contains(&key)));
    }

    #[test]
    fn all_keys_come_up_once_a_round_and_the_fresh_one_last() {
        for random in [0, 1, 77, u64::MAX] {
            let mut ring = KeyRing::new(random, 42);
            let mut current = 42;
            let mut next = |n| {
                current = ring.take(n, 0, current);
                current
            };
            let round: Vec<u8> = (0..KEYS).map(&mut next).collect();
            let mut sorted = round.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..=255).collect::<Vec<u8>>());
            assert_eq!(*round.last().unwrap(), 42);
            assert_eq!(next(KEYS), round[0]);
        }
    }

    #[test]
    fn a_rotation_that_is_large_enough_never_rests() {
        const WINDOWS: u64 = 10;
        let mut rings: Vec<KeyRing> = (0..WINDOWS).map(|n| KeyRing::new(n, 0)).collect();
        for now in 0..WINDOWS * KEYS * 4 {
            let ring = &mut rings[(now % WINDOWS) as usize];
            assert!(ring.due(WINDOWS * (KEYS - SEGMENT), 0) <= now, "at {now}");
            ring.take(now, 0, 0);
        }
    }

    #[test]
    fn the_current_key_is_passed_over() {
        let mut ring = KeyRing::new(5, 0);
        let first = KeyRing::new(5, 0).take(0, 0, 1);
        assert_ne!(ring.take(0, 0, first), first);
    }

    #[test]
    fn the_key_behind_one_that_is_passed_over_rests_as_well() {
        // The window comes back from the device with the one key that is left.
        let mut ring = KeyRing::new(5, 42);
        (1..KEYS).for_each(|now| assert_ne!(ring.take(now, 0, 42), 42));
        assert!(ring.due(1000, 42) >= 1001);
        assert_eq!(ring.due(1000, 41), 0);
        assert!(ring.distance(300, 42).is_some_and(|distance| distance <= 299));
        let first = KeyRing::new(5, 42).take(0, 0, 42);
        assert_eq!(ring.take(300, 0, 42), first);
    }

    #[test]
    fn a_key_rests_from_the_end_of_its_use() {
        let mut ring = KeyRing::new(5, 0);
        let mut current = 0;
        let mut next = |ring: &mut KeyRing, now| {
            current = ring.take(now, 0, current);
            current
        };
        (0..SEGMENT).for_each(|now| {
            next(&mut ring, now);
        });
        ring.end(5000, 0);
        (SEGMENT..KEYS).for_each(|turn| {
            next(&mut ring, 5000 + turn);
        });
        assert_eq!(ring.due(1000, 0), 6000);
        assert_eq!(ring.distance(5600, 0), Some(600));
    }

    #[test]
    fn a_renewed_ring_rests_again_after_a_round_and_forgets_no_use() {
        let mut ring = KeyRing::new(5, 42);
        let mut current = 42;
        let mut round = |ring: &mut KeyRing| {
            for _ in 0..KEYS {
                assert_eq!(ring.due(u64::MAX, current), 0);
                current = ring.take(7, 0, current);
            }
            assert_eq!(ring.due(u64::MAX, current), u64::MAX);
        };
        round(&mut ring);
        ring.renew();
        assert!(ring.was_taken(42));
        assert_eq!(ring.distance(10, 41), Some(3));
        round(&mut ring);
    }

    #[test]
    fn the_distance_never_overstates() {
        let mut ring = KeyRing::new(5, 0);
        let mut last = [None::<u64>; 256];
        let mut current = 0;
        for now in 0..2000u64 {
            let kept = ring.distance(now, current);
            let due = ring.due(100, current);
            current = ring.take(now, 0, current);
            let key = current;
            match last[key as usize].replace(now) {
                None => assert_eq!((kept, due), (None, 0)),
                Some(before) => {
                    assert!(kept.unwrap() <= now - before);
                    assert!(due >= before + 100);
                }
            }
        }
    }
}
