//! The short calls for programs that hand out `mr->rkey`: verbs objects stand for ids, and what has
//! to be opened for them is opened on the way.

use std::collections::HashMap;

use crate::context::Context;
use crate::device::{Errno, Mr, Pd, Qp};
use crate::domain::DomainOptions;
use crate::grant::Request;
use crate::op::{Kill, Outcome};
use crate::peer::{Life, PeerOptions};
use crate::region::{RIGHTS, RegionOptions};
use crate::status::{Result, Status};
use std::sync::atomic::Ordering;

/// What is known by the address of its verbs object. An address alone proves nothing, for an object
/// that was destroyed may have left it to another: whoever looks here compares what the object says
/// of itself, too.
#[derive(Default)]
pub struct Adopted {
    peers: HashMap<Qp, u64>,
    regions: HashMap<Mr, u64>,
    /// The domains that were opened on the way, and are closed with the context.
    domains: HashMap<Pd, u64>,
}

impl Adopted {
    pub fn note_peer(&mut self, qp: Qp, peer: u64) {
        self.peers.insert(qp, peer);
    }

    pub fn forget_peer(&mut self, qp: Qp, peer: u64) {
        if self.peers.get(&qp) == Some(&peer) {
            self.peers.remove(&qp);
        }
    }

    pub fn note_region(&mut self, mr: Mr, region: u64) {
        self.regions.insert(mr, region);
    }

    pub fn forget_region(&mut self, mr: Mr, region: u64) {
        if self.regions.get(&mr) == Some(&region) {
            self.regions.remove(&mr);
        }
    }

    pub fn region(&self, mr: Mr) -> Option<u64> {
        self.regions.get(&mr).copied()
    }
}

impl Context {
    /// The peer that a QP is attached as. Never waits.
    pub fn peer_of(&self, qp: Qp) -> Result<u64> {
        let index = self.qps.get(qp.number()).ok_or(Status::NotAttached)?;
        let peer = self.peer_id(index);
        if self.is_of(peer, qp) { Ok(peer) } else { Err(Status::NotAttached) }
    }

    /// Whether a peer is attached for this very QP.
    fn is_of(&self, peer: u64, qp: Qp) -> bool {
        let Ok((_, slot)) = self.peer(peer) else { return false };
        let body = slot.body.lock();
        body.qp == Some(qp)
            && body.marks == qp.marks()
            && slot.qp_num.load(Ordering::Acquire) == qp.number()
            && !matches!(body.life, Life::Unused | Life::Gone)
    }

    /// The domain that stands for a PD. Never waits.
    pub fn domain_of(&self, pd: Pd) -> Result<u64> {
        let known = self.adopted.lock().domains.get(&pd).copied();
        let known = known.and_then(|id| self.domain(id).ok()).map(|(index, _)| index);
        known
            .into_iter()
            .chain(0..self.domains.len() as u32)
            .find_map(|index| self.stands_for(index, pd))
            .ok_or(Status::NotAttached)
    }

    fn stands_for(&self, index: u32, pd: Pd) -> Option<u64> {
        let slot = self.domains.at(index);
        let body = slot.body.lock();
        let same =
            body.stands_for(pd.raw()) && !body.closing && (body.pd != Some(pd) || body.handle == pd.handle());
        same.then(|| self.domain_id(index))
    }

    /// The region that an MR is attached as. Never waits.
    pub fn region_of(&self, mr: Mr) -> Result<u64> {
        let region = self.adopted.lock().region(mr).ok_or(Status::NotAttached)?;
        match self.region_facts(region) {
            Ok((_, facts)) if facts.marks == mr.marks() => Ok(region),
            _ => Err(Status::NotAttached),
        }
    }

    /// The domain of a PD, opened if there is none. May wait.
    pub fn domain_for(&self, pd: Pd, options: DomainOptions) -> Result<u64> {
        let _one_at_a_time = self.adopting.lock();
        match self.domain_of(pd) {
            Err(Status::NotAttached) => {}
            known => return known,
        }
        let domain = self.domain_open(pd, &[], options)?;
        self.adopted.lock().domains.insert(pd, domain);
        Ok(domain)
    }

    /// The peer of a QP, attached if there is none. May wait.
    pub fn peer_for(&self, qp: Qp, domain: u64, options: PeerOptions) -> Result<u64> {
        loop {
            match self.peer_of(qp) {
                Err(Status::NotAttached) => {}
                known => return known,
            }
            self.bury(qp)?;
            match self.peer_attach(domain, qp, options) {
                // Another thread was faster.
                Err(Status::AlreadyAttached) if self.peer_of(qp).is_ok() => {}
                other => return other,
            }
        }
    }

