//! The application's completion queues: who polls them, and what was kept back for it.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use verbs::{ibv_cq, ibv_wc};

use crate::complete::Taken;
use crate::context::Context;
use crate::controls::broken;
use crate::device::{Completion, Cq, Errno};
use crate::id;
use crate::peer::this_thread;
use crate::slab::Slab;
use crate::stats::count;
use crate::status::{Result, Status};
use crate::time::now_ns;

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

impl QueueBody {
    /// Whether a client uses it whose owner is another thread: its provider's locks are off.
    fn is_foreign(&self) -> bool {
        self.peers > 0 && self.owner != 0 && self.owner != this_thread()
    }
}

#[derive(Default)]
pub struct Queue {
    cq: AtomicPtr<ibv_cq>,
    /// All completions that were in it at this time, by `now_ns`, have been taken off it.
    cleared: AtomicU64,
    /// When the application last said that it found the queue empty.
    reported: AtomicU64,
    /// Completions of it that the application offered.
    offered: AtomicU64,
    /// When so many have been, its lap is over.
    lap_ends: AtomicU64,
    lap: Mutex<Lap>,
    /// Completions that it can hold.
    entries: AtomicU64,
    /// The application has polled it through us.
    adopted: AtomicBool,
    body: Mutex<QueueBody>,
}

/// The completion queues by address: looked up at each poll, read without a lock. A queue stays as
/// long as a peer uses it or completions are kept for it.
pub struct Queues {
    slots: Slab<Queue>,
    /// Open addressing by address; index + 1, or `GONE`.
    table: Box<[AtomicUsize]>,
    /// Slots to use again. Held while the table changes.
    free: Mutex<Vec<u32>>,
    /// Completions kept in all of them.
    kept: AtomicUsize,
    /// Held for reading while a queue is polled that no peer uses: it gets its first peer, on whose behalf
    /// completions may be kept, before or after that.
    entering: RwLock<()>,
}

/// An entry that was taken out, behind which others may lie.
const GONE: usize = usize::MAX;
const MAX_QUEUES: usize = 1 << 15;
/// Completions that a waiting call takes off a queue at a time.
const POLLED: usize = 16;

/// Since this time more completions will have been offered than the queue can have held then.
#[derive(Default)]
struct Lap {
    at: u64,
    offered: u64,
}

