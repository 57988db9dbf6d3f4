//! Jobs for the worker threads. A job carries all inputs of its effect, so that the engine can
//! continue meanwhile.

use super::archive::KeepJob;
use super::discloser::ShowJob;
use super::prover::Debits;
use super::settler::LedgerJob;
use super::valuer::ValueJob;
use florin_engine::{Effect, Engine};
use florin_ledger::Settlement;

/// Work outside the engine.
#[derive(Clone, Debug)]
pub enum Job {
    /// Disclose the rows that value a round.
    Show(Box<ShowJob>),
    /// Value and aggregate a round.
    Value(Box<ValueJob>),
    /// Archive a finished round as a blob.
    Keep(Box<KeepJob>),
    /// Send a transaction to the ledger.
    Ledger(Box<LedgerJob>),
}

impl Job {
    /// The job of an effect; `None` if the effect is obsolete.
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
                let before =
                    before.map(|past| (past.report.scope.round, past.report.settlement_id));
                LedgerJob::Post {
                    settlement: Settlement::from_report(&past.report, past.digest),
                    before,
                }
            }
            Effect::Finalize { task, round } => {
                let payout = tasks.get(&task)?.past(round)?.report.settlement_id;
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
