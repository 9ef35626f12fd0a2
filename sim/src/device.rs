//! The device: its name, its port, its attributes.

use crate::context::Context;
use crate::guard::{guard, guard_int, guard_ptr};
use crate::limits::{Limits, MAX_MSG};
use crate::model;
use libc::{c_char, c_int, c_void};
use std::mem::{size_of, zeroed};
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::sync::Once;
use verbs::*;

const NAME: &str = "mwsim0";
/// EUI-64 of the node, locally administered, in memory order.
const GUID: [u8; 8] = [0x02, 0x6d, 0x77, 0xff, 0xfe, 0x73, 0x69, 0x6d];
/// The port's IPv4 address, from the range for documentation.
const IPV4: [u8; 4] = [192, 0, 2, 1];
const GID_TABLE: u32 = 16;
pub const PORT: u8 = 1;
const PKEY: u16 = 0xffff;

const NODE_CA: u32 = 1;
const TRANSPORT_IB: u32 = 0;
const MTU_1024: u32 = 3;
pub const MTU_4096: u32 = 5;
const PORT_ACTIVE: u32 = 4;
const LINK_LAYER_ETHERNET: u8 = 2;
const PHYS_LINK_UP: u8 = 5;
const ATOMIC_HCA: u32 = 1;
const CM_SUP: u32 = 1 << 16;
const GID_TYPE_ROCE_V2: u32 = 2;
/// In the older numbering that only knows the two kinds of RoCE.
const SYSFS_ROCE_V2: u32 = 1;

fn copy_name(to: &mut [c_char], name: &str) {
    for (to, from) in to.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
}

/// The one device. Its structure lives as long as the process.
pub fn the_device() -> *mut ibv_device {
    static DEVICE: AtomicPtr<ibv_device> = AtomicPtr::new(std::ptr::null_mut());
    static MADE: Once = Once::new();
    MADE.call_once(|| {
        // SAFETY: numbers, characters and optional functions, all of which may be zero.
        let mut device: Box<ibv_device> = Box::new(unsafe { zeroed() });
        device.node_type = NODE_CA as _;
        device.transport_type = TRANSPORT_IB as _;
        copy_name(&mut device.name, NAME);
        copy_name(&mut device.dev_name, "uverbs-mwsim0");
        DEVICE.store(Box::into_raw(device), Release);
    });
    DEVICE.load(Acquire)
}

/// # Safety
/// `num` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut ibv_device {
    guard_ptr(|| {
        model::load();
        // SAFETY: room for one device and the NULL behind it, zeroed.
        let list = unsafe { libc::calloc(2, size_of::<*mut ibv_device>()) };
        let list = list.cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(libc::ENOMEM);
        }
        unsafe {
            *list = the_device();
            if !num.is_null() {
                *num = 1;
            }
        }
        Ok(list)
    })
}

/// # Safety
/// `list` came from `ibv_get_device_list`.
#[no_mangle]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    unsafe { libc::free(list.cast()) }
}

/// # Safety
/// `device` came from `ibv_get_device_list`.
#[no_mangle]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    unsafe { (*device).name.as_ptr() }
}

/// The GUID in network byte order.
#[no_mangle]
pub extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    u64::from_ne_bytes(GUID)
}

#[no_mangle]
pub extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    0
}

