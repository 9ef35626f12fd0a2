//! The 64-bit ids that stand for everything a context hands out: kind, generation and index. A
//! stale or mistaken id is refused instead of meaning something else.

#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Grant = 0x81,
    Peer = 0x82,
    Domain = 0x83,
    Region = 0x84,
    Token = 0x85,
}

const INDEX_BITS: u32 = 24;
const KIND_SHIFT: u32 = 56;

/// Elements that an id can tell apart.
pub const MAX_INDEX: usize = 1 << INDEX_BITS;

/// Never 0.
pub fn make(kind: Kind, index: u32, generation: u32) -> u64 {
    (kind as u64) << KIND_SHIFT | (generation as u64) << INDEX_BITS | index as u64
}

/// Index and generation, if the id is of that kind.
#[inline]
pub fn parse(kind: Kind, id: u64) -> Option<(u32, u32)> {
    (id >> KIND_SHIFT == kind as u64)
        .then_some((id as u32 & (MAX_INDEX as u32 - 1), (id >> INDEX_BITS) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_carries_its_parts_and_kinds_do_not_mix() {
        let id = make(Kind::Grant, 0xab_cdef, 0xdead_beef);
        assert_eq!(parse(Kind::Grant, id), Some((0xab_cdef, 0xdead_beef)));
        assert_eq!(parse(Kind::Peer, id), None);
        assert_eq!(parse(Kind::Grant, 0), None);
        assert_eq!(parse(Kind::Grant, id ^ 1 << 63), None);
    }
}
