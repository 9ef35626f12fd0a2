//! Conversions from the kernel's structures, which librdmacm asks libibverbs for.

use crate::guard::guard;
use verbs::*;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernAh {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved2: u8,
}

#[repr(C)]
pub struct KernQpAttr {
    mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah: KernAh,
    alt_ah: KernAh,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

#[repr(C)]
pub struct KernPath {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

/// `struct ibv_sa_path_rec`.
#[repr(C)]
pub struct SaPath {
    dgid: [u64; 2],
    sgid: [u64; 2],
    dlid: u16,
    slid: u16,
    raw_traffic: i32,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: i32,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

fn ah_attr(from: &KernAh) -> ibv_ah_attr {
    // SAFETY: numbers.
    let mut to: ibv_ah_attr = unsafe { std::mem::zeroed() };
    to.grh.dgid = ibv_gid { raw: from.dgid };
    to.grh.flow_label = from.flow_label;
    to.grh.sgid_index = from.sgid_index;
    to.grh.hop_limit = from.hop_limit;
    to.grh.traffic_class = from.traffic_class;
    to.dlid = from.dlid;
    to.sl = from.sl;
    to.src_path_bits = from.src_path_bits;
    to.static_rate = from.static_rate;
    to.is_global = from.is_global;
    to.port_num = from.port_num;
    to
}

/// # Safety
/// `to` is writable, `from` readable.
#[no_mangle]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const KernAh) {
    guard((), || unsafe { to.write(ah_attr(&*from)) })
}

/// # Safety
/// `to` is writable, `from` readable.
#[no_mangle]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const KernQpAttr) {
    guard((), || {
        let (to, from) = unsafe { (&mut *to, &*from) };
        to.qp_state = from.qp_state as _;
        to.cur_qp_state = from.cur_qp_state as _;
        to.path_mtu = from.path_mtu as _;
        to.path_mig_state = from.path_mig_state as _;
        to.qkey = from.qkey;
        to.rq_psn = from.rq_psn;
        to.sq_psn = from.sq_psn;
        to.dest_qp_num = from.dest_qp_num;
        to.qp_access_flags = from.qp_access_flags as _;
        to.cap.max_send_wr = from.max_send_wr;
        to.cap.max_recv_wr = from.max_recv_wr;
        to.cap.max_send_sge = from.max_send_sge;
        to.cap.max_recv_sge = from.max_recv_sge;
        to.cap.max_inline_data = from.max_inline_data;
        to.ah_attr = ah_attr(&from.ah);
        to.alt_ah_attr = ah_attr(&from.alt_ah);
        to.pkey_index = from.pkey_index;
        to.alt_pkey_index = from.alt_pkey_index;
        to.en_sqd_async_notify = from.en_sqd_async_notify;
        to.sq_draining = from.sq_draining;
        to.max_rd_atomic = from.max_rd_atomic;
        to.max_dest_rd_atomic = from.max_dest_rd_atomic;
        to.min_rnr_timer = from.min_rnr_timer;
        to.port_num = from.port_num;
        to.timeout = from.timeout;
        to.retry_cnt = from.retry_cnt;
        to.rnr_retry = from.rnr_retry;
        to.alt_port_num = from.alt_port_num;
        to.alt_timeout = from.alt_timeout;
    })
}

fn words(bytes: [u8; 16]) -> [u64; 2] {
    let half = |i: usize| u64::from_ne_bytes(std::array::from_fn(|b| bytes[8 * i + b]));
    [half(0), half(1)]
}

fn bytes(words: [u64; 2]) -> [u8; 16] {
    std::array::from_fn(|i| words[i / 8].to_ne_bytes()[i % 8])
}

/// # Safety
/// `to` is writable, `from` readable.
#[no_mangle]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut SaPath, from: *const KernPath) {
    guard((), || {
        let from = unsafe { &*from };
        let new = SaPath {
            dgid: words(from.dgid),
            sgid: words(from.sgid),
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic as i32,
            flow_label: from.flow_label,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            reversible: from.reversible as i32,
            numb_path: from.numb_path,
            pkey: from.pkey,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            mtu: from.mtu as u8,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
        unsafe { to.write(new) };
    })
}

/// # Safety
/// `to` is writable, `from` readable.
#[no_mangle]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernPath, from: *const SaPath) {
    guard((), || {
        let from = unsafe { &*from };
        let new = KernPath {
            dgid: bytes(from.dgid),
            sgid: bytes(from.sgid),
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic as u32,
            flow_label: from.flow_label,
            reversible: from.reversible as u32,
            mtu: u32::from(from.mtu),
            pkey: from.pkey,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            numb_path: from.numb_path,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
        unsafe { to.write(new) };
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernel_s_sizes() {
        assert_eq!(std::mem::size_of::<KernAh>(), 32);
        assert_eq!(std::mem::size_of::<KernQpAttr>(), 144);
        assert_eq!(std::mem::size_of::<KernPath>(), 64);
        assert_eq!(std::mem::size_of::<SaPath>(), 64);
    }

    #[test]
    fn a_path_survives_both_ways() {
        let gid: [u8; 16] = std::array::from_fn(|i| i as u8);
        assert_eq!(bytes(words(gid)), gid);
    }
}
