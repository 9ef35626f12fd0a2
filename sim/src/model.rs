//! What costs how long, what the device offers, and the seed of everything random.

use libc::{c_int, size_t};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::Once;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    Strict = 0,
    Rxe = 1,
    Mlx5 = 2,
    NoMw = 3,
    Mana = 4,
    Unpinned = 5,
}

impl Profile {
    fn from_number(n: u32) -> Option<Self> {
        use Profile::*;
        [Strict, Rxe, Mlx5, NoMw, Mana, Unpinned].into_iter().find(|p| *p as u32 == n)
    }

    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "strict" => Profile::Strict,
            "rxe" => Profile::Rxe,
            "mlx5" => Profile::Mlx5,
            "no-mw" => Profile::NoMw,
            "mana" => Profile::Mana,
            "unpinned" => Profile::Unpinned,
            _ => return None,
        })
    }
}

/// `struct mwctl_sim_model`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub seed: u64,
    pub profile: u32,
    pub max_mw: u32,
    pub doorbell_ns: u32,
    pub wr_ns: u32,
    pub packet_ns: u32,
    pub kernel_call_ns: u32,
}

/// The fields that were there in the first version: a caller must give at least these.
const MODEL_SIZE: usize = std::mem::size_of::<Model>();

const DEFAULT_SEED: u64 = 0x6d77_6374_6c5f_7369;

static MODEL: Mutex<Model> = Mutex::new(Model {
    seed: DEFAULT_SEED,
    profile: Profile::Strict as u32,
    max_mw: 0,
    doorbell_ns: 0,
    wr_ns: 0,
    packet_ns: 0,
    kernel_call_ns: 0,
});
static LOADED: Once = Once::new();

// The times again, where the hot paths read them without a lock.
static TIMED: AtomicBool = AtomicBool::new(false);
static DOORBELL_NS: AtomicU32 = AtomicU32::new(0);
static WR_NS: AtomicU32 = AtomicU32::new(0);
static PACKET_NS: AtomicU32 = AtomicU32::new(0);
static KERNEL_NS: AtomicU32 = AtomicU32::new(0);
static RANDOM: AtomicU64 = AtomicU64::new(DEFAULT_SEED);

fn publish(model: &Model) {
    DOORBELL_NS.store(model.doorbell_ns, Relaxed);
    WR_NS.store(model.wr_ns, Relaxed);
    PACKET_NS.store(model.packet_ns, Relaxed);
    KERNEL_NS.store(model.kernel_call_ns, Relaxed);
    let timed = model.doorbell_ns | model.wr_ns | model.packet_ns;
    TIMED.store(timed != 0, Relaxed);
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.ok()
}

/// Reads the environment, once. Every way into the device that depends on the model calls this.
pub fn load() {
    LOADED.call_once(|| {
        let mut model = MODEL.lock();
        if let Some(seed) = from_environment("MWCTL_SIM_SEED") {
            model.seed = seed;
        }
        if let Ok(name) = std::env::var("MWCTL_SIM_PROFILE") {
            match Profile::from_name(&name) {
                Some(profile) => model.profile = profile as u32,
                // A typing error must not turn a test of one profile into a test of another.
                None => eprintln!(
                    "mwctl-sim: MWCTL_SIM_PROFILE={name} is none of strict, rxe, mlx5, no-mw, \
                     mana, unpinned; strict is used"
                ),
            }
        }
        let time = |name, old| match from_environment(name) {
            Some(ns) => ns.min(u64::from(u32::MAX)) as u32,
            None => old,
        };
        model.doorbell_ns = time("MWCTL_SIM_DOORBELL_NS", model.doorbell_ns);
        model.wr_ns = time("MWCTL_SIM_WR_NS", model.wr_ns);
        model.packet_ns = time("MWCTL_SIM_PACKET_NS", model.packet_ns);
        model.kernel_call_ns = time("MWCTL_SIM_KERNEL_NS", model.kernel_call_ns);
        publish(&model);
        RANDOM.store(model.seed, Relaxed);
    });
}

pub fn get() -> Model {
    load();
    *MODEL.lock()
}

pub fn profile() -> Profile {
    Profile::from_number(get().profile).unwrap_or(Profile::Strict)
}

/// Whether work requests take time at all; if not, nothing sleeps and nothing is scheduled.
pub fn timed() -> bool {
    TIMED.load(Relaxed)
}

pub fn doorbell_ns() -> u64 {
    u64::from(DOORBELL_NS.load(Relaxed))
}

pub fn wr_ns() -> u64 {
    u64::from(WR_NS.load(Relaxed))
}

pub fn packet_ns() -> u64 {
    u64::from(PACKET_NS.load(Relaxed))
}

/// The time of a call that goes through the kernel on a real device, spent by the caller.
pub fn kernel_call() {
    let ns = u64::from(KERNEL_NS.load(Relaxed));
    if ns != 0 {
        crate::timer::spend(ns);
    }
}

/// The next number of the seeded sequence (splitmix64).
pub fn random() -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = RANDOM.fetch_add(STEP, Relaxed).wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[no_mangle]
pub extern "C" fn mwctl_sim_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0);
    1_000_000 * part(env!("CARGO_PKG_VERSION_MAJOR"))
        + 1_000 * part(env!("CARGO_PKG_VERSION_MINOR"))
        + part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// # Safety
/// `out` must be writable for `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn mwctl_sim_model_get(out: *mut Model, size: size_t) -> c_int {
    if out.is_null() || size == 0 {
        return libc::EINVAL;
    }
    let now = get();
    let bytes = size.min(MODEL_SIZE);
    // SAFETY: `out` has room for `size` bytes, and no more than the model holds are copied.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::addr_of!(now).cast::<u8>(), out.cast(), bytes) };
    0
}

/// # Safety
/// `model` must be readable for `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn mwctl_sim_model_set(model: *const Model, size: size_t) -> c_int {
    if model.is_null() || size < MODEL_SIZE {
        return libc::EINVAL;
    }
    // SAFETY: at least a whole model is there.
    let new = unsafe { model.read_unaligned() };
    if Profile::from_number(new.profile).is_none() {
        return libc::EINVAL;
    }
    load();
    let mut now = MODEL.lock();
    *now = new;
    publish(&now);
    RANDOM.store(now.seed, Relaxed);
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_of_profiles_agree() {
        let names = ["strict", "rxe", "mlx5", "no-mw", "mana", "unpinned"];
        for (number, name) in names.iter().enumerate() {
            assert_eq!(Profile::from_name(name), Profile::from_number(number as u32));
        }
        assert_eq!(Profile::from_number(names.len() as u32), None);
        assert_eq!(Profile::from_name("RXE"), None);
    }
}
