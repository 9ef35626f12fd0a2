//! The application's completion queues: who polls them, and what was kept back for it.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use verbs::{ibv_cq, ibv_wc};

use crate::context::Context;
use crate::device::{Completion, Cq, Errno};
use crate::id;
use crate::peer::this_thread;
use crate::slab::Slab;
use crate::stats::count;
use crate::status::{Result, Status};

/// Who polls a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Everyone polls through `poll_cq`; the library may do so too.
    #[default]
    Ours,
    /// The application polls and offers each completion; the library never polls.
    Yours,
}

#[derive(Default)]
struct QueueBody {
    mode: Mode,
    peers: usize,
    /// The only thread that may poll it; 0: any.
    owner: u64,
    /// Completions of the application that a waiting call of ours took off the queue.
    kept: VecDeque<ibv_wc>,
}

#[derive(Default)]
pub struct Queue {
    cq: AtomicPtr<ibv_cq>,
    /// Times that anybody polled it, or offered a completion of it.
    pub polls: AtomicU64,
    body: Mutex<QueueBody>,
}

/// The completion queues by address. Few, and looked up at each poll: a table that only grows,
/// read without a lock. A queue that is no longer in use keeps its entry for the next one there.
pub struct Queues {
    slots: Slab<Queue>,
    count: AtomicUsize,
    /// Open addressing by address; index + 1.
    table: Box<[AtomicUsize]>,
    enter: Mutex<()>,
}

const MAX_QUEUES: usize = 1 << 15;

impl Default for Queues {
    fn default() -> Self {
        Queues {
            slots: Slab::new(MAX_QUEUES),
            count: AtomicUsize::new(0),
            table: (0..MAX_QUEUES * 2).map(|_| AtomicUsize::new(0)).collect(),
            enter: Mutex::new(()),
        }
    }
}

// SAFETY: a kept completion is plain data.
unsafe impl Send for QueueBody {}

impl Queues {
    fn home(cq: *mut ibv_cq) -> usize {
        crate::keys::mix(cq as u64) as usize % (MAX_QUEUES * 2)
    }

    #[inline]
    pub fn find(&self, cq: *mut ibv_cq) -> Option<u32> {
        let mut at = Self::home(cq);
        loop {
            let index = self.table[at].load(Ordering::Acquire).checked_sub(1)? as u32;
            if self.slots.at(index).cq.load(Ordering::Acquire) == cq {
                return Some(index);
            }
            at = (at + 1) % self.table.len();
        }
    }

    pub fn at(&self, index: u32) -> &Queue {
        self.slots.at(index)
    }

    /// One more peer uses the queue, in this mode.
    pub fn enter(&self, cq: Cq, mode: Mode, owner: u64) -> Result<u32> {
        let _entering = self.enter.lock();
        let index = match self.find(cq.raw()) {
            Some(index) => index,
            None => self.add(cq.raw())?,
        };
        let mut body = self.at(index).body.lock();
        if body.peers > 0 && body.mode != mode {
            return Err(Status::PollingMode);
        }
        if body.peers > 0 && body.owner != owner {
            return Err(Status::WrongThread);
        }
        body.mode = mode;
        body.owner = owner;
        body.peers += 1;
        Ok(index)
    }

    fn add(&self, cq: *mut ibv_cq) -> Result<u32> {
        let index = self.slots.push().ok_or(Status::TooMany)?;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.at(index).cq.store(cq, Ordering::Release);
        let mut at = Self::home(cq);
        while self.table[at].load(Ordering::Relaxed) != 0 {
            at = (at + 1) % self.table.len();
        }
        self.table[at].store(index as usize + 1, Ordering::Release);
        Ok(index)
    }

    pub fn leave(&self, index: u32) {
        self.at(index).body.lock().peers -= 1;
    }

    /// Whether completions of the application wait for its next poll.
    pub fn any_kept(&self) -> bool {
        (0..self.slots.len() as u32).any(|q| !self.at(q).body.lock().kept.is_empty())
    }
}

impl Context {
    /// Polls for the application: its completions in order, ours taken out. Fewer than there is
    /// room for means that the queue was seen empty. Never waits.
    pub fn poll_cq(&self, cq: Cq, out: &mut [MaybeUninit<ibv_wc>]) -> std::result::Result<usize, Errno> {
        let Some(index) = self.queues.find(cq.raw()) else {
            return cq.poll(out);
        };
        let queue = self.queues.at(index);
        let mut body = queue.body.lock();
        let mut filled = 0;
        while filled < out.len() {
            let Some(kept) = body.kept.pop_front() else { break };
            out[filled].write(kept);
            filled += 1;
        }
        let result = self.poll_device(cq, queue, out, &mut filled);
        drop(body);
        self.after_completions();
        match result {
            Err(error) if filled == 0 => Err(error),
            _ => Ok(filled),
        }
    }

    /// Fills the rest of `out` from the device, without what is ours.
    fn poll_device(
        &self,
        cq: Cq,
        queue: &Queue,
        out: &mut [MaybeUninit<ibv_wc>],
        filled: &mut usize,
    ) -> std::result::Result<(), Errno> {
        while *filled < out.len() {
            let start = *filled;
            let asked = out.len() - start;
            let got = cq.poll(&mut out[start..])?;
            queue.polls.fetch_add(1, Ordering::Release);
            for at in start..start + got {
                // SAFETY: the device wrote `got` completions from `start` on.
                let seen = Completion::from(unsafe { out[at].assume_init_ref() });
                if !self.take(&seen) {
                    out.swap(*filled, at);
                    *filled += 1;
                }
            }
            if got < asked {
                break;
            }
        }
        Ok(())
    }

    /// Polls on behalf of a waiting call and keeps the application's completions for it.
    /// Returns whether there were any completions.
    pub fn poll_for_us(&self, index: u32) -> bool {
        let queue = self.queues.at(index);
        let mut body = queue.body.lock();
        let foreign = body.owner != 0 && body.owner != this_thread();
        if body.mode != Mode::Ours || body.peers == 0 || foreign {
            return false;
        }
        // SAFETY: a queue with peers lives: it is theirs until they are detached.
        let Some(cq) =
            std::ptr::NonNull::new(queue.cq.load(Ordering::Acquire)).map(|raw| unsafe { Cq::new(raw) })
        else {
            return false;
        };
        let mut some: [MaybeUninit<ibv_wc>; 16] = [const { MaybeUninit::uninit() }; 16];
        let Ok(got) = cq.poll(&mut some) else { return false };
        queue.polls.fetch_add(1, Ordering::Release);
        let kept_before = body.kept.len();
        for wc in some.into_iter().take(got) {
            // SAFETY: the device wrote `got` completions.
            let wc = unsafe { wc.assume_init() };
            if !self.take(&Completion::from(&wc)) {
                count(&self.counters.completions_kept);
                body.kept.push_back(wc);
            }
        }
        if body.kept.len() > kept_before {
            self.raise_fd();
        }
        got > 0
    }

    /// The application offers a completion. True if it was ours and is to be forgotten.
    /// Never waits.
    pub fn offer(&self, cq: Option<*mut ibv_cq>, seen: &Completion) -> bool {
        if let Some(index) = cq.and_then(|cq| self.queues.find(cq)) {
            self.queues.at(index).polls.fetch_add(1, Ordering::Release);
        }
        let ours = self.take(seen);
        self.after_completions();
        ours
    }
}

const _: () = assert!(MAX_QUEUES < id::MAX_INDEX);
