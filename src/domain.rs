//! Domains: protection domains under management, each with its pool of windows.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::context::Context;
use crate::controls::broken;
use crate::device::{Errno, Mw, Pd};
use crate::id::Kind;
use crate::keys::KeyRing;
use crate::pool::Pool;
use crate::stats::count;
use crate::status::{Result, Status};
use crate::time::now_ns;
use crate::window::State;

/// Grants of other windows before an rkey may be used again, unless the options say otherwise.
pub const DEFAULT_KEY_DISTANCE: u64 = 1_000_000;

/// Windows to have ready, likewise.
pub const DEFAULT_RESERVE: u32 = 64;

/// A pool that ran empty grows by so many windows.
const GROWTH: usize = 16;

/// Between two looks at a pool that another thread is topping up.
const CLOSE_NAP: Duration = Duration::from_micros(50);

#[derive(Clone, Copy, Debug, Default)]
pub struct DomainOptions {
    /// Windows to have ready; a tick tops the pool up to it.
    pub reserve: u32,
    /// Windows at most; 0: as many as the device allocates.
    pub limit: u32,
    /// 0: `DEFAULT_KEY_DISTANCE`.
    pub key_distance: u64,
}

impl DomainOptions {
    /// For a domain that nobody gave options for.
    pub fn default_reserve() -> DomainOptions {
        DomainOptions { reserve: DEFAULT_RESERVE, ..DomainOptions::default() }
    }
}

#[derive(Default)]
pub struct DomainBody {
    pub pd: Option<Pd>,
    /// The PD's own number, which tells it from a later one at its address.
    pub handle: u32,
    /// Addresses of parent domains that stand for the PD.
    aliases: Vec<usize>,
    options: DomainOptions,
    pub pool: Pool,
    /// Being closed: nothing more is entered.
    pub closing: bool,
    /// Windows that are being allocated for it, with no lock held.
    allocating: usize,
    pub peers: usize,
    pub regions: usize,
    /// A caller that may not wait found the pool empty.
    pub wants_refill: bool,
}

impl DomainBody {
    pub fn stands_for(&self, pd: *mut verbs::ibv_pd) -> bool {
        self.pd.is_some_and(|own| own.raw() == pd) || self.aliases.contains(&(pd as usize))
    }
}

#[derive(Default)]
pub struct Domain {
    pub generation: AtomicU32,
    pub body: Mutex<DomainBody>,
}

/// Figures of a domain's pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolFigures {
    pub windows: usize,
    pub ready: usize,
    pub resting: usize,
    pub grants: u64,
    pub key_distance: u64,
}

impl Context {
    pub fn domain(&self, domain: u64) -> Result<(u32, &Domain)> {
        let (index, generation) = self.parse_id(Kind::Domain, domain).ok_or(Status::StaleId)?;
        let slot = self.domains.get(index).ok_or(Status::StaleId)?;
        if slot.generation.load(Ordering::Acquire) != generation || slot.body.lock().pd.is_none() {
            return Err(Status::StaleId);
        }
        Ok((index, slot))
    }

    /// May wait: allocates the reserve.
    pub fn domain_open(&self, pd: Pd, aliases: &[*mut verbs::ibv_pd], options: DomainOptions) -> Result<u64> {
        if pd.device() != self.device.raw() {
            return Err(Status::ForeignContext);
        }
        if !self.capabilities.type2 {
            return Err(Status::Unsupported);
        }
        let index = self.domains.take().ok_or(Status::NoMemory)?;
        let slot = self.domains.at(index);
        let options = DomainOptions {
            key_distance: if options.key_distance == 0 { DEFAULT_KEY_DISTANCE } else { options.key_distance },
            ..options
        };
        *slot.body.lock() = DomainBody {
            pd: Some(pd),
            handle: pd.handle(),
            aliases: aliases.iter().map(|alias| *alias as usize).collect(),
            options,
            ..DomainBody::default()
        };
        if let Err(status) = self.refill(index, options.reserve as usize) {
            slot.body.lock().closing = true;
            self.domain_drain(index);
            slot.body.lock().pd = None;
            self.domains.give(index);
            return Err(status);
        }
        Ok(self.make_id(Kind::Domain, index, slot.generation.load(Ordering::Acquire)))
    }

