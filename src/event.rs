//! What wakes whom: the event fd, the waiting calls, the callbacks, the tick.

use std::cell::Cell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::context::{Context, Severity};
use crate::op::{OpBody, Outcome, Phase};
use crate::status::Status;
use crate::time::now_ns;
use crate::window::OpId;

/// Something that no call of the application's asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub kind: EventKind,
    /// 0 where no QP is concerned.
    pub qp_num: u32,
    pub peer: u64,
    /// 0 where no grant is concerned.
    pub grant: u64,
}

#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The library moved the peer's QP to ERR: a revocation, or its detach, missed the deadline. Only
    /// the application can tell the other side. The peer's other rights are of no use any more, and
    /// stay on the books until they are revoked or the peer is detached.
    PeerKilled = 1,
    /// The peer's QP was found in an error state: by a completion of ours, or by a look at it. An
    /// error that the application offered leads to that look at the next grant or revocation.
    PeerDead = 2,
    /// The peer ended a grant of its own by SEND_WITH_INV.
    PeerInvalidated = 3,
    /// A peer ended another peer's grant by SEND_WITH_INV: `peer` is the one that did, 0 if the queue
    /// pair is no attached peer's.
    ForeignInvalidation = 4,
}

impl EventKind {
    fn text(self) -> &'static str {
        match self {
            EventKind::PeerKilled => "moved a queue pair to ERR",
            EventKind::PeerDead => "a queue pair is in error",
            EventKind::PeerInvalidated => "a client gave a right back",
            EventKind::ForeignInvalidation => "a client ended another client's right",
        }
    }
}

