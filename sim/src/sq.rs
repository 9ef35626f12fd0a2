//! Send queues: the ring of posted work requests.

use crate::mr::Mr;
use crate::mw::{Bind, Mw};
use crate::object::{self, Object};
use crate::scatter::Sge;
use std::sync::atomic::Ordering::*;
use verbs::*;

/// A work request as it was posted.
#[derive(Clone, Copy)]
pub struct Wqe {
    pub wr_id: u64,
    pub opcode: u32,
    pub flags: u32,
    /// Its list, in the queue's own memory; valid until the slot is used again.
    sges: *const Sge,
    pub num_sge: u32,
    /// Inline data instead of the list.
    pub inline: Option<*const u8>,
    pub length: u64,
    /// Immediate data in network byte order, or the rkey to invalidate.
    pub imm: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub compare_add: u64,
    pub swap: u64,
    pub bind: Option<Bind>,
    /// The window that a LOCAL_INV is for, if there is one.
    pub invalidates: Option<(&'static Mw, u32)>,
    pub signaled: bool,
    /// Not before this time, by the latency model.
    pub not_before: u64,
    /// Completes with this status instead of being run.
    pub fail_with: Option<u32>,
    /// Posted on a QP in error, on a device that promises no completion for that.
    pub silent: bool,
}

// SAFETY: the pointers are into the queue's own memory, which outlives its work requests.
unsafe impl Send for Wqe {}

impl Wqe {
    pub fn new(wr_id: u64, opcode: u32, flags: u32) -> Self {
        Self {
            wr_id,
            opcode,
            flags,
            sges: std::ptr::null(),
            num_sge: 0,
            inline: None,
            length: 0,
            imm: 0,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            bind: None,
            invalidates: None,
            signaled: false,
            not_before: 0,
            fail_with: None,
            silent: false,
        }
    }

    pub fn sges(&self) -> &[Sge] {
        if self.num_sge == 0 {
            return &[];
        }
        // SAFETY: the slot's list has `num_sge` elements and is not written while the work
        // request is in the queue.
        unsafe { std::slice::from_raw_parts(self.sges, self.num_sge as usize) }
    }

    /// The work request leaves the queue, whether it ran or not.
    pub fn settle(&self) {
        if let Some((mw, id)) = self.invalidates {
            if mw.live().id() == id {
                mw.invalidates_posted.fetch_sub(1, AcqRel);
            }
        }
    }
}

/// Inline data or a list of elements to copy into the queue.
pub enum Data<'a> {
    None,
    List(&'a [ibv_sge]),
    Inline(&'a [ibv_data_buf]),
    /// Inline data given by a list of elements.
    InlineList(&'a [ibv_sge]),
}

#[derive(Default)]
pub struct Sq {
    ring: Vec<Wqe>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    pub capacity: u64,
    pub max_sge: u32,
    pub max_inline: u32,
    tail: u64,
}

impl Sq {
    pub fn new(capacity: u32, max_sge: u32, max_inline: u32) -> Self {
        let n = capacity as usize;
        Self {
            ring: Vec::with_capacity(n),
            // Written through pointers, slot by slot: never moved, never grown.
            sges: vec![Sge::default(); n * max_sge as usize],
            inline: vec![0; n * max_inline as usize],
            capacity: u64::from(capacity),
            max_sge,
            max_inline,
            tail: 0,
        }
    }

    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Takes back what was pushed after this point; it has not been seen by anybody.
    pub fn truncate(&mut self, tail: u64) {
        while self.tail > tail {
            self.tail -= 1;
            self.ring[(self.tail % self.capacity) as usize].settle();
        }
    }

    /// The work request of this running number, if it is posted.
    pub fn get(&self, number: u64) -> Option<Wqe> {
        (number < self.tail).then(|| self.ring[(number % self.capacity) as usize])
    }

    /// Appends a work request. The caller has seen that there is room.
    ///
    /// # Safety
    /// The data is readable and within the queue's limits.
    pub unsafe fn push(&mut self, mut wqe: Wqe, data: Data<'_>) {
        let slot = (self.tail % self.capacity) as usize;
        let list = slot * self.max_sge as usize;
        match data {
            Data::None => {}
            Data::List(from) => {
                for (i, s) in from.iter().enumerate() {
                    self.sges[list + i] = Sge { addr: s.addr, length: s.length, lkey: s.lkey };
                    wqe.length += u64::from(s.length);
                }
                wqe.sges = self.sges[list..].as_ptr();
                wqe.num_sge = from.len() as u32;
            }
            Data::Inline(from) => {
                for b in from {
                    unsafe { self.put_inline(slot, &mut wqe, b.addr.cast(), b.length) };
                }
                wqe.inline = Some(self.inline[slot * self.max_inline as usize..].as_ptr());
            }
            Data::InlineList(from) => {
                for s in from {
                    let at = s.addr as *const u8;
                    unsafe { self.put_inline(slot, &mut wqe, at, s.length as usize) };
                }
                wqe.inline = Some(self.inline[slot * self.max_inline as usize..].as_ptr());
            }
        }
        if slot == self.ring.len() {
            self.ring.push(wqe);
        } else {
            self.ring[slot] = wqe;
        }
        self.tail += 1;
    }

    unsafe fn put_inline(&mut self, slot: usize, wqe: &mut Wqe, from: *const u8, n: usize) {
        if n == 0 {
            return;
        }
        let start = slot * self.max_inline as usize + wqe.length as usize;
        // SAFETY: by the contract of `push`.
        let from = unsafe { std::slice::from_raw_parts(from, n) };
        self.inline[start..start + n].copy_from_slice(from);
        wqe.length += n as u64;
    }
}

/// The objects that a bind names, as far as they are alive.
///
/// # Safety
/// The pointers are NULL or came from this device.
pub unsafe fn bind_of(mw: *mut ibv_mw, new_rkey: u32, info: &ibv_mw_bind_info) -> Bind {
    let window = unsafe { object::get::<Mw>(mw) }.ok();
    let region = match info.mr.is_null() {
        true => None,
        false => unsafe { object::get::<Mr>(info.mr) }.ok(),
    };
    Bind {
        window: window.map(|w| (w, w.live().id())),
        old_rkey: window.map_or(0, |w| unsafe { (*w.as_c()).rkey }),
        new_rkey,
        region: region.map(|r| (r, r.live().id())),
        null_region: info.mr.is_null(),
        addr: info.addr,
        length: info.length,
        access: info.mw_access_flags,
        type1: false,
    }
}