    /// Peers whose QP was destroyed without a detach: its address, or its number, is this QP's now.
    fn bury(&self, qp: Qp) -> Result<()> {
        if qp.device() != self.device.raw() {
            return Err(Status::ForeignContext);
        }
        let by_address = self.adopted.lock().peers.get(&qp).copied();
        let by_number = self.qps.get(qp.number()).map(|index| self.peer_id(index));
        for ghost in [by_address, by_number].into_iter().flatten() {
            if self.is_of(ghost, qp) {
                // Attached meanwhile, by another thread.
                continue;
            }
            match self.peer_gone(ghost, 0) {
                Ok(()) | Err(Status::StaleId) => {}
                Err(status) => return Err(status),
            }
        }
        Ok(())
    }

    /// Registers memory without remote access of its own and attaches it; `access` says what may be
    /// granted. May wait.
    pub fn reg_mr(
        &self,
        pd: Pd,
        addr: *mut libc::c_void,
        length: usize,
        access: u32,
    ) -> std::result::Result<Mr, Errno> {
        const WRITES: u32 = verbs::IBV_ACCESS_REMOTE_WRITE | verbs::IBV_ACCESS_REMOTE_ATOMIC;
        // As verbs has it for a region that is written from afar.
        if access & WRITES != 0 && access & verbs::IBV_ACCESS_LOCAL_WRITE == 0 {
            return Err(Errno(libc::EINVAL));
        }
        if access & (verbs::IBV_ACCESS_ZERO_BASED | verbs::IBV_ACCESS_ON_DEMAND) != 0 {
            return Err(errno_of(Status::MemoryKind));
        }
        let domain = self.domain_for(pd, DomainOptions::default_reserve()).map_err(errno_of)?;
        let registered = access & !RIGHTS | verbs::IBV_ACCESS_MW_BIND;
        let mr = pd.register(addr, length, registered)?;
        let options = RegionOptions {
            iova: addr as u64,
            access: registered,
            block: 0,
            allow_open_parent: false,
            device_memory: false,
            short: true,
            grantable: access & RIGHTS,
        };
        self.forget_replaced(mr).and_then(|()| self.region_attach(domain, mr, options)).map(|_| mr).map_err(
            |status| {
                let _ = mr.deregister();
                errno_of(status)
            },
        )
    }

    /// A region at the address of an MR that was registered just now was deregistered behind our
    /// back: it leaves the books, unless a right into it is open.
    fn forget_replaced(&self, mr: Mr) -> Result<()> {
        let old = self.adopted.lock().region(mr);
        old.map_or(Ok(()), |old| self.region_end(old, false))
    }

    /// Detaches an MR and deregisters it; EBUSY while a right into it may be open. One that is not
    /// attached is deregistered as it is. May wait.
    pub fn dereg_mr(&self, mr: Mr) -> std::result::Result<(), Errno> {
        match self.region_of(mr) {
            Ok(region) => self.region_end(region, true).map_err(errno_of),
            Err(_) => mr.deregister(),
        }
    }

    /// A right to a range of an MR for the client behind a QP, which is attached if it was not. No
    /// `access` stands for all that the MR was registered for. May wait.
    pub fn rkey(&self, qp: Qp, mr: Mr, addr: u64, length: u64, access: u32) -> Outcome {
        let granted = self.region_of(mr).and_then(|region| {
            let (_, facts) = self.region_facts(region)?;
            let asked = if access == 0 && facts.short { facts.grantable } else { access };
            let request = Request { peer: 0, region, addr, length, access: asked };
            facts.check(addr, length, asked)?;
            let peer = self.peer_for(qp, self.domain_id(facts.domain), PeerOptions::default())?;
            let mut outcome = [Outcome::failed(0, Status::NotPosted)];
            match self.grant(&[Request { peer, ..request }], 0, &mut outcome) {
                Err(status) if outcome[0].status == Status::NotPosted => Err(status),
                _ => Ok(outcome[0]),
            }
        });
        granted.unwrap_or_else(|status| Outcome::failed(0, status))
    }

    /// All that the client behind a QP holds; returns how many grants ended. May wait.
    pub fn revoke_qp(&self, qp: Qp, timeout_us: u64, kill: Kill) -> Result<usize> {
        match self.peer_of(qp) {
            Ok(peer) => self.revoke_peer(peer, timeout_us, kill),
            Err(_) if qp.device() != self.device.raw() => Err(Status::ForeignContext),
            Err(_) => Ok(0),
        }
    }

