//! Revocations: rights taken back, with proof.

use crate::chain::{Kind, Work};
use crate::context::Context;
use crate::grant::{Checked, Request};
use crate::id;
use crate::op::{Callback, Item, Kill, Outcome};
use crate::peer::{Life, PeerBody};
use crate::status::{Result, Status};
use crate::transfer::Move;
use crate::window::{AHEAD, MAX_ITEMS, NONE, OpId, State, Waiter};
use std::sync::atomic::Ordering;

impl Context {
    /// Takes grants back; each ends with an outcome of its own, in order. May wait.
    pub fn revoke(&self, grants: &[u64], timeout_us: u64, kill: Kill, out: &mut [Outcome]) -> Result<()> {
        for grant in grants {
            self.check_waiting_revoke(*grant)?;
        }
        let op = self.begin_revoke(grants, timeout_us, kill, None)?;
        self.wait_for_all(op, |outcomes| {
            let n = outcomes.len().min(out.len());
            out[..n].copy_from_slice(&outcomes[..n]);
        })
    }

    /// The same, ending in a callback. Never waits.
    pub fn revoke_start(
        &self,
        grants: &[u64],
        timeout_us: u64,
        kill: Kill,
        callback: Callback,
    ) -> Result<()> {
        self.begin_revoke(grants, timeout_us, kill, Some(callback)).map(|_| ())
    }

    /// All that a peer holds. May wait without a callback. Returns how many grants ended.
    pub fn revoke_peer(&self, peer: u64, timeout_us: u64, kill: Kill) -> Result<usize> {
        let (_, slot) = self.peer(peer)?;
        self.check_may_wait(&slot.body.lock())?;
        let op = self.begin_op(timeout_us, kill, None)?;
        self.revoke_all_of(op, peer, false);
        self.end_begin(op);
        let mut ended = 0;
        self.wait_for_all(op, |outcomes| ended = outcomes.len())?;
        Ok(ended)
    }

    pub fn revoke_peer_start(
        &self,
        peer: u64,
        timeout_us: u64,
        kill: Kill,
        callback: Callback,
    ) -> Result<()> {
        let (_, slot) = self.peer(peer)?;
        self.check_thread(&slot.body.lock())?;
        let op = self.begin_op(timeout_us, kill, Some(callback))?;
        self.revoke_all_of(op, peer, false);
        self.end_begin(op);
        Ok(())
    }

    /// All rights of anybody that touch a range. May wait. Returns how many grants ended.
    pub fn revoke_range(
        &self,
        region: u64,
        addr: u64,
        length: u64,
        timeout_us: u64,
        kill: Kill,
    ) -> Result<usize> {
        let op = self.begin_range(region, addr, length, timeout_us, kill, None)?;
        let mut ended = 0;
        self.wait_for_all(op, |outcomes| ended = outcomes.len())?;
        Ok(ended)
    }

    pub fn revoke_range_start(
        &self,
        region: u64,
        addr: u64,
        length: u64,
        timeout_us: u64,
        kill: Kill,
        callback: Callback,
    ) -> Result<()> {
        self.begin_range(region, addr, length, timeout_us, kill, Some(callback)).map(|_| ())
    }

    fn begin_range(
        &self,
        region: u64,
        addr: u64,
        length: u64,
        timeout_us: u64,
        kill: Kill,
        callback: Option<Callback>,
    ) -> Result<OpId> {
        let mut found = self.gathered.lock().pop().unwrap_or_default();
        let result = self.windows_in(region, addr, length, &mut found).and_then(|()| {
            if callback.is_none() {
                for (window, _) in &found {
                    self.check_waiting_window(*window)?;
                }
            }
            self.begin_op(timeout_us, kill, callback)
        });
        if let Ok(op) = result {
            self.revoke_windows(op, &found);
            self.end_begin(op);
        }
        found.clear();
        self.gathered.lock().push(found);
        result
    }

    pub fn wait_for_all(&self, op: OpId, read: impl FnOnce(&[Outcome])) -> Result<()> {
        let mut status = Status::Ok;
        self.wait(op, |body, outcomes| {
            read(outcomes);
            status = body.status();
        });
        if status == Status::Ok { Ok(()) } else { Err(status) }
    }

