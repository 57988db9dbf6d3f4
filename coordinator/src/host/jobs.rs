//! What an effect asks of whoever carries it out, with everything that it takes: the engine may go on meanwhile.

use super::archive::KeepJob;
use super::discloser::ShowJob;
use super::prover::Debits;
use super::settler::LedgerJob;
use super::valuer::ValueJob;
use florin_engine::{Effect, Engine};
use florin_ledger::Settlement;

/// Something to be done outside of the engine.
#[derive(Clone, Debug)]
pub enum Job {
    /// Show the rows that judge a round.
    Show(Box<ShowJob>),
    /// Compute a round's work.
    Value(Box<ValueJob>),
    /// Keep a round that is over as a blob.
    Keep(Box<KeepJob>),
    /// Have something done by the ledger.
    Ledger(Box<LedgerJob>),
}

impl Job {
    /// The job of an effect; `None` if nobody wants the effect any more.
    #[must_use]
    pub fn of(engine: &Engine, effect: Effect) -> Option<Self> {
        let tasks = &engine.state().tasks;
        let job = match effect {
            Effect::Disclose { task, round } => {
                let state = tasks.get(&task)?;
                let (spec, holdout) = (state.spec.clone(), state.holdout?);
                let drawn = state.running()?.drawn.clone();
                return Some(Self::Show(Box::new(ShowJob { task, round, spec, holdout, drawn })));
            }
            Effect::Value { task, round } => {
                let state = tasks.get(&task)?;
                let running = state.running()?;
                let (order, drawn) = (running.order.clone()?, running.drawn.clone());
                let job = ValueJob { task, round, spec: state.spec.clone(), order, drawn };
                return Some(Self::Value(Box::new(job)));
            }
            Effect::Post { task, round } => {
                let state = tasks.get(&task)?;
                let past = state.past(round)?;
                let earlier = state.unsettled.range(..round).next_back();
                let before = earlier.and_then(|(round, _)| state.past(*round));
                let before = before.map(|past| (past.report.scope.round, past.report.payout));
                LedgerJob::Post {
                    settlement: Settlement::from_report(&past.report, past.digest),
                    before,
                }
            }
            Effect::Finalize { task, round } => {
                let payout = tasks.get(&task)?.past(round)?.report.payout;
                LedgerJob::Finalize { task, round, payout }
            }
            Effect::Close { task } => LedgerJob::Close { task },
            Effect::Prove { task, round } => {
                let state = tasks.get(&task)?;
                let standings = state.standings.clone().filter(|known| known.round == round)?;
                LedgerJob::Prove(Debits::of(standings, state.to_prove()))
            }
            Effect::Keep { task, round } => {
                let past = Box::new(tasks.get(&task)?.past(round)?.clone());
                return Some(Self::Keep(Box::new(KeepJob { task, round, past })));
            }
        };
        Some(Self::Ledger(Box::new(job)))
    }
}
