//! Chains of work requests under way, and how their completions are recognised.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::window::{NONE, OpId};

/// Work requests in one chain at most.
pub const MAX_CHAIN: usize = 1 << POSITION_BITS;
/// Chains under way in one context at most.
pub const MAX_CHAINS: usize = 1 << SLOT_BITS;
/// Slots that rest before their numbers are used again: late completions of dropped chains are
/// still told apart.
pub const RESTING_CHAINS: usize = 256;

const POSITION_BITS: u32 = 10;
const SLOT_BITS: u32 = 18;
const GENERATION_BITS: u32 = 14;
const TAG_BITS: u32 = 20;

/// What a wr_id of ours says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrId {
    pub slot: u32,
    pub generation: u32,
    pub position: u32,
}

/// Makes and recognises the wr_ids of one context.
///
/// Bits 63 and 55 are set, which no address of a user program has on x86-64 (canonical
/// addresses, also with pointer tagging) or AArch64 (bit 55 selects the kernel's half). The 62
/// bits between and below hold a random tag of the context, the chain's slot and generation, and
/// the place in the chain.
#[derive(Clone, Copy)]
pub struct WrIds {
    tag: u64,
}

const MARK: u64 = 1 << 63 | 1 << 55;
const LOW: u64 = (1 << 55) - 1;

impl WrIds {
    pub fn new(random: u64) -> Self {
        WrIds { tag: random >> (64 - TAG_BITS) }
    }

    pub fn make(self, id: WrId) -> u64 {
        let mut bits = self.tag;
        bits = bits << GENERATION_BITS | (id.generation & ((1 << GENERATION_BITS) - 1)) as u64;
        bits = bits << SLOT_BITS | id.slot as u64;
        bits = bits << POSITION_BITS | id.position as u64;
        MARK | (bits & !LOW) << 1 | bits & LOW
    }

    #[inline]
    pub fn parse(self, wr_id: u64) -> Option<WrId> {
        if wr_id & MARK != MARK {
            return None;
        }
        let bits = (wr_id & !MARK & !LOW) >> 1 | wr_id & LOW;
        if bits >> (GENERATION_BITS + SLOT_BITS + POSITION_BITS) != self.tag {
            return None;
        }
        let field = |shift: u32, width: u32| (bits >> shift) as u32 & ((1 << width) - 1);
        Some(WrId {
            position: field(0, POSITION_BITS),
            slot: field(POSITION_BITS, SLOT_BITS),
            generation: field(POSITION_BITS + SLOT_BITS, GENERATION_BITS),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bind,
    Invalidate,
}

/// One work request of a chain, or one that waits to become so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub window: u32,
    pub kind: Kind,
    /// The window's generation: a grant that ended meanwhile is no longer this one's business.
    pub generation: u32,
    /// Of a successor's bind: window and generation of the grant that must be ended before it.
    pub after: Option<(u32, u32)>,
}

/// Requests that wait for room in the send queue, in order.
#[derive(Default)]
pub struct Line {
    works: VecDeque<Work>,
    /// How many of them are LOCAL_INVs: asked for at each turn of what may be a long line.
    invalidates: usize,
}

impl Line {
    pub fn len(&self) -> usize {
        self.works.len()
    }

    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    pub fn has_invalidates(&self) -> bool {
        self.invalidates > 0
    }

    pub fn get(&self, at: usize) -> Option<&Work> {
        self.works.get(at)
    }

    pub fn push_back(&mut self, work: Work) {
        self.invalidates += usize::from(work.kind == Kind::Invalidate);
        self.works.push_back(work);
    }

    pub fn push_front(&mut self, work: Work) {
        self.invalidates += usize::from(work.kind == Kind::Invalidate);
        self.works.push_front(work);
    }

    pub fn pop_front(&mut self) -> Option<Work> {
        let work = self.works.pop_front()?;
        self.invalidates -= usize::from(work.kind == Kind::Invalidate);
        Some(work)
    }

    /// The last one goes out only behind the end of this grant.
    pub fn set_last_after(&mut self, window: u32, generation: u32) {
        if let Some(work) = self.works.back_mut() {
            work.after = Some((window, generation));
        }
    }

    pub fn retain(&mut self, mut stays: impl FnMut(Work) -> bool) {
        self.works.retain(|work| stays(*work));
        self.invalidates = self.works.iter().filter(|work| work.kind == Kind::Invalidate).count();
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// The slot is unused.
    #[default]
    Idle,
    /// Handed to the application, not committed.
    Prepared,
    /// Posted; completions are due.
    Posted,
    /// Its outcome is known from elsewhere, or it was given up with its QP; a completion that
    /// still comes is dropped.
    Dropped,
}

/// A request of the application's own that a chain stands for: the completion of the chain's last
/// request comes out under its number, on success if it was signaled, and after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub wr_id: u64,
    pub signaled: bool,
}

/// What is known of a prepared chain before its commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Early {
    #[default]
    Nothing,
    /// So many of its first requests completed.
    Reached(usize),
    Failed,
}

/// It changes under the lock of its peer, which must be held by whoever locks this; but for the end of a
/// dropped chain, and whoever only reads.
#[derive(Default)]
pub struct ChainBody {
    pub stage: Stage,
    pub works: Vec<Work>,
    /// The first so many are posted.
    pub posted: usize,
    /// The post's outcome is unclear: only its own completion tells that it was posted.
    pub unclear: bool,
    /// It asks for none, and one is wanted: the post was cut before the request that does, or the
    /// budget is full, or a LOCAL_INV behind it was refused.
    pub wants_completion: bool,
    /// What the application hears of it; kept for the completions of a chain that was given up.
    pub told: Option<Told>,
    /// Given up, with its entries of the send queue in use as far as is known, in this use of its peer's
    /// slot.
    pub holds: Option<u32>,
    /// Whether the last one of a prepared chain asks for a completion.
    pub signal: bool,
    /// Completions that the posted ones ask for, and how many of them came.
    pub asked: usize,
    pub seen_of_asked: usize,
    /// The peer's counter when this chain was begun: all committed before come earlier in the
    /// send queue.
    pub begun: u64,
    pub committed: u64,
    /// Where the application keeps the work requests of a prepared chain.
    pub first_wr: usize,
    /// What completions that came before the commit said.
    pub early: Early,
    /// The revocation that `prepare` began.
    pub op: Option<OpId>,
    /// When it was posted, by `now_ns`.
    pub posted_at: u64,
}

impl ChainBody {
    /// Whether a completion can be missed. One that asked for none can't, but one that may not have been
    /// posted is cleared up by nothing else.
    pub fn is_due(&self) -> bool {
        self.asked > 0 || self.unclear
    }

