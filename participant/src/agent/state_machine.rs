//! The agent's state machine: a pure function of the coordinator's view and of this participant's
//! progress. It uses no clock, disk or network, so every point at which a crash may happen is one
//! row of a test table.

use florin_protocol::{Address, RoundNumber, TaskPhase, TaskView};

/// Progress of this participant in the current round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoundStage {
    /// Nothing is done yet.
    NotStarted,
    /// The update is on disk.
    Trained,
    /// Commit and header are recorded in the guard; the coordinator may have the commit.
    Signed,
    /// The coordinator accepted the commit.
    Committed,
    /// The receipt is on disk.
    ReceiptStored,
    /// Failed for this participant: rejected, too late, or not computable.
    Failed,
}

/// The participant's own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParticipantState {
    /// Number of reported rounds at the last enrolment of this process.
    pub reported_at_enrolment: Option<u32>,
    /// Number of final settlements at the last claim of this process.
    pub finalised_at_claim: u32,
    /// Number of reports that were read.
    pub reports_read: u32,
    /// Progress in the round that the view shows.
    pub stage: RoundStage,
}

/// The next action of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentStep {
    /// Read and verify a round's report.
    ReadReport(RoundNumber),
    /// Register, bond and enrol.
    Join,
    /// Enrol again: the coordinator does not select a participant that missed a commit or a reveal
    /// until it enrols again.
    EnrolAgain,
    /// Claim the pay that has become final.
    Claim,
    /// Fetch the model and train.
    Train,
    /// Sign and send the commit.
    Commit,
    /// Upload the update.
    Reveal,
    /// Wait for a newer view.
    Wait,
    /// Claim, withdraw the bond, and end.
    Finish,
}

/// Returns the next step. Claims wait until there is nothing else to do.
#[must_use]
pub fn next_step(view: &TaskView, me: Address, own: ParticipantState) -> AgentStep {
    match step_in_phase(view, me, own) {
        AgentStep::Wait if view.finalised > own.finalised_at_claim => AgentStep::Claim,
        step => step,
    }
}

fn step_in_phase(view: &TaskView, me: Address, own: ParticipantState) -> AgentStep {
    if own.reports_read < view.reported {
        return AgentStep::ReadReport(RoundNumber(own.reports_read + 1));
    }
    let asked = view.offer.as_ref().is_some_and(|offer| offer.body.cohort.contains(&me));
    match view.phase {
        TaskPhase::Done => AgentStep::Finish,
        TaskPhase::Closing | TaskPhase::AwaitingBlobs => AgentStep::Wait,
        _ if own.reported_at_enrolment.is_none() => AgentStep::Join,
        // Once for each report: the coordinator may have removed this participant with it.
        TaskPhase::Enrolling if own.reported_at_enrolment != Some(view.reported) => {
            AgentStep::EnrolAgain
        }
        _ if view.offer.is_some() && !asked && own.reported_at_enrolment != Some(view.reported) => {
            AgentStep::EnrolAgain
        }
        TaskPhase::Committing if asked => match own.stage {
            RoundStage::NotStarted => AgentStep::Train,
            RoundStage::Trained | RoundStage::Signed => AgentStep::Commit,
            RoundStage::Committed | RoundStage::ReceiptStored | RoundStage::Failed => {
                AgentStep::Wait
            }
        },
        TaskPhase::Revealing if asked => match own.stage {
            // Without a signature there is no commit, and it is too late for one.
            RoundStage::NotStarted | RoundStage::Trained => AgentStep::Wait,
            RoundStage::Signed | RoundStage::Committed => AgentStep::Reveal,
            RoundStage::ReceiptStored | RoundStage::Failed => AgentStep::Wait,
        },
        TaskPhase::Enrolling
        | TaskPhase::Committing
        | TaskPhase::Revealing
        | TaskPhase::Valuing
        | TaskPhase::Settling => AgentStep::Wait,
    }
}

#[cfg(test)]
mod tests {
    use florin_protocol::{
        Canonical, NodeSigner, Offer, RoundScope, Signed, TaskPhase, TaskView, Timestamp,
    };

    use super::*;
    use crate::testing;

    const ME: Address = Address([1; 20]);
    const OTHER: Address = Address([2; 20]);

    fn view(phase: TaskPhase, reported: u32, cohort: &[Address]) -> TaskView {
        let spec = testing::spec();
        let id = spec.id();
        let scope = RoundScope { market: spec.market, task: id, round: RoundNumber(3) };
        let offer = Offer {
            scope,
            base_model: spec.base_model,
            previous_report: spec.digest(),
            cohort: cohort.to_vec(),
            reasons: Vec::new(),
            candidates: florin_protocol::Digest::default(),
            opened: Timestamp(0),
            commit_by: Timestamp(10),
            reveal_by: Timestamp(20),
            pool: spec.budget.data,
        };
        let offer: Signed<Offer> = NodeSigner::from_seed(&[1; 32]).sign(offer);
        let model = spec.base_model;
        TaskView {
            sequence: 1,
            now: Timestamp(5),
            id,
            spec,
            phase,
            phase_ends: None,
            round: RoundNumber(3),
            reported,
            finalised: 0,
            enrolled: 1,
            committed: 0,
            revealed: 0,
            offer: Some(offer),
            model,
            missing_blobs: Vec::new(),
            holdout_missing: false,
            waiting: None,
            end: None,
        }
    }

