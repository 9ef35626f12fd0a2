//! A context: one `ibv_context` under management, and the tables that everything under it shares.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::adopt::Adopted;
use crate::chain::{Chain, MAX_CHAINS, RESTING_CHAINS, Work, WrIds};
use crate::cq::Queues;
use crate::device::{Device, Errno};
use crate::domain::Domain;
use crate::event::{Event, Signal};
use crate::id;
use crate::keys::Random;
use crate::memory_of_keys::MemoryOfKeys;
use crate::op::Op;
use crate::peer::Peer;
use crate::region::Region;
use crate::service::Service;
use crate::slab::{Index24, Recycled, Slab};
use crate::stats::Counters;
use crate::status::{Result, Status};
use crate::window::{MAX_OPS, OpId, Waiter, Window};

/// Bytes that one bind may cover: what every provider accepts.
pub const MAX_BIND: u64 = 2 << 30;
pub const DEFAULT_TIMEOUT_US: u64 = 1_000_000;

const MAX_PEERS: usize = 1 << 20;
/// Numbers of peers, regions and operations rest so long before they are used again.
const REST: usize = 64;

/// A line for the application's log: severity and text.
pub type Log = Box<dyn Fn(Severity, &str) + Send + Sync>;
/// Something that happened and that no call of the application's asked for.
pub type OnEvent = Box<dyn Fn(Event) + Send + Sync>;

#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Error = 0,
    Warning = 1,
}

#[derive(Default)]
pub struct ContextOptions {
    /// 0: `DEFAULT_TIMEOUT_US`.
    pub timeout_us: u64,
    pub log: Option<Log>,
    pub on_event: Option<OnEvent>,
}

/// What was tried out on the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capabilities {
    /// A Type 2 window could be allocated.
    pub type2: bool,
    pub max_mw: u32,
    /// Rights that a window carries.
    pub rights: u32,
    /// A LOCAL_INV's completion means that the host's memory is at rest. On a device without it a
    /// byte may change a moment after the proof: what is proved is that no access starts.
    pub memory_at_rest: bool,
    /// The completion flags by which a receive tells of a SEND_WITH_INV.
    pub invalidated_flags: u32,
    /// An error of `ibv_wr_complete` means that nothing of the batch was posted.
    pub exact_batches: bool,
}

pub struct Context {
    _claim: Claim,
    pub device: Device,
    pub capabilities: Capabilities,
    pub timeout_us: u64,
    log: Option<Log>,
    pub on_event: Option<OnEvent>,

    pub windows: Slab<Window>,
    pub empty_windows: Mutex<Vec<u32>>,
    /// The windows by the upper 24 bits of their rkey.
    pub rkeys: Index24,
    pub peers: Recycled<Peer>,
    /// The peers by QP number.
    pub qps: Index24,
    pub domains: Recycled<Domain>,
    pub regions: Recycled<Region>,
    pub chains: Recycled<Chain>,
    pub ops: Recycled<Op>,
    pub queues: Queues,
    pub wr_ids: WrIds,
    salt: u32,

    pub signal: Signal,
    /// Peers with windows to deallocate.
    pub to_fence: Mutex<std::collections::VecDeque<u32>>,
    /// Grants' items of transfers whose turn has come.
    pub to_bind: Mutex<std::collections::VecDeque<Waiter>>,
    /// Operations whose callback is due.
    pub to_call: Mutex<std::collections::VecDeque<OpId>>,
    pub events: Mutex<std::collections::VecDeque<Event>>,
    /// Chains that were given up, for their late completions.
    pub dropped: Mutex<std::collections::VecDeque<u32>>,
    /// More chains were given up than are remembered.
    pub forgets_chains: AtomicBool,
    /// Peers for whom there is room now: what waits in their lines goes out after a look at what their
    /// clients did.
    pub to_pump: Mutex<std::collections::VecDeque<u32>>,
    /// A post was refused for lack of room.
    pub wants_retry: AtomicBool,
    /// The peers that this is about.
    pub to_retry: Mutex<std::collections::VecDeque<u32>>,
    /// Some domain's pool ran low.
    pub wants_refill: AtomicBool,
    /// The earliest deadline of an operation under way; too early does no harm.
    pub next_deadline: AtomicU64,
    /// Held while that is made anew, and by whoever must not miss it.
    pub looking: Mutex<()>,
    /// A device-fatal event was seen: what drivers report as success may be made up.
    pub fatal: AtomicBool,
    poisoned: AtomicBool,

