//! Tells a forked child: the device's objects belong to the parent.

use std::sync::OnceLock;

/// A page that the kernel zeroes in a child, holding a 1.
struct Mark(*const u8);

// SAFETY: the page is written once, before it is shared, and never unmapped.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

static MARK: OnceLock<Result<Mark, u32>> = OnceLock::new();

fn make() -> Option<Mark> {
    let length = 4096;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh anonymous mapping, written within its bounds.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0);
        if page == libc::MAP_FAILED || libc::madvise(page, length, libc::MADV_WIPEONFORK) != 0 {
            return None;
        }
        page.cast::<u8>().write_volatile(1);
        Some(Mark(page.cast()))
    }
}

/// Called when a context is opened, so that the mark is older than any child that could use it.
pub fn arm() {
    MARK.get_or_init(|| make().ok_or_else(std::process::id));
}

/// Whether this process was forked from the one that armed the mark.
#[inline]
pub fn is_child() -> bool {
    match MARK.get() {
        // A kernel without that: the slow way.
        Some(Err(parent)) => std::process::id() != *parent,
        // SAFETY: the page lives as long as the process.
        Some(Ok(mark)) => unsafe { mark.0.read_volatile() == 0 },
        None => false,
    }
}