impl Default for Queues {
    fn default() -> Self {
        Queues {
            slots: Slab::new(MAX_QUEUES),
            table: (0..MAX_QUEUES * 2).map(|_| AtomicUsize::new(0)).collect(),
            free: Mutex::default(),
            kept: AtomicUsize::new(0),
            entering: RwLock::default(),
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
        self.place_of(cq).map(|(_, index)| index)
    }

    /// Where in the table the queue is, and its index.
    #[inline]
    fn place_of(&self, cq: *mut ibv_cq) -> Option<(usize, u32)> {
        let home = Self::home(cq);
        for step in 0..self.table.len() {
            let place = (home + step) % self.table.len();
            match self.table[place].load(Ordering::Acquire) {
                0 => return None,
                GONE => {}
                stored => {
                    let index = stored as u32 - 1;
                    if self.slots.at(index).cq.load(Ordering::Acquire) == cq {
                        return Some((place, index));
                    }
                }
            }
        }
        None
    }

    pub fn at(&self, index: u32) -> &Queue {
        self.slots.at(index)
    }

    /// One more peer uses the queue, in this mode.
    pub fn enter(&self, cq: Cq, mode: Mode, owner: u64) -> Result<u32> {
        let _nobody_polls = self.entering.write();
        let mut free = self.free.lock();
        let index = match self.find(cq.raw()) {
            Some(index) => index,
            None => self.add(cq.raw(), &mut free)?,
        };
        let mut body = self.at(index).body.lock();
        if body.peers > 0 && body.mode != mode {
            return Err(Status::PollingMode);
        }
        if body.peers > 0 && body.owner != owner {
            return Err(Status::WrongThread);
        }
        self.at(index).entries.store(cq.entries(), Ordering::Release);
        body.mode = mode;
        body.owner = owner;
        body.peers += 1;
        Ok(index)
    }

    fn add(&self, cq: *mut ibv_cq, free: &mut Vec<u32>) -> Result<u32> {
        let index = free.pop().or_else(|| self.slots.push()).ok_or(Status::TooMany)?;
        self.at(index).cq.store(cq, Ordering::Release);
        let mut place = Self::home(cq);
        while !matches!(self.table[place].load(Ordering::Relaxed), 0 | GONE) {
            place = (place + 1) % self.table.len();
        }
        self.table[place].store(index as usize + 1, Ordering::Release);
        Ok(index)
    }

    /// One peer fewer uses the queue.
    pub fn leave(&self, index: u32) {
        self.at(index).body.lock().peers -= 1;
        self.remove_idle(index);
    }

    /// Takes a queue off the books if no peer uses it and nothing is kept for it.
    fn remove_idle(&self, index: u32) {
        let mut free = self.free.lock();
        let queue = self.at(index);
        let body = queue.body.lock();
        let cq = queue.cq.load(Ordering::Acquire);
        if body.peers > 0 || !body.kept.is_empty() || cq.is_null() {
            return;
        }
        let Some((mut place, _)) = self.place_of(cq) else { return };
        queue.cq.store(std::ptr::null_mut(), Ordering::Release);
        queue.adopted.store(false, Ordering::Relaxed);
        self.table[place].store(GONE, Ordering::Release);
        // At the end of a run nothing lies behind: the run gets shorter.
        while self.table[place].load(Ordering::Relaxed) == GONE
            && self.table[(place + 1) % self.table.len()].load(Ordering::Relaxed) == 0
        {
            self.table[place].store(0, Ordering::Release);
            place = (place + self.table.len() - 1) % self.table.len();
        }
        free.push(index);
    }

    /// Takes out what is kept for a queue that is about to be destroyed.
    pub fn forget(&self, cq: *mut ibv_cq) -> Result<VecDeque<ibv_wc>> {
        let Some(index) = self.find(cq) else { return Ok(VecDeque::new()) };
        let kept = {
            let mut body = self.at(index).body.lock();
            if body.peers > 0 {
                return Err(Status::Busy);
            }
            std::mem::take(&mut body.kept)
        };
        self.kept.fetch_sub(kept.len(), Ordering::Relaxed);
        self.remove_idle(index);
        Ok(kept)
    }

    /// It was not destroyed after all.
    pub fn remember(&self, cq: *mut ibv_cq, mut kept: VecDeque<ibv_wc>) {
        if kept.is_empty() {
            return;
        }
        let _nobody_polls = self.entering.write();
        let mut free = self.free.lock();
        if let Ok(index) = self.find(cq).map_or_else(|| self.add(cq, &mut free), Ok) {
            let mut body = self.at(index).body.lock();
            self.kept.fetch_add(kept.len(), Ordering::Relaxed);
            kept.append(&mut body.kept);
            body.kept = kept;
        }
    }

    /// Whether completions of the application wait for its next poll.
    pub fn any_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed) > 0
    }
}

impl Context {
    /// Polls for the application: its completions in order, ours taken out. Fewer than there is
    /// room for means that the queue was seen empty. Never waits.
    pub fn poll_cq(&self, cq: Cq, out: &mut [MaybeUninit<ibv_wc>]) -> std::result::Result<usize, Errno> {
        let mut filled = 0;
        if cq.device() != self.device.raw() {
            // Nothing of ours is there, and its numbers mean other things.
            return cq.poll(out);
        }
        let result = loop {
            if let Some(index) = self.queues.find(cq.raw()) {
                if let Some(result) = self.poll_known(index, cq, out, &mut filled) {
                    break result;
                }
            }
            let _nobody_enters = self.queues.entering.read();
            if self.queues.find(cq.raw()).is_none() {
                // Late completions of a detached peer may still come.
                break self.poll_device(cq, None, out, &mut filled);
            }
        };
        self.after_completions();
        match result {
            Err(error) if filled == 0 => Err(error),
            _ => Ok(filled),
        }
    }

