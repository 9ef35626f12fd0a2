//! What a device of each profile offers.

use crate::model::{self, Profile};

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_inline: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_mr_size: u64,
    pub max_pd: u32,
    pub max_mw: u32,
    pub max_rd_atomic: u8,
    pub max_srq: u32,
    pub max_srq_wr: u32,
}

/// Scatter lists are gathered into arrays of this size.
pub const MAX_SGE: usize = 32;
pub const MAX_MSG: u64 = 1 << 31;

impl Limits {
    pub fn of(profile: Profile) -> Self {
        let wide = Limits {
            max_qp: 1 << 18,
            max_qp_wr: 1 << 20,
            max_sge: MAX_SGE as u32,
            max_inline: 512,
            max_cq: 1 << 18,
            max_cqe: 1 << 22,
            max_mr: 1 << 20,
            max_mr_size: u64::MAX,
            max_pd: 1 << 18,
            max_mw: 1 << 22,
            max_rd_atomic: 128,
            max_srq: 1 << 16,
            max_srq_wr: 1 << 20,
        };
        let mut limits = match profile {
            Profile::Strict | Profile::NoMw | Profile::Mana | Profile::Unpinned => wide,
            Profile::Rxe => Limits { max_cqe: 32767, max_mr: 524_287, max_mw: 524_287, ..wide },
            Profile::Mlx5 => {
                Limits { max_qp_wr: 1 << 15, max_sge: 30, max_rd_atomic: 16, max_mw: 1 << 23, ..wide }
            }
        };
        let asked = model::get().max_mw;
        if asked != 0 {
            limits.max_mw = asked;
        }
        limits
    }
}