    pub fn check_waiting_revoke(&self, grant: u64) -> Result<()> {
        if !self.thread_rules.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.parse_id(id::Kind::Grant, grant) {
            Some((window, _)) if (window as usize) < self.windows.len() => self.check_waiting_window(window),
            _ => Ok(()),
        }
    }

    fn check_waiting_window(&self, window: u32) -> Result<()> {
        match self.peers.get(self.windows.at(window).peer()) {
            Some(peer) => self.check_may_wait(&peer.body.lock()),
            None => Ok(()),
        }
    }

    fn begin_revoke(
        &self,
        grants: &[u64],
        timeout_us: u64,
        kill: Kill,
        callback: Option<Callback>,
    ) -> Result<OpId> {
        if grants.len() > MAX_ITEMS {
            return Err(Status::TooMany);
        }
        let op = self.begin_op(timeout_us, kill, callback)?;
        for (at, grant) in grants.iter().enumerate() {
            self.prefetch_grant(grants.get(at + AHEAD));
            if let Err(status) = self.add_grant(op, *grant) {
                self.op(op).add_ended(Outcome::failed(*grant, status));
            }
        }
        self.pump_peers(op);
        self.end_begin(op);
        Ok(op)
    }

    fn prefetch_grant(&self, grant: Option<&u64>) {
        let window = grant.and_then(|grant| self.parse_id(id::Kind::Grant, *grant));
        if let Some(window) = window.and_then(|(index, _)| self.windows.get(index)) {
            window.prefetch();
        }
    }

    /// Posts what an operation has put in line, peer by peer.
    pub fn pump_peers(&self, op: OpId) {
        let peers = std::mem::take(&mut self.op(op).body.lock().peers);
        for index in &peers {
            self.look_in_line(*index);
            self.run_pumps();
            let mut body = self.peers.at(*index).body.lock();
            self.pump(*index, &mut body);
        }
        self.op(op).body.lock().peers = peers;
    }

    /// Whether a client gave a right back is to be known before LOCAL_INVs are posted, or handed out.
    pub fn look_for_news(&self, peer: u32) {
        self.look_at_client(peer, |_| true);
        // Completions may have made room.
        self.run_pumps();
    }

    /// The same for what waits in a client's line: only LOCAL_INVs need it.
    pub fn look_in_line(&self, peer: u32) {
        self.look_at_client(peer, |body| body.pending.has_invalidates());
    }

    fn look_at_client(&self, peer: u32, must: impl FnOnce(&PeerBody) -> bool) {
        let peer = self.peers.at(peer);
        let must = {
            let body = peer.body.lock();
            if body.life == Life::Gone {
                return;
            }
            // Who waits for our completions polls this one anyway.
            body.recv_queue == body.send_queue && must(&body)
        };
        self.look_at(peer.recv_queue.load(Ordering::Acquire), must);
    }

    /// Adds one grant to a revocation and puts its LOCAL_INV in line; nothing is posted yet.
    pub fn add_grant(&self, op: OpId, grant: u64) -> Result<()> {
        let (window, generation) = self.parse_id(id::Kind::Grant, grant).ok_or(Status::StaleId)?;
        if window as usize >= self.windows.len() {
            return Err(Status::StaleId);
        }
        self.add_window(op, window, generation)
    }

    pub fn add_window(&self, op: OpId, window_index: u32, generation: u32) -> Result<()> {
        let window = self.windows.at(window_index);
        let owner = window.peer();
        let peer = self.peers.get(owner).ok_or(Status::StaleId)?;
        let mut body = peer.body.lock();
        self.attach(op, owner, &mut body, window_index, Some(generation))?;
        self.start_revoke(owner, &mut body, window_index);
        Ok(())
    }