    /// May wait: deallocates the windows of the pool. Refused while a peer or region is open.
    pub fn domain_close(&self, domain: u64) -> Result<()> {
        let (index, slot) = self.domain(domain)?;
        {
            let mut body = slot.body.lock();
            self.domain_alive(domain, &body)?;
            if body.peers + body.regions > 0 {
                return Err(Status::Busy);
            }
            body.closing = true;
        }
        let left = self.domain_drain(index);
        let mut body = slot.body.lock();
        if left > 0 {
            body.closing = false;
            return Err(Status::VerbsError);
        }
        body.pd = None;
        drop(body);
        slot.generation.fetch_add(1, Ordering::AcqRel);
        self.domains.give(index);
        Ok(())
    }

    /// Whether a domain is still the one that is meant, and stays. Its lock is held.
    pub fn domain_alive(&self, domain: u64, body: &DomainBody) -> Result<()> {
        let (index, generation) = self.parse_id(Kind::Domain, domain).ok_or(Status::StaleId)?;
        let same = self.domains.at(index).generation.load(Ordering::Acquire) == generation;
        if same && body.pd.is_some() && !body.closing { Ok(()) } else { Err(Status::StaleId) }
    }

    /// Deallocates the windows of a domain that is being closed; returns how many could not be.
    fn domain_drain(&self, index: u32) -> usize {
        let slot = self.domains.at(index);
        // Another thread's tick may be topping the pool up: it has the PD.
        while slot.body.lock().allocating > 0 {
            std::thread::sleep(CLOSE_NAP);
        }
        let mut stuck = Vec::new();
        while let Some(window) = { slot.body.lock().pool.drain() } {
            if self.dealloc_window(window).is_err() {
                stuck.push(window);
            } else {
                slot.body.lock().pool.windows -= 1;
            }
        }
        let mut body = slot.body.lock();
        for window in &stuck {
            self.give_to(&mut body, *window, None);
        }
        stuck.len()
    }

    pub fn pool_figures(&self, domain: u64) -> Result<PoolFigures> {
        assert!(!broken("assertion"), "broken on purpose");
        let (_, slot) = self.domain(domain)?;
        let body = slot.body.lock();
        Ok(PoolFigures {
            windows: body.pool.windows,
            ready: body.pool.ready(),
            resting: body.pool.resting(),
            grants: body.pool.grants,
            key_distance: body.options.key_distance,
        })
    }

    /// Has at least `ready` windows ready for the next grants. May wait: allocating is a kernel
    /// call.
    pub fn refill(&self, index: u32, ready: usize) -> Result<()> {
        self.refill_until(index, ready, u64::MAX)
    }

    /// The same, for a call that has a deadline.
    fn refill_until(&self, index: u32, ready: usize, until: u64) -> Result<()> {
        let slot = self.domains.at(index);
        // A device that hands back the numbers of deallocated windows gives ones that must rest.
        for _ in 0..ready * 2 + GROWTH {
            {
                let mut body = slot.body.lock();
                body.wants_refill = false;
                if body.pool.ready() >= ready {
                    return Ok(());
                }
                let limit = body.options.limit as usize;
                if limit != 0 && body.pool.windows >= limit {
                    return Err(Self::exhausted(&body.pool));
                }
            }
            if until != u64::MAX && now_ns() >= until {
                return Err(Status::TimedOut);
            }
            self.adopt_window(index).map_err(|status| match status {
                Status::DeviceLimit => Self::exhausted(&slot.body.lock().pool),
                other => other,
            })?;
        }
        Err(Self::exhausted(&slot.body.lock().pool))
    }

