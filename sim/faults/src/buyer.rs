//! The buyer: locks the budget, publishes the task, uploads model and holdout rows, and closes the
//! task after its expiry if it is still open.

use florin_ledger::{Ledger, LedgerError, Refusal, Terms};
use florin_protocol::ErrorCode;

use super::client::RequestChannel;
use super::context::SimContext;
use super::ledger::DummySigner;
use super::message::{CoordinatorReply, CoordinatorRequest};
use super::network::ProcessId;
use super::setup::BUYER;

const ME: ProcessId = ProcessId::Buyer;
/// Delay before a ledger request is retried, in milliseconds.
const LEDGER_MS: u64 = 200;
/// Interval between two checks of a running task.
const LOOK_MS: u64 = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BuyerActivity {
    Opening,
    Publishing,
    Watching,
    Done,
}

/// The buyer.
#[derive(Clone, Debug)]
pub(super) struct Buyer {
    activity: BuyerActivity,
    channel: RequestChannel,
}

impl Buyer {
    /// A buyer before its first step.
    #[must_use]
    pub(super) const fn new() -> Self {
        Self { activity: BuyerActivity::Opening, channel: RequestChannel::new(ME) }
    }

    /// Schedules the first step.
    pub(super) fn schedule_first_step(&mut self, world: &mut SimContext) {
        self.channel.set_timer(world, 1);
    }

    /// Handles a timer.
    pub(super) fn on_timer(&mut self, world: &mut SimContext, ticket: u64) {
        if !self.channel.is_current_timer(ticket) || self.channel.retry_if_due(world) {
            return;
        }
        match self.activity {
            BuyerActivity::Opening => self.lock_budget(world),
            BuyerActivity::Publishing => self.channel.send(world, CoordinatorRequest::Publish),
            BuyerActivity::Watching => self.close_when_expired(world),
            BuyerActivity::Done => {}
        }
    }

    fn lock_budget(&mut self, world: &mut SimContext) {
        let terms = Terms::from_spec(&world.setup.spec);
        let opened = world.ledger_link(ME).open_task(&DummySigner(BUYER), &terms);
        world.schedule_late_transactions();
        match opened {
            Ok(_) | Err(LedgerError::Refused(Refusal::TaskExists(_))) => {
                world.log(ME, format_args!("locked its budget"));
                self.activity = BuyerActivity::Publishing;
                self.channel.send(world, CoordinatorRequest::Publish);
            }
            Err(_) => self.channel.set_timer(world, LEDGER_MS),
        }
    }

    /// Handles a response.
    pub(super) fn on_reply(&mut self, world: &mut SimContext, id: u64, reply: CoordinatorReply) {
        let Some((ask, reply)) = self.channel.take_request(id, reply) else { return };
        match (ask, reply) {
            (CoordinatorRequest::Publish, CoordinatorReply::Done) => {
                self.channel.send(world, CoordinatorRequest::Model)
            }
            (CoordinatorRequest::Model, CoordinatorReply::Done) => {
                self.channel.send(world, CoordinatorRequest::Holdout)
            }
            (CoordinatorRequest::Holdout, CoordinatorReply::Done) => {
                world.log(ME, format_args!("published its task"));
                self.activity = BuyerActivity::Watching;
                self.channel.set_timer(world, LOOK_MS);
            }
            (ask, CoordinatorReply::Refused(rejection)) => {
                world.log(ME, format_args!("{} is refused: {rejection}", ask.name()));
                // If there is no time left for a round, the buyer only waits for the expiry.
                let is_late = rejection.code == ErrorCode::InvalidTask;
                self.activity =
                    if is_late { BuyerActivity::Watching } else { BuyerActivity::Publishing };
                self.channel.set_timer(world, LOOK_MS);
            }
            _ => self.channel.set_timer(world, LOOK_MS),
        }
    }

    fn close_when_expired(&mut self, world: &mut SimContext) {
        let (way, task) = (world.ledger_link(ME), world.setup.spec.id());
        let closed = way.task(task).ok().flatten().is_some_and(|state| state.closed);
        if closed {
            self.activity = BuyerActivity::Done;
            return;
        }
        if way.now().is_ok_and(|now| now > world.setup.spec.expires) {
            let closed = way.close(&DummySigner(BUYER), task);
            world.schedule_late_transactions();
            match closed {
                Ok(refund) => world.log(ME, format_args!("closed the task: {refund} FLN refunded")),
                Err(error) => world.log(ME, format_args!("cannot close the task: {error}")),
            }
        }
        self.channel.set_timer(world, LOOK_MS);
    }
}

impl Default for Buyer {
    fn default() -> Self {
        Self::new()
    }
}
