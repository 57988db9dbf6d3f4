//! A participation beside others of the same process: it shares the data folder with them, waits for
//! its turn to train, and stops between two rounds when it is asked to leave.

use std::time::Duration;

use florin_protocol::{Offer, TaskPhase, TaskView};

use super::state_machine::AgentStep;
use super::{Agent, AgentError};
use crate::shared_folder::SharedFolder;
use crate::shutdown::Shutdown;
use crate::turns::{TrainingTurn, TrainingTurns, TurnRequest};

/// The code of a round whose commits closed before this device was free.
const NO_TURN: &str = "DEVICE_BUSY";

/// The part of a participation that others of the process share. By default there are none.
#[derive(Clone, Debug, Default)]
pub struct Supervision {
    /// The data folder, if it is open already; otherwise the participation opens it.
    pub folder: Option<SharedFolder>,
    /// Rounds of this coordinator's tasks that the participant works on at a time; 0 for no limit.
    pub at_once: u32,
    /// The turns of the device.
    pub turns: TrainingTurns,
    /// Requests that the participation ends once the round that it works on is reported. The bond
    /// stays; [`leave_task`](super::leave_task) withdraws it.
    pub leave: Shutdown,
}

impl Agent<'_, '_> {
    /// The step that is taken now: outside the hours of the device, none that leads to new work.
    pub(super) fn supervised(&self, step: AgentStep) -> AgentStep {
        match step {
            AgentStep::EnrolAgain if !self.config.supervision.turns.is_open() => AgentStep::Wait,
            step => step,
        }
    }

    /// Whether the participation may end after this step: it is asked to leave, and no round waits
    /// for a message of its.
    pub(super) fn may_stop_after(&self, step: AgentStep, view: &TaskView) -> bool {
        let cohort = view.offer.as_ref().map(|offer| &offer.body.cohort);
        let is_asked = cohort.is_some_and(|cohort| cohort.contains(&self.me));
        let waits = matches!(step, AgentStep::Wait | AgentStep::Claim | AgentStep::EnrolAgain);
        self.config.supervision.leave.is_requested() && waits && !is_asked
    }

    /// Waits until this training may use the device. `None` if the round does not need it any more.
    pub(super) fn wait_for_turn(
        &mut self,
        offer: &Offer,
    ) -> Result<Option<TrainingTurn>, AgentError> {
        let (client, task) = (self.context.client, self.config.task);
        let left = offer.commit_by.ms_since(client.now());
        let request = TurnRequest { commit_by: offer.commit_by, left: Duration::from_millis(left) };
        let Some(turn) = self.config.supervision.turns.acquire(request, self.shutdown) else {
            if !self.shutdown.is_requested() {
                let why = "the device trained for other tasks until the commits closed";
                self.fail_round(NO_TURN, &why);
            }
            return Ok(None);
        };
        if !turn.has_waited() {
            return Ok(Some(turn));
        }
        // Others may have closed the commits meanwhile.
        let view = self.with_client(|| client.task(task))?;
        let is_open = view.phase == TaskPhase::Committing && view.round == offer.scope.round;
        Ok(Some(turn).filter(|_| is_open))
    }
}