    /// Polls a queue that peers use: what was kept for the application comes first. None if it is used by
    /// none any more.
    fn poll_known(
        &self,
        index: u32,
        cq: Cq,
        out: &mut [MaybeUninit<ibv_wc>],
        filled: &mut usize,
    ) -> Option<std::result::Result<(), Errno>> {
        let queue = self.queues.at(index);
        let mut body = queue.body.lock();
        if queue.cq.load(Ordering::Acquire) != cq.raw() {
            // The last peer has left meanwhile, and the slot is another queue's.
            return None;
        }
        if body.is_foreign() {
            return Some(Err(Errno(libc::EPERM)));
        }
        while *filled < out.len() {
            let Some(kept) = body.kept.pop_front() else { break };
            self.queues.kept.fetch_sub(1, Ordering::Relaxed);
            out[*filled].write(kept);
            *filled += 1;
        }
        queue.adopted.store(true, Ordering::Relaxed);
        let result = self.poll_device(cq, Some(queue), out, filled);
        let idle = body.peers == 0 && body.kept.is_empty();
        drop(body);
        if idle {
            self.queues.remove_idle(index);
        }
        Some(result)
    }

    /// Fills the rest of `out` from the device, without what is ours.
    fn poll_device(
        &self,
        cq: Cq,
        queue: Option<&Queue>,
        out: &mut [MaybeUninit<ibv_wc>],
        filled: &mut usize,
    ) -> std::result::Result<(), Errno> {
        while *filled < out.len() {
            let start = *filled;
            let asked = out.len() - start;
            // Asked only by deadlines; without any nobody looks at the clock.
            let began = if self.has_deadlines() { now_ns() } else { 0 };
            let got = cq.poll(&mut out[start..])?;
            for at in start..start + got {
                // SAFETY: the device wrote `got` completions from `start` on.
                let seen = Completion::from(unsafe { out[at].assume_init_ref() });
                let taken = self.take(&seen, false);
                if taken != Taken::Ours {
                    // SAFETY: as above.
                    taken.tell(unsafe { out[at].assume_init_mut() });
                    out.swap(*filled, at);
                    *filled += 1;
                }
            }
            if got < asked || broken("emptiness") {
                if let Some(queue) = queue {
                    queue.cleared_at(began);
                }
                break;
            }
        }
        Ok(())
    }

    /// Polls on behalf of a waiting call and keeps the application's completions for it.
    /// Returns whether there were any completions.
    pub fn poll_for_us(&self, index: u32) -> bool {
        self.poll_on_behalf(index, now_ns(), false)
    }

