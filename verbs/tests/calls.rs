//! The inline calls against a device made of plain functions.

use libc::{c_int, EINVAL, EIO, ENOMEM, ENOSYS, EOPNOTSUPP, EPERM};
use std::mem::{size_of, zeroed, MaybeUninit};
use std::ptr::{addr_of, addr_of_mut, null_mut};
use verbs::*;

/// An extended context with nothing in it, as a library of today would make it.
fn device() -> Box<verbs_context> {
    // SAFETY: numbers, pointers and optional functions, for all of which zero is a value.
    let mut device: Box<verbs_context> = Box::new(unsafe { zeroed() });
    device.sz = size_of::<verbs_context>();
    device.context.abi_compat = VERBS_ABI_IS_EXTENDED as *mut _;
    device
}

fn pd_of(device: &mut verbs_context) -> ibv_pd {
    ibv_pd { context: &mut device.context, handle: 0 }
}

fn window(pd: &mut ibv_pd, mw_type: u32) -> ibv_mw {
    ibv_mw { context: pd.context, pd, rkey: 0, handle: 0, type_: mw_type }
}

fn zero<T>() -> T {
    // SAFETY: used for verbs' C structures only.
    unsafe { zeroed() }
}

unsafe extern "C" fn no_memory(_: *mut ibv_pd, _: u32) -> *mut ibv_mw {
    set_errno(ENOMEM);
    null_mut()
}

unsafe extern "C" fn a_window(pd: *mut ibv_pd, mw_type: u32) -> *mut ibv_mw {
    Box::into_raw(Box::new(window(unsafe { &mut *pd }, mw_type)))
}

unsafe extern "C" fn free_window(mw: *mut ibv_mw) -> c_int {
    drop(unsafe { Box::from_raw(mw) });
    0
}

#[test]
fn a_window_is_allocated_or_an_errno_says_why_not() {
    let mut device = device();
    let mut pd = pd_of(&mut device);
    assert_eq!(unsafe { alloc_mw(&mut pd, IBV_MW_TYPE_2) }.err(), Some(EOPNOTSUPP));
    device.context.ops.alloc_mw = Some(no_memory);
    assert_eq!(unsafe { alloc_mw(&mut pd, IBV_MW_TYPE_2) }.err(), Some(ENOMEM));

    device.context.ops.alloc_mw = Some(a_window);
    let mw = unsafe { alloc_mw(&mut pd, IBV_MW_TYPE_2) }.expect("a window").as_ptr();
    assert_eq!(unsafe { (*mw).type_ }, IBV_MW_TYPE_2);
    assert_eq!(unsafe { dealloc_mw(mw) }, Err(EOPNOTSUPP));
    device.context.ops.dealloc_mw = Some(free_window);
    assert_eq!(unsafe { dealloc_mw(mw) }, Ok(()));
}

unsafe extern "C" fn bound(_: *mut ibv_qp, mw: *mut ibv_mw, _: *mut ibv_mw_bind) -> c_int {
    unsafe { (*mw).rkey = inc_rkey((*mw).rkey) };
    0
}

#[test]
fn a_type_1_bind_is_checked_before_the_provider_sees_it() {
    let mut device = device();
    device.context.ops.bind_mw = Some(bound);
    let (mut pd, mut other_pd) = (pd_of(&mut device), pd_of(&mut device));
    let (mut qp, mut mr, mut foreign): (ibv_qp, ibv_mr, ibv_mr) = (zero(), zero(), zero());
    (mr.pd, foreign.pd) = (&mut pd, &mut other_pd);
    let mut one = window(&mut pd, IBV_MW_TYPE_1);
    let mut two = window(&mut pd, IBV_MW_TYPE_2);
    qp.context = &mut device.context;
    let mut bind = |mw: &mut ibv_mw, mr: *mut ibv_mr, length: u64| {
        let mut bind: ibv_mw_bind = zero();
        bind.bind_info.mr = mr;
        bind.bind_info.length = length;
        let answer = unsafe { bind_mw(&mut qp, mw, &mut bind) };
        (answer, mw.rkey)
    };

    assert_eq!(bind(&mut two, &mut mr, 8), (Err(EINVAL), 0));
    assert_eq!(bind(&mut one, null_mut(), 8), (Err(EINVAL), 0));
    assert_eq!(bind(&mut one, &mut foreign, 8), (Err(EPERM), 0));
    assert_eq!(bind(&mut one, &mut mr, 8), (Ok(()), 1));
    assert_eq!(bind(&mut one, null_mut(), 0), (Ok(()), 2));
}

#[test]
fn key_bits_wrap_and_leave_the_index_alone() {
    assert_eq!(inc_rkey(0xabcd_ef00), 0xabcd_ef01);
    assert_eq!(inc_rkey(0xabcd_efff), 0xabcd_ef00);
    assert_eq!(inc_rkey(u32::MAX), 0xffff_ff00);
    assert_eq!(with_key_bits(0xabcd_ef12, 0x77), 0xabcd_ef77);
}

unsafe extern "C" fn second_is_bad(
    _: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    unsafe { *bad_wr = (*wr).next };
    -ENOMEM
}

