//! Jobs for the worker threads. A job carries all inputs of its effect, so that the engine can
//! continue meanwhile.

use super::archive::ArchiveJob;
use super::discloser::DisclosureJob;
use super::prover::UnprovenDebits;
use super::settler::LedgerJob;
use super::valuer::ValuationJob;
use florin_engine::{Effect, Engine};
use florin_ledger::Settlement;

/// Work outside the engine.
#[derive(Clone, Debug)]
pub enum EffectJob {
    /// Disclose the rows that value a round.
    Disclose(Box<DisclosureJob>),
    /// Value and aggregate a round.
    Value(Box<ValuationJob>),
    /// Archive a finished round as a blob.
    Archive(Box<ArchiveJob>),
    /// Send a transaction to the ledger.
    Ledger(Box<LedgerJob>),
}

impl EffectJob {
    /// The job of an effect; `None` if the effect is obsolete.
    #[must_use]
    pub fn from_effect(engine: &Engine, effect: Effect) -> Option<Self> {
        let tasks = &engine.state().tasks;
        let job = match effect {
            Effect::DiscloseRows { task, round } => {
                let state = tasks.get(&task)?;
                let (spec, holdout) = (state.spec.clone(), state.holdout?);
                let drawn = state.running()?.drawn_rows.clone();
                return Some(Self::Disclose(Box::new(DisclosureJob {
                    task,
                    round,
                    spec,
                    holdout,
                    drawn_rows: drawn,
                })));
            }
            Effect::ValueRound { task, round } => {
                let state = tasks.get(&task)?;
                let running = state.running()?;
                let (order, drawn) = (running.work_order.clone()?, running.drawn_rows.clone());
                let records = running.records.clone();
                let job = ValuationJob {
                    task,
                    round,
                    spec: state.spec.clone(),
                    order,
                    drawn_rows: drawn,
                    records,
                };
                return Some(Self::Value(Box::new(job)));
            }
            Effect::PostSettlement { task, round } => {
                let state = tasks.get(&task)?;
                let past = state.reported_round(round)?;
                let earlier = state.pending_settlements.range(..round).next_back();
                let before = earlier.and_then(|(round, _)| state.reported_round(*round));
                let before =
                    before.map(|past| (past.report.scope.round, past.report.settlement_id));
                LedgerJob::Post {
                    settlement: Settlement::from_report(&past.report, past.digest),
                    predecessor: before,
                }
            }
            Effect::FinalizeSettlement { task, round } => {
                let payout = tasks.get(&task)?.reported_round(round)?.report.settlement_id;
                LedgerJob::Finalize { task, round, payout }
            }
            Effect::CloseTask { task } => LedgerJob::Close { task },
            Effect::ReturnBond { task } => LedgerJob::ReturnBond { task },
            Effect::ProveDebits { task, round } => {
                let state = tasks.get(&task)?;
                let standings = state.final_totals.clone().filter(|known| known.round == round)?;
                LedgerJob::Prove(UnprovenDebits::new(
                    standings,
                    state.accounts_with_unproven_debits(),
                ))
            }
            Effect::ArchiveRound { task, round } => {
                let past = Box::new(tasks.get(&task)?.reported_round(round)?.clone());
                return Some(Self::Archive(Box::new(ArchiveJob {
                    task,
                    round,
                    reported_round: past,
                })));
            }
        };
        Some(Self::Ledger(Box::new(job)))
    }
}
