//! Time: the clock, and one thread that kicks queue pairs when theirs has come.
//!
//! The thread starts with the first work request that has to wait for time to pass (a latency
//! model, a receiver-not-ready timer, a retry timer); a program that uses none never has it.

use crate::engine::Work;
use crate::guard::guard;
use crate::qp::Qp;
use parking_lot::{Condvar, Mutex};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A thread that sleeps is woken so much too late at worst; closer deadlines are spun for.
const SLEEP_SLACK_NS: u64 = 60_000;

/// The monotonic clock in nanoseconds.
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a local structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Spends this much time in the calling thread.
pub fn spend(ns: u64) {
    let end = now() + ns;
    if ns > SLEEP_SLACK_NS {
        std::thread::sleep(Duration::from_nanos(ns - SLEEP_SLACK_NS));
    }
    while now() < end {
        std::hint::spin_loop();
    }
}

struct Due {
    qp: &'static Qp,
    id: u32,
}

#[derive(Default)]
struct Schedule {
    /// Deadline and a running number: what was scheduled first comes first.
    order: BinaryHeap<Reverse<(u64, u64)>>,
    due: std::collections::HashMap<u64, Due>,
    next: u64,
    started: bool,
}

static SCHEDULE: Mutex<Option<Schedule>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

/// Kicks the QP at this time.
pub fn at(time: u64, qp: &'static Qp, id: u32) {
    let mut guard = SCHEDULE.lock();
    let s = guard.get_or_insert_with(Schedule::default);
    s.next += 1;
    s.order.push(Reverse((time, s.next)));
    s.due.insert(s.next, Due { qp, id });
    if !s.started {
        s.started = start();
    }
    CHANGED.notify_one();
}

/// How many times are planned for the QP.
#[cfg(test)]
pub fn planned(qp: &'static Qp) -> usize {
    let schedule = SCHEDULE.lock();
    schedule.iter().flat_map(|s| s.due.values()).filter(|due| std::ptr::eq(due.qp, qp)).count()
}

/// The application's signals are its own: the thread takes none.
fn start() -> bool {
    // SAFETY: plain calls on local signal sets; the mask is put back.
    unsafe {
        let (mut all, mut old) = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let started = std::thread::Builder::new().name("mwctl-sim".into()).spawn(serve).is_ok();
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        started
    }
}

fn serve() {
    loop {
        let next = next_due();
        // A panic is a defect of one work request; the others go on.
        guard((), || {
            let mut work = Work::new();
            work.kick(next.qp, next.id);
            work.finish();
        });
    }
}

/// Waits for the earliest deadline.
fn next_due() -> Due {
    let mut guard = SCHEDULE.lock();
    loop {
        let s = guard.get_or_insert_with(Schedule::default);
        let Some(&Reverse((time, number))) = s.order.peek() else {
            CHANGED.wait(&mut guard);
            continue;
        };
        let left = time.saturating_sub(now());
        if left > SLEEP_SLACK_NS {
            CHANGED.wait_for(&mut guard, Duration::from_nanos(left - SLEEP_SLACK_NS));
        } else if left > 0 {
            // Others may schedule meanwhile.
            parking_lot::MutexGuard::unlocked_fair(&mut guard, std::thread::yield_now);
        } else {
            s.order.pop();
            if let Some(due) = s.due.remove(&number) {
                return due;
            }
        }
    }
}