fn device_attr(limits: &Limits) -> ibv_device_attr {
    // SAFETY: numbers and characters.
    let mut a: ibv_device_attr = unsafe { zeroed() };
    let int = |n: u32| n.min(i32::MAX as u32) as c_int;
    copy_name(&mut a.fw_ver, env!("CARGO_PKG_VERSION"));
    a.node_guid = u64::from_ne_bytes(GUID) as _;
    a.sys_image_guid = u64::from_ne_bytes(GUID) as _;
    a.max_mr_size = limits.max_mr_size;
    a.page_size_cap = !0xfff;
    a.vendor_part_id = 1;
    a.max_qp = int(limits.max_qp);
    a.max_qp_wr = int(limits.max_qp_wr);
    a.device_cap_flags = (IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_MGT_EXTENSIONS
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | 1 << 7 // current QP state in modify
        | 1 << 11 // system image GUID
        | 1 << 12) as _; // receiver-not-ready NAK
    a.max_sge = int(limits.max_sge);
    a.max_sge_rd = int(limits.max_sge);
    a.max_cq = int(limits.max_cq);
    a.max_cqe = int(limits.max_cqe);
    a.max_mr = int(limits.max_mr);
    a.max_pd = int(limits.max_pd);
    a.max_qp_rd_atom = c_int::from(limits.max_rd_atomic);
    a.max_qp_init_rd_atom = c_int::from(limits.max_rd_atomic);
    a.max_res_rd_atom = int(limits.max_qp.saturating_mul(u32::from(limits.max_rd_atomic)));
    a.atomic_cap = ATOMIC_HCA as _;
    a.max_mw = int(limits.max_mw);
    a.max_srq = int(limits.max_srq);
    a.max_srq_wr = int(limits.max_srq_wr);
    a.max_srq_sge = int(limits.max_sge);
    a.max_pkeys = 1;
    a.local_ca_ack_delay = 15;
    a.phys_port_cnt = 1;
    a
}

/// # Safety
/// `context` is open, `out` writable.
#[no_mangle]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, out: *mut ibv_device_attr) -> c_int {
    guard_int(|| {
        let context = unsafe { Context::get(context)? };
        model::kernel_call();
        unsafe { out.write(device_attr(&context.limits)) };
        Ok(())
    })
}

pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    out: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    guard_int(|| {
        let context = unsafe { Context::get(context)? };
        if out.is_null() || size < size_of::<ibv_device_attr>() {
            return Err(libc::EINVAL);
        }
        if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
            return Err(libc::EINVAL);
        }
        model::kernel_call();
        // SAFETY: numbers.
        let mut a: ibv_device_attr_ex = unsafe { zeroed() };
        a.orig_attr = device_attr(&context.limits);
        a.completion_timestamp_mask = u64::MAX;
        a.hca_core_clock = 1_000_000; // kHz: the timestamps are nanoseconds
        a.device_cap_flags_ex = u64::from(a.orig_attr.device_cap_flags);
        a.phys_port_cnt_ex = 1;
        let bytes = size.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: the caller has room for `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(std::ptr::addr_of!(a).cast::<u8>(), out.cast(), bytes) };
        Ok(())
    })
}

fn port_attr() -> ibv_port_attr {
    // SAFETY: numbers.
    let mut a: ibv_port_attr = unsafe { zeroed() };
    a.state = PORT_ACTIVE as _;
    a.max_mtu = MTU_4096 as _;
    a.active_mtu = MTU_1024 as _;
    a.gid_tbl_len = GID_TABLE as c_int;
    a.port_cap_flags = CM_SUP;
    a.max_msg_sz = MAX_MSG as u32;
    a.pkey_tbl_len = 1;
    a.max_vl_num = 1;
    a.active_width = 1;
    a.active_speed = 1;
    a.phys_state = PHYS_LINK_UP;
    a.link_layer = LINK_LAYER_ETHERNET;
    a
}

fn query_port(context: *mut ibv_context, port: u8, out: *mut c_void, size: usize) -> Result<(), c_int> {
    // SAFETY: a context of the caller.
    unsafe { Context::get(context)? };
    if port != PORT || out.is_null() {
        return Err(libc::EINVAL);
    }
    model::kernel_call();
    let a = port_attr();
    let bytes = size.min(size_of::<ibv_port_attr>());
    // SAFETY: the caller has room for `size` bytes.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::addr_of!(a).cast::<u8>(), out.cast(), bytes) };
    Ok(())
}

pub unsafe extern "C" fn query_port_full(
    context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    guard_int(|| query_port(context, port, out.cast(), size))
}

/// Fills the older, shorter structure: it ends before `port_cap_flags2`.
///
/// # Safety
/// `context` is open, `out` writable.
#[no_mangle]
pub unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, out: *mut c_void) -> c_int {
    const OLD_SIZE: usize = size_of::<ibv_port_attr>() - size_of::<u16>();
    guard_int(|| query_port(context, port, out, OLD_SIZE))
}

/// The GID at this index: 0 is link-local, 1 the IPv4 address of RoCE v2.
pub fn gid(index: u32) -> Option<[u8; 16]> {
    let mut gid = [0u8; 16];
    match index {
        0 => {
            gid[..2].copy_from_slice(&[0xfe, 0x80]);
            gid[8..].copy_from_slice(&GUID);
            gid[8] ^= 2; // the universal/local bit is inverted in an interface identifier
        }
        1 => {
            gid[10..12].copy_from_slice(&[0xff, 0xff]);
            gid[12..].copy_from_slice(&IPV4);
        }
        _ => return None,
    }
    Some(gid)
}

/// Whether packets to this GID come back to this device.
pub fn is_ours(dgid: &[u8; 16]) -> bool {
    (0..2).any(|i| gid(i).as_ref() == Some(dgid))
}

/// # Safety
/// `context` is open, `out` writable.
#[no_mangle]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> c_int {
    guard(-1, || {
        let known = unsafe { Context::get(context) }.is_ok();
        if !known || port != PORT || !(0..GID_TABLE as c_int).contains(&index) {
            verbs::set_errno(libc::EINVAL);
            return -1;
        }
        unsafe { (*out).raw = gid(index as u32).unwrap_or_default() };
        0
    })
}

fn gid_entry(index: u32) -> Option<ibv_gid_entry> {
    // SAFETY: numbers.
    let mut entry: ibv_gid_entry = unsafe { zeroed() };
    entry.gid = ibv_gid { raw: gid(index)? };
    entry.gid_index = index;
    entry.port_num = u32::from(PORT);
    entry.gid_type = GID_TYPE_ROCE_V2;
    Some(entry)
}

/// # Safety
/// `context` is open, `out` writable for `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    guard_int(|| {
        unsafe { Context::get(context)? };
        if flags != 0 || port != u32::from(PORT) || index >= GID_TABLE {
            return Err(libc::EINVAL);
        }
        let entry = gid_entry(index).ok_or(libc::ENODATA)?;
        let bytes = size.min(size_of::<ibv_gid_entry>());
        // SAFETY: the caller has room for `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(std::ptr::addr_of!(entry).cast::<u8>(), out.cast(), bytes) };
        Ok(())
    })
}

