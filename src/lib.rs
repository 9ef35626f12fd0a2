//! RDMA memory windows for servers: handed out, taken back in microseconds, with proof.
//!
//! The core knows no C; `capi` is its C interface. Application objects come in as the values of
//! `device`; everything that a call hands out is an id.

mod adopt;
mod bind;
mod capi;
mod chain;
mod compat;
mod complete;
mod context;
mod controls;
mod cq;
mod device;
mod domain;
mod event;
mod fence;
mod fork;
mod grant;
mod grid;
mod id;
mod keys;
mod memory;
mod memory_of_keys;
mod op;
mod peer;
mod pool;
mod post;
mod region;
mod revoke;
mod service;
mod slab;
mod stats;
mod status;
mod table;
mod time;
mod transfer;
mod window;