    /// The same by whoever has looked at the clock, `began`, and where nothing may be posted now: `later`.
    pub fn poll_on_behalf(&self, index: u32, began: u64, later: bool) -> bool {
        let queue = self.queues.at(index);
        let mut body = queue.body.lock();
        if body.mode != Mode::Ours || body.peers == 0 || body.is_foreign() {
            return false;
        }
        // SAFETY: a queue with peers lives: it is theirs until they are detached.
        let Some(cq) =
            std::ptr::NonNull::new(queue.cq.load(Ordering::Acquire)).map(|raw| unsafe { Cq::new(raw) })
        else {
            return false;
        };
        // The application may have resized it.
        queue.entries.store(cq.entries(), Ordering::Release);
        let mut some: [MaybeUninit<ibv_wc>; POLLED] = [const { MaybeUninit::uninit() }; POLLED];
        let Ok(got) = cq.poll(&mut some) else { return false };
        let kept_before = body.kept.len();
        for wc in some.into_iter().take(got) {
            // SAFETY: the device wrote `got` completions.
            let mut wc = unsafe { wc.assume_init() };
            let taken = self.take(&Completion::from(&wc), later);
            if taken != Taken::Ours {
                taken.tell(&mut wc);
                count(&self.counters.completions_kept);
                if !broken("keeping") {
                    body.kept.push_back(wc);
                    self.queues.kept.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        if body.kept.len() > kept_before {
            self.raise_fd();
        }
        if got < POLLED {
            queue.cleared_at(began);
        }
        got > 0
    }

    /// Takes off what is in a queue, for a deadline: nothing is posted.
    pub fn clear_for_us(&self, index: u32) {
        self.look_through(index, true);
    }

    /// Polls that take off as many as the queue holds, and one more.
    fn look_through(&self, index: u32, later: bool) {
        let mut polls = 0;
        while self.poll_on_behalf(index, now_ns(), later) {
            polls += 1;
            if polls > self.queues.at(index).entries.load(Ordering::Acquire) / POLLED as u64 {
                break;
            }
        }
    }

    /// Looks for what clients did by themselves, a SEND_WITH_INV above all, before their windows are
    /// invalidated. Without `must` only in queues that the application has polled through us: one that it
    /// polls by itself, whatever it declared, loses nothing.
    pub fn look_at(&self, index: u32, must: bool) {
        if must || self.queues.at(index).adopted.load(Ordering::Relaxed) {
            self.look_through(index, false);
        }
    }

    /// The application saw the queue empty. Never waits.
    pub fn seen_empty(&self, cq: *mut ibv_cq) -> Result<()> {
        let index = self.queues.find(cq).ok_or(Status::UnknownQueue)?;
        let queue = self.queues.at(index);
        if queue.body.lock().is_foreign() {
            return Err(Status::WrongThread);
        }
        // When the poll began that found it so is not known; it was after the one before.
        queue.cleared_at(queue.reported.swap(now_ns(), Ordering::AcqRel));
        self.after_completions();
        Ok(())
    }

    /// The application offers a completion. True if it was ours and is to be forgotten.
    /// Never waits.
    pub fn offer(&self, cq: Cq, seen: &Completion) -> bool {
        let ours = self.offer_within(cq, seen, false);
        self.after_completions();
        ours
    }

    /// The same within a batch of the application's, where nothing may be posted, polled or called
    /// back: `later`.
    pub fn offer_within(&self, cq: Cq, seen: &Completion, later: bool) -> bool {
        if cq.device() != self.device.raw() {
            return false;
        }
        if let Some(index) = self.queues.find(cq.raw()) {
            self.queues.at(index).count_offered(cq);
        }
        let ours = self.take(seen, later) == Taken::Ours;
        if later && self.wants_retry.load(Ordering::Acquire) {
            // It may have made room, which only a tick can use.
            self.raise();
        }
        ours
    }
}

impl Queue {
    /// Whether as many completions wait for the application's next poll as half of the queue holds.
    pub fn keeps_many(&self) -> bool {
        self.body.lock().kept.len() as u64 > self.entries.load(Ordering::Acquire) / 2
    }

    fn cleared_at(&self, time: u64) {
        self.cleared.fetch_max(time, Ordering::AcqRel);
    }

    /// Whether all completions that were in the queue at that time have been taken off it: a poll that
    /// began then or later found it empty, or more were offered than it can have held.
    pub fn was_cleared_since(&self, time: u64) -> bool {
        self.cleared.load(Ordering::Acquire) >= time
    }

    fn count_offered(&self, cq: Cq) {
        let offered = self.offered.fetch_add(1, Ordering::AcqRel) + 1;
        if offered < self.lap_ends.load(Ordering::Acquire) {
            return;
        }
        let mut lap = self.lap.lock();
        // As many as it holds may have been taken off before the lap, and be offered only in it.
        // The application may have resized it.
        let turn = 2 * cq.entries().max(self.entries.load(Ordering::Acquire));
        if offered > lap.offered + turn {
            self.cleared_at(lap.at);
            // In this order: what is offered in between counts for the old lap.
            lap.at = now_ns();
            lap.offered = self.offered.load(Ordering::Acquire);
        }
        self.lap_ends.store(lap.offered + turn + 1, Ordering::Release);
    }
}

const _: () = assert!(MAX_QUEUES < id::MAX_INDEX);