    /// Whether its success will show that of what was posted before.
    pub fn tells_of_others(&self) -> bool {
        self.asked > 0 && !self.unclear
    }

    pub fn carries(&self, window: u32) -> bool {
        self.works.iter().any(|work| work.window == window)
    }
}

/// A chain's slot.
pub struct Chain {
    pub generation: AtomicU32,
    pub peer: AtomicU32,
    pub body: Mutex<ChainBody>,
}

impl Default for Chain {
    fn default() -> Self {
        Chain { generation: AtomicU32::new(0), peer: AtomicU32::new(NONE), body: Mutex::default() }
    }
}

impl Chain {
    pub fn is_generation(&self, generation: u32) -> bool {
        let mask = (1 << GENERATION_BITS) - 1;
        self.generation.load(Ordering::Acquire) & mask == generation & mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wr_ids_survive_the_round_trip_and_look_like_no_pointer() {
        let ids = WrIds::new(0xabcd_ef01_2345_6789);
        for id in [
            WrId { slot: 0, generation: 0, position: 0 },
            WrId { slot: 262_143, generation: 16_383, position: 1023 },
            WrId { slot: 77, generation: 5, position: 512 },
        ] {
            let raw = ids.make(id);
            assert_eq!(ids.parse(raw), Some(id));
            assert_eq!(raw & MARK, MARK);
        }
        assert_eq!(WrIds::new(0).parse(ids.make(WrId { slot: 1, generation: 1, position: 1 })), None);
    }

    #[test]
    fn a_line_knows_of_its_invalidates() {
        let work = |kind| Work { window: 0, kind, generation: 0, after: None };
        let mut line = Line::default();
        line.push_back(work(Kind::Bind));
        line.push_front(work(Kind::Invalidate));
        line.set_last_after(3, 4);
        assert!(line.has_invalidates());
        assert_eq!(line.pop_front().map(|first| first.kind), Some(Kind::Invalidate));
        assert!(!line.has_invalidates());
        line.push_back(work(Kind::Invalidate));
        assert_eq!(line.get(0).and_then(|first| first.after), Some((3, 4)));
        line.retain(|each| each.kind == Kind::Bind);
        assert!(!line.has_invalidates() && line.len() == 1);
    }

    #[test]
    fn addresses_and_small_numbers_are_not_ours() {
        let ids = WrIds::new(0);
        for wr_id in [0, 1, u32::MAX as u64, 0x7fff_ffff_f000, (1 << 56) - 1, u64::MAX >> 1] {
            assert_eq!(ids.parse(wr_id), None, "{wr_id:#x}");
        }
    }
}
