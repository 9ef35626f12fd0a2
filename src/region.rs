//! Regions: memory under management, cut in blocks.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::context::Context;
use crate::controls::broken;
use crate::device::{Mr, MrMarks};
use crate::grid::Grid;
use crate::id::Kind;
use crate::memory::Mapping;
use crate::status::{Result, Status};
use crate::window::Right;

pub const DEFAULT_BLOCK: u64 = 2 << 20;
const MAX_BLOCKS: u64 = 1 << 26;

/// What a window may carry.
pub const RIGHTS: u32 =
    verbs::IBV_ACCESS_REMOTE_WRITE | verbs::IBV_ACCESS_REMOTE_READ | verbs::IBV_ACCESS_REMOTE_ATOMIC;

/// What the application says of its region: `struct ibv_mr` carries neither.
#[derive(Clone, Copy, Debug)]
pub struct RegionOptions {
    pub iova: u64,
    /// The flags that it was registered with.
    pub access: u32,
    /// 0: `DEFAULT_BLOCK`.
    pub block: u64,
    /// The application knows that the region's own rkey stays open.
    pub allow_open_parent: bool,
    /// Memory of a device, or of another one's by dmabuf.
    pub device_memory: bool,
    /// By `reg_mr`: detached with its domain.
    pub short: bool,
    /// Rights that may be granted.
    pub grantable: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct RegionFacts {
    pub domain: u32,
    pub mr: Mr,
    pub marks: MrMarks,
    /// Where clients see it: the iova.
    pub addr: u64,
    pub length: u64,
    pub access: u32,
    pub lkey: u32,
    pub huge_pages: bool,
    pub parent_open: bool,
    /// A proof means that the memory is at rest.
    pub at_rest: bool,
    pub short: bool,
    pub grantable: u32,
}

pub struct RegionBody {
    pub facts: RegionFacts,
    /// Present if the memory and its registration are ours.
    pub mapping: Option<Mapping>,
    /// Being deregistered: nothing more is granted.
    pub closing: bool,
}

#[derive(Default)]
pub struct Blocks {
    size: u64,
    taken: Vec<bool>,
    /// Where the next search starts, so that a block given back rests longest.
    next: usize,
}

#[derive(Default)]
pub struct Region {
    pub generation: AtomicU32,
    pub body: RwLock<Option<RegionBody>>,
    /// The open grants by range.
    pub grid: Grid,
    /// How many of them were reported as not proved gone.
    pub uncertain: AtomicU32,
    blocks: Mutex<Blocks>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct BlockFigures {
    pub size: u64,
    pub count: usize,
    pub taken: usize,
    /// Given back with a right still open: not handed out before it is proved gone.
    pub quarantined: usize,
}

impl RegionFacts {
    /// Whether these rights can be granted on this range.
    pub fn check(&self, addr: u64, length: u64, access: u32) -> Result<()> {
        if length == 0 {
            return Err(Status::LengthZero);
        }
        let offset = addr.checked_sub(self.addr).ok_or(Status::OutOfRange)?;
        if offset >= self.length || self.length - offset < length {
            return Err(Status::OutOfRange);
        }
        if length > crate::context::MAX_BIND {
            return Err(Status::LengthTooLong);
        }
        if access & !RIGHTS != 0 {
            return Err(Status::UnknownFlags);
        }
        if access == 0 {
            return Err(Status::AccessNone);
        }
        let writes = verbs::IBV_ACCESS_REMOTE_WRITE | verbs::IBV_ACCESS_REMOTE_ATOMIC;
        let unwritable = access & writes != 0 && self.access & verbs::IBV_ACCESS_LOCAL_WRITE == 0;
        if unwritable || access & !self.grantable != 0 {
            return Err(Status::AccessMissingOnRegion);
        }
        Ok(())
    }
}

impl Context {
    pub fn region(&self, region: u64) -> Result<(u32, &Region)> {
        let (index, generation) = self.parse_id(Kind::Region, region).ok_or(Status::StaleId)?;
        let slot = self.regions.get(index).ok_or(Status::StaleId)?;
        if slot.generation.load(Ordering::Acquire) != generation {
            return Err(Status::StaleId);
        }
        Ok((index, slot))
    }

    /// What a live region is. The generation is checked again under the lock.
    pub fn region_facts(&self, region: u64) -> Result<(u32, RegionFacts)> {
        let (index, slot) = self.region(region)?;
        let body = slot.body.read();
        let known = body.as_ref().filter(|known| !known.closing).ok_or(Status::StaleId)?;
        let facts = known.facts;
        self.region(region)?;
        Ok((index, facts))
    }

