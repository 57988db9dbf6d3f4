//! The client side of participants, providers and buyers: one request at a time, retried until
//! there is a response, and one timer.

use super::message::{Ask, Body, Reply};
use super::network::Node;
use super::world::{What, World};

/// Timeout of a request in milliseconds; doubled with each retry up to the maximum.
const PATIENCE_MS: u64 = 400;
const PATIENCE_MS_MAX: u64 = 3_000;

#[derive(Clone, Debug)]
struct Open {
    id: u64,
    ask: Ask,
    until: u64,
    patience: u64,
}

/// A process's connection to the coordinator.
#[derive(Clone, Debug)]
pub(super) struct Line {
    me: Node,
    open: Option<Open>,
    asked: u64,
    /// Identifies the newest timer; older timers are ignored.
    ticket: u64,
}

impl Line {
    /// The connection of a process.
    #[must_use]
    pub(super) const fn new(me: Node) -> Self {
        Self { me, open: None, asked: 0, ticket: 0 }
    }

    /// Sends a request, which is retried until there is a response.
    pub(super) fn ask(&mut self, world: &mut World, ask: Ask) {
        self.asked += 1;
        let (id, patience) = (self.asked, PATIENCE_MS);
        world.send(self.me, Node::Coordinator, id, &Body::Ask(ask.clone()));
        self.open = Some(Open { id, ask, until: world.now + patience, patience });
        self.wake(world, patience);
    }

    /// Whether a request is open; retries it after its timeout.
    pub(super) fn waits(&mut self, world: &mut World) -> bool {
        let Some(open) = &mut self.open else { return false };
        if world.now >= open.until {
            world.send(self.me, Node::Coordinator, open.id, &Body::Ask(open.ask.clone()));
            open.patience = open.patience.saturating_mul(2).min(PATIENCE_MS_MAX);
            open.until = world.now + open.patience;
        }
        let left = open.until.saturating_sub(world.now);
        self.wake(world, left);
        true
    }

    /// The request that `reply` answers; `None` for a late, duplicate or transient response.
    pub(super) fn answered(&mut self, id: u64, reply: Reply) -> Option<(Ask, Reply)> {
        let open = self.open.take_if(|open| open.id == id && !reply.is_passing())?;
        Some((open.ask, reply))
    }

    /// Drops the open request of a crashed process.
    pub(super) fn drop_all(&mut self) {
        self.open = None;
        self.ticket += 1;
    }

    /// Sets the timer and cancels an earlier one.
    pub(super) fn wake(&mut self, world: &mut World, pause: u64) {
        self.ticket += 1;
        world.after(pause.max(1), What::Wakes { node: self.me, ticket: self.ticket });
    }

    /// Whether this is the newest timer.
    #[must_use]
    pub(super) const fn is_newest(&self, ticket: u64) -> bool {
        ticket == self.ticket
    }
}
