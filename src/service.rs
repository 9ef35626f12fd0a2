//! The optional service thread: it ticks, so that deadlines hold though no loop does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, ThreadId};

use crate::context::Context;
use crate::status::{Result, Status};

/// A service thread that runs.
pub struct Service {
    stop: Arc<AtomicBool>,
    id: ThreadId,
    /// Taken by whoever waits for its end; `ended` tells the others.
    thread: Option<JoinHandle<()>>,
}

impl Context {
    /// Starts the thread, once.
    pub fn service_start(self: &Arc<Self>) -> Result<()> {
        let mut service = self.service.lock();
        if service.is_some() {
            return Err(Status::AlreadyAttached);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (context, stopped) = (Arc::clone(self), Arc::clone(&stop));
        let run = move || {
            while !stopped.load(Ordering::Acquire) && !context.is_poisoned() {
                let round = std::panic::AssertUnwindSafe(|| context.serve(&stopped));
                if let Err(panic) = std::panic::catch_unwind(round) {
                    context.poison_by(&*panic);
                }
            }
        };
        // The application's signal handlers run on its own threads.
        let spawned = without_signals(|| std::thread::Builder::new().name("mwctl".into()).spawn(run));
        let thread = spawned.map_err(|_| Status::NoMemory)?;
        *service = Some(Service { stop, id: thread.thread().id(), thread: Some(thread) });
        Ok(())
    }

    /// Ends the thread and waits for it. Does nothing without one. Not from a callback that runs
    /// on that thread.
    pub fn service_stop(&self) -> Result<()> {
        let mut running = self.service.lock();
        let Some(service) = running.as_mut() else { return Ok(()) };
        let id = service.id;
        if id == std::thread::current().id() {
            return Err(Status::WouldDeadlock);
        }
        service.stop.store(true, Ordering::Release);
        let Some(thread) = service.thread.take() else {
            // Another call waits for it already.
            while running.as_ref().is_some_and(|service| service.id == id) {
                self.service_ended.wait(&mut running);
            }
            return Ok(());
        };
        drop(running);
        self.wake_sleepers();
        let joined = thread.join();
        *self.service.lock() = None;
        self.service_ended.notify_all();
        joined.map_err(|_| Status::Poisoned)
    }
}

/// Runs `start` with all signals blocked: a thread that it makes inherits that.
fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are ours, and the old mask is put back.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        result
    }
}
