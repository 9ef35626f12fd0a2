//! A race in what a OnceLock holds, for control.c: no suppression may hide it.
// SPDX-License-Identifier: MIT OR Apache-2.0

use std::cell::UnsafeCell;
use std::sync::OnceLock;

struct Shared(UnsafeCell<u64>);

// SAFETY: none. It is a lie: nothing orders those who write.
unsafe impl Sync for Shared {}

static ONCE: OnceLock<Box<Shared>> = OnceLock::new();

/// Writes what two threads share behind a OnceLock that either may have filled.
#[no_mangle]
pub extern "C" fn control_write_once(value: u64) {
    let shared = ONCE.get_or_init(|| Box::new(Shared(UnsafeCell::new(0))));
    // SAFETY: none, as above.
    unsafe { shared.0.get().write_volatile(value) };
}
