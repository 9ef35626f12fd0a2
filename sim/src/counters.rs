//! What the device has seen.
//!
//! Every field of `struct mwctl_sim_counters` is a `u64`, so the counters are one array, indexed
//! by the field's place. Threads count in shards of their own: two clients that write through two
//! queue pairs must not fight over a cache line.

use libc::{c_int, size_t};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

pub const POSTS: usize = 0;
/// By opcode.
pub const SEND_WRS: usize = 1;
pub const OPCODES: usize = 16;
pub const RECV_WRS: usize = 17;
pub const POLLS: usize = 18;
pub const COMPLETIONS: usize = 19;
pub const ERROR_COMPLETIONS: usize = 20;
pub const FLUSHED: usize = 21;
pub const PACKETS: usize = 22;
pub const PACKETS_DENIED: usize = 23;
pub const BYTES_WRITTEN: usize = 24;
pub const BYTES_READ: usize = 25;
pub const RNR_NAKS: usize = 26;
pub const ASYNC_EVENTS: usize = 27;
pub const MW_ALLOCATED: usize = 28;
pub const MW_DEALLOCATED: usize = 29;
pub const MW_BINDS: usize = 30;
pub const MW_INVALIDATES: usize = 31;
pub const QP_MODIFIES: usize = 32;
pub const QP_QUERIES: usize = 33;
pub const MR_REGISTERED: usize = 34;
pub const MR_DEREGISTERED: usize = 35;
pub const MISUSE: usize = 36;
pub const UNSUPPORTED: usize = 37;
pub const FAULTS_HIT: usize = 38;
pub const FIELDS: usize = 39;

const SHARDS: usize = 16;

#[repr(align(128))]
struct Shard([AtomicU64; FIELDS]);

#[allow(clippy::declare_interior_mutable_const)] // only ever an initializer
const ZERO: AtomicU64 = AtomicU64::new(0);
#[allow(clippy::declare_interior_mutable_const)]
const EMPTY: Shard = Shard([ZERO; FIELDS]);

static COUNTS: [Shard; SHARDS] = [EMPTY; SHARDS];
/// What a reset subtracts: the shards themselves only ever grow.
static BASELINE: [AtomicU64; FIELDS] = [ZERO; FIELDS];
static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn shard() -> usize {
    SHARD.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT_SHARD.fetch_add(1, Relaxed) % SHARDS);
        }
        mine.get()
    })
}

pub fn add(field: usize, n: u64) {
    COUNTS[shard()].0[field].fetch_add(n, Relaxed);
}

pub fn bump(field: usize) {
    add(field, 1);
}

/// Notes a call of libibverbs that the device does not do.
pub fn unsupported(_name: &'static str) {
    bump(UNSUPPORTED);
}

fn total(field: usize) -> u64 {
    COUNTS.iter().map(|s| s.0[field].load(Relaxed)).sum()
}

/// The counts since the last reset.
pub fn snapshot() -> [u64; FIELDS] {
    std::array::from_fn(|i| total(i).wrapping_sub(BASELINE[i].load(Relaxed)))
}

/// # Safety
/// `out` must be writable for `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn mwctl_sim_counters_get(out: *mut u64, size: size_t) -> c_int {
    if out.is_null() {
        return libc::EINVAL;
    }
    let now = snapshot();
    let bytes = size.min(std::mem::size_of_val(&now));
    // SAFETY: `out` has room for `size` bytes, and no more than the array holds are copied.
    unsafe { std::ptr::copy_nonoverlapping(now.as_ptr().cast::<u8>(), out.cast::<u8>(), bytes) };
    0
}

#[no_mangle]
pub extern "C" fn mwctl_sim_counters_reset() {
    for (i, base) in BASELINE.iter().enumerate() {
        base.store(total(i), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_starts_again_from_zero() {
        add(RECV_WRS, 5);
        mwctl_sim_counters_reset();
        bump(RECV_WRS);
        assert_eq!(snapshot()[RECV_WRS], 1);
    }

    #[test]
    fn a_short_buffer_is_not_overrun() {
        let mut out = [u64::MAX; FIELDS];
        assert_eq!(unsafe { mwctl_sim_counters_get(out.as_mut_ptr(), 20) }, 0);
        assert_eq!(out[3], u64::MAX);
        assert_eq!(unsafe { mwctl_sim_counters_get(std::ptr::null_mut(), 8) }, libc::EINVAL);
    }
}
