//! The questions: who may do what.

use std::sync::atomic::Ordering;

use crate::context::Context;
use crate::id;
use crate::region::RegionFacts;
use crate::status::{Result, Status};
use crate::window::{NONE, Right, State};

/// A grant as the tables have it.
#[derive(Clone, Copy, Debug)]
pub struct GrantFacts {
    pub grant: u64,
    pub peer: u64,
    pub qp_num: u32,
    pub right: Right,
    /// A revocation was reported as not proved.
    pub uncertain: bool,
}

/// What a key is.
#[derive(Clone, Copy, Debug)]
pub enum KeyFacts {
    NotOurs,
    Grant(GrantFacts),
    /// It was handed out, and its grant has ended; which, if it was its window's last.
    Ended(Option<GrantFacts>),
    /// A key of a window of ours that was never handed out.
    Unused,
    /// The rkey of a region that has remote access of its own.
    ParentRkey(u64, RegionFacts),
    Lkey(u64, RegionFacts),
}

impl Context {
    /// Whether the client behind a QP may be able to use a grant that covers the whole range with all
    /// these rights. Reads without a lock. Never waits.
    pub fn check(
        &self,
        domain: u64,
        qp_num: u32,
        addr: u64,
        length: u64,
        access: u32,
    ) -> Result<Option<u64>> {
        let (domain, generation) = self.parse_id(id::Kind::Domain, domain).ok_or(Status::StaleId)?;
        let slot = self.domains.get(domain).ok_or(Status::StaleId)?;
        if slot.generation.load(Ordering::Acquire) != generation {
            return Err(Status::StaleId);
        }
        if length == 0 {
            return Err(Status::LengthZero);
        }
        let Some(index) = self.qps.get(qp_num) else { return Ok(None) };
        let peer = self.peers.at(index);
        if peer.domain.load(Ordering::Acquire) != domain {
            return Ok(None);
        }
        Ok(peer.grid.find(addr, |window| {
            let right = self.windows.at(window).right();
            let allowed = right.peer == index
                && self.is_usable(window, right.state)
                && right.access & access == access
                && right.covers(addr, length);
            allowed.then(|| self.make_id(id::Kind::Grant, window, right.generation))
        }))
    }

    /// Whether a client may be able to use a right in this state: one that was not handed to the
    /// device yet can't be.
    fn is_usable(&self, window: u32, state: State) -> bool {
        let window = self.windows.at(window);
        let nowhere =
            || window.posted.load(Ordering::Relaxed) == 0 && !window.unclear.load(Ordering::Relaxed);
        let unposted = || nowhere() || window.prepared.load(Ordering::Relaxed);
        state.is_open() && !window.hidden.load(Ordering::Relaxed) && !(state == State::Binding && unposted())
    }

    /// The open grant whose rkey this is. Reads without a lock. Never waits.
    pub fn find_rkey(&self, rkey: u32) -> Option<GrantFacts> {
        let window = self.rkeys.get(rkey >> 8)?;
        let right = self.windows.at(window).right();
        let known = right.state.is_open() && right.rkey == rkey && !self.is_hidden(window);
        known.then(|| self.facts_of(window, right))
    }

    /// What a key is, as far as is known here. Never waits.
    pub fn explain_key(&self, key: u32) -> KeyFacts {
        let (number, low) = (key >> 8, key as u8);
        if let Some(index) = self.rkeys.get(number) {
            let window = self.windows.at(index);
            let right = window.right();
            let same = right.rkey == key && !self.is_hidden(index);
            if same && right.state.is_open() {
                return KeyFacts::Grant(self.facts_of(index, right));
            }
            if !window.keys.lock().was_taken(low) || right.rkey == key && !same {
                return KeyFacts::Unused;
            }
            let generation = right.generation.wrapping_sub(1);
            let last = GrantFacts {
                grant: self.make_id(id::Kind::Grant, index, generation),
                peer: 0,
                qp_num: 0,
                right,
                uncertain: false,
            };
            return KeyFacts::Ended(same.then_some(last));
        }
        for index in 0..self.regions.len() as u32 {
            let slot = self.regions.at(index);
            let body = slot.body.read();
            let Some(facts) = body.as_ref().map(|known| known.facts) else { continue };
            let region = || {
                let generation = slot.generation.load(Ordering::Acquire);
                (self.make_id(id::Kind::Region, index, generation), facts)
            };
            if facts.parent_open && facts.mr.rkey() == key {
                let (id, facts) = region();
                return KeyFacts::ParentRkey(id, facts);
            }
            if facts.lkey == key {
                let (id, facts) = region();
                return KeyFacts::Lkey(id, facts);
            }
        }
        if self.memory_of_keys.lock().was_taken(number, low) {
            return KeyFacts::Ended(None);
        }
        KeyFacts::NotOurs
    }

