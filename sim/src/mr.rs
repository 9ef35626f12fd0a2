//! Memory regions.

use crate::context::{self, Context};
use crate::counters;
use crate::fault::{self, Fault};
use crate::guard::{guard, guard_ptr};
use crate::keys::{self, Key, Kind, Opening};
use crate::misuse::{self, Rule};
use crate::model::{self, Profile};
use crate::object::{self, Live, Object, Pool, Ref, Users};
use crate::pd::Pd;
use libc::{c_int, c_void, size_t};
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use verbs::*;

#[repr(C)]
pub struct Mr {
    base: UnsafeCell<ibv_mr>,
    live: Live,
    pd: Ref<Pd>,
    key: Ref<Key>,
    access: AtomicU32,
    start: AtomicU64,
    length: AtomicU64,
    host: AtomicU64,
    /// Windows bound to the region.
    pub bound: Users,
}

// SAFETY: `base` is written before the application knows the object.
unsafe impl Sync for Mr {}

impl Object for Mr {
    type C = ibv_mr;
    const MAGIC: u32 = 0x6d72_3031;
    const NAME: &'static str = "memory region";

    fn live(&self) -> &Live {
        &self.live
    }
}

static POOL: Pool<Mr> = Pool::new(256);
/// Keys of regions whose deregistration was faked.
static ZOMBIES: Mutex<Vec<&'static Key>> = Mutex::new(Vec::new());

const REMOTE_WRITES: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
const KNOWN: u32 = IBV_ACCESS_LOCAL_WRITE
    | REMOTE_WRITES
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_HUGETLB;
/// Flags that a device which does not know them ignores.
const OPTIONAL: u32 = 0x3ff0_0000;
const NOT_OFFERED: u32 = IBV_ACCESS_ON_DEMAND | IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT;

impl Mr {
    fn fresh() -> Self {
        Self {
            // SAFETY: pointers and numbers.
            base: UnsafeCell::new(unsafe { std::mem::zeroed() }),
            live: Live::new(),
            pd: Ref::empty(),
            key: Ref::empty(),
            access: AtomicU32::new(0),
            start: AtomicU64::new(0),
            length: AtomicU64::new(0),
            host: AtomicU64::new(0),
            bound: Users::new(),
        }
    }

    fn pd(&self) -> &'static Pd {
        self.pd.get().expect("a memory region has a domain")
    }

    pub fn context(&self) -> &'static Context {
        self.pd().context()
    }

    /// The number of its protection domain.
    pub fn domain(&self) -> u32 {
        self.pd().number()
    }

    pub fn access(&self) -> u32 {
        self.access.load(Relaxed)
    }

    /// The region as its own key opens it.
    pub fn opening(&self) -> Opening {
        Opening {
            access: self.access(),
            pd: self.domain(),
            qp: 0,
            start: self.start.load(Relaxed),
            length: self.length.load(Relaxed),
            host: self.host.load(Relaxed),
        }
    }
}

/// Whether all pages of a range are mapped. The device moves bytes in the application's own
/// address space, where a hole would be a crash at some later write.
fn is_mapped(addr: u64, length: u64) -> bool {
    const PAGE: u64 = 4096;
    const CHUNK: u64 = 1 << 30;
    let mut pages = vec![0u8; (length.min(CHUNK) / PAGE + 2) as usize];
    let end = addr + length;
    let mut at = addr & !(PAGE - 1);
    while at < end {
        let n = (end - at).min(CHUNK);
        // SAFETY: the vector has a byte for each page asked about.
        let r = unsafe { libc::mincore(at as *mut c_void, n as size_t, pages.as_mut_ptr()) };
        if r != 0 && verbs::errno() == libc::ENOMEM {
            return false;
        }
        at += n;
    }
    true
}

fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: a domain of the caller.
    let pd = unsafe { object::get::<Pd>(pd)? };
    model::kernel_call();
    context::refuse_if_fatal()?;
    let context = pd.context();
    if let Some(hit) = fault::strike(Fault::RegMr, &[]) {
        return Err(hit.error);
    }
    let (at, length) = (addr as u64, length as u64);
    if access & NOT_OFFERED != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let zero_based = access & IBV_ACCESS_ZERO_BASED != 0;
    if length == 0
        || access & !(KNOWN | OPTIONAL) != 0
        || at.checked_add(length).is_none()
        || iova.checked_add(length).is_none()
        || length > context.limits.max_mr_size
        || (access & REMOTE_WRITES != 0 && access & IBV_ACCESS_LOCAL_WRITE == 0)
        || (zero_based && context.profile == Profile::Rxe)
    {
        return Err(libc::EINVAL);
    }
    if !is_mapped(at, length) {
        return Err(libc::EFAULT);
    }
    context.mrs.take()?;
    let Some(key) = keys::take(Kind::Region) else {
        context.mrs.give();
        return Err(libc::ENOMEM);
    };
    if !pd.users.enter() {
        keys::put(key);
        context.mrs.give();
        return Err(libc::EINVAL);
    }
    let mr = POOL.take(Mr::fresh);
    mr.pd.set(Some(pd));
    mr.key.set(Some(key));
    mr.access.store(access, Relaxed);
    mr.start.store(if zero_based { 0 } else { iova }, Relaxed);
    mr.length.store(length, Relaxed);
    mr.host.store(at, Relaxed);
    mr.bound.open();
    let number = keys::with_tag(key.index(), key.fresh_tag());
    // SAFETY: nobody else uses the object yet.
    unsafe {
        *mr.base.get() = ibv_mr {
            context: context.as_c(),
            pd: pd.as_c(),
            addr,
            length: length as size_t,
            handle: key.index(),
            lkey: number,
            rkey: number,
        }
    };
    key.owner().region.set(Some(mr));
    mr.live.begin(Mr::MAGIC);
    key.open(number as u8, mr.opening());
    counters::bump(counters::MR_REGISTERED);
    Ok(mr.as_c())
}

/// # Safety
/// `pd` came from this device; the memory stays mapped while the region lives.
#[no_mangle]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    guard_ptr(|| register(pd, addr, length, addr as u64, access as u32))
}

/// # Safety
/// As `ibv_reg_mr`.
#[no_mangle]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    guard_ptr(|| register(pd, addr, length, iova, access as u32))
}

/// # Safety
/// As `ibv_reg_mr`.
#[no_mangle]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: libc::c_uint,
) -> *mut ibv_mr {
    guard_ptr(|| register(pd, addr, length, iova, access))
}

fn release(mr: &'static Mr) {
    let key = mr.key.get().expect("a memory region has a key");
    key.close();
    key.wait_drained();
    keys::put(key);
    mr.pd().users.leave();
    mr.context().mrs.give();
    POOL.put(mr);
}

/// # Safety
/// `mr` came from this device.
#[no_mangle]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    guard(libc::EIO, || {
        let mr = match unsafe { object::get::<Mr>(mr) } {
            Ok(mr) => mr,
            Err(e) => return e,
        };
        model::kernel_call();
        if let Some(hit) = fault::strike(Fault::DeregMr, &[]) {
            return hit.error;
        }
        if context::is_fatal() {
            if mr.live.end() {
                ZOMBIES.lock().extend(mr.key.get());
            }
            return 0;
        }
        if !mr.bound.close() {
            let n = mr.bound.count();
            // SAFETY: written once, at registration.
            let rkey = unsafe { (*mr.base.get()).rkey };
            misuse::report(
                Rule::DeregMrBound,
                0,
                rkey,
                format_args!("a memory region was deregistered with {n} windows bound to it"),
            );
            return match mr.context().profile {
                Profile::Rxe => libc::EINVAL,
                _ => libc::EBUSY,
            };
        }
        if !mr.live.end() {
            return libc::EINVAL;
        }
        release(mr);
        counters::bump(counters::MR_DEREGISTERED);
        0
    })
}

fn regions() -> impl Iterator<Item = &'static Mr> {
    keys::all().filter(|k| k.kind() == Kind::Region).filter_map(|k| k.owner().region.get())
}

pub fn destroy_all_of(context: &Context) {
    for mr in regions().filter(|mr| std::ptr::eq(mr.context(), context)) {
        if mr.live.end() {
            release(mr);
        }
    }
}

pub fn drop_zombies() {
    let keys: Vec<_> = ZOMBIES.lock().drain(..).collect();
    for key in keys {
        key.close();
        key.wait_drained();
        keys::put(key);
    }
}