    /// Attaches the application's region. Never waits.
    pub fn region_attach(&self, domain: u64, mr: Mr, options: RegionOptions) -> Result<u64> {
        let (index, slot) = self.domain(domain)?;
        if !slot.body.lock().stands_for(mr.pd()) {
            return Err(Status::ForeignPd);
        }
        let _one_at_a_time = self.attaching.lock();
        if self.adopted.lock().region(mr).is_some() {
            return Err(Status::AlreadyAttached);
        }
        let (lkey, _, length) = mr.extent();
        if options.access & (verbs::IBV_ACCESS_ZERO_BASED | verbs::IBV_ACCESS_ON_DEMAND) != 0 {
            return Err(Status::MemoryKind);
        }
        if options.access & verbs::IBV_ACCESS_MW_BIND == 0 {
            return Err(Status::ParentNotBindable);
        }
        let parent_open = options.access & RIGHTS != 0;
        if parent_open && !options.allow_open_parent {
            return Err(Status::ParentOpen);
        }
        if length == 0 || options.iova.checked_add(length).is_none() {
            return Err(Status::OutOfRange);
        }
        let facts = RegionFacts {
            domain: index,
            mr,
            marks: mr.marks(),
            addr: options.iova,
            length,
            access: options.access,
            lkey,
            huge_pages: false,
            parent_open,
            at_rest: self.capabilities.memory_at_rest
                && !options.device_memory
                && options.access & verbs::IBV_ACCESS_RELAXED_ORDERING == 0,
            short: options.short,
            grantable: options.grantable,
        };
        self.region_add(domain, facts, None, options.block)
    }

    /// Maps and registers memory of our own, with no remote access of its own. May wait.
    pub fn region_register(&self, domain: u64, length: u64, huge: bool, block: u64) -> Result<u64> {
        let (index, slot) = self.domain(domain)?;
        if length == 0 {
            return Err(Status::LengthZero);
        }
        let pd = slot.body.lock().pd.ok_or(Status::StaleId)?;
        let mapping = Mapping::new(length, huge).ok_or(Status::NoMemory)?;
        let access = verbs::IBV_ACCESS_LOCAL_WRITE | verbs::IBV_ACCESS_MW_BIND;
        let mr = pd.register(mapping.addr(), length as usize, access).map_err(|error| match error.0 {
            libc::ENOMEM => Status::NoMemory,
            _ => Status::VerbsError,
        })?;
        let (lkey, addr, length) = mr.extent();
        let facts = RegionFacts {
            domain: index,
            mr,
            marks: mr.marks(),
            addr,
            length,
            access,
            lkey,
            huge_pages: mapping.is_huge(),
            parent_open: false,
            at_rest: self.capabilities.memory_at_rest,
            short: false,
            grantable: RIGHTS,
        };
        self.region_add(domain, facts, Some(mapping), block)
    }

    fn region_add(
        &self,
        domain: u64,
        facts: RegionFacts,
        mapping: Option<Mapping>,
        block: u64,
    ) -> Result<u64> {
        let block = if block == 0 { DEFAULT_BLOCK } else { block };
        if facts.length / block > MAX_BLOCKS {
            if mapping.is_some() {
                let _ = facts.mr.deregister();
            }
            return Err(Status::TooMany);
        }
        let index = match self.regions.take() {
            Some(index) => index,
            None => {
                if mapping.is_some() {
                    let _ = facts.mr.deregister();
                }
                return Err(Status::NoMemory);
            }
        };
        let entered = {
            let mut body = self.domains.at(facts.domain).body.lock();
            self.domain_alive(domain, &body).map(|()| body.regions += 1)
        };
        if let Err(status) = entered {
            if mapping.is_some() {
                let _ = facts.mr.deregister();
            }
            self.regions.give(index);
            return Err(status);
        }
        let slot = self.regions.at(index);
        let count = (facts.length / block) as usize;
        *slot.blocks.lock() = Blocks { size: block, taken: vec![false; count], next: 0 };
        *slot.body.write() = Some(RegionBody { facts, mapping, closing: false });
        let region = self.make_id(Kind::Region, index, slot.generation.load(Ordering::Acquire));
        self.adopted.lock().note_region(facts.mr, region);
        Ok(region)
    }

    /// Takes a region off the books; success means that `ibv_dereg_mr` is safe, or was done for
    /// a region of ours. Refused while a right into it may be open. May wait.
    pub fn region_detach(&self, region: u64) -> Result<()> {
        self.region_end(region, false)
    }