/// # Safety
/// `context` is open, `out` has room for `max` entries of `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    guard(-(libc::EIO as isize), || {
        if unsafe { Context::get(context) }.is_err() || flags != 0 {
            return -(libc::EINVAL as isize);
        }
        let entries = (0..GID_TABLE).filter_map(gid_entry).take(max);
        let mut n = 0;
        for entry in entries {
            let bytes = size.min(size_of::<ibv_gid_entry>());
            // SAFETY: the caller has room for `max` entries of `size` bytes.
            unsafe {
                let to = out.cast::<u8>().add(n * size);
                std::ptr::copy_nonoverlapping(std::ptr::addr_of!(entry).cast(), to, bytes)
            };
            n += 1;
        }
        n as isize
    })
}

/// # Safety
/// `context` is open, `out` writable.
#[no_mangle]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    out: *mut u32,
) -> c_int {
    guard(-1, || {
        let known = unsafe { Context::get(context) }.is_ok();
        if !known || port != PORT || gid(index).is_none() {
            verbs::set_errno(libc::EINVAL);
            return -1;
        }
        unsafe { *out = SYSFS_ROCE_V2 };
        0
    })
}

/// # Safety
/// `context` is open, `out` writable.
#[no_mangle]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    guard(-1, || {
        if unsafe { Context::get(context) }.is_err() || port != PORT || index != 0 {
            verbs::set_errno(libc::EINVAL);
            return -1;
        }
        unsafe { *out = PKEY.to_be() };
        0
    })
}

/// # Safety
/// `context` is open.
#[no_mangle]
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    guard(-1, || {
        let known = unsafe { Context::get(context) }.is_ok();
        if known && port == PORT && pkey == PKEY.to_be() {
            return 0;
        }
        verbs::set_errno(libc::EINVAL);
        -1
    })
}
