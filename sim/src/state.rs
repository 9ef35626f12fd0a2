//! The states of an RC queue pair: which change is allowed, and with which attributes.

use verbs::*;

const ALT: u32 = IBV_QP_ALT_PATH;
const ACCESS: u32 = IBV_QP_ACCESS_FLAGS;
const RNR_TIMER: u32 = IBV_QP_MIN_RNR_TIMER;
const MIG: u32 = IBV_QP_PATH_MIG_STATE;
const CUR: u32 = IBV_QP_CUR_STATE;
const PLACE: u32 = IBV_QP_PKEY_INDEX | IBV_QP_PORT;

/// The attributes that a change must carry and those that it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub required: u32,
    pub optional: u32,
}

const fn rule(required: u32, optional: u32) -> Option<Rule> {
    Some(Rule { required, optional })
}

/// The rule of a change of an RC queue pair's state; none if the change is not allowed.
pub fn transition(from: u32, to: u32) -> Option<Rule> {
    let known = from <= IBV_QPS_ERR && to <= IBV_QPS_ERR;
    match (from, to) {
        (_, IBV_QPS_RESET) if known => rule(0, 0),
        (IBV_QPS_RESET, IBV_QPS_ERR) => None,
        (_, IBV_QPS_ERR) if known => rule(0, 0),
        (IBV_QPS_RESET, IBV_QPS_INIT) => rule(PLACE | ACCESS, 0),
        (IBV_QPS_INIT, IBV_QPS_INIT) => rule(0, PLACE | ACCESS),
        (IBV_QPS_INIT, IBV_QPS_RTR) => rule(
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | RNR_TIMER,
            ALT | ACCESS | IBV_QP_PKEY_INDEX,
        ),
        (IBV_QPS_RTR, IBV_QPS_RTS) => rule(
            IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
            CUR | ALT | ACCESS | RNR_TIMER | MIG,
        ),
        (IBV_QPS_RTS, IBV_QPS_RTS) => rule(0, CUR | ALT | ACCESS | RNR_TIMER | MIG),
        (IBV_QPS_RTS, IBV_QPS_SQD) => rule(0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (IBV_QPS_SQD, IBV_QPS_RTS) => rule(0, CUR | ALT | ACCESS | RNR_TIMER | MIG),
        (IBV_QPS_SQD, IBV_QPS_SQD) => rule(
            0,
            PLACE
                | IBV_QP_AV
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | ALT
                | ACCESS
                | RNR_TIMER
                | MIG,
        ),
        _ => None,
    }
}

/// The state that a call of `ibv_modify_qp` leads to, if its mask is right.
pub fn next(actual: u32, mask: u32, wanted: u32, assumed: u32) -> Option<u32> {
    if mask & CUR != 0 && assumed != actual {
        return None;
    }
    let to = if mask & IBV_QP_STATE != 0 { wanted } else { actual };
    let rule = transition(actual, to)?;
    let given = mask & !IBV_QP_STATE;
    let fits = given & rule.required == rule.required && given & !(rule.required | rule.optional) == 0;
    fits.then_some(to)
}

/// Receives may be posted.
pub fn takes_receives(state: u32) -> bool {
    state != IBV_QPS_RESET
}

/// Send work requests may be posted, be it to be flushed.
pub fn takes_sends(state: u32) -> bool {
    matches!(state, IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE | IBV_QPS_ERR)
}

/// Packets from the peer are answered.
pub fn responds(state: u32) -> bool {
    matches!(state, IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE)
}

/// The receiver-not-ready timer of a 5-bit code, in nanoseconds.
pub fn rnr_timer_ns(code: u8) -> u64 {
    const STEPS_10_US: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    STEPS_10_US[usize::from(code & 31)] * 10_000
}

/// The transport timer of a 5-bit code, in nanoseconds; none for 0, which is for ever.
pub fn timeout_ns(code: u8) -> Option<u64> {
    (code != 0).then(|| 4096u64 << (code & 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO_INIT: u32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    const TO_RTR: u32 = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    const TO_RTS: u32 = IBV_QP_STATE
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC;

    #[test]
    fn the_usual_way_up() {
        assert_eq!(next(IBV_QPS_RESET, TO_INIT, IBV_QPS_INIT, 0), Some(IBV_QPS_INIT));
        assert_eq!(next(IBV_QPS_INIT, TO_RTR, IBV_QPS_RTR, 0), Some(IBV_QPS_RTR));
        assert_eq!(next(IBV_QPS_RTR, TO_RTS, IBV_QPS_RTS, 0), Some(IBV_QPS_RTS));
    }

    #[test]
    fn each_required_attribute_is_required() {
        for (from, to, mask) in [
            (IBV_QPS_RESET, IBV_QPS_INIT, TO_INIT),
            (IBV_QPS_INIT, IBV_QPS_RTR, TO_RTR),
            (IBV_QPS_RTR, IBV_QPS_RTS, TO_RTS),
        ] {
            for bit in (0..32).map(|b| 1u32 << b) {
                if mask & bit != 0 && bit != IBV_QP_STATE {
                    assert_eq!(next(from, mask & !bit, to, 0), None, "{from} to {to} without {bit:#x}");
                }
            }
        }
    }

    #[test]
    fn a_foreign_attribute_is_refused() {
        assert_eq!(next(IBV_QPS_RESET, TO_INIT | IBV_QP_QKEY, IBV_QPS_INIT, 0), None);
        assert_eq!(next(IBV_QPS_RTS, IBV_QP_AV, 0, 0), None);
        assert_eq!(next(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS, IBV_QPS_ERR, 0), None);
    }

    #[test]
    fn reset_and_error_are_reached_from_everywhere_but_reset() {
        for from in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR] {
            assert_eq!(next(from, IBV_QP_STATE, IBV_QPS_ERR, 0), Some(IBV_QPS_ERR));
            assert_eq!(next(from, IBV_QP_STATE, IBV_QPS_RESET, 0), Some(IBV_QPS_RESET));
        }
        assert_eq!(next(IBV_QPS_RESET, IBV_QP_STATE, IBV_QPS_ERR, 0), None);
        assert_eq!(next(IBV_QPS_RTS, IBV_QP_STATE, 7, 0), None);
    }

    #[test]
    fn out_of_error_only_by_reset() {
        for to in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD] {
            assert_eq!(transition(IBV_QPS_ERR, to), None);
        }
        assert_eq!(next(IBV_QPS_ERR, IBV_QP_ACCESS_FLAGS, 0, 0), None);
    }

    #[test]
    fn an_assumed_state_must_be_the_real_one() {
        let mask = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS;
        assert_eq!(next(IBV_QPS_RTS, mask, 0, IBV_QPS_RTS), Some(IBV_QPS_RTS));
        assert_eq!(next(IBV_QPS_RTS, mask, 0, IBV_QPS_SQD), None);
    }

    #[test]
    fn timers_follow_the_standard_s_table() {
        assert_eq!(rnr_timer_ns(0), 655_360_000);
        assert_eq!(rnr_timer_ns(1), 10_000);
        assert_eq!(rnr_timer_ns(12), 640_000);
        assert_eq!(rnr_timer_ns(31), 491_520_000);
        assert_eq!(timeout_ns(14), Some(67_108_864));
        assert_eq!(timeout_ns(0), None);
    }
}
