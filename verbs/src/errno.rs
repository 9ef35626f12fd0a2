//! One reading of the return codes of verbs.
//!
//! A verbs call says "failed" in three ways: a positive errno value (what the manual pages
//! promise), a negative one (siw), or −1 with the value in `errno`. Everything above this
//! module sees a positive errno value and nothing else.

use libc::c_int;

/// This thread's `errno`.
#[inline]
pub fn errno() -> c_int {
    // SAFETY: the location is this thread's own and valid as long as the thread lives.
    unsafe { *libc::__errno_location() }
}

/// Sets this thread's `errno`.
#[inline]
pub fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value }
}

/// The positive errno value that a verbs call's return code stands for; 0 for 0 and for nothing
/// else.
///
/// Read it before anything else can change `errno`: −1 takes its meaning from there. With
/// `errno` at 0 the −1 is taken as a negative errno value like any other, EPERM.
#[inline]
pub fn errno_of(ret: c_int) -> c_int {
    match ret {
        -1 => match errno() {
            0 => libc::EPERM,
            e => e,
        },
        ret if ret >= 0 => ret,
        ret => ret.checked_neg().unwrap_or(libc::EIO),
    }
}

/// Makes a call whose return code is 0 or an error in any of the three ways.
///
/// `errno` is 0 during the call, so that an older value is not taken for this call's; a call
/// that succeeds leaves it as it was.
#[inline]
pub(crate) fn checked(call: impl FnOnce() -> c_int) -> Result<(), c_int> {
    let before = errno();
    set_errno(0);
    match errno_of(call()) {
        0 => {
            set_errno(before);
            Ok(())
        }
        e => Err(e),
    }
}

/// Makes a call that returns a pointer, or NULL with `errno` set; EIO if a provider left
/// `errno` alone.
pub(crate) fn checked_ptr<T>(call: impl FnOnce() -> *mut T) -> Result<std::ptr::NonNull<T>, c_int> {
    let before = errno();
    set_errno(0);
    match std::ptr::NonNull::new(call()) {
        Some(p) => {
            set_errno(before);
            Ok(p)
        }
        None => Err(match errno() {
            0 => libc::EIO,
            e => e.checked_abs().unwrap_or(libc::EIO),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_convention_reads_as_a_positive_errno() {
        assert_eq!(errno_of(0), 0);
        assert_eq!(errno_of(libc::ENOMEM), libc::ENOMEM);
        assert_eq!(errno_of(-libc::ENOMEM), libc::ENOMEM);
        set_errno(libc::EAGAIN);
        assert_eq!(errno_of(-1), libc::EAGAIN);
        set_errno(0);
        assert_eq!(errno_of(-1), libc::EPERM);
        assert_eq!(errno_of(c_int::MIN), libc::EIO);
    }

    #[test]
    fn an_older_errno_is_not_taken_for_the_call_s() {
        set_errno(libc::EAGAIN);
        assert_eq!(checked(|| -1), Err(libc::EPERM));
        set_errno(libc::EAGAIN);
        assert_eq!(checked(|| 0), Ok(()));
        assert_eq!(errno(), libc::EAGAIN);
        assert_eq!(checked_ptr(std::ptr::null_mut::<u8>), Err(libc::EIO));
        let mut x = 0u8;
        set_errno(libc::EINTR);
        assert!(checked_ptr(|| &mut x).is_ok());
        assert_eq!(errno(), libc::EINTR);
    }
}
