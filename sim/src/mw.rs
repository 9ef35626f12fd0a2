//! Memory windows, Type 1 and Type 2B.

use crate::context::{self, Context};
use crate::counters;
use crate::fault::{self, Fault};
use crate::guard::{guard, guard_ptr};
use crate::keys::{self, Key, Kind, Opening};
use crate::misuse::{self, Rule};
use crate::model::{self, Profile};
use crate::mr::Mr;
use crate::object::{self, Live, Object, Pool, Ref};
use crate::pd::Pd;
use crate::qp::Qp;
use libc::{c_int, c_uint};
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use verbs::*;

#[repr(C)]
pub struct Mw {
    base: UnsafeCell<ibv_mw>,
    live: Live,
    pd: Ref<Pd>,
    key: Ref<Key>,
    type2: AtomicU32,
    state: Mutex<State>,
    /// LOCAL_INVs that are posted and have not run.
    pub invalidates_posted: AtomicU32,
    /// The post that a bind of this window was last in.
    pub last_post: AtomicU64,
}

// SAFETY: the application and the device share `base` as verbs prescribes: `rkey` is the
// application's, but for `ibv_bind_mw`, during which it may not touch it.
unsafe impl Sync for Mw {}

impl Object for Mw {
    type C = ibv_mw;
    const MAGIC: u32 = 0x6d77_3031;
    const NAME: &'static str = "memory window";

    fn live(&self) -> &Live {
        &self.live
    }
}

#[derive(Default)]
struct State {
    /// The current key, valid or not.
    rkey: u32,
    bound: Option<Binding>,
    /// Closed, with packets under way.
    closing: bool,
}

#[derive(Clone, Copy)]
struct Binding {
    mr: &'static Mr,
    /// The QP of a Type 2 window, with its number as an object.
    qp: Option<(&'static Qp, u32)>,
}

static POOL: Pool<Mw> = Pool::new(4096);
/// Windows whose deallocation was faked: valid in the device, gone for the application.
static ZOMBIES: Mutex<Vec<&'static Mw>> = Mutex::new(Vec::new());

const REMOTE: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
/// LOCAL_WRITE is no right of a window, but every provider lets it pass.
const KNOWN: u32 = REMOTE | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED;

/// A bind as it was posted.
#[derive(Clone, Copy)]
pub struct Bind {
    pub window: Option<(&'static Mw, u32)>,
    /// `mw->rkey` at the time of the post.
    pub old_rkey: u32,
    pub new_rkey: u32,
    pub region: Option<(&'static Mr, u32)>,
    pub null_region: bool,
    pub addr: u64,
    pub length: u64,
    pub access: u32,
    /// By `ibv_bind_mw`.
    pub type1: bool,
}

/// How far a bind or an invalidate came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Packets are under way: the QP is kicked when they are placed.
    Wait,
    Failed,
}

impl State {
    fn unbind(&mut self) {
        self.closing = false;
        if let Some(b) = self.bound.take() {
            b.mr.bound.leave();
            if let Some((qp, id)) = b.qp {
                if qp.live().id() == id {
                    qp.windows.fetch_sub(1, AcqRel);
                }
            }
        }
    }
}

impl Mw {
    fn fresh() -> Self {
        Self {
            // SAFETY: pointers and numbers.
            base: UnsafeCell::new(unsafe { std::mem::zeroed() }),
            live: Live::new(),
            pd: Ref::empty(),
            key: Ref::empty(),
            type2: AtomicU32::new(0),
            state: Mutex::new(State::default()),
            invalidates_posted: AtomicU32::new(0),
            last_post: AtomicU64::new(0),
        }
    }

    fn pd(&self) -> &'static Pd {
        self.pd.get().expect("a window has a domain")
    }

    fn key(&self) -> &'static Key {
        self.key.get().expect("a window has a key")
    }

    pub fn is_type2(&self) -> bool {
        self.type2.load(Relaxed) != 0
    }
}

pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: c_uint) -> *mut ibv_mw {
    guard_ptr(|| {
        let pd = unsafe { object::get::<Pd>(pd)? };
        let context = pd.context();
        if context.profile == Profile::NoMw {
            counters::unsupported("ibv_alloc_mw");
            return Err(libc::EOPNOTSUPP);
        }
        model::kernel_call();
        context::refuse_if_fatal()?;
        if let Some(hit) = fault::strike(Fault::AllocMw, &[]) {
            return Err(hit.error);
        }
        let kind = match mw_type {
            IBV_MW_TYPE_1 => Kind::Window1,
            IBV_MW_TYPE_2 => Kind::Window2,
            _ => return Err(libc::EINVAL),
        };
        context.mws.take()?;
        let Some(key) = keys::take(kind) else {
            context.mws.give();
            return Err(libc::ENOMEM);
        };
        if !pd.users.enter() {
            keys::put(key);
            context.mws.give();
            return Err(libc::EINVAL);
        }
        let mw = POOL.take(Mw::fresh);
        let rkey = keys::with_tag(key.index(), key.fresh_tag());
        mw.pd.set(Some(pd));
        mw.key.set(Some(key));
        mw.type2.store((kind == Kind::Window2) as u32, Relaxed);
        mw.invalidates_posted.store(0, Relaxed);
        mw.last_post.store(0, Relaxed);
        *mw.state.lock() = State { rkey, ..State::default() };
        // SAFETY: nobody else uses the object yet.
        unsafe {
            *mw.base.get() =
                ibv_mw { context: context.as_c(), pd: pd.as_c(), rkey, handle: key.index(), type_: mw_type }
        };
        mw.live.begin(Mw::MAGIC);
        key.owner().window.set(Some(mw));
        counters::bump(counters::MW_ALLOCATED);
        Ok(mw.as_c())
    })
}

/// Closes a window that nobody can find any more, waits for what is under way, and recycles it.
fn release(mw: &'static Mw) {
    let key = mw.key();
    {
        let _state = mw.state.lock();
        key.close();
    }
    key.wait_drained();
    mw.state.lock().unbind();
    keys::put(key);
    mw.pd().users.leave();
    mw.pd().context().mws.give();
    POOL.put(mw);
    counters::bump(counters::MW_DEALLOCATED);
}

pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    guard(libc::EIO, || {
        let mw = match unsafe { object::get::<Mw>(mw) } {
            Ok(mw) => mw,
            Err(e) => return e,
        };
        model::kernel_call();
        if let Some(hit) = fault::strike(Fault::DeallocMw, &[]) {
            return hit.error;
        }
        let bound = {
            let state = mw.state.lock();
            if !mw.live.end() {
                return libc::EINVAL;
            }
            state.bound.and_then(|b| b.qp).map(|q| (q, state.rkey))
        };
        if context::is_fatal() {
            ZOMBIES.lock().push(mw);
            return 0;
        }
        if let Some(((qp, id), rkey)) = bound {
            let posted = mw.invalidates_posted.load(Acquire) != 0;
            if posted && qp.is(id) && matches!(qp.state(), IBV_QPS_RTS | IBV_QPS_SQD) {
                misuse::report(
                    Rule::DeallocInvPosted,
                    qp.number(),
                    rkey,
                    format_args!("a window was deallocated with its LOCAL_INV outstanding on a live QP"),
                );
            }
        }
        release(mw);
        0
    })
}

/// Binds by `ibv_bind_mw`, which is for Type 1 windows.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    guard(libc::EIO, || unsafe { crate::post::bind_type1(qp, mw, bind) })
}

impl Bind {
    /// Runs the bind on the QP that it was posted on.
    pub fn run(&self, qp: &'static Qp) -> Outcome {
        let (Some((mw, mw_id)), Some((mr, mr_id))) = (self.window, self.region) else {
            return Outcome::Failed;
        };
        let mut state = mw.state.lock();
        let key = mw.key();
        if !mw.alive() || mw.live.id() != mw_id || mw.is_type2() == self.type1 {
            return Outcome::Failed;
        }
        if state.closing && key.is_drained() {
            state.unbind();
        }
        if !self.type1 && !self.is_next_of(&state, qp) {
            return Outcome::Failed;
        }
        let domain = qp.domain();
        let sound = self.new_rkey >> 8 == key.index()
            && mw.pd().number() == domain
            && mr.alive()
            && mr.live().id() == mr_id
            && mr.domain() == domain
            && qp.context().profile != Profile::Mana;
        // No bytes: an end for a Type 1 window wherever it says to be, nothing for Type 2.
        let ends = self.length == 0;
        let host = self.host_in(mr).filter(|_| !ends);
        if !sound || (host.is_none() && !(ends && self.type1)) {
            return Outcome::Failed;
        }
        // A Type 1 window is bound again as it is: the old right ends first.
        key.close();
        if !key.drained_or_kick(qp, qp.live().id()) {
            state.closing = true;
            return Outcome::Wait;
        }
        state.unbind();
        state.rkey = self.new_rkey;
        if let Some(host) = host {
            if !mr.bound.enter() {
                return Outcome::Failed;
            }
            state.bound = Some(Binding { mr, qp: self.pin(qp) });
            key.open(self.new_rkey as u8, self.opening(domain, &state, host));
        }
        counters::bump(counters::MW_BINDS);
        Outcome::Done
    }

