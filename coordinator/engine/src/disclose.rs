//! The rows that judge a round: drawn when its reveals are closed, shown before anybody works with them, and never used
//! again.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use florin_protocol::limits::PUBLIC_STEPS_MAX;
use florin_protocol::{
    Address, Code, Digest, Rejection, Round, TaskId, Tick, WorkOrder, draw_rows, round_seed,
};

use super::event::Verdict;
use super::state::{Past, Running, Stage, TaskState};
use super::{Engine, reject};

impl Engine {
    pub(super) fn check_disclosed(&self, id: TaskId, round: Round) -> Result<Verdict, Rejection> {
        match &self.task(id)?.stage {
            Stage::Valuing(running) if running.offer.scope.round == round => {
                Ok(if running.order.is_some() { Verdict::Repeat } else { Verdict::New })
            }
            _ => reject(Code::WorkGone, format!("round {round} is not being valued")),
        }
    }

    /// The digest of the rows shown for a round.
    ///
    /// # Errors
    /// [`Code::UnknownTask`]; [`Code::NotYetPublic`] before they are drawn and shown; [`Code::NotFound`] for a round
    /// without rows.
    pub fn shown(&self, id: TaskId, round: Round) -> Result<Digest, Rejection> {
        let task = self.task(id)?;
        if let Some(past) = task.past(round) {
            return past.rows_shown();
        }
        let running = task.running().filter(|running| running.offer.scope.round == round);
        running.and_then(|running| running.order.as_ref()).map(|order| order.holdout).ok_or_else(
            || {
                let message = format!(
                    "the rows that judge round {round} are drawn when its reveals have closed, so \
                     that nobody can know them before"
                );
                Rejection::new(Code::NotYetPublic, message)
            },
        )
    }
}

impl TaskState {
    /// Reveals are closed: which rows judge the round is known to everybody who saw them. They are to be shown.
    pub(super) fn draw(&mut self, mut running: Box<Running>) {
        let seed = round_seed(running.offer.scope, &running.said(), &self.entries(&running));
        let exposed: Vec<u32> = self.exposed.iter().copied().collect();
        // A task has rows for all its rounds; without them nothing more is paid.
        match draw_rows(&self.spec.holdout, &exposed, seed) {
            Ok(drawn) => {
                running.drawn = drawn;
                self.stage = Stage::Valuing(running);
            }
            Err(_) => self.end(),
        }
    }

    /// Everybody can read the rows: what is to be done is known.
    pub(super) fn disclosed(&mut self, shown: Digest, now: Tick) {
        let Some(running) = self.running() else {
            return;
        };
        let order = WorkOrder {
            scope: running.offer.scope,
            base_model: running.offer.base_model,
            holdout: shown,
            commits: running.said(),
            entries: self.entries(running),
            due: now.after_ms(self.spec.rounds.value_ms),
            previous: self.earlier_models(),
            last_updates: self.earlier.held_against(self.spec.rounds.protection, self.model_bytes),
        };
        self.public.insert(shown);
        self.order_work(order);
    }

    /// What the rounds before began with, the latest first.
    fn earlier_models(&self) -> Vec<Digest> {
        // A round begins with the model that the one before ended with.
        let ended = self.past.iter().rev().skip(1).map(|ended| ended.model);
        let begun = ended.chain([self.spec.base_model]);
        begun.take(PUBLIC_STEPS_MAX.min(self.past.len())).collect()
    }
}

impl Past {
    /// The digest of the rows shown for it.
    ///
    /// # Errors
    /// [`Code::NotFound`] for a round without rows.
    pub fn rows_shown(&self) -> Result<Digest, Rejection> {
        self.shown.ok_or_else(|| {
            let round = self.report.scope.round;
            Rejection::new(Code::NotFound, format!("round {round} was judged by no rows"))
        })
    }
}

impl Running {
    /// Every commit that was taken: sender and commitment, ascending by sender.
    pub(super) fn said(&self) -> Vec<(Address, Digest)> {
        let commits = self.commits.iter();
        commits.map(|(sender, taken)| (*sender, taken.commit.body.commitment)).collect()
    }
}