    /// Makes the operation wait for the end of a window's grant. The peer's lock is held.
    pub fn attach(
        &self,
        op: OpId,
        owner: u32,
        body: &mut PeerBody,
        window_index: u32,
        generation: Option<u32>,
    ) -> Result<()> {
        let window = self.windows.at(window_index);
        let right = window.right();
        if right.peer != owner || !right.state.is_open() || generation.is_some_and(|g| g != right.generation)
        {
            return Err(Status::StaleId);
        }
        self.check_thread(body)?;
        if self.waiter_of(window_index, op).is_some() {
            return Err(Status::Duplicate);
        }
        let grant = self.make_id(id::Kind::Grant, window_index, right.generation);
        let outcome = Outcome { grant, ..Outcome::PENDING };
        let hidden = self.is_hidden(window_index);
        let entry =
            Item { window: window_index, generation: right.generation, hidden, behind: None, done: false };
        self.op(op).add_revocation(entry, outcome, owner, body.watch(), |item| {
            window.swap_revoke_waiter(Some(Waiter { op, item }))
        });
        Ok(())
    }

    /// Does the next thing that ends a window's grant. The peer's lock is held.
    pub fn start_revoke(&self, index: u32, body: &mut PeerBody, window_index: u32) {
        let window = self.windows.at(window_index);
        if window.prepared.load(Ordering::Relaxed) {
            // Taken up at the commit or abort.
            return;
        }
        match window.state() {
            State::Binding | State::Valid if window.invalidate.load(Ordering::Relaxed) => {}
            // Nobody knows whether it is bound, and nothing is under way that will tell.
            State::Binding
                if window.unclear.load(Ordering::Relaxed) && window.posted.load(Ordering::Relaxed) == 0 =>
            {
                self.to_deallocate(index, body, window_index, self.may_move(window_index));
            }
            // Nobody knows whether it was posted: its completion tells, or that of something behind it, or
            // the deadline comes, unless the queue pair is in error already.
            State::Binding if body.life == Life::Live && window.unclear.load(Ordering::Relaxed) => {
                let _ = self.refresh(index, body);
            }
            State::Binding | State::Valid => {
                let under_way = window.posted.load(Ordering::Relaxed) > 0;
                if body.life == Life::Live && (under_way || !body.is_hopeless()) {
                    if window.state() == State::Valid {
                        window.set_state(State::Revoking);
                    }
                    window.invalidate.store(true, Ordering::Relaxed);
                    body.pending.push_back(self.work(window_index, Kind::Invalidate));
                } else if window.state() == State::Binding && !under_way {
                    self.never_bound(index, body, window_index, Outcome::failed(0, Status::NotPosted));
                } else {
                    self.to_deallocate(index, body, window_index, self.may_move(window_index));
                }
            }
            State::Uncertain => {
                self.to_deallocate(index, body, window_index, self.may_move(window_index));
            }
            // Its LOCAL_INV was missed before: the queue pair may have died since.
            State::Invalidating if body.stuck => body.suspect = true,
            _ => {}
        }
    }

    /// Whether the newest revocation of a window lets its QP be moved to ERR.
    pub fn may_move(&self, window_index: u32) -> bool {
        let newest = self.windows.at(window_index).revoke_waiter();
        newest.is_some_and(|waiter| self.op(waiter.op).body.lock().kill != Kill::Never)
    }

    /// Whether nobody has begun to end the grant, and its bind is not waiting in our own line or in
    /// the application's hands.
    pub fn is_untouched(&self, window_index: u32) -> bool {
        let window = self.windows.at(window_index);
        let bound = match window.state() {
            State::Valid => true,
            State::Binding => window.posted.load(Ordering::Relaxed) > 0,
            _ => false,
        };
        let claimed = window.prepared.load(Ordering::Relaxed)
            || window.unclear.load(Ordering::Relaxed)
            || window.invalidate.load(Ordering::Relaxed)
            || window.revoke_waiter().is_some();
        bound && !claimed
    }

    /// Adds all that a peer holds to a revocation.
    pub fn revoke_all_of(&self, op: OpId, peer: u64, leaves: bool) {
        let Ok((index, slot)) = self.peer(peer) else { return };
        self.look_at_client(index, |body| body.windows > 0);
        self.run_pumps();
        let mut body = slot.body.lock();
        if self.peer(peer).is_err() {
            return;
        }
        let mut window = body.first_window;
        while window != NONE {
            let next = self.windows.at(window).next.load(Ordering::Relaxed);
            // One of our own ends by itself; a peer that leaves waits for it.
            let wanted = leaves || !self.is_hidden(window);
            if wanted && self.attach(op, index, &mut body, window, None).is_ok() {
                self.start_revoke(index, &mut body, window);
            }
            window = next;
        }
        self.pump(index, &mut body);
    }