    /// Whether a bind of a Type 2 window finds it as it must: free, and with the key that the
    /// caller believes it to have.
    fn is_next_of(&self, state: &State, qp: &Qp) -> bool {
        let broken = |rule, text: &str| {
            misuse::report(rule, qp.number(), self.new_rkey, format_args!("{text}"));
        };
        if self.old_rkey != state.rkey {
            broken(Rule::BindStaleKey, "a bind whose mw->rkey is not the window's current key");
            return false;
        }
        if state.bound.is_some() {
            broken(Rule::BindValid, "a bind of a window that is bound already");
            return false;
        }
        if self.new_rkey == state.rkey {
            broken(Rule::BindSameKey, "a bind that keeps the key bits, which older kernels refuse");
        }
        true
    }

    /// Where the range lies in host memory, if the region has it and may grant these rights.
    fn host_in(&self, mr: &Mr) -> Option<u64> {
        const WRITES: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
        let region = mr.opening();
        let may = self.access & !KNOWN == 0
            && region.access & IBV_ACCESS_MW_BIND != 0
            && (self.access & WRITES == 0 || region.access & IBV_ACCESS_LOCAL_WRITE != 0);
        region.locate(self.addr, self.length).filter(|_| may)
    }

    /// The QP that a Type 2 window is bound to.
    fn pin(&self, qp: &'static Qp) -> Option<(&'static Qp, u32)> {
        if self.type1 {
            return None;
        }
        qp.windows.fetch_add(1, AcqRel);
        Some((qp, qp.live().id()))
    }

    fn opening(&self, domain: u32, state: &State, host: u64) -> Opening {
        let zero_based = self.access & IBV_ACCESS_ZERO_BASED != 0;
        Opening {
            access: self.access & REMOTE,
            pd: domain,
            qp: state.bound.and_then(|b| b.qp).map_or(0, |(_, id)| id),
            start: if zero_based { 0 } else { self.addr },
            length: self.length,
            host,
        }
    }
}

/// The Type 2 window that a key belongs to, for counting the LOCAL_INVs posted for it.
pub fn of_rkey(rkey: u32) -> Option<(&'static Mw, u32)> {
    let mw = keys::find(rkey)?.owner().window.get()?;
    mw.alive().then(|| (mw, mw.live.id()))
}

/// Invalidates a Type 2 window that is bound to this QP. `begun`: it was closed by an earlier
/// call, for the same work request, that answered `Wait`. `kick`: the QP whose work request that
/// is: by a SEND_WITH_INV, the peer's.
pub fn invalidate(rkey: u32, qp: &'static Qp, begun: bool, kick: &'static Qp) -> Outcome {
    let by_peer = !std::ptr::eq(qp, kick);
    let any = by_peer && qp.context().profile == Profile::Unpinned;
    let not_bound = |text: &str| {
        misuse::report(Rule::InvNotBound, qp.number(), rkey, format_args!("{text}"));
        Outcome::Failed
    };
    let key = match keys::find(rkey) {
        Some(key) if key.kind() == Kind::Window2 => key,
        _ if begun => return Outcome::Done,
        _ => return not_bound("an invalidate of a key that belongs to no Type 2 window"),
    };
    let Some(mw) = key.owner().window.get() else {
        return match begun {
            true => Outcome::Done,
            false => not_bound("an invalidate of a window that was deallocated"),
        };
    };
    let mut state = mw.state.lock();
    let bound = state.bound.and_then(|b| b.qp);
    let current = mw.alive() && state.rkey == rkey && std::ptr::eq(mw.key(), key);
    let Some((owner, owner_id)) = bound.filter(|_| current) else {
        // Meanwhile it was deallocated, which invalidates as well.
        return match begun {
            true => Outcome::Done,
            false => not_bound("an invalidate of a window that is not bound with this key"),
        };
    };
    if state.closing && !begun {
        return not_bound("an invalidate of a window that is being invalidated");
    }
    if !any && (!std::ptr::eq(owner, qp) || owner_id != qp.live().id()) {
        misuse::report(
            Rule::InvWrongQp,
            qp.number(),
            rkey,
            format_args!("an invalidate on a QP that the window is not bound to"),
        );
        return Outcome::Failed;
    }
    key.close();
    state.closing = true;
    if !key.drained_or_kick(kick, kick.live().id()) {
        return Outcome::Wait;
    }
    state.unbind();
    counters::bump(counters::MW_INVALIDATES);
    Outcome::Done
}

pub fn destroy_all_of(context: &Context) {
    let windows = keys::all().filter_map(|k| k.owner().window.get());
    for mw in windows.filter(|mw| std::ptr::eq(mw.pd().context(), context)) {
        if mw.live.end() {
            release(mw);
        }
    }
}

pub fn drop_zombies() {
    let zombies: Vec<_> = ZOMBIES.lock().drain(..).collect();
    for mw in zombies {
        release(mw);
    }
}
