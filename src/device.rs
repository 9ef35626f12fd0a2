//! The application's verbs objects as the core sees them.
//!
//! Whoever makes one of these values vouches for the object: that it lives until it is detached
//! here, as `mwctl.h` demands at attach. Under that contract every method is safe; it is the only
//! module of the core that calls `verbs`.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use verbs::{ibv_context, ibv_cq, ibv_cq_ex, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_qp_ex, ibv_send_wr, ibv_wc};

macro_rules! object {
    ($(#[$doc:meta])* $name:ident of $raw:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(NonNull<$raw>);

        // SAFETY: verbs objects are thread-safe; where an application took the locks away, the
        // peer's declared owner thread is the only one that gets here.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// # Safety
            /// The object must live until it is detached.
            pub unsafe fn new(raw: NonNull<$raw>) -> Self {
                $name(raw)
            }

            pub fn raw(self) -> *mut $raw {
                self.0.as_ptr()
            }
        }
    };
}

object!(Device of ibv_context);
object!(Pd of ibv_pd);
object!(Mr of ibv_mr);
object!(Cq of ibv_cq);
object!(Qp of ibv_qp);

/// A window of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mw(NonNull<ibv_mw>);

/// A positive errno value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Device {
    pub fn query(self) -> Result<verbs::ibv_device_attr, Errno> {
        // SAFETY: the context lives.
        unsafe { verbs::query_device(self.raw()) }.map_err(Errno)
    }

    pub fn name(self) -> String {
        // SAFETY: the context and its device live.
        let name: Option<&CStr> = unsafe { verbs::get_device_name((*self.raw()).device) };
        name.map_or_else(String::new, |n| n.to_string_lossy().into_owned())
    }

    pub fn alloc_pd(self) -> Result<Pd, Errno> {
        // SAFETY: the context lives.
        unsafe { verbs::alloc_pd(self.raw()) }.map(Pd).map_err(Errno)
    }
}

impl Pd {
    pub fn dealloc(self) -> Result<(), Errno> {
        // SAFETY: only called on a PD that `alloc_pd` made.
        unsafe { verbs::dealloc_pd(self.raw()) }.map_err(Errno)
    }

    pub fn handle(self) -> u32 {
        // SAFETY: the PD lives.
        unsafe { (*self.raw()).handle }
    }

    pub fn device(self) -> *mut ibv_context {
        // SAFETY: the PD lives.
        unsafe { (*self.raw()).context }
    }

    /// A Type 2 window and the rkey that it was allocated with. A kernel call.
    pub fn alloc_mw(self) -> Result<(Mw, u32), Errno> {
        // SAFETY: the PD lives.
        let mw = unsafe { verbs::alloc_mw(self.raw(), verbs::IBV_MW_TYPE_2) }.map_err(Errno)?;
        // SAFETY: just allocated.
        Ok((Mw(mw), unsafe { mw.as_ref() }.rkey))
    }

    /// Registers memory of ours under its own address.
    pub fn register(self, addr: *mut libc::c_void, length: usize, access: u32) -> Result<Mr, Errno> {
        // SAFETY: the PD lives, the caller owns the memory.
        unsafe { verbs::reg_mr(self.raw(), addr, length, access) }.map(Mr).map_err(Errno)
    }
}

/// What an MR says of itself, beside its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrMarks {
    handle: u32,
    lkey: u32,
    addr: u64,
    length: u64,
}

/// What a QP says of itself, beside its address and number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpMarks {
    handle: u32,
    places: [usize; 3],
}

impl Mr {
    pub fn marks(self) -> MrMarks {
        // SAFETY: the region lives.
        let mr = unsafe { &*self.raw() };
        MrMarks { handle: mr.handle, lkey: mr.lkey, addr: mr.addr as u64, length: mr.length as u64 }
    }

    pub fn deregister(self) -> Result<(), Errno> {
        // SAFETY: the caller's, or one that `register` made; nobody uses it any more.
        unsafe { verbs::dereg_mr(self.raw()) }.map_err(Errno)
    }

    pub fn device(self) -> *mut ibv_context {
        // SAFETY: the region lives.
        unsafe { (*self.raw()).context }
    }

    pub fn pd(self) -> *mut ibv_pd {
        // SAFETY: the region lives.
        unsafe { (*self.raw()).pd }
    }

