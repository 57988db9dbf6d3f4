//! The buyer: locks the budget, publishes the task, uploads model and holdout rows, and closes the
//! task after its expiry if it is still open.

use florin_ledger::{Ledger, LedgerError, Refusal, Terms};
use florin_protocol::ErrorCode;

use super::client::Line;
use super::ledger::Unsigned;
use super::message::{Ask, Reply};
use super::network::Node;
use super::task::BUYER;
use super::world::World;

const ME: Node = Node::Buyer;
/// Delay before a ledger request is retried, in milliseconds.
const LEDGER_MS: u64 = 200;
/// Interval between two checks of a running task.
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
    /// A buyer before its first step.
    #[must_use]
    pub(super) const fn new() -> Self {
        Self { doing: Doing::Opens, line: Line::new(ME) }
    }

    /// Schedules the first step.
    pub(super) fn begin(&mut self, world: &mut World) {
        self.line.wake(world, 1);
    }

    /// Handles a timer.
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
        let terms = Terms::from_spec(&world.cast.spec);
        let opened = world.way(ME).open_task(&Unsigned(BUYER), &terms);
        world.send_late();
        match opened {
            Ok(_) | Err(LedgerError::Refused(Refusal::TaskExists(_))) => {
                world.tell(ME, format_args!("locked its budget"));
                self.doing = Doing::Publishes;
                self.line.ask(world, Ask::Publish);
            }
            Err(_) => self.line.wake(world, LEDGER_MS),
        }
    }

    /// Handles a response.
    pub(super) fn hear(&mut self, world: &mut World, id: u64, reply: Reply) {
        let Some((ask, reply)) = self.line.answered(id, reply) else { return };
        match (ask, reply) {
            (Ask::Publish, Reply::Done) => self.line.ask(world, Ask::Model),
            (Ask::Model, Reply::Done) => self.line.ask(world, Ask::Holdout),
            (Ask::Holdout, Reply::Done) => {
                world.tell(ME, format_args!("published its task"));
                self.doing = Doing::Watches;
                self.line.wake(world, LOOK_MS);
            }
            (ask, Reply::Refused(rejection)) => {
                world.tell(ME, format_args!("{} is refused: {rejection}", ask.name()));
                // If there is no time left for a round, the buyer only waits for the expiry.
                let is_late = rejection.code == ErrorCode::InvalidTask;
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
                Ok(refund) => {
                    world.tell(ME, format_args!("closed the task: {refund} FLN refunded"))
                }
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
