//! The holdout rows that a round is evaluated on. They are drawn when reveals close, disclosed
//! before any valuation, and never used again.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use florin_protocol::limits::{BASELINE_ROUNDS_MAX, GLOBAL_DELTAS_MAX};
use florin_protocol::{
    Address, Digest, ErrorCode, Rejection, RoundNumber, RoundTimes, TaskEnd, TaskId, Timestamp,
    UpdateHeader, WorkOrder, draw_rows, round_seed,
};

use super::Engine;
use super::event::EventStatus;
use super::rejection::reject;
use super::state::{ReportedRound, RunningRound, TaskStage, TaskState};

impl Engine {
    pub(super) fn check_disclosed(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<EventStatus, Rejection> {
        match &self.task(id)?.stage {
            TaskStage::Valuing(running) if running.offer.scope.round == round => {
                Ok(if running.work_order.is_some() {
                    EventStatus::Duplicate
                } else {
                    EventStatus::New
                })
            }
            _ => reject(ErrorCode::WorkOrderClosed, format!("round {round} is not being valued")),
        }
    }

    /// The digest of the holdout rows disclosed for a round.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`]; [`ErrorCode::NotYetPublic`] before the rows are drawn and disclosed;
    /// [`ErrorCode::NotFound`] for a round without rows.
    pub fn disclosed_rows(&self, id: TaskId, round: RoundNumber) -> Result<Digest, Rejection> {
        let task = self.task(id)?;
        if let Some(past) = task.reported_round(round) {
            return past.disclosed_rows();
        }
        let running = task.running().filter(|running| running.offer.scope.round == round);
        running
            .and_then(|running| running.work_order.as_ref())
            .map(|order| order.disclosed_rows)
            .ok_or_else(|| {
                let message = format!(
                    "the holdout rows of round {round} are drawn after its reveals close, so that \
                     they are unpredictable"
                );
                task.absent_round(round).unwrap_or(Rejection::new(ErrorCode::NotYetPublic, message))
            })
    }
}

impl TaskState {
    /// The rejection of a request for a round that the task never has: its number is 0 or above the
    /// task's rounds, or the task ended before it.
    pub(super) fn absent_round(&self, round: RoundNumber) -> Option<Rejection> {
        let reported = u32::try_from(self.rounds.len()).unwrap_or(u32::MAX);
        let last = if self.is_over() { reported } else { self.spec.rounds.count };
        let message = || format!("there is no round {round}: this task's last round is {last}");
        (round.0 == 0 || round.0 > last).then(|| Rejection::new(ErrorCode::NotFound, message()))
    }

    /// Draws the holdout rows after reveals close. From now on every observer of the reveals can
    /// compute which rows these are. They are to be disclosed next.
    pub(super) fn draw_holdout_rows(&mut self, mut running: Box<RunningRound>) {
        let seed = round_seed(running.offer.scope, &running.commitments(), &self.entries(&running));
        let exposed: Vec<u32> = self.exposed.iter().copied().collect();
        // A task has enough rows for all its rounds. Without rows, nothing more is paid.
        match draw_rows(&self.spec.holdout, &exposed, seed) {
            Ok(drawn) => {
                running.drawn_rows = drawn;
                self.stage = TaskStage::Valuing(running);
            }
            Err(_) => self.begin_closing(TaskEnd::Fault),
        }
    }

    /// Issues the work order, now that the rows are public.
    pub(super) fn rows_disclosed(&mut self, rows: Digest, now: Timestamp) {
        let Some(running) = self.running() else {
            return;
        };
        let order = WorkOrder {
            scope: running.offer.scope,
            base_model: running.offer.base_model,
            disclosed_rows: rows,
            commits: running.commitments(),
            entries: self.entries(running),
            due: now.saturating_add_ms(self.spec.rounds.value_ms),
            previous_models: self.earlier_models().take(GLOBAL_DELTAS_MAX).collect(),
            earlier_updates: self
                .earlier
                .reference_updates(self.spec.rounds.preprocessing, self.model_bytes),
            earlier_rows: self.earlier_rows(),
        };
        self.public.insert(rows);
        self.issue_work_order(order);
    }

    /// The disclosed rows of earlier rounds that train the public baseline of the next one, the
    /// earliest first.
    #[must_use]
    pub fn earlier_rows(&self) -> Vec<Digest> {
        if self.spec.rounds.baseline_epochs == 0 {
            return Vec::new();
        }
        let disclosed = self.rounds.iter().rev().filter_map(|ended| ended.disclosed_rows);
        let mut rows: Vec<Digest> = disclosed.take(BASELINE_ROUNDS_MAX).collect();
        rows.reverse();
        rows
    }

    /// The base models of the previous rounds, latest first.
    fn earlier_models(&self) -> impl Iterator<Item = Digest> + '_ {
        // A round starts from the model that the previous round produced.
        let ended = self.rounds.iter().rev().skip(1).map(|ended| ended.model);
        ended.chain([self.spec.base_model]).take(self.rounds.len())
    }

    /// Whether the running round accepts an update from the base model that its header names.
    pub(super) fn accepts_base(&self, header: &UpdateHeader, running: &RunningRound) -> bool {
        let (rule, base) = (self.spec.rounds.staleness, running.offer.base_model);
        rule.accepts(header.base_model, base, self.earlier_models())
    }
}

impl ReportedRound {
    /// The digest of the holdout rows disclosed for the round.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] for a round without rows.
    pub fn disclosed_rows(&self) -> Result<Digest, Rejection> {
        self.disclosed_rows.ok_or_else(|| {
            let round = self.report.scope.round;
            Rejection::new(ErrorCode::NotFound, format!("round {round} has no holdout rows"))
        })
    }
}

impl RunningRound {
    /// When commits and updates arrived, in the order of their senders.
    pub(super) fn times(&self) -> RoundTimes {
        RoundTimes {
            opened: self.offer.opened,
            commit_by: self.offer.commit_by,
            commits: self.commits.values().map(|taken| taken.at).collect(),
            commits_closed: self.commits_closed.unwrap_or(self.offer.commit_by),
            updates: self.updates.values().map(|taken| taken.at).collect(),
        }
    }

    /// Every accepted commit: sender and commitment, ascending by sender.
    pub(super) fn commitments(&self) -> Vec<(Address, Digest)> {
        let commits = self.commits.iter();
        commits.map(|(sender, taken)| (*sender, taken.commit.body.commitment)).collect()
    }
}
