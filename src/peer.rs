//! Peers: one RC QP each, with the windows bound to it and the share of its send queue that is
//! ours.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::chain::Line;
use crate::context::Context;
use crate::cq::Mode;
use crate::device::{Cq, Qp, QpMarks};
use crate::fence::Fence;
use crate::grid::Grid;
use crate::id::Kind;
use crate::op::{Callback, Kill, Watch};
use crate::status::{Result, Status};
use crate::window::{NONE, OpId};

/// What the application declares at attach.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerOptions {
    /// Send-queue entries that are ours; each may use one completion-queue entry.
    pub budget: u32,
    pub mode: Mode,
    /// For a QP of `ibv_create_qp_ex`: the `send_ops_flags` it was created with.
    pub send_ops_flags: Option<u64>,
    /// The only thread that may post and poll, for queue pairs whose provider's locks are off; 0:
    /// any may.
    pub owner_thread: u64,
    /// What another thread asks for waits for the owner's next tick or poll, instead of being
    /// refused.
    pub queue_for_owner: bool,
    /// The thread that polls in mode `Yours`, as `pthread_self` names it; 0: the owner, if there is one.
    pub polling_thread: u64,
}

/// `IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW`
const WINDOW_OPS: u64 = 1 << 7 | 1 << 8;

pub const DEFAULT_BUDGET: u32 = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    /// The slot is unused.
    #[default]
    Unused,
    /// Attached before RTS.
    Connecting,
    Live,
    /// The QP is in ERR, or will be before any of its windows is called gone.
    Dead,
    /// The QP no longer exists and is not touched.
    Gone,
}

#[derive(Default)]
pub struct PeerBody {
    pub life: Life,
    pub qp: Option<Qp>,
    pub marks: QpMarks,
    pub domain: u32,
    /// Its number among the domain's clients.
    arrival: u64,
    pub send_queue: u32,
    pub recv_queue: u32,
    pub mode: Mode,
    pub polling_thread: u64,
    owner_thread: u64,
    queue_for_owner: bool,
    /// The rights that the QP lets in.
    pub access: u32,
    pub signal_all: bool,
    /// No new grants.
    pub leaving: bool,

    pub budget: u32,
    /// Send-queue entries of ours that are in use.
    pub used: u32,
    /// Of these, what belongs to chains that were given up: it is in the send queue still if the QP
    /// could not be moved to ERR.
    pub given_up: u32,
    /// Work that waits for room in the send queue.
    pub pending: Line,
    /// Committed chains in the order of the send queue.
    pub outstanding: VecDeque<u32>,
    /// Chains prepared and not committed.
    pub prepared: u32,
    /// Counts prepares, commits and posts.
    pub sequence: u64,
    /// In line for `run_pumps`.
    pub to_pump: bool,
    /// A post was refused for lack of room: try again at the next occasion.
    pub retry: bool,
    /// The application has heard that the QP is in error.
    pub told_dead: bool,
    /// A LOCAL_INV of ours did not complete by its deadline: post no more behind it.
    pub stuck: bool,
    /// The deadline for which the QP's state was looked at last.
    pub asked_at: u64,
    /// An error was seen on the QP: look at its state before trusting the send queue.
    pub suspect: bool,

    /// The first of the windows bound, or about to be, to this peer.
    pub first_window: u32,
    pub windows: usize,
    /// Of these, the library's own.
    pub hidden: usize,
    /// A grant of our own is under way that asks for a completion.
    pub asking: bool,
    /// Windows to deallocate.
    pub fence: Vec<Fence>,
    pub fencing: bool,
}

/// As `pthread_self` names it; never 0.
pub fn this_thread() -> u64 {
    // SAFETY: no precondition.
    unsafe { libc::pthread_self() }
}

impl PeerBody {
    /// Whether a LOCAL_INV that is posted now is not to be relied on.
    pub fn is_hopeless(&self) -> bool {
        self.life != Life::Live || self.stuck || self.suspect
    }

