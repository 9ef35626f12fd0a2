//! The work requests that this project posts.

use crate::{ibv_mr, ibv_mw, ibv_send_wr, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV};
use std::mem::zeroed;

/// A right to bind: which part of which region, for what.
#[derive(Debug, Clone, Copy)]
pub struct BindTarget {
    /// Never NULL, not even to unbind: some drivers dereference it.
    pub mr: *mut ibv_mr,
    /// In the region's iova space.
    pub addr: u64,
    /// At least 1.
    pub length: u64,
    /// `IBV_ACCESS_REMOTE_*`.
    pub access: u32,
}

fn blank(wr_id: u64, opcode: u32, send_flags: u32) -> ibv_send_wr {
    // SAFETY: a plain C struct of numbers, pointers and unions of them. All of it is zero, the
    // unused parts of the unions too: rxe refuses a bind whose imm_data or num_sge isn't 0.
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.send_flags = send_flags;
    wr
}

/// Binds a Type 2 window, which must be free, under `rkey`: its current key with other low 8
/// bits.
///
/// The provider reads `mw->rkey` at post time and takes it for the current key: set it before
/// each post, and never post two binds of one window at once.
pub fn bind_wr(wr_id: u64, send_flags: u32, mw: *mut ibv_mw, rkey: u32, target: BindTarget) -> ibv_send_wr {
    let mut wr = blank(wr_id, IBV_WR_BIND_MW, send_flags);
    // SAFETY: every bit pattern of the union's memory is valid for each member; it is all zero.
    let bind = unsafe { &mut wr.bind_mw_tso_union.bind_mw };
    bind.mw = mw;
    bind.rkey = rkey;
    bind.bind_info.mr = target.mr;
    bind.bind_info.addr = target.addr;
    bind.bind_info.length = target.length;
    bind.bind_info.mw_access_flags = target.access;
    wr
}

/// Invalidates `rkey`, the key of a window that is bound to the QP it is posted on.
///
/// Once per bind, never for a window that is free: one kernel panics on that.
pub fn local_inv_wr(wr_id: u64, send_flags: u32, rkey: u32) -> ibv_send_wr {
    let mut wr = blank(wr_id, IBV_WR_LOCAL_INV, send_flags);
    wr.imm_data_invalidated_rkey_union.invalidated_rkey = rkey;
    wr
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IBV_ACCESS_REMOTE_WRITE, IBV_SEND_SIGNALED};

    #[test]
    fn a_bind_carries_its_window_and_nothing_else() {
        let mw = 0x1000 as *mut ibv_mw;
        let target = BindTarget {
            mr: 0x2000 as *mut ibv_mr,
            addr: 0x3000,
            length: 4096,
            access: IBV_ACCESS_REMOTE_WRITE,
        };
        let wr = bind_wr(7, IBV_SEND_SIGNALED, mw, 0xabcd01, target);
        assert_eq!((wr.wr_id, wr.opcode, wr.send_flags), (7, IBV_WR_BIND_MW, IBV_SEND_SIGNALED));
        assert!(wr.next.is_null() && wr.sg_list.is_null() && wr.num_sge == 0);
        let bind = unsafe { wr.bind_mw_tso_union.bind_mw };
        assert_eq!((bind.mw, bind.rkey), (mw, 0xabcd01));
        let info = bind.bind_info;
        assert_eq!((info.mr, info.addr, info.length), (target.mr, 0x3000, 4096));
        assert_eq!(info.mw_access_flags, IBV_ACCESS_REMOTE_WRITE);
        assert_eq!(unsafe { wr.imm_data_invalidated_rkey_union.invalidated_rkey }, 0);
    }

    #[test]
    fn an_invalidate_carries_its_key() {
        let wr = local_inv_wr(9, 0, 0xabcd02);
        assert_eq!((wr.wr_id, wr.opcode, wr.send_flags), (9, IBV_WR_LOCAL_INV, 0));
        assert_eq!(unsafe { wr.imm_data_invalidated_rkey_union.invalidated_rkey }, 0xabcd02);
        assert!(wr.next.is_null() && wr.num_sge == 0);
    }
}
