//! Scatter/gather: the pieces of host memory that a packet is read from or placed in.

use crate::engine::Work;
use crate::keys::{self, Admitted, Kind, Opening};
use crate::limits::MAX_SGE;
use verbs::*;

/// One element of a work request's list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[derive(Clone, Copy)]
struct Piece {
    at: u64,
    length: u64,
    key: Option<Admitted>,
}

/// The pieces of one packet. They are let in by their keys until `release`.
pub struct Pieces(Vec<Piece>);

impl Default for Pieces {
    fn default() -> Self {
        Self(Vec::with_capacity(MAX_SGE))
    }
}

/// The key does not open that.
#[derive(Debug)]
pub struct Denied;

impl Pieces {
    /// The bytes from `skip` on, `length` of them, of a list; each element's key is checked.
    /// After an error nothing is let in.
    pub fn list(
        &mut self,
        list: &[Sge],
        mut skip: u64,
        mut length: u64,
        domain: u32,
        write: bool,
        work: &mut Work,
    ) -> Result<(), Denied> {
        self.release(work);
        for sge in list {
            let whole = u64::from(sge.length);
            if skip >= whole {
                skip -= whole;
                continue;
            }
            if length == 0 {
                break;
            }
            let n = (whole - skip).min(length);
            match local(sge.lkey, sge.addr.wrapping_add(skip), n, domain, write, work) {
                Ok((at, key)) => self.0.push(Piece { at, length: n, key: Some(key) }),
                Err(denied) => {
                    self.release(work);
                    return Err(denied);
                }
            }
            skip = 0;
            length -= n;
        }
        Ok(())
    }

    /// Bytes that need no key: inline data, or a range that was let in elsewhere.
    pub fn plain(&mut self, at: u64, length: u64, work: &mut Work) {
        self.release(work);
        if length != 0 {
            self.0.push(Piece { at, length, key: None });
        }
    }

    /// The packet is placed.
    pub fn release(&mut self, work: &mut Work) {
        for piece in self.0.drain(..) {
            if let Some(key) = piece.key {
                key.leave(work);
            }
        }
    }

    /// Copies as many bytes as both have.
    ///
    /// # Safety
    /// The pieces of both are let in, so their memory is registered.
    pub unsafe fn copy_to(&self, to: &Pieces) {
        let (mut sources, mut targets) = (self.0.iter().copied(), to.0.iter().copied());
        let (mut from, mut to) = (sources.next(), targets.next());
        while let (Some(f), Some(t)) = (from.as_mut(), to.as_mut()) {
            let n = f.length.min(t.length);
            // SAFETY: by the contract. Both ends may be the same memory, hence no assumption
            // about overlap.
            unsafe { std::ptr::copy(f.at as *const u8, t.at as *mut u8, n as usize) };
            for piece in [&mut *f, &mut *t] {
                piece.at += n;
                piece.length -= n;
            }
            if f.length == 0 {
                from = sources.next();
            }
            if t.length == 0 {
                to = targets.next();
            }
        }
    }

    /// The bytes themselves.
    ///
    /// # Safety
    /// The pieces are let in, so their memory is registered.
    pub unsafe fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for p in &self.0 {
            // SAFETY: by the contract.
            all.extend_from_slice(unsafe {
                std::slice::from_raw_parts(p.at as *const u8, p.length as usize)
            });
        }
        all
    }
}

/// Lets a range in by an lkey.
fn local(
    lkey: u32,
    addr: u64,
    length: u64,
    domain: u32,
    write: bool,
    work: &mut Work,
) -> Result<(u64, Admitted), Denied> {
    let key = keys::find(lkey).ok_or(Denied)?;
    let packet = key.admit(lkey as u8).ok_or(Denied)?;
    let o = packet.opening();
    let fits =
        packet.kind() == Kind::Region && o.pd == domain && (!write || o.access & IBV_ACCESS_LOCAL_WRITE != 0);
    match o.locate(addr, length).filter(|_| fits) {
        Some(at) => Ok((at, packet)),
        None => {
            packet.leave(work);
            Err(Denied)
        }
    }
}

/// Who asks for a remote range: the responder's queue pair.
#[derive(Clone, Copy)]
pub struct Asker {
    pub domain: u32,
    /// Its number as an object.
    pub qp: u32,
}

/// Lets a range in by an rkey, with all of `rights`.
pub fn remote(
    rkey: u32,
    addr: u64,
    length: u64,
    rights: u32,
    asker: Asker,
    work: &mut Work,
) -> Result<(u64, Admitted), Denied> {
    let key = keys::find(rkey).ok_or(Denied)?;
    let packet = key.admit(rkey as u8).ok_or(Denied)?;
    let o: Opening = packet.opening();
    let pinned = packet.kind() != Kind::Window2 || o.qp == asker.qp;
    let fits = pinned && o.pd == asker.domain && o.access & rights == rights;
    match o.locate(addr, length).filter(|_| fits) {
        Some(at) => Ok((at, packet)),
        None => {
            packet.leave(work);
            Err(Denied)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(of: &mut [&mut [u8]]) -> Pieces {
        let mut p = Pieces::default();
        for s in of {
            p.0.push(Piece { at: s.as_mut_ptr() as u64, length: s.len() as u64, key: None });
        }
        p
    }

    #[test]
    fn bytes_flow_across_uneven_pieces() {
        let (mut a, mut b) = ([1, 2, 3], [4, 5, 6, 7]);
        let (mut c, mut d, mut e) = ([0u8; 2], [0u8; 4], [0u8; 9]);
        let from = pieces(&mut [&mut a, &mut b]);
        let to = pieces(&mut [&mut c, &mut d, &mut e]);
        unsafe { from.copy_to(&to) };
        assert_eq!((c, d), ([1, 2], [3, 4, 5, 6]));
        assert_eq!(e, [7, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(unsafe { from.bytes() }, [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn an_unknown_lkey_lets_nothing_in() {
        let mut work = Work::new();
        let list = [Sge { addr: 0, length: 1, lkey: 0xffff_ff00 }];
        let mut p = Pieces::default();
        assert!(p.list(&list, 0, 1, 1, false, &mut work).is_err());
        assert!(p.0.is_empty());
        assert!(p.list(&list, 1, 0, 1, false, &mut work).is_ok());
    }
}
