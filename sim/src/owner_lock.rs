//! A lock that is held between two calls of one thread, and that notices a thread which takes it
//! twice.
//!
//! `ibv_wr_start` holds the send queue until `ibv_wr_complete`, `ibv_start_poll` the completion
//! queue until `ibv_end_poll`. On a real device a second call of the same thread in between waits
//! for itself for ever; here it is reported. The lock can be off, as in a thread domain: then two
//! threads at once are reported.

use crate::misuse::{self, Rule};
use libc::c_int;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

pub struct OwnerLock {
    owner: Mutex<u64>,
    free: Condvar,
    unlocked: AtomicBool,
}

/// A number for each thread, never 0.
fn me() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static ME: Cell<u64> = const { Cell::new(0) };
    }
    ME.with(|me| {
        if me.get() == 0 {
            me.set(NEXT.fetch_add(1, Relaxed));
        }
        me.get()
    })
}

pub struct Held<'a>(&'a OwnerLock);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl OwnerLock {
    pub const fn new() -> Self {
        Self { owner: Mutex::new(0), free: Condvar::new(), unlocked: AtomicBool::new(false) }
    }

    pub fn set_unlocked(&self, unlocked: bool) {
        *self.owner.lock() = 0;
        self.unlocked.store(unlocked, Relaxed);
    }

    /// EDEADLK if this thread has it already.
    pub fn lock(&self) -> Result<(), c_int> {
        let me = me();
        let mut owner = self.owner.lock();
        if *owner == me {
            misuse::report(
                Rule::WrongThread,
                0,
                0,
                format_args!("a queue was used between the start and the end of its own batch"),
            );
            return Err(libc::EDEADLK);
        }
        if *owner != 0 && self.unlocked.load(Relaxed) {
            misuse::report(
                Rule::WrongThread,
                0,
                0,
                format_args!("two threads used a queue whose locks are off at the same time"),
            );
        }
        while *owner != 0 {
            self.free.wait(&mut owner);
        }
        *owner = me;
        Ok(())
    }

    pub fn unlock(&self) {
        *self.owner.lock() = 0;
        self.free.notify_one();
    }

    /// Whether the calling thread has it.
    pub fn is_mine(&self) -> bool {
        *self.owner.lock() == me()
    }

    pub fn hold(&self) -> Result<Held<'_>, c_int> {
        self.lock().map(|()| Held(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_told_instead_of_waiting_for_itself() {
        let lock = OwnerLock::new();
        lock.lock().unwrap();
        assert_eq!(lock.lock(), Err(libc::EDEADLK));
        assert!(lock.is_mine());
        lock.unlock();
        assert!(lock.hold().is_ok());
        assert!(lock.hold().is_ok());
    }

    #[test]
    fn another_thread_waits() {
        let lock = OwnerLock::new();
        let seen = AtomicBool::new(false);
        lock.lock().unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                lock.lock().unwrap();
                assert!(seen.load(SeqCst));
                lock.unlock();
            });
            seen.store(true, SeqCst);
            lock.unlock();
        });
    }
}