    /// Who can look for its completions. With a QP that is gone its queues may be.
    pub fn watch(&self) -> Watch {
        let lives = self.life != Life::Gone;
        Watch {
            ours: (lives && self.mode == Mode::Ours).then_some(self.send_queue),
            theirs: lives && (self.mode == Mode::Yours || self.owner_thread != 0),
        }
    }

    /// Whether this thread may post to the QP.
    pub fn may_post(&self) -> bool {
        self.owner_thread == 0 || self.owner_thread == this_thread()
    }
}

#[derive(Default)]
pub struct Peer {
    pub generation: AtomicU32,
    pub qp_num: AtomicU32,
    pub domain: AtomicU32,
    pub recv_queue: AtomicU32,
    pub body: Mutex<PeerBody>,
    /// The grants by range.
    pub grid: Grid,
}

#[derive(Clone, Copy, Debug)]
pub struct PeerFacts {
    pub qp_num: u32,
    pub life: Life,
    pub leaving: bool,
    pub grants: usize,
    pub budget: u32,
    pub used: u32,
}

impl Context {
    pub fn peer(&self, peer: u64) -> Result<(u32, &Peer)> {
        let (index, generation) = self.parse_id(Kind::Peer, peer).ok_or(Status::StaleId)?;
        let slot = self.peers.get(index).ok_or(Status::StaleId)?;
        if slot.generation.load(Ordering::Acquire) != generation {
            return Err(Status::StaleId);
        }
        Ok((index, slot))
    }

    pub fn peer_id(&self, index: u32) -> u64 {
        self.make_id(Kind::Peer, index, self.peers.at(index).generation.load(Ordering::Acquire))
    }

    /// May wait: queries the QP.
    pub fn peer_attach(&self, domain: u64, qp: Qp, options: PeerOptions) -> Result<u64> {
        let (domain_index, domain_slot) = self.domain(domain)?;
        if !domain_slot.body.lock().stands_for(qp.pd()) {
            return Err(Status::ForeignPd);
        }
        let facts = qp.query().map_err(|_| Status::VerbsError)?;
        if facts.qp_type != verbs::IBV_QPT_RC {
            return Err(Status::NotRc);
        }
        if !matches!(facts.state, verbs::IBV_QPS_INIT | verbs::IBV_QPS_RTR | verbs::IBV_QPS_RTS) {
            return Err(Status::QpState);
        }
        match (qp.is_extended(), options.send_ops_flags) {
            (true, None) => return Err(Status::QpUndeclared),
            (_, Some(flags)) if flags & WINDOW_OPS != WINDOW_OPS => return Err(Status::QpWithoutWindowOps),
            _ => {}
        }
        let budget = if options.budget == 0 { DEFAULT_BUDGET } else { options.budget };
        if budget > facts.max_send_wr {
            return Err(Status::BudgetTooLarge);
        }
        let send_cq = qp.send_cq().ok_or(Status::InvalidArgument)?;
        let number = qp.number();
        let _one_at_a_time = self.attaching.lock();
        if let Some(other) = self.qps.get(number) {
            if self.peers.at(other).body.lock().life != Life::Unused {
                return Err(Status::AlreadyAttached);
            }
        }
        let index = self.peers.take().ok_or(Status::NoMemory)?;
        let queues = self.enter_queues(send_cq, qp.recv_cq(), &options);
        let (send_queue, recv_queue) = match queues {
            Ok(queues) => queues,
            Err(status) => {
                self.peers.give(index);
                return Err(status);
            }
        };
        let entered = {
            let mut domain_body = domain_slot.body.lock();
            self.domain_alive(domain, &domain_body).map(|()| {
                domain_body.peers += 1;
                domain_body.pool.enter()
            })
        };
        let arrival = match entered {
            Ok(arrival) => arrival,
            Err(status) => {
                self.leave_queues(send_queue, recv_queue);
                self.peers.give(index);
                return Err(status);
            }
        };
        if options.polling_thread != 0 || options.owner_thread != 0 {
            self.thread_rules.store(true, Ordering::Release);
        }
        let slot = self.peers.at(index);
        slot.qp_num.store(number, Ordering::Release);
        slot.domain.store(domain_index, Ordering::Release);
        slot.recv_queue.store(recv_queue, Ordering::Release);
        let mut body = slot.body.lock();
        // The queues of the slot's former peer keep their memory.
        let mut fresh = PeerBody {
            pending: std::mem::take(&mut body.pending),
            outstanding: std::mem::take(&mut body.outstanding),
            fence: std::mem::take(&mut body.fence),
            ..PeerBody::default()
        };
        fresh.life = if facts.state == verbs::IBV_QPS_RTS { Life::Live } else { Life::Connecting };
        (fresh.qp, fresh.marks) = (Some(qp), qp.marks());
        fresh.domain = domain_index;
        fresh.arrival = arrival;
        (fresh.send_queue, fresh.recv_queue) = (send_queue, recv_queue);
        fresh.mode = options.mode;
        // An owner polls as well as posts.
        fresh.polling_thread =
            if options.polling_thread == 0 { options.owner_thread } else { options.polling_thread };
        fresh.owner_thread = options.owner_thread;
        fresh.queue_for_owner = options.queue_for_owner;
        fresh.access = facts.access;
        fresh.signal_all = facts.signal_all;
        fresh.budget = budget;
        fresh.first_window = NONE;
        *body = fresh;
        drop(body);
        self.qps.set(number, Some(index));
        let peer = self.peer_id(index);
        self.adopted.lock().note_peer(qp, peer);
        Ok(peer)
    }