    pub fn rkey(self) -> u32 {
        // SAFETY: the region lives.
        unsafe { (*self.raw()).rkey }
    }

    /// lkey, address and length as registered.
    pub fn extent(self) -> (u32, u64, u64) {
        // SAFETY: the region lives.
        let mr = unsafe { &*self.raw() };
        (mr.lkey, mr.addr as u64, mr.length as u64)
    }
}

/// What a program that is changed over by `mwctl_compat.h` does with its own objects.
impl Device {
    pub fn close(self) -> Result<(), Errno> {
        // SAFETY: the application closes it, and uses it no more.
        unsafe { verbs::close_device(self.raw()) }.map_err(Errno)
    }

    pub fn create_cq(
        self,
        cqe: i32,
        context: *mut libc::c_void,
        channel: *mut verbs::ibv_comp_channel,
        vector: i32,
    ) -> Result<Cq, Errno> {
        // SAFETY: the context lives; the rest is the application's.
        unsafe { verbs::create_cq(self.raw(), cqe, context, channel, vector) }.map(Cq).map_err(Errno)
    }
}

impl Pd {
    pub fn register_iova(
        self,
        addr: *mut libc::c_void,
        length: usize,
        iova: u64,
        access: u32,
    ) -> Result<Mr, Errno> {
        // SAFETY: the PD lives; the memory is the application's.
        unsafe { verbs::reg_mr_iova(self.raw(), addr, length, iova, access) }.map(Mr).map_err(Errno)
    }

    pub fn create_qp(self, attr: &mut verbs::ibv_qp_init_attr) -> Result<Qp, Errno> {
        // SAFETY: the PD lives; the attributes are the application's.
        unsafe { verbs::create_qp(self.raw(), attr) }.map(Qp).map_err(Errno)
    }
}

impl Cq {
    pub fn resize(self, cqe: i32) -> Result<(), Errno> {
        // SAFETY: the CQ lives.
        unsafe { verbs::resize_cq(self.raw(), cqe) }.map_err(Errno)
    }

    pub fn destroy(self) -> Result<(), Errno> {
        // SAFETY: the application destroys it, and uses it no more.
        unsafe { verbs::destroy_cq(self.raw()) }.map_err(Errno)
    }
}

impl Qp {
    pub fn device(self) -> *mut ibv_context {
        // SAFETY: the QP lives.
        unsafe { (*self.raw()).context }
    }

    pub fn modify(self, attr: &mut verbs::ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        // SAFETY: the QP lives.
        unsafe { verbs::modify_qp(self.raw(), attr, mask) }.map_err(Errno)
    }

    pub fn destroy(self) -> Result<(), Errno> {
        // SAFETY: the application destroys it, and uses it no more.
        unsafe { verbs::destroy_qp(self.raw()) }.map_err(Errno)
    }
}

/// A window of the application's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnMw(NonNull<ibv_mw>);

impl OwnMw {
    /// # Safety
    /// The window must live.
    pub unsafe fn new(raw: NonNull<ibv_mw>) -> Self {
        OwnMw(raw)
    }

    pub fn alloc(pd: Pd, mw_type: u32) -> Result<OwnMw, Errno> {
        // SAFETY: the PD lives.
        unsafe { verbs::alloc_mw(pd.raw(), mw_type) }.map(OwnMw).map_err(Errno)
    }

    pub fn raw(self) -> *mut ibv_mw {
        self.0.as_ptr()
    }

    pub fn bind(self, qp: Qp, bind: &mut verbs::ibv_mw_bind) -> Result<(), Errno> {
        // SAFETY: the objects live.
        unsafe { verbs::bind_mw(qp.raw(), self.raw(), bind) }.map_err(Errno)
    }

    pub fn dealloc(self) -> Result<(), Errno> {
        // SAFETY: the application deallocates it, and uses it no more.
        unsafe { verbs::dealloc_mw(self.raw()) }.map_err(Errno)
    }
}

impl Mw {
    pub fn from_raw(raw: *mut ibv_mw) -> Option<Mw> {
        NonNull::new(raw).map(Mw)
    }

    pub fn raw(self) -> *mut ibv_mw {
        self.0.as_ptr()
    }

    /// Deallocates the window. A kernel call; it needs no send queue.
    pub fn dealloc(self) -> Result<(), Errno> {
        // SAFETY: windows are ours; a window's slot is emptied before its object goes.
        unsafe { verbs::dealloc_mw(self.raw()) }.map_err(Errno)
    }