    /// Some peer has a thread of its own that polls or posts.
    pub thread_rules: AtomicBool,
    /// Held while a peer or the application's region is entered, so that none is entered twice.
    pub attaching: Mutex<()>,
    pub service: Mutex<Option<Service>>,
    /// There is no service any more.
    pub service_ended: Condvar,
    /// Held while a domain is opened on the way, so that no PD gets two.
    pub adopting: Mutex<()>,
    pub adopted: Mutex<Adopted>,

    pub counters: Counters,
    pub random: Mutex<Random>,
    pub memory_of_keys: Mutex<MemoryOfKeys>,
    /// Work requests are built here; taken and put back, so that few are made.
    pub scratch: Mutex<Vec<Vec<verbs::ibv_send_wr>>>,
    /// Works of a chain, likewise.
    pub works: Mutex<Vec<Vec<Work>>>,
    /// Windows of a range are gathered here, likewise.
    pub gathered: Mutex<Vec<Vec<(u32, u32)>>>,
}

// SAFETY: the work requests in `scratch` hold pointers only while a post builds them.
unsafe impl Send for Context {}
// SAFETY: as above; everything else is shared by its own means.
unsafe impl Sync for Context {}

impl Context {
    /// May wait: tries the device out.
    pub fn open(device: Device, options: ContextOptions) -> Result<Context> {
        let claim = Claim::new(device).ok_or(Status::AlreadyAttached)?;
        let capabilities = probe(device)?;
        let mut random = Random::seeded();
        Ok(Context {
            _claim: claim,
            device,
            capabilities,
            timeout_us: if options.timeout_us == 0 { DEFAULT_TIMEOUT_US } else { options.timeout_us },
            log: options.log,
            on_event: options.on_event,
            windows: Slab::new(id::MAX_INDEX),
            empty_windows: Mutex::default(),
            rkeys: Index24::new(),
            peers: Recycled::new(MAX_PEERS, REST),
            qps: Index24::new(),
            domains: Recycled::new(MAX_PEERS, 0),
            regions: Recycled::new(MAX_PEERS, 0),
            chains: Recycled::new(MAX_CHAINS, RESTING_CHAINS),
            ops: Recycled::new(MAX_OPS, 0),
            queues: Queues::default(),
            wr_ids: WrIds::new(random.next()),
            salt: random.next() as u32,
            signal: Signal::new().ok_or(Status::NoMemory)?,
            to_fence: Mutex::default(),
            to_bind: Mutex::default(),
            to_call: Mutex::default(),
            events: Mutex::default(),
            dropped: Mutex::default(),
            forgets_chains: AtomicBool::new(false),
            to_pump: Mutex::default(),
            wants_retry: AtomicBool::new(false),
            to_retry: Mutex::default(),
            wants_refill: AtomicBool::new(false),
            next_deadline: AtomicU64::new(u64::MAX),
            looking: Mutex::default(),
            fatal: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            thread_rules: AtomicBool::new(false),
            attaching: Mutex::default(),
            service: Mutex::default(),
            service_ended: Condvar::default(),
            adopting: Mutex::default(),
            adopted: Mutex::default(),
            counters: Counters::default(),
            random: Mutex::new(random),
            memory_of_keys: Mutex::default(),
            scratch: Mutex::default(),
            works: Mutex::default(),
            gathered: Mutex::default(),
        })
    }

    /// Refused while a domain is open.
    pub fn check_closable(&self) -> Result<()> {
        let open = (0..self.domains.len() as u32).any(|d| self.domains.at(d).body.lock().pd.is_some());
        if open {
            return Err(Status::Busy);
        }
        Ok(())
    }