    #[test]
    fn after_a_crash_the_next_step_is_the_first_missing_one() {
        use RoundStage::{Committed, Failed, NotStarted, ReceiptStored, Signed, Trained};
        use TaskPhase::{Committing, Enrolling, Revealing, Settling, Valuing};
        let table = [
            (Enrolling, NotStarted, AgentStep::Wait),
            (Committing, NotStarted, AgentStep::Train),
            (Committing, Trained, AgentStep::Commit),
            // The crash was between record and response: the same commit is sent again.
            (Committing, Signed, AgentStep::Commit),
            (Committing, Committed, AgentStep::Wait),
            (Committing, ReceiptStored, AgentStep::Wait),
            (Committing, Failed, AgentStep::Wait),
            (Revealing, NotStarted, AgentStep::Wait),
            (Revealing, Trained, AgentStep::Wait),
            (Revealing, Signed, AgentStep::Reveal),
            (Revealing, Committed, AgentStep::Reveal),
            (Revealing, ReceiptStored, AgentStep::Wait),
            (Revealing, Failed, AgentStep::Wait),
            (Valuing, ReceiptStored, AgentStep::Wait),
            (Valuing, Committed, AgentStep::Wait),
            (Settling, ReceiptStored, AgentStep::Wait),
        ];
        for (phase, stage, step) in table {
            let own = ParticipantState {
                reported_at_enrolment: Some(2),
                finalised_at_claim: 0,
                reports_read: 2,
                stage,
            };
            assert_eq!(next_step(&view(phase, 2, &[ME]), ME, own), step, "{phase:?} {stage:?}");
            let waits = next_step(&view(phase, 2, &[OTHER]), ME, own);
            assert_eq!(waits, AgentStep::Wait, "{phase:?} {stage:?}, but others are selected");
        }
    }

    #[test]
    fn reports_are_read_first_and_joining_comes_before_work() {
        let fresh = ParticipantState {
            reported_at_enrolment: None,
            finalised_at_claim: 0,
            reports_read: 0,
            stage: RoundStage::NotStarted,
        };
        assert_eq!(
            next_step(&view(TaskPhase::Committing, 2, &[ME]), ME, fresh),
            AgentStep::ReadReport(RoundNumber(1))
        );
        let own = ParticipantState { reports_read: 1, ..fresh };
        assert_eq!(
            next_step(&view(TaskPhase::Done, 2, &[ME]), ME, own),
            AgentStep::ReadReport(RoundNumber(2))
        );
        let own = ParticipantState { reports_read: 2, ..fresh };
        for phase in
            [TaskPhase::Enrolling, TaskPhase::Committing, TaskPhase::Valuing, TaskPhase::Settling]
        {
            assert_eq!(next_step(&view(phase, 2, &[OTHER]), ME, own), AgentStep::Join, "{phase:?}");
        }
        for phase in [TaskPhase::AwaitingBlobs, TaskPhase::Closing] {
            assert_eq!(next_step(&view(phase, 2, &[]), ME, own), AgentStep::Wait, "{phase:?}");
        }
        assert_eq!(next_step(&view(TaskPhase::Done, 2, &[]), ME, own), AgentStep::Finish);
    }

    #[test]
    fn an_unselected_participant_enrols_again_once_per_report() {
        use TaskPhase::{Committing, Enrolling, Revealing, Valuing};
        let enrolled = |at| ParticipantState {
            reported_at_enrolment: Some(at),
            finalised_at_claim: 0,
            reports_read: 2,
            stage: RoundStage::NotStarted,
        };
        for phase in [Enrolling, Committing, Revealing, Valuing] {
            let view = view(phase, 2, &[OTHER]);
            assert_eq!(next_step(&view, ME, enrolled(1)), AgentStep::EnrolAgain, "{phase:?}");
            assert_eq!(next_step(&view, ME, enrolled(2)), AgentStep::Wait, "{phase:?}");
        }
        assert_eq!(next_step(&view(Committing, 2, &[ME]), ME, enrolled(1)), AgentStep::Train);
        let settling = TaskView { offer: None, ..view(TaskPhase::Settling, 2, &[]) };
        assert_eq!(next_step(&settling, ME, enrolled(1)), AgentStep::Wait, "there is no offer yet");
    }

    #[test]
    fn final_pay_is_claimed_only_when_there_is_no_other_step() {
        let own = ParticipantState {
            reported_at_enrolment: Some(2),
            finalised_at_claim: 0,
            reports_read: 2,
            stage: RoundStage::Committed,
        };
        let at = |phase, finalised| TaskView { finalised, ..view(phase, 2, &[ME]) };
        assert_eq!(next_step(&at(TaskPhase::Committing, 0), ME, own), AgentStep::Wait);
        assert_eq!(next_step(&at(TaskPhase::Committing, 1), ME, own), AgentStep::Claim);
        assert_eq!(
            next_step(&at(TaskPhase::Revealing, 1), ME, own),
            AgentStep::Reveal,
            "work comes first"
        );
        let drawn = ParticipantState { finalised_at_claim: 1, ..own };
        assert_eq!(next_step(&at(TaskPhase::Committing, 1), ME, drawn), AgentStep::Wait);
        assert_eq!(next_step(&at(TaskPhase::Closing, 2), ME, drawn), AgentStep::Claim);
        assert_eq!(next_step(&at(TaskPhase::Done, 2), ME, drawn), AgentStep::Finish);
    }
}