    fn revoke_windows(&self, op: OpId, windows: &[(u32, u32)]) {
        for (window, generation) in windows {
            match self.add_window(op, *window, *generation) {
                // One that has ended meanwhile is what was wanted.
                Ok(()) | Err(Status::StaleId) => {}
                Err(status) => {
                    let grant = self.make_id(id::Kind::Grant, *window, *generation);
                    self.op(op).add_ended(Outcome::failed(grant, status));
                }
            }
        }
        self.pump_peers(op);
    }

    /// LOCAL_INVs for the application to post in a chain of its own; all grants of one peer. The
    /// revocation ends in the callback, after the commit. Never waits.
    pub fn revoke_prepare(
        &self,
        grants: &[u64],
        timeout_us: u64,
        kill: Kill,
        callback: Option<Callback>,
        wrs: &mut [verbs::ibv_send_wr],
    ) -> Result<u64> {
        let first = *grants.first().ok_or(Status::InvalidArgument)?;
        let owner = self.owner_of(first)?;
        self.look_for_news(owner);
        self.with_works(|works| {
            let mut body = self.peers.at(owner).body.lock();
            self.check_preparable(owner, &mut body, grants, grants.len(), works)?;
            let op = self.begin_op(timeout_us, kill, Some(callback.unwrap_or(NOBODY)))?;
            self.prepare_invalidates(owner, &mut body, op, works, wrs, grants.len())
        })
    }

    /// A LOCAL_INV for the old grant and a bind for its successor, to be posted in this order.
    /// Never waits.
    pub fn regrant_prepare(
        &self,
        grant: u64,
        request: &Request,
        timeout_us: u64,
        callback: Option<Callback>,
        wrs: &mut [verbs::ibv_send_wr],
        out: &mut Outcome,
    ) -> Result<u64> {
        let checked = self.check_request(request, false)?;
        let owner = self.owner_of(grant)?;
        if owner != checked.peer {
            return Err(Status::MixedPeers);
        }
        self.look_for_news(owner);
        self.with_works(|works| {
            let mut body = self.peers.at(owner).body.lock();
            self.check_preparable(owner, &mut body, &[grant], 2, works)?;
            let (window, id, rkey) = self.place(&checked, &mut body)?;
            self.windows.at(window).prepared.store(true, Ordering::Relaxed);
            works.push(self.work(window, Kind::Bind));
            *out = Outcome::granted(id, rkey);
            let prepared = self
                .begin_op(timeout_us, Kill::default(), Some(callback.unwrap_or(NOBODY)))
                .and_then(|op| self.prepare_invalidates(owner, &mut body, op, works, wrs, 1));
            if let Err(status) = prepared {
                self.never_bound(owner, &mut body, window, Outcome::failed(0, Status::NotPosted));
                *out = Outcome::failed(0, status);
            }
            prepared
        })
    }

    fn owner_of(&self, grant: u64) -> Result<u32> {
        let (window, generation) = self.parse_id(id::Kind::Grant, grant).ok_or(Status::StaleId)?;
        let right = self.windows.get(window).ok_or(Status::StaleId)?.right();
        let known = right.generation == generation && self.peers.get(right.peer).is_some();
        if known { Ok(right.peer) } else { Err(Status::StaleId) }
    }

    /// Whether LOCAL_INVs for all these grants of one peer may be posted now, in a chain of `n`.
    fn check_preparable(
        &self,
        owner: u32,
        body: &mut PeerBody,
        grants: &[u64],
        n: usize,
        works: &mut Vec<Work>,
    ) -> Result<()> {
        for grant in grants {
            let (window, generation) = self.parse_id(id::Kind::Grant, *grant).ok_or(Status::StaleId)?;
            let right = self.windows.get(window).ok_or(Status::StaleId)?.right();
            if right.generation != generation || !right.state.is_open() {
                return Err(Status::StaleId);
            }
            if right.peer != owner {
                return Err(Status::MixedPeers);
            }
            if works.iter().any(|work| work.window == window) {
                return Err(Status::Duplicate);
            }
            if !self.is_untouched(window) {
                return Err(Status::InProgress);
            }
            works.push(self.work(window, Kind::Invalidate));
        }
        self.check_thread(body)?;
        if body.life != Life::Live {
            return Err(Status::PeerDead);
        }
        self.check_room(body, n).inspect_err(|status| {
            if *status == Status::QueueFull {
                self.ask_for_room(owner, body);
            }
        })
    }

