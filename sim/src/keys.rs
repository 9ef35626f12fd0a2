//! Memory keys: what an lkey or rkey opens, and the packets under way behind it.
//!
//! A key is a 24-bit index and 8 bits of tag. A packet is *admitted* by one atomic step that sees
//! the key valid and counts the packet in; it leaves when its bytes are placed. Whoever closes a
//! key first makes it invalid, so that nothing more is admitted, and then waits until the count
//! is zero. That is the device's proof: after it no byte moves through the key.

use crate::engine::Work;
use crate::mr::Mr;
use crate::mw::Mw;
use crate::object::Ref;
use crate::qp::Qp;
use crate::table::{Indices, Table};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

const VALID: u64 = 1 << 63;
const AWAITED: u64 = 1 << 62;
const TAG_SHIFT: u32 = 32;
const COUNT: u64 = 0xffff_ffff;

/// What kind of object a key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Free = 0,
    Region = 1,
    Window1 = 2,
    Window2 = 3,
}

/// One key. The fields beside `ctl` change only while the key is invalid and nothing is admitted.
#[derive(Default)]
#[repr(align(64))]
pub struct Key {
    ctl: AtomicU64,
    kind: AtomicU32,
    access: AtomicU32,
    pd: AtomicU32,
    /// The number of the QP object that a Type 2 window is bound to.
    qp: AtomicU32,
    start: AtomicU64,
    length: AtomicU64,
    /// Host address of the byte at `start`.
    host: AtomicU64,
    index: AtomicU32,
}

/// The owner of a key, in a table of its own: the data path never needs it.
#[derive(Default)]
pub struct Owner {
    pub region: Ref<Mr>,
    pub window: Ref<Mw>,
}

impl<T> Default for Ref<T> {
    fn default() -> Self {
        Self::empty()
    }
}

static KEYS: Table<Key> = Table::new();
static OWNERS: Table<Owner> = Table::new();
/// Index 0 stays unused, so that no key is 0.
static INDICES: Indices = Indices::new(1, 1 << 24, 4096);

/// What a valid key opens.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    pub access: u32,
    pub pd: u32,
    pub qp: u32,
    pub start: u64,
    pub length: u64,
    pub host: u64,
}

/// A packet that was let in. It must be given to `leave`.
#[must_use]
#[derive(Clone, Copy)]
pub struct Admitted {
    key: &'static Key,
}

pub fn index_of(key: u32) -> u32 {
    key >> 8
}

pub fn with_tag(index: u32, tag: u8) -> u32 {
    index << 8 | u32::from(tag)
}

/// Takes an index for a new object.
pub fn take(kind: Kind) -> Option<&'static Key> {
    let index = INDICES.take()?;
    let key = KEYS.entry(index);
    key.index.store(index, Relaxed);
    key.kind.store(kind as u32, Release);
    Some(key)
}

/// Gives an index back; the key is closed and drained.
pub fn put(key: &'static Key) {
    let owner = key.owner();
    owner.region.set(None);
    owner.window.set(None);
    key.kind.store(Kind::Free as u32, Release);
    INDICES.put(key.index());
}

pub fn find(rkey: u32) -> Option<&'static Key> {
    KEYS.get(index_of(rkey))
}

/// All keys that were ever in use.
pub fn all() -> impl Iterator<Item = &'static Key> {
    (1..INDICES.high_water()).filter_map(|i| KEYS.get(i))
}

impl Key {
    pub fn index(&self) -> u32 {
        self.index.load(Relaxed)
    }

    pub fn owner(&self) -> &'static Owner {
        OWNERS.entry(self.index())
    }

    pub fn kind(&self) -> Kind {
        match self.kind.load(Acquire) {
            1 => Kind::Region,
            2 => Kind::Window1,
            3 => Kind::Window2,
            _ => Kind::Free,
        }
    }

    /// The tag for a new object: random on an index that was never open, else the one after
    /// the last, so that the key of an object that is gone stays wrong for long.
    pub fn fresh_tag(&self) -> u8 {
        match self.ctl.load(Acquire) {
            0 => crate::model::random() as u8,
            used => ((used >> TAG_SHIFT) as u8).wrapping_add(1),
        }
    }

    pub fn is_drained(&self) -> bool {
        self.ctl.load(Acquire) & COUNT == 0
    }

    /// Makes the key valid. It is closed and drained before.
    pub fn open(&self, tag: u8, to: Opening) {
        self.access.store(to.access, Relaxed);
        self.pd.store(to.pd, Relaxed);
        self.qp.store(to.qp, Relaxed);
        self.start.store(to.start, Relaxed);
        self.length.store(to.length, Relaxed);
        self.host.store(to.host, Relaxed);
        self.ctl.store(VALID | u64::from(tag) << TAG_SHIFT, Release);
    }

    /// Nothing is admitted any more. Packets that were are still under way until `is_drained`.
    pub fn close(&self) {
        self.ctl.fetch_and(!VALID, AcqRel);
    }

    /// Counts a packet in if the key is valid and carries this tag.
    pub fn admit(&'static self, tag: u8) -> Option<Admitted> {
        let mut now = self.ctl.load(Acquire);
        loop {
            if now & VALID == 0 || (now >> TAG_SHIFT) as u8 != tag {
                return None;
            }
            match self.ctl.compare_exchange_weak(now, now + 1, Acquire, Acquire) {
                Ok(_) => return Some(Admitted { key: self }),
                Err(other) => now = other,
            }
        }
    }
}

