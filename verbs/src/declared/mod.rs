//! Our own declarations of verbs' types, for builds without libclang.
//!
//! Names, field names and field types are those of the binding crate, so that code compiles with
//! either; verbs' enumerations are plain numbers there and here. Structures that this project only
//! passes on by pointer are opaque. A test holds sizes, alignments and offsets equal to C's.

mod context;
mod device;
mod objects;
mod work;

pub use context::*;
pub use device::*;
pub use objects::*;
pub use work::*;

/// Declares structures that C may copy freely.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty,)* })*) => { $(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $(pub $field: $ty,)* }
    )* };
}
use structs;

/// Declares structures that are known by pointer only.
macro_rules! opaque {
    ($($name:ident),* $(,)?) => { $(
        #[repr(C)]
        pub struct $name { _opaque: [u8; 0] }
    )* };
}
use opaque;
