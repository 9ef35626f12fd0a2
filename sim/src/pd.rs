//! Protection domains, thread domains and parent domains.

use crate::context::{self, Context};
use crate::guard::{guard_int, guard_ptr};
use crate::misuse::{self, Rule};
use crate::model;
use crate::object::{self, Live, Object, Pool, Ref, Users};
use libc::c_int;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering::*};
use verbs::*;

#[repr(C)]
pub struct Pd {
    base: UnsafeCell<ibv_pd>,
    live: Live,
    context: Ref<Context>,
    /// The domain that a parent domain stands for; none in a plain one.
    parent_of: Ref<Pd>,
    td: Ref<Td>,
    pub users: Users,
}

// SAFETY: `base` is written before the application knows the object.
unsafe impl Sync for Pd {}

impl Object for Pd {
    type C = ibv_pd;
    const MAGIC: u32 = 0x7064_3031;
    const NAME: &'static str = "protection domain";

    fn live(&self) -> &Live {
        &self.live
    }
}

static POOL: Pool<Pd> = Pool::new(64);
static NEXT_HANDLE: AtomicU32 = AtomicU32::new(1);

impl Pd {
    fn fresh() -> Self {
        Self {
            // SAFETY: pointers and numbers.
            base: UnsafeCell::new(unsafe { std::mem::zeroed() }),
            live: Live::new(),
            context: Ref::empty(),
            parent_of: Ref::empty(),
            td: Ref::empty(),
            users: Users::new(),
        }
    }

    pub fn context(&self) -> &'static Context {
        self.context.get().expect("a protection domain has a context")
    }

    /// The protection domain itself, behind any parent domain.
    pub fn root(&'static self) -> &'static Pd {
        self.parent_of.get().map_or(self, |pd| pd.root())
    }

    /// What packets and keys compare.
    pub fn number(&'static self) -> u32 {
        self.root().live.id()
    }

    /// Objects made here have no locks: only one thread at a time may use them.
    pub fn is_unlocked(&self) -> bool {
        self.td.get().is_some()
    }
}

fn make(context: &'static Context) -> Result<&'static Pd, c_int> {
    model::kernel_call();
    context::refuse_if_fatal()?;
    context.pds.take()?;
    let pd = POOL.take(Pd::fresh);
    pd.context.set(Some(context));
    pd.parent_of.set(None);
    pd.td.set(None);
    pd.users.open();
    // SAFETY: nobody else uses the object yet.
    unsafe { *pd.base.get() = ibv_pd { context: context.as_c(), handle: NEXT_HANDLE.fetch_add(1, Relaxed) } };
    pd.live.begin(Pd::MAGIC);
    Ok(pd)
}

/// # Safety
/// `context` is open.
#[no_mangle]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard_ptr(|| Ok(make(unsafe { Context::get(context)? })?.as_c()))
}

/// # Safety
/// `pd` came from this device.
#[no_mangle]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard_int(|| {
        let pd = unsafe { object::get::<Pd>(pd)? };
        model::kernel_call();
        if context::is_fatal() {
            pd.live.end();
            return Ok(());
        }
        if !pd.users.close() {
            let n = pd.users.count();
            misuse::report(
                Rule::DestroyBusy,
                0,
                0,
                format_args!("a protection domain was deallocated with {n} objects in it"),
            );
            return Err(libc::EBUSY);
        }
        if !pd.live.end() {
            return Err(libc::EINVAL);
        }
        if let Some(real) = pd.parent_of.get() {
            real.users.leave();
        }
        if let Some(td) = pd.td.get() {
            td.users.leave();
        }
        pd.context().pds.give();
        POOL.put(pd);
        Ok(())
    })
}

#[repr(C)]
pub struct Td {
    base: UnsafeCell<ibv_td>,
    live: Live,
    users: Users,
}

// SAFETY: `base` is written before the application knows the object.
unsafe impl Sync for Td {}

impl Object for Td {
    type C = ibv_td;
    const MAGIC: u32 = 0x7464_3031;
    const NAME: &'static str = "thread domain";

    fn live(&self) -> &Live {
        &self.live
    }
}

static TD_POOL: Pool<Td> = Pool::new(64);

pub unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    guard_ptr(|| {
        let context = unsafe { Context::get(context)? };
        if attr.is_null() || unsafe { (*attr).comp_mask } != 0 {
            return Err(libc::EINVAL);
        }
        context::refuse_if_fatal()?;
        let td = TD_POOL.take(|| Td {
            base: UnsafeCell::new(ibv_td { context: std::ptr::null_mut() }),
            live: Live::new(),
            users: Users::new(),
        });
        td.users.open();
        // SAFETY: nobody else uses the object yet.
        unsafe { (*td.base.get()).context = context.as_c() };
        td.live.begin(Td::MAGIC);
        Ok(td.as_c())
    })
}

pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    guard_int(|| {
        let td = unsafe { object::get::<Td>(td)? };
        if !td.users.close() {
            misuse::report(
                Rule::DestroyBusy,
                0,
                0,
                format_args!("a thread domain was deallocated with a parent domain on it"),
            );
            return Err(libc::EBUSY);
        }
        if td.live.end() {
            TD_POOL.put(td);
        }
        Ok(())
    })
}

/// The allocators that may come along are not needed: queues are made by the device itself.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = 3;
    guard_ptr(|| {
        let context = unsafe { Context::get(context)? };
        if attr.is_null() {
            return Err(libc::EINVAL);
        }
        let attr = unsafe { &*attr };
        if attr.comp_mask & !KNOWN != 0 {
            return Err(libc::EINVAL);
        }
        let real = unsafe { object::get::<Pd>(attr.pd)? };
        let td = match attr.td.is_null() {
            true => None,
            false => Some(unsafe { object::get::<Td>(attr.td)? }),
        };
        if !std::ptr::eq(real.context(), context) {
            return Err(libc::EINVAL);
        }
        let pd = make(context)?;
        pd.parent_of.set(Some(real));
        pd.td.set(td);
        if !real.users.enter() || !td.map_or(true, |td| td.users.enter()) {
            return Err(libc::EBUSY);
        }
        Ok(pd.as_c())
    })
}
