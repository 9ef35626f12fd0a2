//! Which windows lie where: an index of ranges that is read without a lock.
//!
//! A range of up to 2^k bytes (and more than 2^(k-1)) is filed at level k under the one or two
//! cells of 2^k bytes that it touches. Whoever holds the byte at an address is filed, at its own
//! level, under the cell of that address: a lookup is one probe for each level in use.
//!
//! The cells are keys of an open-addressing table of window indexes. Writers hold a lock,
//! readers check a sequence count. Outgrown tables are kept for late readers until the grid goes;
//! together they are smaller than the current one.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use crate::keys::mix;

/// One table: a power of two of entries, each a hash in the upper half and index + 1 below.
type Entries = Box<[AtomicU64]>;

#[derive(Default)]
struct Writer {
    /// Boxed, since readers point at them while the list grows.
    #[allow(clippy::vec_box)]
    tables: Vec<Box<Entries>>,
    used: usize,
    levels: [u32; 32],
}

#[derive(Default)]
pub struct Grid {
    sequence: AtomicU32,
    levels: AtomicU32,
    table: AtomicPtr<Entries>,
    writer: Mutex<Writer>,
}

/// The level of a range: the smallest k with `length` <= 2^k. `length` is at least 1.
fn level(length: u64) -> u32 {
    u64::BITS - (length - 1).leading_zeros()
}

/// Eight neighbouring cells share a cache line: what is granted side by side is found, and ended,
/// side by side.
fn hash(level: u32, cell: u64) -> u32 {
    let line = mix((cell >> 3).wrapping_mul(64).wrapping_add(level as u64));
    (line >> 32) as u32 & !7 | (cell & 7) as u32
}

fn entry(hash: u32, index: u32) -> u64 {
    (hash as u64) << 32 | (index as u64 + 1)
}

fn cells(addr: u64, length: u64) -> (u32, u64, u64) {
    let level = level(length);
    (level, cell_of(addr, level), cell_of(addr + (length - 1), level))
}

fn cell_of(addr: u64, level: u32) -> u64 {
    addr.checked_shr(level).unwrap_or(0)
}

impl Grid {
    /// Files a window under its range. `length` is at least 1 and the range doesn't wrap.
    pub fn insert(&self, index: u32, addr: u64, length: u64) {
        let (level, first, last) = cells(addr, length);
        let mut writer = self.writer.lock();
        self.reserve(&mut writer, 2);
        self.change(|entries| {
            place(entries, entry(hash(level, first), index));
            if last != first {
                place(entries, entry(hash(level, last), index));
            }
        });
        writer.used += 1 + usize::from(last != first);
        writer.levels[level as usize] += 1;
        self.levels.fetch_or(1 << level, Ordering::Release);
    }

    /// Takes a window out that was inserted with the same range.
    pub fn remove(&self, index: u32, addr: u64, length: u64) {
        let (level, first, last) = cells(addr, length);
        let mut writer = self.writer.lock();
        let mut removed = 0;
        self.change(|entries| {
            removed += usize::from(take_out(entries, entry(hash(level, first), index)));
            if last != first {
                removed += usize::from(take_out(entries, entry(hash(level, last), index)));
            }
        });
        debug_assert_eq!(removed, 1 + usize::from(last != first));
        writer.used -= removed;
        writer.levels[level as usize] -= 1;
        if writer.levels[level as usize] == 0 {
            self.levels.fetch_and(!(1 << level), Ordering::Release);
        }
    }

