//! The monotonic clock in nanoseconds.

use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds since some moment in this process; never 0.
pub fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

/// The moment `timeout_us` microseconds later; far away instead of wrapping.
pub fn later_ns(moment: u64, timeout_us: u64) -> u64 {
    moment.saturating_add(timeout_us.saturating_mul(1000))
}
