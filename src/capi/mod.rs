//! The C interface: check, call the core, map the error. One file a noun.
#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)]

// In the header's order; the blank lines keep it.
mod types;

mod context;

mod domain;

mod region;

mod peer;

mod grant;

mod revoke;

mod transfer;

mod prepare;

mod completion;

mod question;

mod adopt;

mod compat;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::context::Context;
use crate::fork;
use crate::status::{Result, Status};

pub use types::mwctl_context;

/// Runs a call's body: refused in a forked child and on a poisoned context; a panic is caught and
/// poisons the context. What another thread's panic may have left undone is nothing to report.
fn enter(ctx: *mut mwctl_context, body: impl FnOnce(&Context) -> Result<()>) -> Status {
    enter_or(ctx, Status::from, |core| match Status::from(body(core)) {
        _ if core.is_poisoned() => Status::Poisoned,
        status => status,
    })
}

/// The same for calls that return something else than a status.
fn enter_or<R>(
    ctx: *mut mwctl_context,
    refused: impl Fn(Status) -> R,
    body: impl FnOnce(&Context) -> R,
) -> R {
    // SAFETY: the header demands a context that mwctl_context_open made and that is not closed.
    let Some(core) = (unsafe { ctx.cast::<Context>().as_ref() }) else {
        return refused(Status::InvalidArgument);
    };
    if fork::is_child() {
        return refused(Status::Forked);
    }
    if core.is_poisoned() {
        return refused(Status::Poisoned);
    }
    match catch_unwind(AssertUnwindSafe(|| body(core))) {
        Ok(result) => result,
        Err(panic) => {
            core.poison_by(&*panic);
            refused(Status::Poisoned)
        }
    }
}

impl From<Result<()>> for Status {
    fn from(result: Result<()>) -> Status {
        result.err().unwrap_or(Status::Ok)
    }
}

/// An array of the caller's. NULL is one of length 0.
unsafe fn array<'a, T>(first: *const T, n: usize) -> Result<&'a [T]> {
    match (first.is_null(), n) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Status::InvalidArgument),
        // SAFETY: the caller vouches for n elements.
        (false, n) => Ok(unsafe { std::slice::from_raw_parts(first, n) }),
    }
}

unsafe fn array_mut<'a, T>(first: *mut T, n: usize) -> Result<&'a mut [T]> {
    match (first.is_null(), n) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Status::InvalidArgument),
        // SAFETY: the caller vouches for n elements.
        (false, n) => Ok(unsafe { std::slice::from_raw_parts_mut(first, n) }),
    }
}

unsafe fn out<'a, T>(place: *mut T) -> Result<&'a mut T> {
    // SAFETY: the caller vouches for the place.
    unsafe { place.as_mut() }.ok_or(Status::InvalidArgument)
}

/// Marks C structs of plain numbers and pointers, for which all zero bytes are the default.
unsafe trait Plain: Copy {}

/// Reads an option struct of the caller's version: what it doesn't have is zero, what we don't
/// have must be.
unsafe fn options<T: Plain>(given: *const T, size: usize) -> Result<T> {
    // SAFETY: plain, by the trait's contract.
    let mut read: T = unsafe { std::mem::zeroed() };
    if given.is_null() {
        return if size == 0 { Ok(read) } else { Err(Status::InvalidArgument) };
    }
    if size == 0 {
        return Err(Status::OptionsSize);
    }
    // SAFETY: the caller vouches for `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(given.cast::<u8>(), size) };
    let known = size.min(std::mem::size_of::<T>());
    if bytes[known..].iter().any(|byte| *byte != 0) {
        return Err(Status::OptionsSize);
    }
    // SAFETY: `known` bytes fit both.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut read).cast::<u8>(), known) };
    Ok(read)
}

/// Fills in a struct of the caller's version; what we don't have is zero.
unsafe fn answer<T: Plain>(place: *mut T, size: usize, value: T) -> Result<()> {
    if place.is_null() || size == 0 {
        return Err(Status::InvalidArgument);
    }
    let known = size.min(std::mem::size_of::<T>());
    // SAFETY: the caller vouches for `size` bytes; `known` fit both.
    unsafe {
        std::ptr::write_bytes(place.cast::<u8>(), 0, size);
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), place.cast::<u8>(), known);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Pair(u32, u32);
    // SAFETY: two numbers.
    unsafe impl Plain for Pair {}

    #[test]
    fn options_of_older_and_newer_callers() {
        let wide = [7u32, 8, 0, 9];
        let read = |size| unsafe { options::<Pair>(wide.as_ptr().cast(), size) };
        assert_eq!(read(4), Ok(Pair(7, 0)));
        assert_eq!(read(8), Ok(Pair(7, 8)));
        assert_eq!(read(12), Ok(Pair(7, 8)));
        assert_eq!(read(16), Err(Status::OptionsSize));
        assert_eq!(read(0), Err(Status::OptionsSize));
        assert_eq!(unsafe { options::<Pair>(std::ptr::null(), 0) }, Ok(Pair(0, 0)));
    }

    #[test]
    fn answers_to_older_and_newer_callers() {
        let mut place = [1u32; 4];
        unsafe { answer(place.as_mut_ptr().cast(), 4, Pair(5, 6)) }.unwrap();
        assert_eq!(place, [5, 1, 1, 1]);
        unsafe { answer(place.as_mut_ptr().cast(), 12, Pair(5, 6)) }.unwrap();
        assert_eq!(place, [5, 6, 0, 1]);
    }
}