unsafe extern "C" fn queued_but_failed(
    _: *mut ibv_qp,
    _: *mut ibv_send_wr,
    _: *mut *mut ibv_send_wr,
) -> c_int {
    set_errno(EINVAL);
    -1
}

unsafe extern "C" fn all_posted(_: *mut ibv_qp, _: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> c_int {
    set_errno(EINVAL); // a call that succeeds may leave anything there
    0
}

#[test]
fn a_post_tells_what_was_not_queued() {
    let mut device = device();
    let mut qp: ibv_qp = zero();
    qp.context = &mut device.context;
    let mut second = local_inv_wr(2, 0, 7);
    let mut first = local_inv_wr(1, 0, 6);
    first.next = &mut second;

    let refused = |errno, bad_wr| Err(PostError { errno, bad_wr });
    assert_eq!(unsafe { post_send(&mut qp, &mut first) }, refused(EOPNOTSUPP, &mut first));
    device.context.ops.post_send = Some(second_is_bad);
    assert_eq!(unsafe { post_send(&mut qp, &mut first) }, refused(ENOMEM, &mut second));
    device.context.ops.post_send = Some(queued_but_failed);
    assert_eq!(unsafe { post_send(&mut qp, &mut first) }, refused(EINVAL, null_mut()));
    device.context.ops.post_send = Some(all_posted);
    set_errno(ENOSYS);
    assert_eq!(unsafe { post_send(&mut qp, &mut first) }, Ok(()));
    assert_eq!(errno(), ENOSYS);
}

unsafe extern "C" fn one_completion(_: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    assert!(room >= 1);
    unsafe { (*wc).wr_id = 42 };
    1
}

unsafe extern "C" fn broken_poll(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    -2
}

#[test]
fn a_poll_counts_completions_or_fails_with_eio() {
    let mut device = device();
    let mut cq: ibv_cq = zero();
    cq.context = &mut device.context;
    let mut wc: ibv_wc = zero();
    device.context.ops.poll_cq = Some(one_completion);
    assert_eq!(unsafe { poll_cq(&mut cq, 4, &mut wc) }, Ok(1));
    assert_eq!(wc.wr_id, 42);
    device.context.ops.poll_cq = Some(broken_poll);
    assert_eq!(unsafe { poll_cq(&mut cq, 4, &mut wc) }, Err(EIO));
}

unsafe extern "C" fn port_two(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, size: usize) -> c_int {
    if port != 2 || size != size_of::<ibv_port_attr>() {
        return EINVAL;
    }
    unsafe { (*attr).port_cap_flags2 = 0x1234 }; // the last member, absent from the old structure
    0
}

unsafe extern "C" fn a_thread_domain(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    assert_eq!(unsafe { (*attr).comp_mask }, 0);
    Box::into_raw(Box::new(ibv_td { context }))
}

unsafe extern "C" fn free_thread_domain(td: *mut ibv_td) -> c_int {
    drop(unsafe { Box::from_raw(td) });
    0
}

#[test]
fn the_extended_context_is_found_and_asked() {
    let mut device = device();
    let whole: *mut verbs_context = &mut *device;
    let context = unsafe { addr_of_mut!((*whole).context) };
    assert_eq!(unsafe { get_verbs_context(context) }.map(|v| v.as_ptr()), Some(whole));

    unsafe { (*whole).query_port = Some(port_two) };
    assert_eq!(unsafe { query_port(context, 2) }.expect("attributes").port_cap_flags2, 0x1234);
    assert_eq!(unsafe { query_port(context, 1) }.err(), Some(EINVAL));

    assert_eq!(unsafe { alloc_td(context) }.err(), Some(EOPNOTSUPP));
    unsafe { (*whole).alloc_td = Some(a_thread_domain) };
    unsafe { (*whole).dealloc_td = Some(free_thread_domain) };
    let td = unsafe { alloc_td(context) }.expect("a thread domain");
    assert_eq!(unsafe { dealloc_td(td.as_ptr()) }, Ok(()));
}

#[test]
fn what_an_older_library_lacks_is_not_called() {
    let mut device = device();
    let whole: *mut verbs_context = &mut *device;
    let context = unsafe { addr_of_mut!((*whole).context) };
    unsafe { (*whole).alloc_td = Some(a_thread_domain) };

    // From alloc_td to the end: just enough, then one byte too few.
    let room = MaybeUninit::<verbs_context>::uninit();
    let start = room.as_ptr();
    let offset = unsafe { addr_of!((*start).alloc_td).cast::<u8>().offset_from(start.cast()) };
    let needed = size_of::<verbs_context>() - offset as usize;
    unsafe { (*whole).sz = needed };
    let td = unsafe { alloc_td(context) }.expect("a thread domain");
    assert_eq!(unsafe { free_thread_domain(td.as_ptr()) }, 0);
    unsafe { (*whole).sz = needed - 1 };
    assert_eq!(unsafe { alloc_td(context) }.err(), Some(EOPNOTSUPP));

    // No extended part at all.
    unsafe { (*whole).sz = size_of::<verbs_context>() };
    unsafe { (*whole).context.abi_compat = null_mut() };
    assert_eq!(unsafe { get_verbs_context(context) }, None);
    assert_eq!(unsafe { alloc_td(context) }.err(), Some(EOPNOTSUPP));
}