    /// One more window for the pool. A kernel call.
    pub fn adopt_window(&self, index: u32) -> Result<()> {
        let slot = self.domains.at(index);
        let pd = {
            let mut body = slot.body.lock();
            let pd = body.pd.filter(|_| !body.closing).ok_or(Status::StaleId)?;
            body.allocating += 1;
            pd
        };
        let allocated = self.alloc_window(pd, index);
        let mut body = slot.body.lock();
        body.allocating -= 1;
        let window = allocated?;
        body.pool.windows += 1;
        self.give_to(&mut body, window, None);
        Ok(())
    }

    /// Puts a free window into its pool, with its key out of use since `ended`: the next may have to rest.
    fn give_to(&self, body: &mut DomainBody, index: u32, ended: Option<u64>) {
        let window = self.windows.at(index);
        let current = window.device_rkey.load(Ordering::Acquire) as u8;
        let due = {
            let mut keys = window.keys.lock();
            if let Some(ended) = ended {
                keys.end(body.pool.grants, ended);
            }
            keys.due(body.options.key_distance, current)
        };
        body.pool.give(index, due);
    }

    /// Makes an empty pool ready for `more` grants, and by some more for the next, so that windows
    /// go on taking turns. An error only if none is ready. May wait, but not beyond `until`.
    pub fn grow(&self, index: u32, more: usize, until: u64) -> Result<()> {
        let grown = self.refill_until(index, more.max(GROWTH), until);
        let ready = self.domains.at(index).body.lock().pool.ready();
        if ready > 0 { Ok(()) } else { grown }
    }

    fn exhausted(pool: &Pool) -> Status {
        if pool.resting() > 0 { Status::KeysExhausted } else { Status::DeviceLimit }
    }

    /// Tops up the pools that ran low. For ticks: at most `most` kernel calls.
    pub fn refill_some(&self, mut most: usize) {
        if !self.wants_refill.swap(false, Ordering::AcqRel) {
            return;
        }
        for index in 0..self.domains.len() as u32 {
            let wanted = {
                let body = self.domains.at(index).body.lock();
                let low = body.pool.ready() < (body.options.reserve as usize).max(1);
                (body.pd.is_some() && low && body.wants_refill).then(|| body.pool.ready() + 1)
            };
            let Some(mut ready) = wanted else { continue };
            let reserve = self.domains.at(index).body.lock().options.reserve.max(1) as usize;
            while most > 0 && ready <= reserve && !self.is_due() && self.refill(index, ready).is_ok() {
                most -= 1;
                ready += 1;
            }
            if most == 0 || self.is_due() {
                self.domains.at(index).body.lock().wants_refill = true;
                self.call_for_refill();
                return;
            }
        }
    }

    fn alloc_window(&self, pd: Pd, domain: u32) -> Result<u32> {
        let slot = self.empty_windows.lock().pop().or_else(|| self.windows.push());
        let index = slot.ok_or(Status::TooMany)?;
        let (mw, rkey) = match pd.alloc_mw() {
            Ok(made) => made,
            Err(Errno(error)) => {
                self.empty_windows.lock().push(index);
                return Err(match error {
                    libc::EOPNOTSUPP | libc::ENOSYS => Status::Unsupported,
                    libc::ENOMEM | libc::ENOSPC | libc::EAGAIN => Status::DeviceLimit,
                    _ => Status::VerbsError,
                });
            }
        };
        count(&self.counters.windows_allocated);
        let window = self.windows.at(index);
        window.mw.store(mw.raw(), Ordering::Release);
        window.device_rkey.store(rkey, Ordering::Release);
        window.domain.store(domain, Ordering::Release);
        let grants = self.domains.at(domain).body.lock().pool.grants;
        let recalled = self.memory_of_keys.lock().recall(rkey >> 8, grants, now_ns());
        *window.keys.lock() = recalled.unwrap_or_else(|| KeyRing::new(self.random.lock().next(), rkey as u8));
        window.posted.store(0, Ordering::Relaxed);
        window.set_state(State::Free);
        self.rkeys.set(rkey >> 8, Some(index));
        Ok(index)
    }