    /// Revokes all that the client behind a QP holds and takes the QP off the books. May wait.
    pub fn detach_qp(&self, qp: Qp) -> Result<()> {
        match self.peer_of(qp) {
            Ok(peer) => self.peer_detach(peer, 0),
            Err(_) => self.bury(qp),
        }
    }

    /// Detaches the regions of `reg_mr` in a PD and closes its domain. May wait.
    pub fn detach_pd(&self, pd: Pd) -> Result<()> {
        match self.domain_of(pd) {
            Ok(domain) => self.close_short(&[domain]),
            Err(_) => Ok(()),
        }
    }

    /// The domains that were opened on the way, if they can be closed and there are no others.
    pub fn closable(&self) -> Result<Vec<u64>> {
        let domains: Vec<u64> = self.adopted.lock().domains.values().copied().collect();
        let open =
            (0..self.domains.len() as u32).filter(|index| self.domains.at(*index).body.lock().pd.is_some());
        if open.map(|index| self.domain_id(index)).any(|id| !domains.contains(&id)) {
            return Err(Status::Busy);
        }
        let alive: Vec<u64> = domains.into_iter().filter(|id| self.domain(*id).is_ok()).collect();
        self.short_regions(&alive)?;
        Ok(alive)
    }

    /// Detaches the regions of `reg_mr` in these domains and closes them. Refused, and nothing done,
    /// while there is anything else. May wait.
    pub fn close_short(&self, domains: &[u64]) -> Result<()> {
        for region in self.short_regions(domains)? {
            self.region_detach(region)?;
        }
        for domain in domains {
            self.domain_close(*domain)?;
            self.adopted.lock().domains.retain(|_, known| known != domain);
        }
        Ok(())
    }

    /// The regions of these domains, all of them by `reg_mr` and without a right.
    fn short_regions(&self, domains: &[u64]) -> Result<Vec<u64>> {
        let mut indexes = Vec::with_capacity(domains.len());
        for id in domains {
            let (index, slot) = self.domain(*id)?;
            if slot.body.lock().peers > 0 {
                return Err(Status::Busy);
            }
            indexes.push(index);
        }
        let mut short = Vec::new();
        for index in 0..self.regions.len() as u32 {
            let region = self.regions.at(index);
            let Some(facts) = region.body.read().as_ref().map(|body| body.facts) else { continue };
            if indexes.contains(&facts.domain) {
                if !facts.short || !region.grid.is_empty() {
                    return Err(Status::Busy);
                }
                short.push(self.region_id(index));
            }
        }
        Ok(short)
    }

    /// Some region of a domain.
    pub fn any_region(&self, domain: u64) -> Option<u64> {
        let (domain, _) = self.domain(domain).ok()?;
        self.region_in(domain).map(|index| self.region_id(index))
    }

    pub fn region_in(&self, domain: u32) -> Option<u32> {
        let of = |index: &u32| {
            self.regions.at(*index).body.read().as_ref().is_some_and(|body| body.facts.domain == domain)
        };
        (0..self.regions.len() as u32).find(of)
    }

    fn domain_id(&self, index: u32) -> u64 {
        let generation = self.domains.at(index).generation.load(Ordering::Acquire);
        self.make_id(crate::id::Kind::Domain, index, generation)
    }

    fn region_id(&self, index: u32) -> u64 {
        let generation = self.regions.at(index).generation.load(Ordering::Acquire);
        self.make_id(crate::id::Kind::Region, index, generation)
    }
}

/// What a call that answers like verbs makes of a status.
pub fn errno_of(status: Status) -> Errno {
    Errno(match status {
        Status::NoMemory
        | Status::DeviceLimit
        | Status::KeysExhausted
        | Status::PoolEmpty
        | Status::QueueFull
        | Status::TooMany => libc::ENOMEM,
        Status::Busy | Status::Open | Status::InProgress | Status::PeerLeaving | Status::AlreadyAttached => {
            libc::EBUSY
        }
        Status::TimedOut => libc::ETIMEDOUT,
        Status::Unsupported | Status::AccessUnsupported | Status::MemoryKind | Status::LengthTooLong => {
            libc::EOPNOTSUPP
        }
        Status::ForeignPd | Status::Forked => libc::EPERM,
        Status::VerbsError | Status::Poisoned => libc::EIO,
        _ => libc::EINVAL,
    })
}