    /// The first window for which `wanted` returns something, among those that may hold the byte
    /// at `addr`. `wanted` decides by the window itself and may be asked about strangers, also
    /// twice.
    pub fn find<R>(&self, addr: u64, mut wanted: impl FnMut(u32) -> Option<R>) -> Option<R> {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            if before % 2 == 0 {
                let found = self.probe_levels(addr, &mut wanted);
                fence(Ordering::Acquire);
                if found.is_some() || self.sequence.load(Ordering::Relaxed) == before {
                    return found;
                }
            }
            std::hint::spin_loop();
        }
    }

    fn probe_levels<R>(&self, addr: u64, wanted: &mut impl FnMut(u32) -> Option<R>) -> Option<R> {
        let entries = self.entries()?;
        let mut levels = self.levels.load(Ordering::Acquire);
        while levels != 0 {
            let level = levels.trailing_zeros();
            levels &= levels - 1;
            let found = probe(entries, hash(level, cell_of(addr, level)), wanted);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Calls `visit` for every window that may touch the range, some more than once and some
    /// that don't: the caller checks. Writers wait meanwhile; `visit` must not change this grid.
    pub fn each_near(&self, addr: u64, length: u64, mut visit: impl FnMut(u32)) {
        let _writers_wait = self.writer.lock();
        let Some(entries) = self.entries() else { return };
        let mut call = |index| {
            visit(index);
            None::<()>
        };
        let mut levels = self.levels.load(Ordering::Relaxed);
        while levels != 0 {
            let level = levels.trailing_zeros();
            levels &= levels - 1;
            let (first, last) = (cell_of(addr, level), cell_of(addr + (length - 1), level));
            if last - first >= entries.len() as u64 {
                // More cells than entries: walk the entries, once for all levels.
                for stored in entries.iter() {
                    if let Some(index) = (stored.load(Ordering::Relaxed) as u32).checked_sub(1) {
                        call(index);
                    }
                }
                return;
            }
            for cell in first..=last {
                probe(entries, hash(level, cell), &mut call);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.levels.load(Ordering::Acquire) == 0
    }

    fn entries(&self) -> Option<&Entries> {
        // SAFETY: a table that was ever published lives in `writer.tables` as long as the grid,
        // in a box of its own that doesn't move.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }

    fn change(&self, work: impl FnOnce(&Entries)) {
        let Some(entries) = self.entries() else { return };
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        work(entries);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// Makes room for `more` entries at a load of at most one half.
    fn reserve(&self, writer: &mut Writer, more: usize) {
        let current = self.entries();
        let size = current.map_or(0, |e| e.len());
        if (writer.used + more) * 2 <= size {
            return;
        }
        let grown: Entries = (0..(size * 2).max(8)).map(|_| AtomicU64::new(0)).collect();
        if let Some(current) = current {
            for stored in current.iter() {
                let stored = stored.load(Ordering::Relaxed);
                if stored != 0 {
                    place(&grown, stored);
                }
            }
        }
        let mut grown = Box::new(grown);
        self.table.store(&mut *grown, Ordering::Release);
        writer.tables.push(grown);
    }
}

fn place(entries: &Entries, new: u64) {
    let mask = entries.len() - 1;
    let mut at = (new >> 32) as usize & mask;
    while entries[at].load(Ordering::Relaxed) != 0 {
        at = (at + 1) & mask;
    }
    entries[at].store(new, Ordering::Relaxed);
}

/// Removes an entry and closes the gap, so that every other stays reachable from its own place.
fn take_out(entries: &Entries, old: u64) -> bool {
    let mask = entries.len() - 1;
    let mut gap = (old >> 32) as usize & mask;
    loop {
        match entries[gap].load(Ordering::Relaxed) {
            0 => return false,
            found if found == old => break,
            _ => gap = (gap + 1) & mask,
        }
    }
    let mut at = gap;
    loop {
        at = (at + 1) & mask;
        let next = entries[at].load(Ordering::Relaxed);
        if next == 0 {
            break;
        }
        let home = (next >> 32) as usize & mask;
        if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
            entries[gap].store(next, Ordering::Relaxed);
            gap = at;
        }
    }
    entries[gap].store(0, Ordering::Relaxed);
    true
}

#[inline]
fn probe<R>(entries: &Entries, hash: u32, wanted: &mut impl FnMut(u32) -> Option<R>) -> Option<R> {
    let mask = entries.len() - 1;
    let mut at = hash as usize & mask;
    // A reader that races with a writer could see no gap for a while: one round is enough.
    for _ in 0..entries.len() {
        let stored = entries[at].load(Ordering::Relaxed);
        if stored == 0 {
            return None;
        }
        if (stored >> 32) as u32 == hash {
            let found = wanted(stored as u32 - 1);
            if found.is_some() {
                return found;
            }
        }
        at = (at + 1) & mask;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Random;

    #[test]
    fn levels_are_the_next_power_of_two() {
        assert_eq!([1, 2, 3, 4, 5, 1 << 31, u64::MAX].map(level), [0, 1, 2, 2, 3, 31, 64]);
    }

    #[test]
    fn random_ranges_agree_with_a_plain_list() {
        let grid = Grid::default();
        let mut random = Random::seeded();
        let mut live: Vec<(u32, u64, u64)> = Vec::new();
        for step in 0..20_000u32 {
            if live.len() < 300 && random.next() % 2 == 0 || live.is_empty() {
                let addr = random.next() % 100_000;
                let length = 1 + random.next() % (1 << (random.next() % 14));
                grid.insert(step, addr, length);
                live.push((step, addr, length));
            } else {
                let at = random.next() as usize % live.len();
                let (index, addr, length) = live.swap_remove(at);
                grid.remove(index, addr, length);
            }
            let addr = random.next() % 100_000;
            let covers = |index: u32| {
                live.iter().any(|&(i, a, l)| i == index && a <= addr && addr - a < l).then_some(index)
            };
            let expected = live.iter().any(|&(i, ..)| covers(i).is_some());
            assert_eq!(grid.find(addr, covers).is_some(), expected, "step {step}");

            let length = 1 + random.next() % 5000;
            let mut near = Vec::new();
            grid.each_near(addr, length, |index| near.push(index));
            for &(index, a, l) in &live {
                if a < addr + length && addr < a + l {
                    assert!(near.contains(&index), "step {step}");
                }
            }
        }
        for (index, addr, length) in live {
            grid.remove(index, addr, length);
        }
        assert!(grid.is_empty());
    }

    #[test]
    fn a_lookup_beside_a_writer_never_misses_what_stays() {
        let grid = Grid::default();
        grid.insert(0, 4096, 4096);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20_000 {
                    for index in 1..8 {
                        grid.insert(index, 4096 * index as u64, 4096);
                    }
                    for index in 1..8 {
                        grid.remove(index, 4096 * index as u64, 4096);
                    }
                    if round % 1000 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
            for _ in 0..100_000 {
                assert!(grid.find(5000, |index| (index == 0).then_some(())).is_some());
            }
        });
    }
}