    fn enter_queues(&self, send: Cq, recv: Option<Cq>, options: &PeerOptions) -> Result<(u32, u32)> {
        let (mode, owner) = (options.mode, options.owner_thread);
        let send_queue = self.queues.enter(send, mode, owner)?;
        let Some(recv) = recv.filter(|recv| *recv != send) else { return Ok((send_queue, send_queue)) };
        match self.queues.enter(recv, mode, owner) {
            Ok(recv_queue) => Ok((send_queue, recv_queue)),
            Err(status) => {
                self.queues.leave(send_queue);
                Err(status)
            }
        }
    }

    fn leave_queues(&self, send_queue: u32, recv_queue: u32) {
        self.queues.leave(send_queue);
        if recv_queue != send_queue {
            self.queues.leave(recv_queue);
        }
    }

    /// Looks at the QP's state. A kernel call on most devices.
    pub fn refresh(&self, index: u32, body: &mut PeerBody) -> Result<()> {
        if !matches!(body.life, Life::Connecting | Life::Live) {
            return Ok(());
        }
        let qp = body.qp.ok_or(Status::StaleId)?;
        let facts = qp.query().map_err(|_| Status::VerbsError)?;
        match facts.state {
            verbs::IBV_QPS_RTS => {
                body.life = Life::Live;
                body.suspect = false;
                body.access = facts.access;
                Ok(())
            }
            verbs::IBV_QPS_ERR => {
                self.peer_lost(index, body, Life::Dead);
                Err(Status::PeerDead)
            }
            _ => Err(Status::NotConnected),
        }
    }

    pub fn peer_facts(&self, peer: u64) -> Result<PeerFacts> {
        let (_, slot) = self.peer(peer)?;
        let body = slot.body.lock();
        self.peer(peer)?;
        Ok(PeerFacts {
            qp_num: slot.qp_num.load(Ordering::Acquire),
            life: body.life,
            leaving: body.leaving,
            grants: body.windows - body.hidden,
            budget: body.budget,
            used: match body.life {
                Life::Live | Life::Connecting => body.used,
                _ => body.used - body.given_up,
            },
        })
    }

    /// The send queue is known to be stuck: post nothing more for revocations.
    pub fn peer_stuck(&self, peer: u64) -> Result<()> {
        let (_, slot) = self.peer(peer)?;
        let mut body = slot.body.lock();
        self.peer(peer)?;
        body.stuck = true;
        Ok(())
    }

