//! The buyer: locks the budget, publishes the task, uploads model and rows, and after the task's expiry closes what
//! nobody else has closed.

use florin_ledger::{Ledger, LedgerError, Refusal, Terms};
use florin_protocol::Code;

use super::client::Line;
use super::ledger::Unsigned;
use super::message::{Ask, Reply};
use super::network::Node;
use super::task::BUYER;
use super::world::World;

const ME: Node = Node::Buyer;
/// Pause before the ledger is asked again, in milliseconds.
const LEDGER_MS: u64 = 200;
/// Pause between two looks at a task that runs.
const LOOK_MS: u64 = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Opens,
    Publishes,
    Watches,
    IsDone,
}

/// The buyer.
#[derive(Clone, Debug)]
pub(super) struct Buyer {
    doing: Doing,
    line: Line,
}

impl Buyer {
    /// One that has not begun.
    #[must_use]
    pub(super) const fn new() -> Self {
        Self { doing: Doing::Opens, line: Line::new(ME) }
    }

    /// Begins.
    pub(super) fn begin(&mut self, world: &mut World) {
        self.line.wake(world, 1);
    }

    /// Its alarm rings.
    pub(super) fn wakes(&mut self, world: &mut World, ticket: u64) {
        if !self.line.is_newest(ticket) || self.line.waits(world) {
            return;
        }
        match self.doing {
            Doing::Opens => self.open(world),
            Doing::Publishes => self.line.ask(world, Ask::Publish),
            Doing::Watches => self.watch(world),
            Doing::IsDone => {}
        }
    }

    fn open(&mut self, world: &mut World) {
        let terms = Terms::of(&world.cast.spec);
        let opened = world.way(ME).open_task(&Unsigned(BUYER), &terms);
        world.send_late();
        match opened {
            Ok(_) | Err(LedgerError::Refused(Refusal::TaskExists(_))) => {
                world.tell(ME, format_args!("has locked its budget"));
                self.doing = Doing::Publishes;
                self.line.ask(world, Ask::Publish);
            }
            Err(_) => self.line.wake(world, LEDGER_MS),
        }
    }

    /// An answer arrives.
    pub(super) fn hear(&mut self, world: &mut World, id: u64, reply: Reply) {
        let Some((ask, reply)) = self.line.answered(id, reply) else { return };
        match (ask, reply) {
            (Ask::Publish, Reply::Done) => self.line.ask(world, Ask::Model),
            (Ask::Model, Reply::Done) => self.line.ask(world, Ask::Holdout),
            (Ask::Holdout, Reply::Done) => {
                world.tell(ME, format_args!("has published its task"));
                self.doing = Doing::Watches;
                self.line.wake(world, LOOK_MS);
            }
            (ask, Reply::Refused(rejection)) => {
                world.tell(ME, format_args!("{} is refused: {rejection}", ask.name()));
                // A task that has no time for a round any more is only waited for.
                let is_late = rejection.code == Code::BadTask;
                self.doing = if is_late { Doing::Watches } else { Doing::Publishes };
                self.line.wake(world, LOOK_MS);
            }
            _ => self.line.wake(world, LOOK_MS),
        }
    }

    fn watch(&mut self, world: &mut World) {
        let (way, task) = (world.way(ME), world.cast.spec.id());
        let closed = way.task(task).ok().flatten().is_some_and(|state| state.closed);
        if closed {
            self.doing = Doing::IsDone;
            return;
        }
        if way.now().is_ok_and(|now| now > world.cast.spec.expires) {
            let closed = way.close(&Unsigned(BUYER), task);
            world.send_late();
            match closed {
                Ok(refund) => world.tell(ME, format_args!("closes the task: {refund} FLN")),
                Err(error) => world.tell(ME, format_args!("cannot close the task: {error}")),
            }
        }
        self.line.wake(world, LOOK_MS);
    }
}

impl Default for Buyer {
    fn default() -> Self {
        Self::new()
    }
}