    pub fn op(&self, op: OpId) -> &Op {
        self.ops.at(op.index)
    }

    /// An id of this context. Its generation is mixed with a random number of the context, so that
    /// another's id is stale here.
    pub fn make_id(&self, kind: id::Kind, index: u32, generation: u32) -> u64 {
        id::make(kind, index, generation ^ self.salt)
    }

    /// Index and generation, if the id is of that kind.
    #[inline]
    pub fn parse_id(&self, kind: id::Kind, given: u64) -> Option<(u32, u32)> {
        id::parse(kind, given).map(|(index, generation)| (index, generation ^ self.salt))
    }

    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// An internal error was caught: no call is answered any more, nothing is reported proved.
    pub fn poison_by(&self, panic: &(dyn std::any::Any + Send)) {
        self.poisoned.store(true, Ordering::Release);
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        self.log(Severity::Error, format_args!("internal error: {}", text.unwrap_or("no text")));
    }

    pub fn log(&self, severity: Severity, text: std::fmt::Arguments) {
        if let Some(log) = &self.log {
            log(severity, &text.to_string());
        }
    }

    /// The deadline of a call that begins now, 0 standing for the context's default.
    pub fn deadline(&self, begun: u64, timeout_us: u64) -> u64 {
        crate::time::later_ns(begun, if timeout_us == 0 { self.timeout_us } else { timeout_us })
    }
}

/// The devices under management in this process. Two contexts for one would not know each other's
/// completions.
static CLAIMED: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// A device's entry there.
struct Claim(Device);

impl Claim {
    fn new(device: Device) -> Option<Claim> {
        let mut claimed = CLAIMED.lock();
        if claimed.contains(&device) {
            return None;
        }
        claimed.push(device);
        Some(Claim(device))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.lock().retain(|device| *device != self.0);
    }
}

/// rdma_rxe reports this vendor; neither its LOCAL_INV nor its deallocation waits for a copy
/// under way.
const VENDOR_RXE: u32 = 0xff_ffff;
/// mlx5 refuses a bind with the right to atomics.
const VENDOR_MELLANOX: u32 = 0x02c9;

fn probe(device: Device) -> Result<Capabilities> {
    let attr = device.query().map_err(|_| Status::VerbsError)?;
    let pd = device.alloc_pd().map_err(|_| Status::VerbsError)?;
    let allocated = pd.alloc_mw();
    let freed = allocated.map_or(Ok(()), |(mw, _)| mw.dealloc().or_else(|_| mw.dealloc()));
    freed.and_then(|()| pd.dealloc()).map_err(|_| Status::VerbsError)?;
    let type2 = match allocated {
        Ok(_) => true,
        Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)) => false,
        // Full, not incapable.
        Err(_) => attr.device_cap_flags & verbs::IBV_DEVICE_MEM_WINDOW_TYPE_2B != 0,
    };
    let flags = attr.device_cap_flags;
    let declared = flags & (verbs::IBV_DEVICE_MEM_WINDOW_TYPE_2B | verbs::IBV_DEVICE_MEM_WINDOW_TYPE_2A) != 0;
    let rxe = attr.vendor_id == VENDOR_RXE || device.name().starts_with("rxe");
    let atomics = if attr.vendor_id == VENDOR_MELLANOX { 0 } else { verbs::IBV_ACCESS_REMOTE_ATOMIC };
    Ok(Capabilities {
        type2: type2 && declared,
        max_mw: attr.max_mw as u32,
        rights: verbs::IBV_ACCESS_REMOTE_WRITE | verbs::IBV_ACCESS_REMOTE_READ | atomics,
        memory_at_rest: !rxe,
        exact_batches: !rxe,
        // rxe hands the kernel's flag to user space, where its number means IP_CSUM_OK; on an RC
        // queue pair that has no meaning of its own.
        invalidated_flags: verbs::IBV_WC_WITH_INV | if rxe { verbs::IBV_WC_IP_CSUM_OK } else { 0 },
    })
}