    /// Revokes all that the peer holds and then takes it off the books. Success means that the
    /// library touches neither the QP nor its completion queues again. May wait.
    pub fn peer_detach(&self, peer: u64, timeout_us: u64) -> Result<()> {
        let op = self.begin_detach(peer, timeout_us, None)?;
        self.wait_for_all(op, |_| {})?;
        self.peer_forget(peer)
    }

    /// The same, ending in a callback. Never waits.
    pub fn peer_detach_start(&self, peer: u64, timeout_us: u64, callback: Callback) -> Result<()> {
        self.begin_detach(peer, timeout_us, Some(callback)).map(|_| ())
    }

    fn begin_detach(&self, peer: u64, timeout_us: u64, callback: Option<Callback>) -> Result<OpId> {
        let found = self.peer(peer).and_then(|(_, slot)| {
            let mut body = slot.body.lock();
            self.peer(peer)?;
            self.check_thread(&body)?;
            if callback.is_none() {
                self.check_may_wait(&body)?;
            }
            body.leaving = true;
            Ok(())
        });
        if found == Err(Status::StaleId) {
            // Another detach may be about to leave the queues: they are untouched from here on, too.
            drop(self.attaching.lock());
        }
        found?;
        let op = self.begin_op(timeout_us, Kill::Always, callback)?;
        self.op(op).body.lock().detaches = Some(peer);
        self.revoke_all_of(op, peer, true);
        self.end_begin(op);
        Ok(op)
    }

    /// The QP no longer exists: its windows are deallocated, it is never touched again. May wait:
    /// deallocating is a kernel call.
    pub fn peer_gone(&self, peer: u64, timeout_us: u64) -> Result<()> {
        let (index, slot) = self.peer(peer)?;
        {
            let mut body = slot.body.lock();
            self.peer(peer)?;
            body.leaving = true;
            self.peer_lost(index, &mut body, Life::Gone);
        }
        let op = self.begin_op(timeout_us, Kill::Never, None)?;
        self.revoke_all_of(op, peer, true);
        self.end_begin(op);
        self.wait_for_all(op, |_| {})?;
        self.peer_forget(peer)
    }

    /// Takes a peer without windows off the books; its late completions will be dropped.
    pub fn peer_forget(&self, peer: u64) -> Result<()> {
        let _one_at_a_time = self.attaching.lock();
        let (index, slot) = self.peer(peer)?;
        let mut body = slot.body.lock();
        self.peer(peer)?;
        if body.windows > 0 || body.prepared > 0 || !body.fence.is_empty() {
            return Err(Status::Open);
        }
        self.drop_outstanding(&mut body);
        slot.generation.fetch_add(1, Ordering::AcqRel);
        let number = slot.qp_num.load(Ordering::Acquire);
        if self.qps.get(number) == Some(index) {
            self.qps.set(number, None);
        }
        body.life = Life::Unused;
        let qp = body.qp.take();
        let (domain, arrival) = (body.domain, body.arrival);
        let (send_queue, recv_queue) = (body.send_queue, body.recv_queue);
        // Whoever polls holds a queue's lock and takes this one: leave the queues without it.
        drop(body);
        self.leave_queues(send_queue, recv_queue);
        if let Some(qp) = qp {
            self.adopted.lock().forget_peer(qp, peer);
        }
        let mut domain_body = self.domains.at(domain).body.lock();
        domain_body.peers -= 1;
        domain_body.pool.leave(arrival);
        drop(domain_body);
        self.peers.give(index);
        Ok(())
    }

    /// A waiting call on the declared polling thread could never end.
    pub fn check_may_wait(&self, body: &PeerBody) -> Result<()> {
        self.check_thread(body)?;
        if body.mode == Mode::Yours && body.polling_thread == this_thread() {
            return Err(Status::WouldDeadlock);
        }
        Ok(())
    }

    /// Refuses threads other than the owner, unless what they ask for may wait for it, or the queue
    /// pair is not touched any more.
    pub fn check_thread(&self, body: &PeerBody) -> Result<()> {
        let may = body.may_post() || body.queue_for_owner || body.life == Life::Gone;
        if may { Ok(()) } else { Err(Status::WrongThread) }
    }
}
