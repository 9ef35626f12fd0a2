//! The optional service thread: it ticks, so that deadlines hold though no loop does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::context::Context;
use crate::status::{Result, Status};

/// A service thread that runs.
pub struct Service {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
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
        *service = Some(Service { stop, thread: spawned.map_err(|_| Status::NoMemory)? });
        Ok(())
    }

    /// Ends the thread and waits for it. Does nothing without one. Not from a callback that runs
    /// on that thread.
    pub fn service_stop(&self) -> Result<()> {
        let service = {
            let mut running = self.service.lock();
            let this = std::thread::current().id();
            if running.as_ref().is_some_and(|service| service.thread.thread().id() == this) {
                return Err(Status::WouldDeadlock);
            }
            running.take()
        };
        let Some(service) = service else { return Ok(()) };
        service.stop.store(true, Ordering::Release);
        self.wake_service();
        service.thread.join().map_err(|_| Status::Poisoned)
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