    /// The first `n` works are the invalidates of the operation, which is dropped on an error.
    fn prepare_invalidates(
        &self,
        owner: u32,
        body: &mut PeerBody,
        op: OpId,
        works: &[Work],
        wrs: &mut [verbs::ibv_send_wr],
        n: usize,
    ) -> Result<u64> {
        let token = match self.prepare_chain(owner, body, works, true, Some(op), wrs) {
            Ok(token) => token,
            Err(status) => {
                self.op(op).body.lock().callback = None;
                self.end_op(op);
                return Err(status);
            }
        };
        for work in &works[..n] {
            // Checked just now, under the same lock.
            let _ = self.attach(op, owner, body, work.window, None);
            let window = self.windows.at(work.window);
            window.prepared.store(true, Ordering::Relaxed);
            window.invalidate.store(true, Ordering::Relaxed);
            window.set_state(State::Invalidating);
        }
        Ok(token)
    }

    /// Ends a grant and hands out its successor, in one chain: the new right is bound only after
    /// the old one is gone. Two outcomes: the revocation's and the grant's. May wait.
    pub fn regrant(
        &self,
        grant: u64,
        request: &Request,
        timeout_us: u64,
        out: &mut [Outcome; 2],
    ) -> Result<()> {
        let checked = self.check_request(request, true)?;
        let owner = self.owner_of(grant)?;
        if owner != checked.peer {
            return Err(Status::MixedPeers);
        }
        self.look_for_news(owner);
        let domain = self.peers.at(owner).domain.load(Ordering::Acquire);
        let op = self.begin_op(timeout_us, Kill::default(), None)?;
        let deadline = self.op(op).deadline();
        let queued = loop {
            match self.queue_regrant(op, grant, owner, &checked) {
                Err(Status::PoolEmpty) => {
                    if let Err(status) = self.grow(domain, 1, deadline) {
                        break Err(status);
                    }
                }
                other => break other,
            }
        };
        self.end_begin(op);
        let waited = self.wait_for_all(op, |outcomes| {
            if let [revoked, granted] = outcomes {
                *out = [*revoked, *granted];
            }
        });
        if queued? {
            return waited;
        }
        // Without a send queue to keep the order, the proof does.
        let mut moved = [Outcome::failed(0, Status::NotPosted); 2];
        let step = Move { grant, request: *request };
        let result = self.transfer(&[step], timeout_us, Kill::default(), &mut moved);
        *out = [moved[1], moved[0]];
        // The old right's news comes first.
        result.map_err(|status| match out[0].status {
            Status::Ok => status,
            first => first,
        })
    }

    /// False, and nothing done, if the send queue can't be relied on.
    fn queue_regrant(&self, op: OpId, grant: u64, owner: u32, checked: &Checked) -> Result<bool> {
        let mut body = self.peers.at(owner).body.lock();
        let (old, generation) = self.parse_id(id::Kind::Grant, grant).ok_or(Status::StaleId)?;
        let right = self.windows.at(old).right();
        if right.generation != generation || right.peer != owner {
            return Err(Status::StaleId);
        }
        if !self.is_untouched(old) {
            return Err(Status::InProgress);
        }
        if body.is_hopeless() {
            return Ok(false);
        }
        let (window, id, _) = self.place(checked, &mut body)?;
        if let Err(status) = self.attach(op, owner, &mut body, old, Some(generation)) {
            self.never_bound(owner, &mut body, window, Outcome::failed(0, status));
            return Err(status);
        }
        self.start_revoke(owner, &mut body, old);
        let fresh = self.windows.at(window).right().generation;
        let item = self.op(op).add_item(window, fresh, id);
        self.push_bind(Waiter { op, item }, window, &mut body);
        body.pending.set_last_after(old, generation);
        self.pump(owner, &mut body);
        Ok(true)
    }
}

/// For an operation whose end nobody wants to hear of.
const NOBODY: Callback = Callback { call: |_, _, _, _| {}, words: [0, 0] };