    /// Tells the provider which key the window has now: a bind is checked against it.
    pub fn set_current_rkey(self, rkey: u32) {
        // SAFETY: windows are ours, and only the owner of a free one gets here.
        unsafe { (*self.raw()).rkey = rkey };
    }
}

/// How a post ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    All,
    /// So many of the chain's first work requests were queued, the rest were not.
    Part(usize, Errno),
    /// The provider reports an error and doesn't say where: any number may be queued.
    Unclear(Errno),
}

/// What the library needs to know of a QP.
pub struct QpFacts {
    pub qp_type: u32,
    pub state: u32,
    pub access: u32,
    pub max_send_wr: u32,
    pub signal_all: bool,
}

impl Qp {
    pub fn number(self) -> u32 {
        // SAFETY: the QP lives.
        unsafe { (*self.raw()).qp_num }
    }

    pub fn pd(self) -> *mut ibv_pd {
        // SAFETY: the QP lives.
        unsafe { (*self.raw()).pd }
    }

    pub fn marks(self) -> QpMarks {
        // SAFETY: the QP lives.
        let qp = unsafe { &*self.raw() };
        QpMarks { handle: qp.handle, places: [qp.pd as usize, qp.send_cq as usize, qp.recv_cq as usize] }
    }

    pub fn send_cq(self) -> Option<Cq> {
        // SAFETY: the QP lives.
        NonNull::new(unsafe { (*self.raw()).send_cq }).map(Cq)
    }

    pub fn recv_cq(self) -> Option<Cq> {
        // SAFETY: the QP lives.
        NonNull::new(unsafe { (*self.raw()).recv_cq }).map(Cq)
    }

    /// Whether it was made by `ibv_create_qp_ex` with `send_ops_flags`.
    pub fn is_extended(self) -> bool {
        // SAFETY: the QP lives.
        unsafe { verbs::qp_to_qp_ex(self.raw()) }.is_some()
    }

    /// A kernel call on most devices.
    pub fn query(self) -> Result<QpFacts, Errno> {
        let mask = verbs::IBV_QP_STATE | verbs::IBV_QP_ACCESS_FLAGS | verbs::IBV_QP_CAP;
        // SAFETY: the QP lives.
        let (attr, init) = unsafe { verbs::query_qp(self.raw(), mask) }.map_err(Errno)?;
        Ok(QpFacts {
            qp_type: init.qp_type,
            state: attr.qp_state,
            access: attr.qp_access_flags,
            max_send_wr: init.cap.max_send_wr,
            signal_all: init.sq_sig_all != 0,
        })
    }

    /// A kernel call. It tells the peer nothing.
    pub fn move_to_err(self) -> Result<(), Errno> {
        // SAFETY: the QP lives.
        unsafe { verbs::modify_qp_to_err(self.raw()) }.map_err(Errno)
    }

    /// Links the work requests in order and posts them: one doorbell.
    pub fn post(self, chain: &mut [ibv_send_wr]) -> Posted {
        link(chain);
        let first = chain.as_mut_ptr();
        // SAFETY: the QP lives, the chain is linked within the slice and ends with NULL.
        match unsafe { verbs::post_send(self.raw(), first) } {
            Ok(()) => Posted::All,
            Err(error) => match position(chain, error.bad_wr) {
                Some(at) => Posted::Part(at, Errno(error.errno)),
                None => Posted::Unclear(Errno(error.errno)),
            },
        }
    }
}

/// Makes a chain of the slice: each work request's `next` is its neighbour.
pub fn link(chain: &mut [ibv_send_wr]) {
    let mut next = std::ptr::null_mut();
    for wr in chain.iter_mut().rev() {
        wr.next = next;
        next = wr;
    }
}

/// Where in the slice a pointer points.
fn position(chain: &[ibv_send_wr], wr: *const ibv_send_wr) -> Option<usize> {
    let offset = (wr as usize).checked_sub(chain.as_ptr() as usize)?;
    let at = offset / std::mem::size_of::<ibv_send_wr>();
    (offset % std::mem::size_of::<ibv_send_wr>() == 0 && at < chain.len()).then_some(at)
}

impl Cq {
    pub fn device(self) -> *mut ibv_context {
        // SAFETY: the CQ lives.
        unsafe { (*self.raw()).context }
    }

