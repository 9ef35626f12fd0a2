//! The edge to C.

use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs the body of a call. A panic does not cross into C: the call then answers `broken`.
pub fn guard<R>(broken: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(broken)
}

/// For calls that return NULL with errno set.
pub fn guard_ptr<T>(body: impl FnOnce() -> Result<*mut T, libc::c_int>) -> *mut T {
    match guard(Err(libc::EIO), body) {
        Ok(p) => p,
        Err(e) => {
            verbs::set_errno(e);
            std::ptr::null_mut()
        }
    }
}

/// For calls that return 0 or an errno value.
pub fn guard_int(body: impl FnOnce() -> Result<(), libc::c_int>) -> libc::c_int {
    match guard(Err(libc::EIO), body) {
        Ok(()) => 0,
        Err(e) => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_the_error_of_the_call() {
        assert_eq!(guard(-1, || panic!("on purpose")), -1);
        assert_eq!(guard_int(|| panic!("on purpose")), libc::EIO);
        assert!(guard_ptr::<u8>(|| panic!("on purpose")).is_null());
    }
}