    /// Deallocates a window's object, bound or not, and empties its slot. A kernel call: no lock
    /// may be held. The slot is not yet given back.
    pub fn dealloc_object(&self, index: u32) -> std::result::Result<(), Errno> {
        let window = self.windows.at(index);
        let mw = Mw::from_raw(window.mw.load(Ordering::Acquire)).ok_or(Errno(libc::EINVAL))?;
        let number = window.device_rkey.load(Ordering::Acquire) >> 8;
        let keys = window.keys.lock().clone();
        // Before: the device may hand the number to another window at once.
        let forgets = self.memory_of_keys.lock().remember(number, keys);
        if let Err(error) = mw.dealloc() {
            self.memory_of_keys.lock().forget(number);
            return Err(error);
        }
        if forgets {
            count(&self.counters.keys_forgotten);
        }
        window.mw.store(std::ptr::null_mut(), Ordering::Release);
        count(&self.counters.windows_deallocated);
        Ok(())
    }

    fn dealloc_window(&self, index: u32) -> std::result::Result<(), Errno> {
        self.dealloc_object(index)?;
        self.give_slot(index);
        Ok(())
    }

    /// Gives back the slot of a window whose object is gone.
    pub fn give_slot(&self, index: u32) {
        let window = self.windows.at(index);
        // Only now: until it was trusted that the object is gone, its key may have worked. The number may be
        // another window's already.
        self.rkeys.unset(window.device_rkey.load(Ordering::Acquire) >> 8, index);
        *window.keys.lock() = KeyRing::default();
        window.set_state(State::Empty);
        self.empty_windows.lock().push(index);
    }

    /// The next tick is to look which pools ran low.
    fn call_for_refill(&self) {
        self.wants_refill.store(true, Ordering::Release);
        self.raise();
    }

    /// A window for a grant, with its next rkey. Never waits.
    pub fn take_window(&self, domain: u32) -> Option<(u32, u32)> {
        let mut body = self.domains.at(domain).body.lock();
        let Some((index, renewed)) = body.pool.take() else {
            body.wants_refill = true;
            drop(body);
            count(&self.counters.pool_misses);
            self.call_for_refill();
            return None;
        };
        let now = body.pool.grants;
        if body.pool.ready() < body.options.reserve as usize / 4 {
            body.wants_refill = true;
        }
        let wants = body.wants_refill;
        drop(body);
        if wants {
            self.call_for_refill();
        }
        let window = self.windows.at(index);
        let mut keys = window.keys.lock();
        if renewed {
            keys.renew();
        }
        let time = now_ns();
        let device_rkey = window.device_rkey.load(Ordering::Acquire);
        let current = device_rkey as u8;
        if let (Some(distance), Some(age)) = (keys.distance(now, current), keys.age(time, current)) {
            count(&self.counters.keys_reused);
            note_smallest(&self.counters.smallest_key_distance, distance);
            note_smallest(&self.counters.smallest_key_age_ns, age);
        }
        let key = keys.take(now, time, current);
        let rkey = device_rkey & !0xff | key as u32;
        Some((index, rkey))
    }

    /// Gives an unbound window back to its pool: its key is out of use since then.
    pub fn give_window(&self, index: u32, since: u64) {
        let domain = self.windows.at(index).domain.load(Ordering::Acquire);
        let mut body = self.domains.at(domain).body.lock();
        self.give_to(&mut body, index, Some(since));
    }

    /// A window whose object is gone leaves its domain.
    pub fn forget_window(&self, index: u32) {
        let window = self.windows.at(index);
        let domain = window.domain.load(Ordering::Acquire);
        self.domains.at(domain).body.lock().pool.windows -= 1;
        self.give_slot(index);
    }
}

/// Keeps the smallest value other than 0.
fn note_smallest(smallest: &AtomicU64, value: u64) {
    let lower = |old: u64| (old == 0 || value < old).then_some(value);
    let _ = smallest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
}
