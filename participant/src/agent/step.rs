//! The agent's state machine: a pure function of the coordinator's view and of this participant's
//! progress. It uses no clock, disk or network, so every point at which a crash may happen is one
//! row of a test table.

use florin_protocol::{Address, RoundNumber, TaskPhase, TaskView};

/// Progress of this participant in the current round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Nothing is done yet.
    Fresh,
    /// The update is on disk.
    Trained,
    /// Commit and header are recorded in the guard; the coordinator may have the commit.
    Signed,
    /// The coordinator accepted the commit.
    Committed,
    /// The receipt is on disk.
    Receipted,
    /// Failed for this participant: rejected, too late, or not computable.
    Lost,
}

/// The participant's own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Number of reported rounds at the last enrolment of this process.
    pub enrolled_at: Option<u32>,
    /// Number of final settlements at the last claim of this process.
    pub drawn_at: u32,
    /// Number of reports that were read.
    pub read: u32,
    /// Progress in the round that the view shows.
    pub stage: Stage,
}

/// The next action of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read and verify a round's report.
    Read(RoundNumber),
    /// Register, bond and enrol.
    Join,
    /// Enrol again: the coordinator does not select a participant that missed a commit or a reveal
    /// until it enrols again.
    Enrol,
    /// Claim the pay that has become final.
    Draw,
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
pub fn next(view: &TaskView, me: Address, own: Own) -> Step {
    match work(view, me, own) {
        Step::Wait if view.finalised > own.drawn_at => Step::Draw,
        step => step,
    }
}

