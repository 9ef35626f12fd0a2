//! Rules that a caller broke: what hangs, panics or silently corrupts on some real device.

use crate::counters;
use libc::{c_char, c_int, size_t};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::{self, Write};

/// `enum mwctl_sim_rule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rule {
    InvNotBound = 1,
    InvWrongQp = 2,
    BindValid = 3,
    BindStaleKey = 4,
    BindSameKey = 5,
    BindTwiceInPost = 6,
    BindNullMr = 7,
    BindDirtyWr = 8,
    SendOpsFlags = 9,
    SqOverflow = 10,
    RqOverflow = 11,
    CqOverrun = 12,
    DestroyQpBound = 13,
    DeregMrBound = 14,
    DeallocInvPosted = 15,
    UseAfterFree = 16,
    WrongThread = 17,
    DestroyBusy = 18,
}

const TEXT: usize = 168;

/// `struct mwctl_sim_misuse`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Misuse {
    pub rule: u32,
    pub qp_num: u32,
    pub rkey: u32,
    pub reserved: u32,
    pub text: [c_char; TEXT],
}

/// Enough to show what a test did wrong; a program that breaks rules in a loop must not eat the
/// memory. The counter goes on.
const KEPT: usize = 4096;

static BROKEN: Mutex<VecDeque<Misuse>> = Mutex::new(VecDeque::new());

/// Writes into a fixed array and leaves room for the NUL.
struct Fixed<'a> {
    to: &'a mut [c_char; TEXT],
    used: usize,
}

impl Write for Fixed<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for &b in s.as_bytes() {
            if self.used + 1 < TEXT {
                self.to[self.used] = b as c_char;
                self.used += 1;
            }
        }
        Ok(())
    }
}

pub fn report(rule: Rule, qp_num: u32, rkey: u32, text: fmt::Arguments<'_>) {
    counters::bump(counters::MISUSE);
    let mut one = Misuse { rule: rule as u32, qp_num, rkey, reserved: 0, text: [0; TEXT] };
    let mut to = Fixed { to: &mut one.text, used: 0 };
    // Writing into the array cannot fail.
    let _ = to.write_fmt(text);
    let mut broken = BROKEN.lock();
    if broken.len() < KEPT {
        broken.push_back(one);
    }
}

/// # Safety
/// `out` must be writable for `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn mwctl_sim_misuse_next(out: *mut Misuse, size: size_t) -> c_int {
    if out.is_null() {
        return 0;
    }
    let Some(one) = BROKEN.lock().pop_front() else {
        return 0;
    };
    let bytes = size.min(std::mem::size_of::<Misuse>());
    // SAFETY: `out` has room for `size` bytes, and no more than one report is copied.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::addr_of!(one).cast::<u8>(), out.cast(), bytes) };
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_and_terminated() {
        let mut one = [1 as c_char; TEXT];
        let mut to = Fixed { to: &mut one, used: 0 };
        for _ in 0..100 {
            to.write_str("text ").unwrap();
        }
        assert_eq!(to.used, TEXT - 1);
    }
}