impl Admitted {
    pub fn opening(self) -> Opening {
        let k = self.key;
        Opening {
            access: k.access.load(Relaxed),
            pd: k.pd.load(Relaxed),
            qp: k.qp.load(Relaxed),
            start: k.start.load(Relaxed),
            length: k.length.load(Relaxed),
            host: k.host.load(Relaxed),
        }
    }

    pub fn kind(self) -> Kind {
        self.key.kind()
    }

    /// The packet's bytes are placed.
    pub fn leave(self, work: &mut Work) {
        let before = self.key.ctl.fetch_sub(1, AcqRel);
        if before & AWAITED != 0 && before & COUNT == 1 {
            wake(self.key, work);
        }
    }
}

impl Opening {
    /// Where `length` bytes at `at` lie in host memory, if all of them are inside.
    pub fn locate(&self, at: u64, length: u64) -> Option<u64> {
        let offset = at.checked_sub(self.start)?;
        let room = self.length.checked_sub(offset)?;
        (length <= room).then(|| self.host.wrapping_add(offset))
    }
}

// Closers that found packets under way. Rare: a copy in another thread, or a held packet.

struct Waiter {
    index: u32,
    /// The QP whose work request waits; none for a thread that waits in a call.
    qp: Option<(&'static Qp, u32)>,
}

static WAITERS: Mutex<Vec<Waiter>> = Mutex::new(Vec::new());
static DRAINED: Condvar = Condvar::new();

fn wake(key: &Key, work: &mut Work) {
    let mut waiters = WAITERS.lock();
    // A key may have been awaited again, and drained again, while this thread came here.
    if key.ctl.load(Acquire) & COUNT != 0 {
        return;
    }
    key.ctl.fetch_and(!AWAITED, AcqRel);
    waiters.retain(|w| {
        if w.index != key.index() {
            return true;
        }
        if let Some((qp, id)) = w.qp {
            work.kick(qp, id);
        }
        false
    });
    DRAINED.notify_all();
}

impl Key {
    /// True when the closed key is drained; else the QP is kicked as soon as it is.
    pub fn drained_or_kick(&self, qp: &'static Qp, id: u32) -> bool {
        if self.is_drained() {
            return true;
        }
        let mut waiters = WAITERS.lock();
        if self.ctl.fetch_or(AWAITED, AcqRel) & COUNT == 0 {
            self.ctl.fetch_and(!AWAITED, AcqRel);
            return true;
        }
        let here = |w: &Waiter| w.index == self.index() && w.qp.is_some_and(|(q, _)| std::ptr::eq(q, qp));
        if !waiters.iter().any(here) {
            waiters.push(Waiter { index: self.index(), qp: Some((qp, id)) });
        }
        false
    }

    /// Waits in the calling thread until the closed key is drained.
    pub fn wait_drained(&self) {
        if self.is_drained() {
            return;
        }
        let mut waiters = WAITERS.lock();
        while self.ctl.fetch_or(AWAITED, AcqRel) & COUNT != 0 {
            let index = self.index();
            if !waiters.iter().any(|w| w.index == index && w.qp.is_none()) {
                waiters.push(Waiter { index, qp: None });
            }
            DRAINED.wait(&mut waiters);
        }
        self.ctl.fetch_and(!AWAITED, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(tag: u8) -> &'static Key {
        let key = take(Kind::Region).unwrap();
        key.open(tag, Opening { access: 0, pd: 1, qp: 0, start: 0x1000, length: 0x100, host: 0x9000 });
        key
    }

    #[test]
    fn ranges_end_where_the_key_does() {
        let at = opened(1).admit(1).unwrap().opening();
        assert_eq!(at.locate(0x1000, 0x100), Some(0x9000));
        assert_eq!(at.locate(0x10ff, 1), Some(0x90ff));
        assert_eq!(at.locate(0x10ff, 2), None);
        assert_eq!(at.locate(0xfff, 1), None);
        assert_eq!(at.locate(0x1100, 0), Some(0x9100));
        assert_eq!(at.locate(u64::MAX, 2), None);
        assert_eq!(at.locate(0x1001, u64::MAX), None);
    }

    #[test]
    fn only_the_current_tag_is_admitted_and_only_while_open() {
        let key = opened(255);
        assert!(key.admit(254).is_none());
        let packet = key.admit(255).unwrap();
        key.close();
        assert!(key.admit(255).is_none());
        assert!(!key.is_drained());
        packet.leave(&mut Work::new());
        assert!(key.is_drained());
    }

    #[test]
    fn a_closer_waits_for_the_packet_under_way() {
        let key = opened(3);
        let packet = key.admit(3).unwrap();
        key.close();
        let closer = std::thread::spawn(move || key.wait_drained());
        while key.ctl.load(Acquire) & AWAITED == 0 {
            std::thread::yield_now();
        }
        assert!(!closer.is_finished());
        packet.leave(&mut Work::new());
        closer.join().unwrap();
        assert_eq!(key.ctl.load(Acquire) & AWAITED, 0);
    }
}
