//! Texts for enumerators, and rates.

use libc::{c_char, c_int, c_uint};

fn pick(texts: &[&'static [u8]], index: c_uint, other: &'static [u8]) -> *const c_char {
    let text = texts.get(index as usize).copied().unwrap_or(other);
    debug_assert_eq!(text.last(), Some(&0));
    text.as_ptr().cast()
}

#[no_mangle]
pub extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    const TEXTS: [&[u8]; 24] = [
        b"success\0",
        b"local length error\0",
        b"local QP operation error\0",
        b"local EE context operation error\0",
        b"local protection error\0",
        b"work request flushed\0",
        b"memory window bind error\0",
        b"bad response\0",
        b"local access error\0",
        b"remote invalid request\0",
        b"remote access error\0",
        b"remote operation error\0",
        b"retries exceeded\0",
        b"receiver-not-ready retries exceeded\0",
        b"local RDD violation\0",
        b"remote invalid RD request\0",
        b"remote abort\0",
        b"EE context number invalid\0",
        b"EE context state invalid\0",
        b"fatal error\0",
        b"response timeout\0",
        b"general error\0",
        b"tag matching error\0",
        b"tag matching rendezvous incomplete\0",
    ];
    pick(&TEXTS, status, b"unknown\0")
}

#[no_mangle]
pub extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    const TEXTS: [&[u8]; 20] = [
        b"completion queue error\0",
        b"queue pair fatal error\0",
        b"queue pair request error\0",
        b"queue pair access violation\0",
        b"connection established\0",
        b"send queue drained\0",
        b"path migrated\0",
        b"path migration failed\0",
        b"device fatal error\0",
        b"port active\0",
        b"port error\0",
        b"LID changed\0",
        b"P_Key table changed\0",
        b"subnet manager changed\0",
        b"shared receive queue error\0",
        b"shared receive queue below its limit\0",
        b"last receive of the queue pair taken\0",
        b"client reregistration asked for\0",
        b"GID table changed\0",
        b"work queue fatal error\0",
    ];
    pick(&TEXTS, event, b"unknown\0")
}

#[no_mangle]
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    const TEXTS: [&[u8]; 8] = [
        b"unknown\0",
        b"channel adapter\0",
        b"switch\0",
        b"router\0",
        b"iWARP adapter\0",
        b"usNIC adapter\0",
        b"usNIC adapter over UDP\0",
        b"unspecified\0",
    ];
    pick(&TEXTS, node_type as c_uint, b"unknown\0")
}

#[no_mangle]
pub extern "C" fn ibv_port_state_str(state: c_uint) -> *const c_char {
    const TEXTS: [&[u8]; 6] =
        [b"no change\0", b"down\0", b"init\0", b"armed\0", b"active\0", b"active, deferred\0"];
    pick(&TEXTS, state, b"invalid state\0")
}

/// The rates of `enum ibv_rate`: the enumerator, the multiple of 2.5 Gbit/s (−1 where it is
/// none), Mbit/s.
const RATES: [(c_uint, c_int, c_int); 24] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, -1, 14_062),
    (12, -1, 56_250),
    (13, -1, 112_500),
    (14, -1, 168_750),
    (15, 10, 25_781),
    (16, 40, 103_125),
    (17, 80, 206_250),
    (18, 120, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
    (0, -1, -1),
];
const RATE_MAX: c_uint = 0;

#[no_mangle]
pub extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    let found = RATES.iter().find(|r| r.0 == rate && r.1 > 0);
    found.map_or(-1, |r| r.1)
}

#[no_mangle]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_uint {
    let found = RATES.iter().find(|r| r.1 == mult && mult > 0);
    found.map_or(RATE_MAX, |r| r.0)
}

#[no_mangle]
pub extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    let found = RATES.iter().find(|r| r.0 == rate);
    found.map_or(-1, |r| r.2)
}

#[no_mangle]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    let found = RATES.iter().find(|r| r.2 == mbps && mbps > 0);
    found.map_or(RATE_MAX, |r| r.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn every_text_ends() {
        for i in 0..40 {
            for text in [
                ibv_wc_status_str(i),
                ibv_event_type_str(i),
                ibv_node_type_str(i as c_int - 1),
                ibv_port_state_str(i),
            ] {
                assert!(!unsafe { CStr::from_ptr(text) }.to_bytes().is_empty());
            }
        }
    }

    #[test]
    fn rates_go_there_and_back() {
        for (rate, mult, mbps) in RATES {
            if mult > 0 {
                assert_eq!(mult_to_ibv_rate(ibv_rate_to_mult(rate)), rate);
            }
            if mbps > 0 {
                assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate)), rate);
            }
        }
        assert_eq!(ibv_rate_to_mult(99), -1);
        assert_eq!(mult_to_ibv_rate(7), RATE_MAX);
    }
}