    /// The same, and deregisters the application's region as well if asked to.
    pub fn region_end(&self, region: u64, deregister: bool) -> Result<()> {
        let (index, slot) = self.region(region)?;
        let (mr, ends, domain) = {
            let mut body = slot.body.write();
            self.region(region)?;
            let known = body.as_mut().filter(|known| !known.closing).ok_or(Status::StaleId)?;
            if !slot.grid.is_empty() {
                return Err(Status::Busy);
            }
            known.closing = true;
            (known.facts.mr, deregister || known.mapping.is_some(), known.facts.domain)
        };
        // Off the index first: the address may be another region's at once.
        self.adopted.lock().forget_region(mr, region);
        // A kernel call: nobody waits behind a lock for it.
        let deregistered = if ends { mr.deregister() } else { Ok(()) };
        let mut body = slot.body.write();
        if deregistered.is_err() {
            if let Some(known) = body.as_mut() {
                known.closing = false;
            }
            self.adopted.lock().note_region(mr, region);
            return Err(Status::VerbsError);
        }
        *body = None;
        slot.generation.fetch_add(1, Ordering::AcqRel);
        drop(body);
        self.domains.at(domain).body.lock().regions -= 1;
        self.regions.give(index);
        Ok(())
    }

    /// Takes `count` neighbouring blocks in which no right is open and returns their address.
    pub fn block_take(&self, region: u64, count: usize) -> Result<u64> {
        let (index, facts) = self.region_facts(region)?;
        let slot = self.regions.at(index);
        if count == 0 {
            return Err(Status::LengthZero);
        }
        let mut blocks = slot.blocks.lock();
        let total = blocks.taken.len();
        if count > total {
            return Err(Status::NoBlocks);
        }
        let starts = (blocks.next..total).chain(0..blocks.next.min(total));
        let mut skip_below = 0;
        for start in starts {
            if start == 0 {
                skip_below = 0;
            }
            if start < skip_below || start + count > total {
                continue;
            }
            let usable = |block: usize| {
                !blocks.taken[block]
                    && !self.is_open(index, facts.addr + block as u64 * blocks.size, blocks.size)
            };
            match (start..start + count).rev().find(|block| !usable(*block)) {
                Some(block) => skip_below = block + 1,
                None => {
                    blocks.taken[start..start + count].fill(true);
                    blocks.next = start + count;
                    return Ok(facts.addr + start as u64 * blocks.size);
                }
            }
        }
        Err(Status::NoBlocks)
    }

    /// Gives blocks back. Where a right is still open they stay out of use until it is proved
    /// gone.
    pub fn block_give(&self, region: u64, addr: u64, count: usize) -> Result<()> {
        let (index, facts) = self.region_facts(region)?;
        let mut blocks = self.regions.at(index).blocks.lock();
        let offset = addr.checked_sub(facts.addr).ok_or(Status::OutOfRange)?;
        let first = (offset / blocks.size) as usize;
        let end = first.checked_add(count).ok_or(Status::OutOfRange)?;
        if end > blocks.taken.len() {
            return Err(Status::OutOfRange);
        }
        if count == 0 || offset % blocks.size != 0 || blocks.taken[first..end].contains(&false) {
            return Err(Status::BlockNotTaken);
        }
        blocks.taken[first..end].fill(false);
        Ok(())
    }

    pub fn block_figures(&self, region: u64) -> Result<BlockFigures> {
        let (index, facts) = self.region_facts(region)?;
        let blocks = self.regions.at(index).blocks.lock();
        let count = blocks.taken.len();
        let block_of = |addr: u64| ((addr - facts.addr) / blocks.size) as usize;
        let mut open = Vec::new();
        self.each_open(index, facts.addr, facts.length, |right| {
            open.push((block_of(right.addr), block_of(right.addr + (right.length - 1))));
        });
        open.sort_unstable();
        let (mut quarantined, mut looked_at) = (0, 0);
        for (first, last) in open {
            let end = (last + 1).min(count);
            quarantined += (first.max(looked_at)..end).filter(|block| !blocks.taken[*block]).count();
            looked_at = looked_at.max(end);
        }
        Ok(BlockFigures {
            size: blocks.size,
            count,
            taken: blocks.taken.iter().filter(|taken| **taken).count(),
            quarantined,
        })
    }

    /// Whether a right into this range may be in use.
    fn is_open(&self, region: u32, addr: u64, length: u64) -> bool {
        let mut open = false;
        if !broken("blocks") {
            self.each_open(region, addr, length, |_| open = true);
        }
        open
    }

    /// Calls `visit` for each right that may be in use and touches this range, for some more than once.
    fn each_open(&self, region: u32, addr: u64, length: u64, mut visit: impl FnMut(&Right)) {
        self.regions.at(region).grid.each_near(addr, length, |window| {
            let right = self.windows.at(window).right();
            let usable = right.state.is_open() && !self.is_hidden(window);
            if usable && right.region == region && right.overlaps(addr, length) {
                visit(&right);
            }
        });
    }
}
