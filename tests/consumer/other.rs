//! A second Rust static library for the same program: it brings a copy of Rust's standard library
//! and of the unwinder's personality along, as libmwctl.a does.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{catch_unwind, resume_unwind};

thread_local! {
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// 1 + 2 + … + n, by way of a hash map, a thread and an unwinding stack.
#[no_mangle]
pub extern "C" fn other_rust_sum(n: u32) -> u32 {
    let numbers: HashMap<u32, u32> = (1..=n).map(|i| (i, i)).collect();
    let worker = std::thread::spawn(move || {
        LAST.with(|last| last.set(numbers.values().sum()));
        LAST.with(Cell::get)
    });
    let sum = worker.join().unwrap_or(0);
    match catch_unwind(|| resume_unwind(Box::new(sum))) {
        Ok(()) => 0,
        Err(payload) => *payload.downcast::<u32>().unwrap_or_default(),
    }
}
