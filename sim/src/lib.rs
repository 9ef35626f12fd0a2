//! An RDMA device in the process, behind the symbols of libibverbs.
//!
//! The static library of this crate is linked once more, as a `libibverbs.so.1` of its own. A
//! program built for verbs runs on it unchanged; both ends of every connection are in the same
//! process. The device behaves as the standard says, strictly, and where real devices differ as
//! its profile says. `include/mwctl_sim.h` declares what a test can ask of it beside verbs.
//!
//! How a work request travels: `post` checks it and puts it in the ring (`sq`), `engine` runs
//! the ring, `transmit` cuts it in packets and has the peer's half (`rq`) answer each, `keys`
//! decides about every access, `cq` delivers what came of it.

mod async_event;
mod channel;
mod context;
mod counters;
mod cq;
mod cq_ex;
mod device;
mod engine;
mod ext;
mod fault;
mod guard;
mod held;
mod kern;
mod keys;
mod limits;
mod misuse;
mod model;
mod modify;
mod mr;
mod mw;
mod notify;
mod object;
mod owner_lock;
mod pd;
mod post;
mod qp;
mod rq;
mod scatter;
mod sq;
mod srq;
mod state;
mod strings;
mod table;
mod timer;
mod transmit;
mod unsupported;