/// The event fd and the sleepers of a context.
pub struct Signal {
    fd: OwnedFd,
    raised: AtomicBool,
    /// Held while `raised` and the descriptor change together.
    level: Mutex<()>,
    /// There is something for the service thread.
    work: AtomicBool,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Signal {
    pub fn new() -> Option<Signal> {
        // SAFETY: a fresh descriptor, owned from here on.
        let fd = unsafe {
            let fd = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
            if fd < 0 {
                return None;
            }
            OwnedFd::from_raw_fd(fd)
        };
        Some(Signal {
            fd,
            raised: AtomicBool::new(false),
            level: Mutex::new(()),
            work: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        })
    }
}

/// Completions that a waiting call polls for without sleeping.
const SPINS: u32 = 2000;
/// Pools are topped up by so many windows a tick.
const REFILL_PER_TICK: usize = 64;
/// Of the service thread, in nanoseconds.
const LONGEST_SLEEP: u64 = 60_000_000_000;
const NAP: Duration = Duration::from_micros(50);

/// Calls out of calls out of callbacks, so deep at most: a stack is finite.
const DEEPEST: u32 = 32;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Of callbacks that are under way on this thread, one within the other.
struct Depth;

impl Depth {
    fn enter() -> Option<Depth> {
        DEPTH.with(|depth| {
            (depth.get() < DEEPEST).then(|| {
                depth.set(depth.get() + 1);
                Depth
            })
        })
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

impl Context {
    pub fn event_fd(&self) -> i32 {
        self.signal.fd.as_raw_fd()
    }

    /// There is something to do: makes the event fd readable, wakes the waiting calls and the
    /// service thread.
    pub fn raise(&self) {
        self.signal.work.store(true, Ordering::Release);
        self.raise_fd();
        self.wake_sleepers();
    }

    /// There is something that only the application can do.
    pub fn raise_fd(&self) {
        // Whoever lowers looks for work afterwards: what was put in line before this is found then.
        fence(Ordering::SeqCst);
        if self.signal.raised.load(Ordering::Acquire) {
            return;
        }
        let _level = self.signal.level.lock();
        if !self.signal.raised.swap(true, Ordering::AcqRel) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight bytes to an eventfd of ours. It can't fail but by a full counter,
            // and then it is readable.
            unsafe { libc::write(self.event_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    fn lower(&self) {
        let _level = self.signal.level.lock();
        if self.signal.raised.swap(false, Ordering::AcqRel) {
            let mut count = [0u8; 8];
            // SAFETY: eight bytes from an eventfd of ours, which does not block.
            unsafe { libc::read(self.event_fd(), count.as_mut_ptr().cast(), count.len()) };
        }
        // Behind it, in the order of all threads, comes the look for work.
        fence(Ordering::SeqCst);
    }

    /// Lets the waiting calls and the service thread look again.
    pub fn wake_sleepers(&self) {
        fence(Ordering::SeqCst);
        if self.signal.sleepers.load(Ordering::Relaxed) > 0 {
            let _held = self.signal.lock.lock();
            self.signal.wake.notify_all();
        }
    }

    /// Sleeps until `ready`, a wake-up or `until`.
    fn sleep(&self, ready: impl Fn() -> bool, until: u64) {
        let mut held = self.signal.lock.lock();
        self.signal.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let now = now_ns();
        if !ready() && now < until {
            self.signal.wake.wait_for(&mut held, Duration::from_nanos(until - now));
        }
        self.signal.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits for an operation that this call began, hands its outcomes to `read` and ends it. It
    /// lasts no longer than its deadline plus a kernel call under way.
    pub fn wait(&self, id: OpId, read: impl FnOnce(&OpBody, &[Outcome])) {
        let op = self.op(id);
        let deadline = op.deadline();
        let mut idle = 0u32;
        while !op.is_done() {
            let mut progress = self.run_fence();
            self.run_transfers(true);
            let now = now_ns();
            // They may become more while it waits.
            let mut queues = 0;
            while let Some(queue) = op.queue(queues) {
                progress |= self.poll_on_behalf(queue, now, false);
                queues += 1;
            }
            self.run_pumps();
            if op.is_done() {
                break;
            }
            if now >= deadline {
                self.expire(id.index);
                std::thread::yield_now();
                continue;
            }
            if self.keep_deadlines() {
                continue;
            }
            if progress {
                self.run_callbacks();
                idle = 0;
                continue;
            }
            idle += 1;
            self.retry_posts();
            if queues == 0 {
                let next = self.next_due();
                self.sleep(|| op.is_done() || self.has_work(), deadline.min(next));
            } else if idle < SPINS {
                std::hint::spin_loop();
            } else {
                let nap = now_ns() + NAP.as_nanos() as u64;
                self.sleep(|| op.is_done(), nap.min(deadline));
            }
        }
        {
            let mut body = op.body.lock();
            if self.is_poisoned() {
                body.fail_all(Status::Poisoned);
            }
            read(&body, &body.outcomes);
        }
        self.end_op(id);
        self.keep_deadlines();
        self.run_fences_a_while();
        self.follow_completions();
    }

    pub fn end_op(&self, op: OpId) {
        self.op(op).body.lock().phase = Phase::Idle;
        self.ops.give(op.index);
    }

    /// What follows after completions were taken, with no lock held.
    pub fn after_completions(&self) {
        if self.is_due() {
            self.expire_all();
        }
        self.follow_completions();
    }

    fn follow_completions(&self) {
        self.run_pumps();
        self.run_transfers(false);
        self.retry_posts();
        self.run_callbacks();
    }

    /// Deallocations, binds and posts that somebody has to do.
    fn has_work(&self) -> bool {
        !self.to_fence.lock().is_empty() || !self.to_bind.lock().is_empty() || !self.to_pump.lock().is_empty()
    }

    /// Calls back for the operations that ended and the events that happened, each once. What comes while
    /// it does is the next call's, for this one is to return, whatever the callbacks begin.
    pub fn run_callbacks(&self) {
        if !self.has_callbacks() {
            return;
        }
        if let Some(_deeper) = Depth::enter() {
            self.run_callbacks_once();
        }
        if self.has_callbacks() {
            self.raise();
        }
    }

    /// All of them: there is no next call.
    pub fn run_last_callbacks(&self) {
        while self.has_callbacks() {
            self.run_callbacks_once();
        }
    }

    fn run_callbacks_once(&self) {
        let calls = self.to_call.lock().len();
        self.tell_events();
        for _ in 0..calls {
            let Some(op) = ({ self.to_call.lock().pop_front() }) else { break };
            // What led to its end is heard before it.
            self.tell_events();
            self.call_back(op);
        }
    }

    fn tell_events(&self) {
        let events = self.events.lock().len();
        for _ in 0..events {
            let Some(event) = ({ self.events.lock().pop_front() }) else { break };
            if let Some(on_event) = &self.on_event {
                on_event(event);
            }
        }
    }

    pub fn has_callbacks(&self) -> bool {
        !self.to_call.lock().is_empty() || !self.events.lock().is_empty()
    }

    fn call_back(&self, id: OpId) {
        let op = self.op(id);
        let (callback, mut outcomes, mut status, detaches) = {
            let mut body = op.body.lock();
            let status = if self.is_poisoned() {
                body.fail_all(Status::Poisoned);
                Status::Poisoned
            } else {
                body.status()
            };
            let detaches = body.detaches.take();
            (body.callback.take(), body.take_outcomes(), status, detaches)
        };
        if let Some(peer) = detaches.filter(|_| status == Status::Ok) {
            status = Status::from(self.peer_forget(peer));
        }
        if let Some(callback) = callback {
            (callback.call)(callback.words[0], callback.words[1], status, &outcomes);
        }
        outcomes.clear();
        op.body.lock().outcomes = outcomes;
        self.end_op(id);
    }

    pub fn event(&self, event: Event) {
        let (what, qp_num) = (event.kind.text(), event.qp_num);
        match event.grant {
            0 => self.log(Severity::Warning, format_args!("{what}: QP {qp_num:#x}")),
            grant => self.log(Severity::Warning, format_args!("{what}: QP {qp_num:#x}, grant {grant:#x}")),
        }
        if self.on_event.is_some() {
            self.events.lock().push_back(event);
            self.raise();
        }
    }

    /// Does what is due: deallocations, deadlines, refills, posts that were refused, callbacks.
    /// It waits for no network and no other thread; it may make kernel calls.
    pub fn tick(&self) {
        self.lower();
        self.do_due();
    }

    fn do_due(&self) {
        self.run_fences();
        if self.keep_deadlines() {
            self.run_fences();
        }
        self.run_pumps();
        self.run_transfers(true);
        self.retry_posts();
        self.refill_some(REFILL_PER_TICK);
        self.run_callbacks();
        if self.queues.any_kept() {
            self.raise_fd();
        }
    }

    /// One round of the service thread: does what is due, then sleeps until there is more.
    pub fn serve(&self, stopped: &AtomicBool) {
        // The event fd stays readable: some of it may be for the application's threads alone.
        self.do_due();
        let next = self.next_due();
        let earlier = || self.next_deadline.load(Ordering::Acquire) < next;
        let work = || stopped.load(Ordering::Acquire) || self.signal.work.swap(false, Ordering::AcqRel);
        self.sleep(|| work() || earlier(), next.min(now_ns() + LONGEST_SLEEP));
    }

    /// Whether there are operations under way.
    #[inline]
    pub fn has_deadlines(&self) -> bool {
        self.next_deadline.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether a deadline has passed, or a look before one is due.
    pub fn is_due(&self) -> bool {
        self.has_deadlines() && self.is_due_at(now_ns())
    }

    fn is_due_at(&self, now: u64) -> bool {
        now >= self.next_deadline.load(Ordering::Acquire)
    }

    /// Nanoseconds until `tick` has something to do; `None`: nothing is planned.
    pub fn next_timeout(&self) -> Option<u64> {
        if self.signal.raised.load(Ordering::Acquire) {
            return Some(0);
        }
        let next = self.next_due();
        (next != u64::MAX).then(|| next.saturating_sub(now_ns()))
    }
}