fn work(view: &TaskView, me: Address, own: Own) -> Step {
    if own.read < view.reported {
        return Step::Read(RoundNumber(own.read + 1));
    }
    let asked = view.offer.as_ref().is_some_and(|offer| offer.body.cohort.contains(&me));
    match view.phase {
        TaskPhase::Done => Step::Finish,
        TaskPhase::Closing | TaskPhase::AwaitingBlobs => Step::Wait,
        _ if own.enrolled_at.is_none() => Step::Join,
        // Once for each report: the coordinator may have removed this participant with it.
        TaskPhase::Enrolling if own.enrolled_at != Some(view.reported) => Step::Enrol,
        _ if view.offer.is_some() && !asked && own.enrolled_at != Some(view.reported) => {
            Step::Enrol
        }
        TaskPhase::Committing if asked => match own.stage {
            Stage::Fresh => Step::Train,
            Stage::Trained | Stage::Signed => Step::Commit,
            Stage::Committed | Stage::Receipted | Stage::Lost => Step::Wait,
        },
        TaskPhase::Revealing if asked => match own.stage {
            // Without a signature there is no commit, and it is too late for one.
            Stage::Fresh | Stage::Trained => Step::Wait,
            Stage::Signed | Stage::Committed => Step::Reveal,
            Stage::Receipted | Stage::Lost => Step::Wait,
        },
        TaskPhase::Enrolling
        | TaskPhase::Committing
        | TaskPhase::Revealing
        | TaskPhase::Valuing
        | TaskPhase::Settling => Step::Wait,
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
        }
    }

    #[test]
    fn after_a_crash_the_next_step_is_the_first_missing_one() {
        use Stage::{Committed, Fresh, Lost, Receipted, Signed, Trained};
        use TaskPhase::{Committing, Enrolling, Revealing, Settling, Valuing};
        let table = [
            (Enrolling, Fresh, Step::Wait),
            (Committing, Fresh, Step::Train),
            (Committing, Trained, Step::Commit),
            // The crash was between record and response: the same commit is sent again.
            (Committing, Signed, Step::Commit),
            (Committing, Committed, Step::Wait),
            (Committing, Receipted, Step::Wait),
            (Committing, Lost, Step::Wait),
            (Revealing, Fresh, Step::Wait),
            (Revealing, Trained, Step::Wait),
            (Revealing, Signed, Step::Reveal),
            (Revealing, Committed, Step::Reveal),
            (Revealing, Receipted, Step::Wait),
            (Revealing, Lost, Step::Wait),
            (Valuing, Receipted, Step::Wait),
            (Valuing, Committed, Step::Wait),
            (Settling, Receipted, Step::Wait),
        ];
        for (phase, stage, step) in table {
            let own = Own { enrolled_at: Some(2), drawn_at: 0, read: 2, stage };
            assert_eq!(next(&view(phase, 2, &[ME]), ME, own), step, "{phase:?} {stage:?}");
            let waits = next(&view(phase, 2, &[OTHER]), ME, own);
            assert_eq!(waits, Step::Wait, "{phase:?} {stage:?}, but others are selected");
        }
    }

    #[test]
    fn reports_are_read_first_and_joining_comes_before_work() {
        let fresh = Own { enrolled_at: None, drawn_at: 0, read: 0, stage: Stage::Fresh };
        assert_eq!(
            next(&view(TaskPhase::Committing, 2, &[ME]), ME, fresh),
            Step::Read(RoundNumber(1))
        );
        let own = Own { read: 1, ..fresh };
        assert_eq!(next(&view(TaskPhase::Done, 2, &[ME]), ME, own), Step::Read(RoundNumber(2)));
        let own = Own { read: 2, ..fresh };
        for phase in
            [TaskPhase::Enrolling, TaskPhase::Committing, TaskPhase::Valuing, TaskPhase::Settling]
        {
            assert_eq!(next(&view(phase, 2, &[OTHER]), ME, own), Step::Join, "{phase:?}");
        }
        for phase in [TaskPhase::AwaitingBlobs, TaskPhase::Closing] {
            assert_eq!(next(&view(phase, 2, &[]), ME, own), Step::Wait, "{phase:?}");
        }
        assert_eq!(next(&view(TaskPhase::Done, 2, &[]), ME, own), Step::Finish);
    }

    #[test]
    fn an_unselected_participant_enrols_again_once_per_report() {
        use TaskPhase::{Committing, Enrolling, Revealing, Valuing};
        let enrolled =
            |at| Own { enrolled_at: Some(at), drawn_at: 0, read: 2, stage: Stage::Fresh };
        for phase in [Enrolling, Committing, Revealing, Valuing] {
            let view = view(phase, 2, &[OTHER]);
            assert_eq!(next(&view, ME, enrolled(1)), Step::Enrol, "{phase:?}");
            assert_eq!(next(&view, ME, enrolled(2)), Step::Wait, "{phase:?}");
        }
        assert_eq!(next(&view(Committing, 2, &[ME]), ME, enrolled(1)), Step::Train);
        let settling = TaskView { offer: None, ..view(TaskPhase::Settling, 2, &[]) };
        assert_eq!(next(&settling, ME, enrolled(1)), Step::Wait, "there is no offer yet");
    }

    #[test]
    fn final_pay_is_claimed_only_when_there_is_no_other_step() {
        let own = Own { enrolled_at: Some(2), drawn_at: 0, read: 2, stage: Stage::Committed };
        let at = |phase, finalised| TaskView { finalised, ..view(phase, 2, &[ME]) };
        assert_eq!(next(&at(TaskPhase::Committing, 0), ME, own), Step::Wait);
        assert_eq!(next(&at(TaskPhase::Committing, 1), ME, own), Step::Draw);
        assert_eq!(next(&at(TaskPhase::Revealing, 1), ME, own), Step::Reveal, "work comes first");
        let drawn = Own { drawn_at: 1, ..own };
        assert_eq!(next(&at(TaskPhase::Committing, 1), ME, drawn), Step::Wait);
        assert_eq!(next(&at(TaskPhase::Closing, 2), ME, drawn), Step::Draw);
        assert_eq!(next(&at(TaskPhase::Done, 2), ME, drawn), Step::Finish);
    }
}
