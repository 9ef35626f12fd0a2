//! A queue of events behind a file descriptor that is readable exactly while the queue has some.
//!
//! The application may poll the descriptor, and may set O_NONBLOCK on it: then taking from an
//! empty queue fails with EAGAIN instead of waiting.

use libc::c_int;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, Ordering::*};

pub struct Notifier<T> {
    /// −1 once closed.
    fd: AtomicI32,
    events: Mutex<VecDeque<T>>,
}

impl<T> Notifier<T> {
    pub fn new() -> Result<Self, c_int> {
        // SAFETY: a plain system call.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(verbs::errno());
        }
        Ok(Self { fd: AtomicI32::new(fd), events: Mutex::new(VecDeque::new()) })
    }

    pub fn fd(&self) -> c_int {
        self.fd.load(Acquire)
    }

    /// Closes the descriptor and forgets the events. The memory stays, for a late caller.
    pub fn close(&self) {
        let mut events = self.events.lock();
        events.clear();
        let fd = self.fd.swap(-1, AcqRel);
        if fd >= 0 {
            // SAFETY: the descriptor is ours and now unknown to everybody else.
            unsafe { libc::close(fd) };
        }
    }

    pub fn push(&self, event: T) {
        let mut events = self.events.lock();
        if events.is_empty() {
            self.make_readable();
        }
        events.push_back(event);
    }

    /// The oldest event. Waits for one unless the descriptor is non-blocking.
    pub fn take(&self) -> Result<T, c_int> {
        loop {
            {
                let mut events = self.events.lock();
                if let Some(event) = events.pop_front() {
                    if events.is_empty() {
                        self.make_unreadable();
                    }
                    return Ok(event);
                }
            }
            self.wait()?;
        }
    }

    /// Removes the events that `which` picks.
    pub fn remove(&self, which: impl Fn(&T) -> bool) {
        let mut events = self.events.lock();
        if events.is_empty() {
            return;
        }
        events.retain(|e| !which(e));
        if events.is_empty() {
            self.make_unreadable();
        }
    }

    fn make_readable(&self) {
        let one = 1u64;
        // SAFETY: writes eight bytes of a local; cannot block, the count is never near its limit.
        unsafe { libc::write(self.fd(), std::ptr::addr_of!(one).cast(), 8) };
    }

    /// Called with the queue locked and the descriptor readable, so the read cannot block.
    fn make_unreadable(&self) {
        let mut count = 0u64;
        // SAFETY: reads eight bytes into a local.
        unsafe { libc::read(self.fd(), std::ptr::addr_of_mut!(count).cast(), 8) };
    }

    fn wait(&self) -> Result<(), c_int> {
        // SAFETY: plain system calls on a descriptor that is ours and a local structure.
        unsafe {
            let flags = libc::fcntl(self.fd(), libc::F_GETFL);
            if flags >= 0 && flags & libc::O_NONBLOCK != 0 {
                return Err(libc::EAGAIN);
            }
            let mut p = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
            match libc::poll(&mut p, 1, -1) {
                n if n < 0 => Err(verbs::errno()),
                _ if p.revents & libc::POLLNVAL != 0 => Err(libc::EBADF),
                _ => Ok(()),
            }
        }
    }
}

impl<T> Drop for Notifier<T> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable<T>(n: &Notifier<T>) -> bool {
        let mut p = libc::pollfd { fd: n.fd(), events: libc::POLLIN, revents: 0 };
        unsafe { libc::poll(&mut p, 1, 0) == 1 }
    }

    #[test]
    fn readable_exactly_while_there_are_events() {
        let n = Notifier::new().unwrap();
        assert!(!readable(&n));
        n.push(1);
        n.push(2);
        n.push(3);
        assert!(readable(&n));
        assert_eq!(n.take(), Ok(1));
        assert!(readable(&n));
        n.remove(|e| *e == 3);
        assert!(readable(&n));
        assert_eq!(n.take(), Ok(2));
        assert!(!readable(&n));
        n.push(4);
        n.remove(|_| true);
        assert!(!readable(&n));
    }

    #[test]
    fn a_non_blocking_descriptor_never_waits() {
        let n = Notifier::<u8>::new().unwrap();
        unsafe { libc::fcntl(n.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(n.take(), Err(libc::EAGAIN));
    }

    #[test]
    fn a_waiter_gets_what_another_thread_pushes() {
        let n = std::sync::Arc::new(Notifier::new().unwrap());
        let taker = std::thread::spawn({
            let n = n.clone();
            move || n.take()
        });
        n.push(9);
        assert_eq!(taker.join().unwrap(), Ok(9));
    }
}
