//! The memory of verbs objects, and whether one is alive.
//!
//! An application holds plain pointers to our objects, uses them from any thread and sometimes
//! after it destroyed them. So an object's memory is never given back: it rests in a pool and is
//! used again for an object of the same kind, a good while later. A pointer to it is therefore
//! always safe to look at, and a mark tells whether the object still lives.

use crate::misuse::{self, Rule};
use libc::c_int;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// The mark of an object: which kind it is while it lives, and a number that no other object
/// before or after it has.
pub struct Live(AtomicU64);

static NEXT_ID: AtomicU32 = AtomicU32::new(1);

impl Live {
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub fn begin(&self, magic: u32) {
        let id = NEXT_ID.fetch_add(1, Relaxed);
        self.0.store(u64::from(id) << 32 | u64::from(magic), Release);
    }

    /// True for the one caller that ended it.
    pub fn end(&self) -> bool {
        self.0.fetch_and(!0xffff_ffff, AcqRel) as u32 != 0
    }

    pub fn is(&self, magic: u32) -> bool {
        self.0.load(Acquire) as u32 == magic
    }

    /// The object's number.
    pub fn id(&self) -> u32 {
        (self.0.load(Acquire) >> 32) as u32
    }
}

/// A kind of verbs object. The C structure is its first member, so the application's pointer and
/// ours are the same.
pub trait Object: Sized + Sync + 'static {
    type C;
    const MAGIC: u32;
    const NAME: &'static str;

    fn live(&self) -> &Live;

    /// The application's pointer.
    fn as_c(&self) -> *mut Self::C {
        (self as *const Self).cast::<Self::C>().cast_mut()
    }

    fn alive(&self) -> bool {
        self.live().is(Self::MAGIC)
    }
}

/// The object behind an application's pointer. EINVAL for NULL and, reported as misuse, for an
/// object that was destroyed.
///
/// # Safety
/// `c` is NULL or came from this device as an object of this kind.
pub unsafe fn get<T: Object>(c: *mut T::C) -> Result<&'static T, c_int> {
    if c.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: objects are never freed, so the pointer is to one, alive or not.
    let object = unsafe { &*c.cast::<T>() };
    if object.alive() {
        return Ok(object);
    }
    misuse::report(
        Rule::UseAfterFree,
        0,
        0,
        format_args!("the {} at {c:p} was used after it was destroyed", T::NAME),
    );
    Err(libc::EINVAL)
}

/// A changeable reference to an object.
pub struct Ref<T: 'static>(AtomicPtr<T>);

impl<T: 'static> Ref<T> {
    pub const fn empty() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    pub fn set(&self, to: Option<&'static T>) {
        let p = to.map_or(null_mut(), |t| (t as *const T).cast_mut());
        self.0.store(p, Release);
    }

    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: only ever set from a reference that lasts for ever.
        unsafe { self.0.load(Acquire).as_ref() }
    }
}

/// Objects that are not in use.
pub struct Pool<T: 'static> {
    resting: Mutex<VecDeque<&'static T>>,
    /// So many must be destroyed after an object before its memory is used again, which is how
    /// long a use after that is noticed.
    quarantine: usize,
}

impl<T: 'static> Pool<T> {
    pub const fn new(quarantine: usize) -> Self {
        Self { resting: Mutex::new(VecDeque::new()), quarantine }
    }

    pub fn take(&self, make: impl FnOnce() -> T) -> &'static T {
        let mut resting = self.resting.lock();
        if resting.len() > self.quarantine {
            if let Some(object) = resting.pop_front() {
                return object;
            }
        }
        drop(resting);
        Box::leak(Box::new(make()))
    }

    pub fn put(&self, object: &'static T) {
        self.resting.lock().push_back(object);
    }
}

/// A count of users that keeps an object from being destroyed.
pub struct Users(AtomicU32);

const CLOSED: u32 = 1 << 31;

impl Users {
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub fn open(&self) {
        self.0.store(0, Release);
    }

    /// False when the object is being destroyed.
    pub fn enter(&self) -> bool {
        self.0.fetch_update(AcqRel, Acquire, |n| (n & CLOSED == 0).then_some(n + 1)).is_ok()
    }

    pub fn leave(&self) {
        self.0.fetch_sub(1, AcqRel);
    }

    /// Lets nobody in any more; false when somebody is in.
    pub fn close(&self) -> bool {
        self.0.compare_exchange(0, CLOSED, AcqRel, Acquire).is_ok()
    }

    pub fn count(&self) -> u32 {
        self.0.load(Acquire) & !CLOSED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_rests_before_it_is_used_again() {
        static POOL: Pool<u32> = Pool::new(2);
        let a = POOL.take(|| 1);
        POOL.put(a);
        let b = POOL.take(|| 2);
        assert!(!std::ptr::eq(a, b));
        POOL.put(b);
        POOL.put(POOL.take(|| 3));
        assert!(std::ptr::eq(a, POOL.take(|| 4)));
    }

    #[test]
    fn a_closed_object_lets_nobody_in() {
        let users = Users::new();
        assert!(users.enter());
        assert!(!users.close());
        users.leave();
        assert!(users.close());
        assert!(!users.enter());
    }

    #[test]
    fn an_ended_object_is_no_longer_of_its_kind() {
        let live = Live::new();
        live.begin(7);
        let id = live.id();
        assert!(live.is(7));
        assert!(live.end());
        assert!(!live.is(7));
        assert!(!live.end());
        assert_eq!(live.id(), id);
    }
}