    /// Completions that the queue can hold.
    pub fn entries(self) -> u64 {
        // SAFETY: the CQ lives.
        unsafe { (*self.raw()).cqe }.max(0) as u64
    }

    /// Takes completions off the queue; fewer than there is room for: it was seen empty.
    pub fn poll(self, out: &mut [MaybeUninit<ibv_wc>]) -> Result<usize, Errno> {
        let room = out.len().min(i32::MAX as usize) as i32;
        // SAFETY: the CQ lives and `out` has the room.
        unsafe { verbs::poll_cq(self.raw(), room, out.as_mut_ptr().cast()) }.map_err(Errno)
    }
}

/// What a completion says; on an error only the first three mean anything.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub wr_id: u64,
    pub success: bool,
    /// `None` if its queue was not made to tell.
    pub qp_num: Option<u32>,
    /// A receive's flags; 0 for anything else.
    pub flags: u32,
    /// With the flag that says so: the key that a received SEND_WITH_INV took away.
    pub invalidated: Option<u32>,
}

impl From<&ibv_wc> for Completion {
    fn from(wc: &ibv_wc) -> Self {
        let success = wc.status == verbs::IBV_WC_SUCCESS;
        let received = success && wc.opcode & verbs::IBV_WC_RECV != 0;
        Completion {
            wr_id: wc.wr_id,
            success,
            qp_num: Some(wc.qp_num),
            flags: if received { wc.wc_flags } else { 0 },
            // SAFETY: plain numbers share the union.
            invalidated: Some(unsafe { wc.imm_data_invalidated_rkey_union.invalidated_rkey }),
        }
    }
}

impl Completion {
    /// The one that an extended queue shows.
    ///
    /// # Safety
    /// The caller is between `ibv_start_poll` and `ibv_end_poll` on this queue.
    pub unsafe fn shown_by(cq: NonNull<ibv_cq_ex>) -> Completion {
        // SAFETY: the caller's word.
        let shown = unsafe { verbs::shown(cq) };
        let received = shown.opcode & verbs::IBV_WC_RECV != 0;
        Completion {
            wr_id: shown.wr_id,
            success: shown.status == verbs::IBV_WC_SUCCESS,
            qp_num: shown.qp_num,
            flags: if received { shown.wc_flags } else { 0 },
            invalidated: shown.invalidated_rkey,
        }
    }
}

/// Puts work requests of ours into the batch of an extended QP.
///
/// # Safety
/// The caller is between `ibv_wr_start` and `ibv_wr_complete` on this QP, and the work requests,
/// linked, are prepared and not yet committed.
pub unsafe fn put(qp: NonNull<ibv_qp_ex>, first: *const ibv_send_wr, n: usize) {
    let mut next = first;
    for _ in 0..n {
        // SAFETY: the caller's chain.
        let Some(wr) = (unsafe { next.as_ref() }) else { return };
        // SAFETY: the caller's word.
        unsafe { verbs::wr_put(qp, wr) };
        next = wr.next;
    }
}

/// What an asynchronous event says, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A QP is, or is about to be, in error.
    QpError(u32),
    DeviceFatal,
    Other,
}

impl From<&verbs::ibv_async_event> for AsyncEvent {
    fn from(event: &verbs::ibv_async_event) -> Self {
        match event.event_type as u32 {
            // The last is raised of a QP with a shared receive queue that has gone to ERR.
            verbs::IBV_EVENT_QP_FATAL
            | verbs::IBV_EVENT_QP_REQ_ERR
            | verbs::IBV_EVENT_QP_ACCESS_ERR
            | verbs::IBV_EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: for these events the element is a QP, which lives until the event is
                // acknowledged.
                AsyncEvent::QpError(unsafe { (*event.element.qp).qp_num })
            }
            verbs::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
            _ => AsyncEvent::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_found_only_at_the_start_of_a_work_request() {
        let chain = [verbs::local_inv_wr(0, 0, 1), verbs::local_inv_wr(1, 0, 2)];
        assert_eq!(position(&chain, &chain[1]), Some(1));
        assert_eq!(position(&chain, std::ptr::null()), None);
        assert_eq!(position(&chain, chain.as_ptr().wrapping_add(2)), None);
        assert_eq!(position(&chain, chain.as_ptr().wrapping_byte_add(8)), None);
    }
}