    pub fn is_hidden(&self, window: u32) -> bool {
        self.windows.at(window).hidden.load(Ordering::Relaxed)
    }

    pub fn grant_facts(&self, grant: u64) -> Result<GrantFacts> {
        let (window, generation) = self.parse_id(id::Kind::Grant, grant).ok_or(Status::StaleId)?;
        let right = self.windows.get(window).ok_or(Status::StaleId)?.right();
        if right.generation != generation || !right.state.is_open() {
            return Err(Status::StaleId);
        }
        Ok(self.facts_of(window, right))
    }

    fn facts_of(&self, window: u32, right: Right) -> GrantFacts {
        GrantFacts {
            grant: self.make_id(id::Kind::Grant, window, right.generation),
            peer: self.peers.get(right.peer).map_or(0, |_| self.peer_id(right.peer)),
            qp_num: self.peers.get(right.peer).map_or(0, |p| p.qp_num.load(Ordering::Acquire)),
            right,
            uncertain: self.windows.at(window).uncertain.load(Ordering::Relaxed),
        }
    }

    /// The ids of a peer's open grants, as many as there is room for. Returns how many there are.
    pub fn peer_grants(&self, peer: u64, out: &mut [u64]) -> Result<usize> {
        let (_, slot) = self.peer(peer)?;
        let body = slot.body.lock();
        self.peer(peer)?;
        let mut found = 0;
        let mut window = body.first_window;
        while window != NONE {
            let here = window;
            window = self.windows.at(here).next.load(Ordering::Relaxed);
            if self.is_hidden(here) {
                continue;
            }
            if let Some(place) = out.get_mut(found) {
                *place = self.make_id(id::Kind::Grant, here, self.windows.at(here).right().generation);
            }
            found += 1;
        }
        Ok(found)
    }

    /// The ids of a domain's open grants, likewise: what keeps it from being closed.
    pub fn domain_grants(&self, domain: u64, out: &mut [u64]) -> Result<usize> {
        let (index, _) = self.domain(domain)?;
        let mut found = 0;
        for window in 0..self.windows.len() as u32 {
            let place = self.windows.at(window);
            let right = place.right();
            let open = right.state.is_open() && !self.is_hidden(window);
            if place.domain.load(Ordering::Acquire) != index || !open {
                continue;
            }
            if let Some(free) = out.get_mut(found) {
                *free = self.make_id(id::Kind::Grant, window, right.generation);
            }
            found += 1;
        }
        Ok(found)
    }

    /// The ids of the open grants that touch a range, likewise.
    pub fn range_grants(&self, region: u64, addr: u64, length: u64, out: &mut [u64]) -> Result<usize> {
        let mut found = self.gathered.lock().pop().unwrap_or_default();
        let result = self.windows_in(region, addr, length, &mut found);
        for (place, (window, generation)) in out.iter_mut().zip(&found) {
            *place = self.make_id(id::Kind::Grant, *window, *generation);
        }
        let n = found.len();
        found.clear();
        self.gathered.lock().push(found);
        result.map(|()| n)
    }

    /// The windows with an open right that touches a range of a region, each with its generation: by
    /// the time the caller gets to it the window may carry another.
    pub fn windows_in(&self, region: u64, addr: u64, length: u64, found: &mut Vec<(u32, u32)>) -> Result<()> {
        let (index, facts) = self.region_facts(region)?;
        if length == 0 {
            return Err(Status::LengthZero);
        }
        let inside = addr
            .checked_sub(facts.addr)
            .is_some_and(|offset| offset < facts.length && facts.length - offset >= length);
        if !inside {
            return Err(Status::OutOfRange);
        }
        self.regions.at(index).grid.each_near(addr, length, |window| {
            let right = self.windows.at(window).right();
            let open = right.region == index && right.state.is_open() && !self.is_hidden(window);
            if open && right.overlaps(addr, length) {
                found.push((window, right.generation));
            }
        });
        found.sort_unstable();
        found.dedup();
        Ok(())
    }
}
