//! Memory that the library maps for a region.

use std::ptr::NonNull;

const HUGE_PAGE: u64 = 2 << 20;

/// An anonymous mapping, unmapped on drop.
pub struct Mapping {
    start: NonNull<libc::c_void>,
    length: usize,
    huge: bool,
}

// SAFETY: a mapping is plain memory, owned by this value.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of at least `length` bytes, on huge pages if asked and to be had. A forked
    /// child does not see it: the device goes on writing to the parent's pages.
    pub fn new(length: u64, huge: bool) -> Option<Mapping> {
        let rounded = usize::try_from(length.checked_next_multiple_of(HUGE_PAGE)?).ok()?;
        let on_huge_pages = huge.then(|| Self::map(rounded, libc::MAP_HUGETLB)).flatten();
        let (start, huge) = match on_huge_pages {
            Some(start) => (start, true),
            None => (Self::map(rounded, 0)?, false),
        };
        // SAFETY: the range was just mapped.
        unsafe { libc::madvise(start.as_ptr(), rounded, libc::MADV_DONTFORK) };
        Some(Mapping { start, length: rounded, huge })
    }

    fn map(length: usize, flags: i32) -> Option<NonNull<libc::c_void>> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh anonymous mapping touches no memory of others.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        (start != libc::MAP_FAILED).then(|| NonNull::new(start)).flatten()
    }

    pub fn addr(&self) -> *mut libc::c_void {
        self.start.as_ptr()
    }

    pub fn is_huge(&self) -> bool {
        self.huge
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours and whole.
        unsafe { libc::munmap(self.start.as_ptr(), self.length) };
    }
}
