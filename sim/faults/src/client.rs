//! What participants, providers and buyers have in common: one question at a time, asked again until it is answered, and
//! one moment at which to look again.

use super::message::{Ask, Body, Reply};
use super::network::Node;
use super::world::{What, World};

/// How long an answer is waited for, in milliseconds; doubled with each try, up to the longest.
const PATIENCE_MS: u64 = 400;
const PATIENCE_MS_MAX: u64 = 3_000;

#[derive(Clone, Debug)]
struct Open {
    id: u64,
    ask: Ask,
    until: u64,
    patience: u64,
}

/// One process' line to the coordinator.
#[derive(Clone, Debug)]
pub(super) struct Line {
    me: Node,
    open: Option<Open>,
    asked: u64,
    /// Only the newest alarm counts.
    ticket: u64,
}

impl Line {
    /// Of this process.
    #[must_use]
    pub(super) const fn new(me: Node) -> Self {
        Self { me, open: None, asked: 0, ticket: 0 }
    }

    /// Asks, and asks again until there is an answer.
    pub(super) fn ask(&mut self, world: &mut World, ask: Ask) {
        self.asked += 1;
        let (id, patience) = (self.asked, PATIENCE_MS);
        world.send(self.me, Node::Coordinator, id, &Body::Ask(ask.clone()));
        self.open = Some(Open { id, ask, until: world.now + patience, patience });
        self.wake(world, patience);
    }

    /// Whether an answer is waited for; asks again where it was waited for long enough.
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

    /// The answer to the open question; `None` for one that is late, doubled, or only says to ask again.
    pub(super) fn answered(&mut self, id: u64, reply: Reply) -> Option<(Ask, Reply)> {
        let open = self.open.take_if(|open| open.id == id && !reply.is_passing())?;
        Some((open.ask, reply))
    }

    /// The process is gone, and with it its question.
    pub(super) fn drop_all(&mut self) {
        self.open = None;
        self.ticket += 1;
    }

    /// Looks again after a while, and not before.
    pub(super) fn wake(&mut self, world: &mut World, pause: u64) {
        self.ticket += 1;
        world.after(pause.max(1), What::Wakes { node: self.me, ticket: self.ticket });
    }

    /// Whether this is the newest alarm.
    #[must_use]
    pub(super) const fn is_newest(&self, ticket: u64) -> bool {
        ticket == self.ticket
    }
}
